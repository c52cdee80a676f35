//! Filters of text. What is no text is printed first.

use super::{count_of, is_set};
use crate::error::Fault;
use crate::methods::strings::{change_case, lines, replace as replaced, strip};
use crate::render::{Args, Renderer};
use crate::text::{Text, TextBuilder};
use crate::value::{Kind, Value};
use std::sync::Arc;

/// The text that a value prints.
fn text(r: &Renderer<'_>, value: &Value) -> Result<Arc<Text>, Fault> {
    match r.string(value)?.0 {
        Kind::Str(text) => Ok(text),
        _ => Err(Fault::new("not a string")),
    }
}

pub(super) fn case(r: &mut Renderer<'_>, value: &Value, args: Args, name: &str) -> Result<Value, Fault> {
    let [] = args.bind(name, [])?;
    change_case(r, &*text(r, value)?, name)
}

/// Words begin behind white space, `-` and opening brackets.
pub(super) fn title(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("title", [])?;
    let text = text(r, value)?;
    r.budget.work(text.len() as u64 * 8)?;
    let mut out = TextBuilder::default();
    let mut begins = true;
    for (run, literal) in text.runs(0..text.len()) {
        let mut changed = String::with_capacity(run.len());
        for c in run.chars() {
            if begins {
                changed.extend(c.to_uppercase());
            } else {
                changed.extend(c.to_lowercase());
            }
            begins = crate::methods::is_space(c) || "-({[<".contains(c);
        }
        out.push(&r.budget, &changed, literal)?;
    }
    r.made(out)
}

pub(super) fn trim(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [chars] = args.bind("trim", ["chars"])?;
    let chars = chars.filter(|value| !value.is_none());
    let chars = match &chars {
        None => None,
        Some(Value(Kind::Str(chars))) => Some(chars.as_str()),
        Some(_) => return Err(Fault::new("strip arg must be None or str")),
    };
    strip(r, &*text(r, value)?, chars, true, true)
}

pub(super) fn replace(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [old, new, limit] = args.bind("replace", ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Fault::new("replace needs an old and a new text"));
    };
    let limit = limit.filter(|value| !value.is_none());
    let limit = if limit.is_some() { count_of(limit, 0)? as i128 } else { -1 };
    let (old, new) = (r.string(&old)?, r.string(&new)?);
    replaced(r, &*text(r, value)?, &old, &new, limit)
}

/// The lines after the first one moved to the right, with `first` that one as well, with `blank` empty ones too.
pub(super) fn indent(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (is_set(first), is_set(blank));
    let margin = match width {
        Some(Value(Kind::Str(margin))) => margin,
        width => {
            let width = count_of(width, 4)?;
            r.budget.bytes(width)?;
            Arc::new(Text::plain(" ".repeat(width)))
        }
    };
    let text = text(r, value)?;
    let mut out = TextBuilder::default();
    r.budget.work(text.len() as u64)?;
    let mut found = lines(text.as_str(), false);
    // Jinja appends an end of line, which opens one more.
    if text.as_str().is_empty()
        || lines(text.as_str(), true).last().is_some_and(|last| {
            last.end == text.len() && found.last().is_some_and(|bare| bare.end < last.end)
        })
    {
        found.push(text.len()..text.len());
    }
    r.budget.items::<[usize; 2]>(found.len())?;
    for (at, line) in found.into_iter().enumerate() {
        if at > 0 {
            out.plain(&r.budget, "\n")?;
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.text(&r.budget, &margin)?;
        }
        out.range(&r.budget, &text, line)?;
    }
    r.made(out)
}

pub(super) fn join(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.unwrap_or_else(|| Value::token(""));
    let separator = text(r, &separator)?;
    let mut items = r.taken(value)?;
    if let Some(attribute) = attribute.filter(|value| !value.is_none()) {
        let named = vec![(Arc::new(Text::plain("attribute")), attribute)];
        let list = Value::list(&r.budget, items)?;
        let looked = super::sequences::map(r, &list, Args { positional: Vec::new(), named })?;
        items = r.taken(&looked)?;
    }
    let mut out = TextBuilder::default();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.text(&r.budget, &separator)?;
        }
        r.budget.work(10)?;
        r.write(&mut out, item)?;
    }
    r.made(out)
}

