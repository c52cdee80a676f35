//! Filters of text. What is no text is printed first.

use super::sequences::Look;
use crate::arguments::Given;
use crate::error::{Eval, Fault, refuse};
use crate::methods::strings::{lines, pad_to, replace as replaced};
use crate::render::Renderer;
use crate::text::{Text, TextBuilder};
use crate::value::{Kind, Value};
use std::sync::Arc;

pub(super) fn replace(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (old, new) = (r.printed(&given.required("old")?)?, r.printed(&given.required("new")?)?);
    let limit = if given.some("count").is_some() { given.limit("count")? } else { usize::MAX };
    replaced(r, &*r.printed(value)?, old.as_str(), &new, limit)
}

/// The lines after the first one moved to the right, with `first` that one as well, with `blank` empty ones too.
pub(super) fn indent(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (first, blank) = (given.is_set("first"), given.is_set("blank"));
    let margin = match given.value("width") {
        Some(Value(Kind::Str(margin))) => margin,
        _ => spaces(r, given.count("width", 4)?)?.into(),
    };
    let text = r.printed(value)?;
    r.budget.bytes(text.len())?;
    // Jinja appends an end of line, which opens one more where the text ends in one.
    let found = lines(r.budget, &format!("{}\n", text.as_str()), false)?;
    let mut out = r.builder();
    for (at, line) in found.into_iter().enumerate() {
        if at > 0 {
            out.plain("\n")?;
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.text(&margin)?;
        }
        out.range(&text, line)?;
    }
    out.value()
}

/// A margin.
pub(crate) fn spaces(r: &Renderer<'_>, width: usize) -> Eval<Text> {
    r.budget.bytes(width)?;
    Ok(Text::plain(" ".repeat(width)))
}

pub(super) fn join(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let separator = given.value("d").map_or_else(|| Ok(Arc::default()), |separator| r.printed(&separator))?;
    let look = Look::at_attribute(given);
    let mut out = r.builder();
    for (at, item) in r.taken(value)?.iter().enumerate() {
        if at > 0 {
            out.text(&separator)?;
        }
        r.budget.work(30)?;
        r.write(&mut out, &look.at(r, item)?)?;
    }
    out.value()
}

pub(super) fn format(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let args = given.any.clone();
    let values = match args.named.is_empty() {
        true => Value::tuple(r.budget, args.positional)?,
        false => args.mapping(r.budget)?,
    };
    crate::format::percent(r, &*r.printed(value)?, &values)
}

/// Text that is HTML already, as the template says.
pub(super) fn safe(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    let mut out = r.builder();
    out.markup = true;
    out.text(&*r.printed(value)?)?;
    out.value()
}

/// `escape`, which leaves what is HTML already, and `forceescape`.
pub(super) fn escape_filter(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    if value.as_text().is_some_and(|text| text.markup) && given.callee != "forceescape" {
        return Ok(value.clone());
    }
    let mut out = r.builder();
    out.markup = true;
    escape(&mut out, &*r.printed(value)?)?;
    out.value()
}

/// Appends text with HTML's escapes. They are a template's own choice; nothing is escaped by itself.
pub(crate) fn escape(out: &mut TextBuilder<'_>, text: &Text) -> Eval<()> {
    out.chars(text, |out, c| match c {
        '&' => *out += "&amp;",
        '<' => *out += "&lt;",
        '>' => *out += "&gt;",
        '\'' => *out += "&#39;",
        '"' => *out += "&#34;",
        _ => out.push(c),
    })
}

pub(super) fn urlencode(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    if matches!(value.0, Kind::Dict(_) | Kind::Seq(_)) {
        return Err(Fault::Unsupported("urlencode of what is no text".into()));
    }
    let text = r.printed(value)?;
    r.budget.work(text.len() as u64 * 4)?;
    let mut out = r.builder();
    out.runs(&text, |out, run| {
        for byte in run.bytes() {
            match byte {
                b'_' | b'.' | b'-' | b'~' | b'/' => out.push(char::from(byte)),
                _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
                _ => {
                    let digit = |bits: u8| char::from_digit(bits.into(), 16).map(|c| c.to_ascii_uppercase());
                    out.push('%');
                    out.extend([byte >> 4, byte & 15].into_iter().filter_map(digit));
                }
            }
        }
    })?;
    out.value()
}

pub(super) fn wordcount(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    let text = r.printed(value)?;
    r.budget.work(text.len() as u64 * 4)?;
    let words = text.as_str().split(|c: char| !c.is_alphanumeric() && c != '_');
    Ok((words.filter(|word| !word.is_empty()).count() as i64).into())
}

pub(super) fn center(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    pad_to(r, &*r.printed(value)?, "center", given.count("width", 80)?, &Value::token(" "))
}

pub(super) fn truncate(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let end = given.value("end").unwrap_or_else(|| Value::token("..."));
    let (end, length) = (given.as_text(&end)?, given.count("length", 255)?);
    let leeway = if given.some("leeway").is_some() { given.count("leeway", 5)? } else { 5 };
    let text = r.printed(value)?;
    r.budget.work(text.len() as u64 + end.len() as u64)?;
    let all = text.as_str();
    let Some(kept) = length.checked_sub(end.as_str().chars().count()) else {
        return refuse!("truncate: {length} characters are less than the end has");
    };
    if all.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.into());
    }
    let mut kept = all.char_indices().nth(kept).map_or(all.len(), |(at, _)| at);
    if !given.is_set("killwords") {
        kept = all[..kept].rfind(' ').unwrap_or(kept);
    }
    let mut out = r.builder();
    out.range(&text, 0..kept)?;
    out.text(end)?;
    out.value()
}
