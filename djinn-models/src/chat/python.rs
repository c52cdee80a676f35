//! What Jinja's templates take from Python and minijinja does otherwise: methods, tests, filters, numbers.

use super::json;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

/// Widest margin of the filter `indent`.
const MAX_MARGIN: usize = 1000;

/// The method that templates' `[::-1]` is turned into: minijinja's own slices panic on an empty list.
pub(super) const REVERSED: &str = "__reversed__";

/// Gives an environment Python's ways.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match is_float(value) {
        true => out.write_str(&string(value)).map_err(Error::from),
        false => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", |value: Value, arguments: Rest<ValueOrKwargs>| {
        json::Style::from_arguments(&arguments.into_values()).and_then(|style| style.write(&value))
    });
    environment.add_filter("string", |value: Value| string(&value));
    environment.add_filter("trim", |value: Value, chars: Option<String>| {
        strip(&string(&value), chars.as_deref(), true, true).to_owned()
    });
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("indent", indent);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// Python's `str`.
fn string(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if is_float(value) => json::float(number),
        _ => value.to_string(),
    }
}

fn length(value: &Value) -> Result<usize, Error> {
    let unsized_kind = || failed(format!("a value of kind {} has no length", value.kind()));
    if value.is_undefined() { Ok(0) } else { value.len().ok_or_else(unsized_kind) }
}

/// The lines after the first one moved to the right, with `first` that one as well, with `blank` empty ones too.
fn indent(
    value: Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = if width.is_some() { width } else { options.get("width")? };
    let first = if first.is_some() { first } else { options.get("first")? }.unwrap_or(false);
    let blank = if blank.is_some() { blank } else { options.get("blank")? }.unwrap_or(false);
    options.assert_all_used()?;
    let margin = match &width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(width.clone())?.min(MAX_MARGIN)),
        },
    };
    let text = string(&value) + "\n";
    let mut out = String::new();
    for (at, line) in lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn default(
    value: Value,
    otherwise: Option<Value>,
    falsy: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let otherwise = match otherwise {
        Some(otherwise) => Some(otherwise),
        None => options.get("default_value")?,
    };
    let falsy = match falsy {
        Some(falsy) => falsy,
        None => options.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let replaced = value.is_undefined() || (falsy && !value.is_true());
    Ok(if replaced { otherwise.unwrap_or_else(|| Value::from("")) } else { value })
}

/// A method of a string, list or mapping. What is not here is minijinja's.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name) {
        (Some(text), "strip" | "lstrip" | "rstrip") => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(text, chars, name != "rstrip", name != "lstrip").into())
        }
        (Some(text), "split" | "rsplit") => {
            let (sep, limit, options): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = if sep.is_some() { sep } else { options.get("sep")? };
            let limit = if limit.is_some() { limit } else { options.get("maxsplit")? };
            options.assert_all_used()?;
            split(text, sep, limit.unwrap_or(-1), name == "rsplit")
        }
        (Some(text), "splitlines") => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Ok(lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect())
        }
        (Some(text), "removeprefix" | "removesuffix") => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Ok(rest.unwrap_or(text).into())
        }
        (Some(text), "partition" | "rpartition") => {
            let (sep,): (&str,) = from_args(args)?;
            let (found, missing) = match name {
                "partition" => (text.split_once(sep), [text, "", ""]),
                _ => (text.rsplit_once(sep), ["", "", text]),
            };
            let parts = found.map_or(missing, |(left, right)| [left, sep, right]);
            Ok(Value::from(minijinja::value::Tuple::from(parts.map(Value::from))))
        }
        (Some(_), "index") => {
            let at = minijinja_contrib::pycompat::unknown_method_callback(state, value, "find", args)?;
            if at == Value::from(-1) { Err(failed("substring not found")) } else { Ok(at) }
        }
        (Some(_), "join") => {
            let (items,): (&Value,) = from_args(args)?;
            match items.try_iter()?.find(|item| item.kind() != ValueKind::String) {
                Some(other) => Err(failed(format!("join: expected strings, found {}", other.kind()))),
                None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
            }
        }
        (Some(text), REVERSED) => Ok(text.chars().rev().collect::<String>().into()),
        (None, REVERSED) => value.reverse(),
        (None, "index") if value.kind() == ValueKind::Seq => {
            let (item,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|other| other == *item);
            at.map(Value::from).ok_or_else(|| failed(format!("{item} is not in the list")))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn failed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// Python's white space: Unicode's, and four separators beside it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right { text.trim_end_matches(matches) } else { text }
}

/// At most `limit` cuts unless it is negative, from the right with `from_right`. Without `sep` runs of white
/// space separate, and are dropped at the ends.
fn split(text: &str, sep: Option<&str>, limit: i64, from_right: bool) -> Result<Value, Error> {
    if sep == Some("") {
        return Err(failed("split: empty separator"));
    }
    let mut limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text;
    if sep.is_none() {
        rest = strip(rest, None, !from_right, from_right);
    }
    while limit > 0 && !(sep.is_none() && rest.is_empty()) {
        let found = match (sep, from_right) {
            (Some(sep), false) => rest.split_once(sep),
            (Some(sep), true) => rest.rsplit_once(sep),
            (None, false) => rest.split_once(is_space),
            (None, true) => rest.rsplit_once(is_space),
        };
        let Some((left, right)) = found else { break };
        let (part, others) = if from_right { (right, left) } else { (left, right) };
        parts.push(part);
        rest = if sep.is_none() { strip(others, None, !from_right, from_right) } else { others };
        limit -= 1;
    }
    if sep.is_none() {
        rest = strip(rest, None, from_right, !from_right);
    }
    if sep.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The lines, by every end of line that Python knows.
fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = rest[at..].chars().next().map_or(1, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        found.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}
