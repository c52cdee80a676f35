//! Errors as one line, in the words of the command line.

#[cfg(test)]
mod tests;

use crate::Error as HostError;
use djinn_cuda::Error as CudaError;
use djinn_device::{Error as DeviceError, Space};
use djinn_engine::Error as EngineError;
use djinn_models::{Error as ModelError, printable};
use djinn_vmu::{Error as MemoryError, size};
use std::error::Error;

/// An option as the libraries' errors name it, and its flag.
type Flag = (&'static str, &'static str);

const CONTEXT: Flag = ("`context`", "--ctx");
const DEVICE: Flag = ("`device`", "--device");
const HOOK_BYTES: Flag = ("`hook_bytes`", "--hook-memory");
const PROMPT_TOKENS: Flag = ("`prompt_tokens`", "--prompt-tokens");
const RAM: Flag = ("`ram`", "--ram");
const SYSTEM: Flag = ("`system`", "--system");
const VRAM: Flag = ("`vram`", "--vram");
/// Those of a memory plan.
const PLAN: [Flag; 6] = [
    ("`chunk`", "--chunk"),
    ("`resident_fraction`", "--resident-fraction"),
    ("`ring`", "--ring"),
    CONTEXT,
    RAM,
    VRAM,
];
/// Remedies of errors about a model. Other texts of such errors quote files, which may hold the same words.
const REMEDIES: [Flag; 2] =
    [("use `dtype` bf16", "use --dtype bf16"), ("leave `encoding` out", "leave --encoding out")];

/// The error with its causes, joined in one printable line. A cause that the text already ends with is not repeated.
/// In errors of budgets and options, the libraries' options are replaced by their flags. A list of all known names is
/// printed whole.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let chain = || std::iter::successors(Some(error), |&error| error.source());
    let known = chain().find_map(known_names);
    let mut line = String::new();
    for cause in chain() {
        let text = around(&in_flags(cause), known);
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
    }
    around(&line, known)
}

/// A text about `error` as one printable line. A list of all known names is printed whole.
pub fn line_about(text: &str, error: &(dyn Error + 'static)) -> String {
    around(text, known_names(error))
}

/// The list of known names that an error ends with. It is this program's own, so that it is printable.
fn known_names<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a str> {
    match error.downcast_ref()? {
        HostError::UnknownName { known, .. } => Some(known),
        _ => None,
    }
}

/// `text` as one printable line, in which `list` is not shortened.
fn around(text: &str, list: Option<&str>) -> String {
    let Some((list, (before, after))) = list.and_then(|list| Some((list, text.split_once(list)?))) else {
        return printable::one_line(text);
    };
    let space = if before.ends_with(' ') { " " } else { "" };
    format!("{}{space}{list}{}", printable::one_line(before), printable::one_line(after))
}

fn in_flags(cause: &(dyn Error + 'static)) -> String {
    let text = cause.to_string();
    if let Some(ModelError::Unsupported { remedy, .. }) = of_model(cause) {
        let known = REMEDIES.iter().find(|(own, _)| own == remedy);
        let replaced = known.and_then(|(own, flag)| Some(format!("{}{flag}", text.strip_suffix(own)?)));
        return replaced.unwrap_or(text);
    }
    if let Some(text) = of_device(cause).and_then(out_of_memory) {
        return text;
    }
    flags(cause).iter().fold(text, |text, (option, flag)| text.replace(option, flag))
}

/// The options that an error's text may name.
fn flags(cause: &(dyn Error + 'static)) -> &'static [Flag] {
    if let Some(DeviceError::Resource { .. }) = of_device(cause) {
        return &[RAM];
    }
    if of_plan(cause).is_some() {
        return &PLAN;
    }
    match cause.downcast_ref() {
        Some(HostError::Gpu { .. }) => return &[DEVICE],
        Some(HostError::NoTokenizer { .. }) => return &[PROMPT_TOKENS],
        Some(HostError::NoTemplate { .. } | HostError::SystemIgnored { .. }) => return &[SYSTEM],
        _ => {}
    }
    match of_engine(cause) {
        Some(EngineError::ContextFull { .. } | EngineError::ContextTooLong { .. }) => return &[CONTEXT],
        Some(EngineError::HookMemory { .. } | EngineError::Intervention { .. }) => return &[HOOK_BYTES],
        _ => {}
    }
    if cause.is::<CudaError>() { &[DEVICE, RAM, VRAM] } else { &[] }
}

fn of_model<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a ModelError> {
    match cause.downcast_ref() {
        Some(HostError::Model(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

fn of_engine<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a EngineError> {
    match cause.downcast_ref() {
        Some(HostError::Engine(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

fn of_memory<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a MemoryError> {
    match of_engine(cause) {
        Some(EngineError::Memory(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

/// An error of a memory plan's budgets.
fn of_plan<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a MemoryError> {
    use MemoryError::{BudgetTooSmall, ChunkTooSmall, Fraction, HostBudgetTooSmall, RingTooSmall};
    of_memory(cause).filter(|error| {
        matches!(
            error,
            BudgetTooSmall { .. }
                | HostBudgetTooSmall { .. }
                | ChunkTooSmall { .. }
                | RingTooSmall { .. }
                | Fraction(..)
        )
    })
}

fn of_device<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a DeviceError> {
    match of_engine(cause) {
        Some(EngineError::Device(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}

/// Memory that could not be had, in units. Without a limit, none is named.
fn out_of_memory(error: &DeviceError) -> Option<String> {
    let DeviceError::OutOfMemory { space, requested_bytes, in_use_bytes, limit_bytes } = error else {
        return None;
    };
    let space = match space {
        Space::Device => "device",
        Space::Host => "host",
    };
    let limit = match *limit_bytes {
        u64::MAX => String::new(),
        limit => format!(" of {}", size::human(limit)),
    };
    let [requested, in_use] = [*requested_bytes, *in_use_bytes].map(size::human);
    Some(format!("out of {space} memory: {requested} requested, {in_use}{limit} in use"))
}
