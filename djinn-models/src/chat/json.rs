//! The filter `tojson` as Python's `json.dumps(value, ensure_ascii=False)` writes it.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 64;
/// Widest indentation.
const MAX_INDENT: usize = 16;

/// The value as JSON in its own order: `, ` and `: ` between items, or one item a line with `indent`.
/// Nothing is escaped beyond what JSON itself asks for.
pub(super) fn python(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(failed(format!("tojson indents by at most {MAX_INDENT}")));
    }
    let mut out = String::new();
    write(&mut out, value, indent, 0)?;
    Ok(out)
}

fn failed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

fn write(out: &mut String, value: &Value, indent: Option<usize>, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(failed("tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => out.push_str(&quoted(value.as_str().unwrap_or_default())),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut first = true;
            out.push('[');
            for item in value.try_iter()? {
                separate(out, std::mem::take(&mut first), indent, depth + 1);
                write(out, &item, indent, depth + 1)?;
            }
            close(out, ']', first, indent, depth);
        }
        ValueKind::Map => {
            let mut first = true;
            out.push('{');
            for key in value.try_iter()? {
                separate(out, std::mem::take(&mut first), indent, depth + 1);
                out.push_str(&quoted(&key.to_string()));
                out.push_str(": ");
                write(out, &value.get_item(&key)?, indent, depth + 1)?;
            }
            close(out, '}', first, indent, depth);
        }
        other => return Err(failed(format!("tojson: a value of kind {other} is no JSON"))),
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn separate(out: &mut String, first: bool, indent: Option<usize>, depth: usize) {
    match (first, indent) {
        (true, _) => {}
        (false, None) => out.push_str(", "),
        (false, Some(_)) => out.push(','),
    }
    line(out, indent, depth);
}

fn close(out: &mut String, bracket: char, empty: bool, indent: Option<usize>, depth: usize) {
    if !empty {
        line(out, indent, depth);
    }
    out.push(bracket);
}

fn line(out: &mut String, indent: Option<usize>, depth: usize) {
    if let Some(indent) = indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * depth));
    }
}
