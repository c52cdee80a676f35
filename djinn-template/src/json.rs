//! The filter `tojson` as transformers defines it: Python's `json.dumps`.

use crate::arguments::Given;
use crate::budget::FLOAT;
use crate::error::{Eval, refuse};
use crate::filters::{sorted, spaces};
use crate::numbers::{float, not_finite};
use crate::render::Renderer;
use crate::text::{Text, TextBuilder, push_hex};
use crate::value::{Key, Kind, SeqKind, Value, compare};
use std::sync::Arc;

/// Writes JSON as the arguments of Python's `json.dumps` say.
struct Writer<'a, 't> {
    r: &'a Renderer<'t>,
    out: TextBuilder<'t>,
    /// What one level is indented by; everything is in one line without it.
    indent: Option<Arc<Text>>,
    between_items: Arc<Text>,
    after_key: Arc<Text>,
    ascii: bool,
    sorted: bool,
}

/// The filter. Strings keep their origin; brackets and numbers are not literal.
pub(crate) fn tojson(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let indent = match given.some("indent") {
        None => None,
        Some(Value(Kind::Str(text))) => Some(text),
        Some(_) => Some(Arc::new(spaces(r, given.count("indent", 0)?)?)),
    };
    let [between_items, after_key] = match given.some("separators") {
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(|text| Arc::new(Text::plain(text))),
        Some(two) => match r.taken(&two)?.as_slice() {
            [Value(Kind::Str(item)), Value(Kind::Str(key))] => [item.clone(), key.clone()],
            _ => return refuse!("tojson: separators must be two strings"),
        },
    };
    let (ascii, sorted) = (given.is_set("ensure_ascii"), given.is_set("sort_keys"));
    let mut writer = Writer { r, out: r.builder(), indent, between_items, after_key, ascii, sorted };
    writer.value(value, 0)?;
    writer.out.value()
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Eval<()> {
        self.r.budget.work(if matches!(value.0, Kind::Float(_)) { FLOAT } else { 10 })?;
        match &value.0 {
            Kind::Str(text) => self.text(text),
            Kind::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                self.out.plain("[")?;
                for (at, item) in seq.items.iter().enumerate() {
                    self.separate(at, depth + 1)?;
                    self.value(item, depth + 1)?;
                }
                self.close("]", seq.items.is_empty(), depth)
            }
            Kind::Dict(dict) => {
                let mut entries: Vec<(&Key, &Value)> = dict.entries.iter().collect();
                self.r.budget.items::<(&Key, &Value)>(entries.len())?;
                if self.sorted {
                    let less = |a: &(&Key, _), b: &(&Key, _)| compare(self.r.budget, "<", &a.0.0, &b.0.0);
                    entries = sorted(entries, &less)?;
                }
                self.out.plain("{")?;
                for (at, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(at, depth + 1)?;
                    match key.0.as_text() {
                        Some(text) => self.text(text)?,
                        None => self.text(&Text::plain(scalar(&key.0)?))?,
                    }
                    self.out.text(&self.after_key)?;
                    self.value(item, depth + 1)?;
                }
                self.close("}", dict.entries.is_empty(), depth)
            }
            _ => self.out.plain(&scalar(value)?),
        }
    }

    fn separate(&mut self, at: usize, depth: usize) -> Eval<()> {
        if at > 0 {
            self.out.text(&self.between_items)?;
        }
        self.line(depth)
    }

    fn close(&mut self, bracket: &str, empty: bool, depth: usize) -> Eval<()> {
        if !empty {
            self.line(depth)?;
        }
        self.out.plain(bracket)
    }

    fn line(&mut self, depth: usize) -> Eval<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        self.out.plain("\n")?;
        self.out.repeat(indent, depth)
    }

    /// A string: nothing is escaped beyond what JSON itself asks for, unless all is to be ASCII.
    fn text(&mut self, text: &Text) -> Eval<()> {
        let ascii = self.ascii;
        self.out.plain("\"")?;
        self.out.chars(text, |out, c| match c {
            '"' => *out += "\\\"",
            '\\' => *out += "\\\\",
            '\n' => *out += "\\n",
            '\r' => *out += "\\r",
            '\t' => *out += "\\t",
            '\u{8}' => *out += "\\b",
            '\u{c}' => *out += "\\f",
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    *out += "\\u";
                    push_hex(out, (*unit).into(), 4);
                }
            }
            c => out.push(c),
        })?;
        self.out.plain("\"")
    }
}

/// `null`, a boolean, or a number as Python writes it.
fn scalar(value: &Value) -> Eval<String> {
    Ok(match value.0 {
        Kind::None => "null".to_owned(),
        Kind::Bool(value) => value.to_string(),
        Kind::Int(value) => value.to_string(),
        Kind::Float(value) => match not_finite(value) {
            Some("nan") => "NaN".to_owned(),
            Some("inf") => "Infinity".to_owned(),
            Some(_) => "-Infinity".to_owned(),
            None => float(value),
        },
        _ => return refuse!("Object of type {} is not JSON serializable", value.type_name()),
    })
}