pub(super) fn format(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let text = text(r, value)?;
    let values = match args.named.is_empty() {
        true => Value::tuple(&r.budget, args.positional)?,
        false => {
            let pairs = args.named.into_iter().map(|(name, value)| (Value(Kind::Str(name)), value));
            Value::from_pairs(pairs).map_err(|error| Fault::new(error.to_string()))?
        }
    };
    crate::format::percent(r, &text, &values)
}

/// Text that is HTML already, as the template says.
pub(super) fn safe(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("safe", [])?;
    let text = text(r, value)?;
    let mut out = TextBuilder::marked(true);
    out.text(&r.budget, &text)?;
    r.made(out)
}

pub(super) fn escape_filter(
    r: &mut Renderer<'_>,
    value: &Value,
    args: Args,
    again: bool,
) -> Result<Value, Fault> {
    let [] = args.bind("escape", [])?;
    if value.as_text().is_some_and(|text| text.markup) && !again {
        return Ok(value.clone());
    }
    let text = r.string(value)?;
    let mut out = TextBuilder::marked(true);
    escape(r, &mut out, &text)?;
    r.made(out)
}

/// Appends text with HTML's escapes. They are a template's own choice; nothing is escaped by itself.
pub(crate) fn escape(r: &Renderer<'_>, out: &mut TextBuilder, value: &Value) -> Result<(), Fault> {
    let Some(text) = value.as_text() else { return Ok(()) };
    r.budget.work(text.len() as u64 * 4)?;
    for (run, literal) in text.runs(0..text.len()) {
        let mut escaped = String::with_capacity(run.len());
        for c in run.chars() {
            match c {
                '&' => escaped.push_str("&amp;"),
                '<' => escaped.push_str("&lt;"),
                '>' => escaped.push_str("&gt;"),
                '\'' => escaped.push_str("&#39;"),
                '"' => escaped.push_str("&#34;"),
                c => escaped.push(c),
            }
        }
        out.push(&r.budget, &escaped, literal)?;
    }
    Ok(())
}

pub(super) fn urlencode(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("urlencode", [])?;
    if matches!(value.0, Kind::Dict(_) | Kind::Seq(_)) {
        return Err(Fault::Unsupported("urlencode of what is no text".into()));
    }
    let text = text(r, value)?;
    r.budget.work(text.len() as u64 * 8)?;
    let mut out = TextBuilder::default();
    for (run, literal) in text.runs(0..text.len()) {
        let mut encoded = String::with_capacity(run.len());
        for byte in run.bytes() {
            if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
        out.push(&r.budget, &encoded, literal)?;
    }
    r.made(out)
}

pub(super) fn wordcount(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("wordcount", [])?;
    let text = text(r, value)?;
    r.budget.work(text.len() as u64 * 4)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = text.as_str().split(|c| !is_word(c)).filter(|word| !word.is_empty());
    Ok((words.count() as i64).into())
}

pub(super) fn center(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [width] = args.bind("center", ["width"])?;
    let args = Args { positional: vec![width.unwrap_or_else(|| 80.into())], named: Vec::new() };
    let text = Value(Kind::Str(text(r, value)?));
    crate::methods::call(r, &text, "center", args)
}

pub(super) fn truncate(r: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [length, kill_words, end, leeway] =
        args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let end = end.unwrap_or_else(|| Value::token("..."));
    let Some(end) = end.as_text() else { return Err(Fault::new("truncate: end must be a string")) };
    let (length, leeway) = (count_of(length, 255)?, count_of(leeway.filter(|v| !v.is_none()), 5)?);
    let text = text(r, value)?;
    r.budget.work(text.len() as u64)?;
    let end_length = end.as_str().chars().count();
    if length < end_length {
        return Err(Fault::new(format!("expected length >= {end_length}, got {length}")));
    }
    if text.as_str().chars().count() <= length.saturating_add(leeway) {
        return Ok(Value(Kind::Str(text)));
    }
    let kept = text.as_str().char_indices().nth(length - end_length).map_or(text.len(), |(at, _)| at);
    let space = text.as_str()[..kept].rfind(' ');
    let kept = if is_set(kill_words) { kept } else { space.unwrap_or(kept) };
    let mut out = TextBuilder::default();
    out.range(&r.budget, &text, 0..kept)?;
    out.text(&r.budget, end)?;
    r.made(out)
}
