//! Values as text: Python's `str` and `repr`.

use super::Renderer;
use crate::budget::FLOAT;
use crate::error::{Eval, refuse};
use crate::functions::Object;
use crate::numbers::float;
use crate::text::{Text, TextBuilder, push_hex};
use crate::value::{Key, Kind, Seq, SeqKind, Value};
use std::sync::Arc;

impl Renderer<'_> {
    /// Appends what `{{ value }}` prints.
    pub(crate) fn write(&self, out: &mut TextBuilder<'_>, value: &Value) -> Eval<()> {
        match &value.0 {
            Kind::Undefined(_) => Ok(()),
            Kind::Str(text) => out.text(text),
            _ => self.repr(out, value),
        }
    }

    /// The text that `{{ value }}` prints.
    pub(crate) fn printed(&self, value: &Value) -> Eval<Arc<Text>> {
        if let Kind::Str(text) = &value.0 {
            return Ok(text.clone());
        }
        let mut out = self.builder();
        self.write(&mut out, value)?;
        self.budget.items::<u8>(0)?;
        Ok(Arc::new(out.finish()))
    }

    /// Appends Python's `repr`.
    pub(crate) fn repr(&self, out: &mut TextBuilder<'_>, value: &Value) -> Eval<()> {
        self.budget.work(10)?;
        match &value.0 {
            Kind::Undefined(_) => out.plain("Undefined"),
            Kind::None => out.plain("None"),
            Kind::Bool(value) => out.plain(if *value { "True" } else { "False" }),
            Kind::Int(value) => out.plain(&value.to_string()),
            Kind::Float(value) => {
                self.budget.work(FLOAT)?;
                out.plain(&float(*value))
            }
            Kind::Str(text) => self.quoted(out, text),
            Kind::Seq(seq) => self.repr_sequence(out, seq),
            Kind::Dict(dict) => self.repr_entries(out, "{", dict.entries.iter(), "}"),
            Kind::Object(at) => match &self.objects[*at] {
                // A namespace may hold itself.
                Object::Namespace(entries) => {
                    self.budget.deeper(|| self.repr_entries(out, "<Namespace {", entries.iter(), "}>"))
                }
                Object::Joiner { .. } => refuse!("a joiner has no text"),
            },
            Kind::Loop(_) | Kind::Macro(_) | Kind::Function(_) | Kind::Method(_) => {
                refuse!("a {} has no text", value.type_name())
            }
        }
    }

    fn repr_entries<'a>(
        &self,
        out: &mut TextBuilder<'_>,
        open: &str,
        entries: impl Iterator<Item = (&'a Key, &'a Value)>,
        close: &str,
    ) -> Eval<()> {
        out.plain(open)?;
        for (at, (key, value)) in entries.enumerate() {
            out.plain(if at > 0 { ", " } else { "" })?;
            self.repr(out, &key.0)?;
            out.plain(": ")?;
            self.repr(out, value)?;
        }
        out.plain(close)
    }

    fn repr_sequence(&self, out: &mut TextBuilder<'_>, seq: &Seq) -> Eval<()> {
        let (open, close) = match &seq.kind {
            SeqKind::List => ("[", "]"),
            SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
            SeqKind::Tuple => ("(", ")"),
            SeqKind::Keys => ("dict_keys([", "])"),
            SeqKind::Values => ("dict_values([", "])"),
            SeqKind::Items => ("dict_items([", "])"),
            SeqKind::Range([start, stop, 1]) => return out.plain(&format!("range({start}, {stop})")),
            SeqKind::Range([start, stop, step]) => {
                return out.plain(&format!("range({start}, {stop}, {step})"));
            }
            SeqKind::Generator(_) => return refuse!("a generator has no text; make it a list with `| list`"),
        };
        out.plain(open)?;
        for (at, item) in seq.items.iter().enumerate() {
            out.plain(if at > 0 { ", " } else { "" })?;
            self.repr(out, item)?;
        }
        out.plain(close)
    }

    /// A string in quotes: single ones, unless only those are in it.
    fn quoted(&self, out: &mut TextBuilder<'_>, text: &Text) -> Eval<()> {
        let double = text.as_str().contains('\'') && !text.as_str().contains('"');
        let quote = if double { "\"" } else { "'" };
        // Of each character it is found out whether it prints.
        self.budget.work(text.len() as u64 * 32)?;
        out.plain(quote)?;
        out.chars(text, |out, c| escape(out, c, double))?;
        out.plain(quote)
    }
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
        _ => {
            let (front, digits) = match u32::from(c) {
                0..=0xff => ("\\x", 2),
                0x100..=0xffff => ("\\u", 4),
                _ => ("\\U", 8),
            };
            out.push_str(front);
            push_hex(out, c.into(), digits);
        }
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
