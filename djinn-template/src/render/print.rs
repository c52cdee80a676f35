//! Values as text: Python's `str` and `repr`.

use super::Renderer;
use crate::error::Fault;
use crate::functions::Object;
use crate::numbers::float;
use crate::text::{Text, TextBuilder};
use crate::value::{Key, Kind, Seq, SeqKind, Value};

impl Renderer<'_> {
    /// Appends what `{{ value }}` prints.
    pub(crate) fn write(&self, out: &mut TextBuilder, value: &Value) -> Result<(), Fault> {
        match &value.0 {
            Kind::Undefined(_) => Ok(()),
            Kind::Str(text) => out.text(&self.budget, text),
            _ => self.repr(out, value),
        }
    }

    /// The text that `{{ value }}` prints.
    pub(crate) fn string(&self, value: &Value) -> Result<Value, Fault> {
        if let Kind::Str(_) = value.0 {
            return Ok(value.clone());
        }
        let mut out = TextBuilder::default();
        self.write(&mut out, value)?;
        self.made(out)
    }

    /// Appends Python's `repr`.
    pub(crate) fn repr(&self, out: &mut TextBuilder, value: &Value) -> Result<(), Fault> {
        let budget = &self.budget;
        budget.work(10)?;
        match &value.0 {
            Kind::Undefined(_) => out.plain(budget, "Undefined"),
            Kind::None => out.plain(budget, "None"),
            Kind::Bool(value) => out.plain(budget, if *value { "True" } else { "False" }),
            Kind::Int(value) => out.plain(budget, &value.to_string()),
            Kind::Float(value) => out.plain(budget, &float(*value)),
            Kind::Str(text) => self.quoted(out, text),
            Kind::Seq(seq) => self.repr_sequence(out, seq),
            Kind::Dict(dict) => {
                out.plain(budget, "{")?;
                self.repr_entries(out, dict.entries.iter())?;
                out.plain(budget, "}")
            }
            Kind::Object(at) => match &self.objects[*at] {
                Object::Namespace(entries) => {
                    // A namespace may hold itself.
                    budget.enter()?;
                    out.plain(budget, "<Namespace {")?;
                    self.repr_entries(out, entries.iter())?;
                    out.plain(budget, "}>")?;
                    budget.leave();
                    Ok(())
                }
                Object::Joiner { .. } => Err(unprintable(value)),
            },
            Kind::Loop(_) | Kind::Macro(_) | Kind::Function(_) | Kind::Method(_) => Err(unprintable(value)),
        }
    }

    fn repr_entries<'a>(
        &self,
        out: &mut TextBuilder,
        entries: impl Iterator<Item = (&'a Key, &'a Value)>,
    ) -> Result<(), Fault> {
        for (at, (key, value)) in entries.enumerate() {
            if at > 0 {
                out.plain(&self.budget, ", ")?;
            }
            self.repr(out, &key.0)?;
            out.plain(&self.budget, ": ")?;
            self.repr(out, value)?;
        }
        Ok(())
    }

    fn repr_sequence(&self, out: &mut TextBuilder, seq: &Seq) -> Result<(), Fault> {
        let budget = &self.budget;
        let (open, close) = match &seq.kind {
            SeqKind::List => ("[", "]"),
            SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
            SeqKind::Tuple => ("(", ")"),
            SeqKind::Keys => ("dict_keys([", "])"),
            SeqKind::Values => ("dict_values([", "])"),
            SeqKind::Items => ("dict_items([", "])"),
            SeqKind::Range([start, stop, 1]) => return out.plain(budget, &format!("range({start}, {stop})")),
            SeqKind::Range([start, stop, step]) => {
                return out.plain(budget, &format!("range({start}, {stop}, {step})"));
            }
            SeqKind::Generator(_) => {
                return Err(Fault::new("a generator has no text; make it a list with `| list`"));
            }
        };
        out.plain(budget, open)?;
        for (at, item) in seq.items.iter().enumerate() {
            if at > 0 {
                out.plain(budget, ", ")?;
            }
            self.repr(out, item)?;
        }
        out.plain(budget, close)
    }

    /// A string in quotes: single ones, unless only those are in it.
    fn quoted(&self, out: &mut TextBuilder, text: &Text) -> Result<(), Fault> {
        self.budget.work(text.len() as u64 * 4)?;
        let double = text.as_str().contains('\'') && !text.as_str().contains('"');
        let quote = if double { "\"" } else { "'" };
        out.plain(&self.budget, quote)?;
        for (run, literal) in text.runs(0..text.len()) {
            let mut escaped = String::with_capacity(run.len());
            for c in run.chars() {
                escape(&mut escaped, c, double);
            }
            out.push(&self.budget, &escaped, literal)?;
        }
        out.plain(&self.budget, quote)
    }
}

fn unprintable(value: &Value) -> Fault {
    Fault::new(format!("a {} has no text", value.type_name()))
}

/// A character as `repr` writes it.
fn escape(out: &mut String, c: char, double: bool) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\'' if !double => out.push_str("\\'"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ if is_printable(c) => out.push(c),
        _ => out.push_str(&match u32::from(c) {
            code @ ..=0xff => format!("\\x{code:02x}"),
            code @ ..=0xffff => format!("\\u{code:04x}"),
            code => format!("\\U{code:08x}"),
        }),
    }
}

/// Python's `str.isprintable`: no control, separator, private or unassigned character. Rust's debug form of a
/// string escapes the same ones behind the first character.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut bytes = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut bytes[1..]).len();
    let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
    text.escape_debug().nth(1) == Some(c)
}
