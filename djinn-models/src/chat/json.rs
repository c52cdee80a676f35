//! The filter `tojson` as transformers defines it: Python's `json.dumps`.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};

/// Deepest nesting that is written.
const MAX_DEPTH: usize = 64;
/// Widest indentation.
const MAX_INDENT: usize = 16;

/// An argument that may be left out.
type Arg = Option<Value>;

/// How JSON is written: the arguments of Python's `json.dumps`.
pub(super) struct Style {
    /// What one level is indented by; everything is in one line without it.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    ascii: bool,
    sorted: bool,
}

impl Style {
    /// Reads the filter's arguments, by name or in this order: `ensure_ascii` (off by default, as transformers
    /// has it), `indent` as a number of spaces or as text, `separators`, `sort_keys`.
    pub(super) fn from_arguments(arguments: &[Value]) -> Result<Self, Error> {
        let (options, given) = match arguments.split_last() {
            Some((last, given)) if last.is_kwargs() => (last.clone(), given),
            _ => (Value::UNDEFINED, arguments),
        };
        let options = Kwargs::try_from(options)?;
        let (ascii, indent, separators, sorted): (Arg, Arg, Arg, Arg) = from_args(given)?;
        let named = |given: Arg, name: &str| -> Result<Arg, Error> {
            let value = if given.is_some() { given } else { options.get(name)? };
            Ok(value.filter(|value| !value.is_none()))
        };
        let ascii = named(ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
        let sorted = named(sorted, "sort_keys")?.is_some_and(|value| value.is_true());
        let (indent, separators) = (named(indent, "indent")?, named(separators, "separators")?);
        options.assert_all_used()?;
        let indent = match indent {
            Some(value) => Some(match value.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(usize::try_from(value)?.min(MAX_INDENT + 1)),
            }),
            None => None,
        };
        if indent.as_ref().is_some_and(|indent| indent.len() > MAX_INDENT) {
            return Err(failed(format!("tojson indents by at most {MAX_INDENT}")));
        }
        let between = if indent.is_some() { "," } else { ", " };
        let [between_items, after_key] = match separators {
            None => [between.to_owned(), ": ".to_owned()],
            Some(two) => {
                let two: Vec<String> = two.try_iter()?.map(|text| text.to_string()).collect();
                two.try_into().map_err(|_| failed("tojson takes two separators"))?
            }
        };
        Ok(Self { indent, between_items, after_key, ascii, sorted })
    }

    /// The value as JSON.
    pub(super) fn write(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(&mut out, value, 0)?;
        Ok(out)
    }

    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(failed("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::String => self.text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.open(out, '[', items.is_empty(), depth);
                for (at, item) in items.iter().enumerate() {
                    self.separate(out, at, depth + 1);
                    self.value(out, item, depth + 1)?;
                }
                self.close(out, ']', items.is_empty(), depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.open(out, '{', keys.is_empty(), depth);
                for (at, key) in keys.iter().enumerate() {
                    self.separate(out, at, depth + 1);
                    match key.as_str() {
                        Some(text) => self.text(out, text),
                        None => self.text(out, &scalar(key)),
                    }
                    out.push_str(&self.after_key);
                    self.value(out, &value.get_item(key)?, depth + 1)?;
                }
                self.close(out, '}', keys.is_empty(), depth);
            }
            other => return Err(failed(format!("tojson: a value of kind {other} is no JSON"))),
        }
        Ok(())
    }

    /// A string: nothing is escaped beyond what JSON itself asks for, unless all is to be ASCII.
    fn text(&self, out: &mut String, text: &str) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            match c {
                ..='\u{7f}' => out.push(c),
                _ => {
                    let mut units = [0; 2];
                    out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
                }
            }
        }
    }

    fn open(&self, out: &mut String, bracket: char, empty: bool, depth: usize) {
        out.push(bracket);
        if !empty {
            self.line(out, depth + 1);
        }
    }

    fn separate(&self, out: &mut String, at: usize, depth: usize) {
        if at > 0 {
            out.push_str(&self.between_items);
            self.line(out, depth);
        }
    }

    fn close(&self, out: &mut String, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(out, depth);
        }
        out.push(bracket);
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }
}

/// `null`, a boolean, or a number as Python writes it.
fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.to_owned(),
        _ if value.is_integer() => value.to_string(),
        _ => match f64::try_from(value.clone()) {
            Ok(number) if number.is_nan() => "NaN".to_owned(),
            Ok(number) if number.is_infinite() => {
                if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
            }
            Ok(number) => float(number),
            Err(_) => value.to_string(),
        },
    }
}

/// A float as Python's `repr`: the shortest digits that read back, with an exponent from 1e16 on and below
/// 1e-4.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let shown = format!("{number:e}");
    let (digits, exponent) = shown.split_once('e').unwrap_or((&shown, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

fn failed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}
