//! Errors as one line, in the words of the command line.

#[cfg(test)]
mod tests;

use djinn_models::printable;
use std::error::Error;

/// Fields in the libraries' errors, and the flags that set them.
const FLAGS: [(&str, &str); 11] = [
    ("`chunk`", "--chunk"),
    ("`context`", "--ctx"),
    ("`device`", "--device"),
    ("`dtype`", "--dtype"),
    ("`hook_bytes`", "--hook-memory"),
    ("`prompt_tokens`", "--prompt-tokens"),
    ("`ram`", "--ram"),
    ("`resident_fraction`", "--resident-fraction"),
    ("`ring`", "--ring"),
    ("`system`", "--system"),
    ("`vram`", "--vram"),
];

/// The error with its causes, joined in one printable line. A cause that the text already ends with is not repeated.
/// Fields of the libraries are replaced by their flags.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for cause in std::iter::successors(Some(error), |&error| error.source()) {
        let text = printable::one_line(&in_flags(cause));
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
    }
    printable::one_line(&line)
}

fn in_flags(cause: &(dyn Error + 'static)) -> String {
    let text = cause.to_string();
    let of_a_library = cause.is::<crate::Error>()
        || cause.is::<djinn_engine::Error>()
        || cause.is::<djinn_models::Error>()
        || cause.is::<djinn_cuda::Error>();
    if !of_a_library {
        return text;
    }
    FLAGS.iter().fold(text, |text, (field, flag)| text.replace(field, flag))
}
