//! The filter `tojson` as transformers defines it: Python's `json.dumps`.

use crate::error::Fault;
use crate::numbers::{float, not_finite};
use crate::operators::integer;
use crate::render::{Args, Renderer};
use crate::text::{Text, TextBuilder};
use crate::value::{Key, Kind, SeqKind, Value, truth};

/// How JSON is written: the arguments of Python's `json.dumps`.
struct Style {
    /// What one level is indented by; everything is in one line without it.
    indent: Option<Text>,
    between_items: Text,
    after_key: Text,
    ascii: bool,
    sorted: bool,
}

/// The filter. Strings keep their origin; brackets and numbers are not literal.
pub(crate) fn tojson(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let style = Style::new(r, args)?;
    let mut writer = Writer { r, style, out: TextBuilder::default() };
    writer.value(value, 0)?;
    let out = writer.out;
    r.made(out)
}

impl Style {
    fn new(r: &Renderer<'_>, args: Args) -> Result<Self, Fault> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [ascii, indent, separators, sorted] = args.bind("tojson", names)?;
        let given = |value: Option<Value>| value.filter(|value| !value.is_none());
        let is_set = |value: Option<Value>| value.is_some_and(|value| truth(&value));
        let indent = match given(indent) {
            None => None,
            Some(Value(Kind::Str(text))) => Some((*text).clone()),
            Some(value) => {
                let Some(width) = integer(&value) else {
                    return Err(Fault::new("tojson: indent is no number"));
                };
                let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
                r.budget.bytes(width)?;
                Some(Text::plain(" ".repeat(width)))
            }
        };
        let between = if indent.is_some() { "," } else { ", " };
        let [between_items, after_key] = match given(separators) {
            None => [Text::plain(between), Text::plain(": ")],
            Some(two) => match r.taken(&two)?.as_slice() {
                [Value(Kind::Str(item)), Value(Kind::Str(key))] => [(**item).clone(), (**key).clone()],
                _ => return Err(Fault::new("tojson: separators must be two strings")),
            },
        };
        Ok(Self { indent, between_items, after_key, ascii: is_set(ascii), sorted: is_set(sorted) })
    }
}

struct Writer<'a, 't> {
    r: &'a Renderer<'t>,
    style: Style,
    out: TextBuilder,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Fault> {
        self.r.budget.work(10)?;
        match &value.0 {
            Kind::Str(text) => self.text(text),
            Kind::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                self.plain("[")?;
                for (at, item) in seq.items.iter().enumerate() {
                    self.separate(at, depth + 1)?;
                    self.value(item, depth + 1)?;
                }
                self.close("]", seq.items.is_empty(), depth)
            }
            Kind::Dict(dict) => {
                let mut entries: Vec<(&Key, &Value)> = dict.entries.iter().collect();
                self.r.budget.items::<(&Key, &Value)>(entries.len())?;
                if self.style.sorted {
                    entries = self.sorted(entries)?;
                }
                self.plain("{")?;
                for (at, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(at, depth + 1)?;
                    match key.0.as_text() {
                        Some(text) => self.text(text)?,
                        None => self.text(&Text::plain(scalar(&key.0)?))?,
                    }
                    self.out.text(&self.r.budget, &self.style.after_key)?;
                    self.value(item, depth + 1)?;
                }
                self.close("}", dict.entries.is_empty(), depth)
            }
            _ => self.plain(&scalar(value)?),
        }
    }

    fn sorted<'v>(&self, entries: Vec<(&'v Key, &'v Value)>) -> Result<Vec<(&'v Key, &'v Value)>, Fault> {
        crate::filters::sorted(entries, |a, b| {
            crate::value::less(&self.r.budget, &a.0.0, &b.0.0, "<", |order| order.is_lt())
        })
    }

    fn plain(&mut self, text: &str) -> Result<(), Fault> {
        self.out.plain(&self.r.budget, text)
    }

    fn separate(&mut self, at: usize, depth: usize) -> Result<(), Fault> {
        if at > 0 {
            self.out.text(&self.r.budget, &self.style.between_items)?;
        }
        self.line(depth)
    }

    fn close(&mut self, bracket: &str, empty: bool, depth: usize) -> Result<(), Fault> {
        if !empty {
            self.line(depth)?;
        }
        self.plain(bracket)
    }

    fn line(&mut self, depth: usize) -> Result<(), Fault> {
        let Some(indent) = &self.style.indent else { return Ok(()) };
        self.out.plain(&self.r.budget, "\n")?;
        self.out.repeat(&self.r.budget, indent, depth)
    }

    /// A string: nothing is escaped beyond what JSON itself asks for, unless all is to be ASCII.
    fn text(&mut self, text: &Text) -> Result<(), Fault> {
        self.r.budget.work(text.len() as u64 * 4)?;
        self.plain("\"")?;
        for (run, literal) in text.runs(0..text.len()) {
            let mut escaped = String::with_capacity(run.len());
            for c in run.chars() {
                match c {
                    '"' => escaped.push_str("\\\""),
                    '\\' => escaped.push_str("\\\\"),
                    '\n' => escaped.push_str("\\n"),
                    '\r' => escaped.push_str("\\r"),
                    '\t' => escaped.push_str("\\t"),
                    '\u{8}' => escaped.push_str("\\b"),
                    '\u{c}' => escaped.push_str("\\f"),
                    c if c < ' ' || (self.style.ascii && !c.is_ascii()) => {
                        let mut units = [0; 2];
                        let units = c.encode_utf16(&mut units).iter();
                        escaped.extend(units.map(|unit| format!("\\u{unit:04x}")));
                    }
                    c => escaped.push(c),
                }
            }
            self.out.push(&self.r.budget, &escaped, literal)?;
        }
        self.plain("\"")
    }
}

/// `null`, a boolean, or a number as Python writes it.
fn scalar(value: &Value) -> Result<String, Fault> {
    Ok(match value.0 {
        Kind::None => "null".to_owned(),
        Kind::Bool(value) => if value { "true" } else { "false" }.to_owned(),
        Kind::Int(value) => value.to_string(),
        Kind::Float(value) => match not_finite(value) {
            Some("nan") => "NaN".to_owned(),
            Some("inf") => "Infinity".to_owned(),
            Some(_) => "-Infinity".to_owned(),
            None => float(value),
        },
        _ => {
            return Err(Fault::new(format!("Object of type {} is not JSON serializable", value.type_name())));
        }
    })
}
