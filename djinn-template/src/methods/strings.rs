//! The methods of strings. Each result knows which of its bytes are literal.

use super::{is_space, unsupported};
use crate::error::Fault;
use crate::format;
use crate::operators::integer;
use crate::render::print::is_printable;
use crate::render::{Args, Renderer};
use crate::text::{Text, TextBuilder};
use crate::value::{Kind, Value};
use std::ops::Range;
use std::sync::Arc;

/// Calls a method of a string.
pub(super) fn call(r: &mut Renderer<'_>, text: &Arc<Text>, name: &str, args: Args) -> Result<Value, Fault> {
    r.budget.work(text.len() as u64)?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = chars.filter(|value| !value.is_none());
            let chars = chars.as_ref().map(|value| wanted(value, name)).transpose()?;
            strip(r, text, chars, name != "rstrip", name != "lstrip")
        }
        "split" | "rsplit" => {
            let [separator, limit] = args.bind(name, ["sep", "maxsplit"])?;
            let separator = separator.filter(|value| !value.is_none());
            let separator = separator.as_ref().map(|value| wanted(value, name)).transpose()?;
            let limit = limit.map_or(Ok(-1), |value| count(&value))?;
            split(r, text, separator, limit, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let keep = keep.is_some_and(|value| crate::value::truth(&value));
            parts(r, text, lines(text.as_str(), keep))
        }
        "partition" | "rpartition" => partition(r, text, name, args),
        "replace" => {
            let [old, new, limit] = args.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Fault::new("replace expected at least 2 arguments"));
            };
            replace(r, text, &old, &new, limit.map_or(Ok(-1), |value| count(&value))?)
        }
        "removeprefix" | "removesuffix" => {
            let part = only(name, args)?;
            let part = wanted(&part, name)?;
            let end = text.len();
            let range = match name {
                "removeprefix" if text.as_str().starts_with(part) => part.len()..end,
                "removesuffix" if text.as_str().ends_with(part) => 0..end - part.len(),
                _ => 0..end,
            };
            r.part(text, range)
        }
        "startswith" | "endswith" => {
            let part = only(name, args)?;
            let test = |part: &Value| {
                let part = wanted(part, name)?;
                let text = text.as_str();
                Ok(if name == "startswith" { text.starts_with(part) } else { text.ends_with(part) })
            };
            Ok(match &part.0 {
                Kind::Seq(seq) => {
                    r.budget.work(seq.items.len() as u64 * 8)?;
                    let found: Result<Vec<bool>, Fault> = seq.items.iter().map(test).collect();
                    found?.contains(&true).into()
                }
                _ => test(&part)?.into(),
            })
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(r, text, name, args),
        "join" => {
            let items = only(name, args)?;
            join(r, text, &items)
        }
        "format" => format::braces(r, text, args),
        "upper" | "lower" | "casefold" | "capitalize" | "title" | "swapcase" => {
            let [] = args.bind(name, [])?;
            change_case(r, text, name)
        }
        "center" | "ljust" | "rjust" | "zfill" => pad(r, text, name, args),
        _ if name.starts_with("is") => {
            let [] = args.bind(name, [])?;
            Ok(is(text.as_str(), name).into())
        }
        _ => Err(unsupported(&Value(Kind::Str(text.clone())), name)),
    }
}

fn only(name: &str, args: Args) -> Result<Value, Fault> {
    let [value] = args.bind(name, ["argument"])?;
    value.ok_or_else(|| Fault::new(format!("{name} expected 1 argument")))
}

fn wanted<'v>(value: &'v Value, name: &str) -> Result<&'v str, Fault> {
    value.as_str().ok_or_else(|| Fault::new(format!("{name}: expected str, not {}", value.type_name())))
}

fn count(value: &Value) -> Result<i128, Fault> {
    let wrong = || Fault::new(format!("'{}' object cannot be interpreted as an integer", value.type_name()));
    integer(value).ok_or_else(wrong)
}

/// A limit of cuts or replacements: none if it is negative.
fn at_most(limit: i128) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Without white space, or these characters, at its ends.
pub(crate) fn strip(
    r: &Renderer<'_>,
    text: &Text,
    chars: Option<&str>,
    left: bool,
    right: bool,
) -> Result<Value, Fault> {
    let all = text.as_str();
    r.budget.work(all.len() as u64 * (1 + chars.map_or(0, str::len) as u64 / 8))?;
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let start = if left { all.len() - all.trim_start_matches(matches).len() } else { 0 };
    let end = start + if right { all[start..].trim_end_matches(matches).len() } else { all.len() - start };
    r.part(text, start..end)
}

/// A list of parts.
fn parts(r: &Renderer<'_>, text: &Text, ranges: Vec<Range<usize>>) -> Result<Value, Fault> {
    let parts: Result<Vec<Value>, Fault> = ranges.into_iter().map(|range| r.part(text, range)).collect();
    Value::list(&r.budget, parts?)
}

/// At most `limit` cuts unless it is negative, from the right with `from_right`. Without a separator runs of
/// white space separate, and are dropped at the ends.
fn split(
    r: &Renderer<'_>,
    text: &Text,
    separator: Option<&str>,
    limit: i128,
    from_right: bool,
) -> Result<Value, Fault> {
    if separator == Some("") {
        return Err(Fault::new("empty separator"));
    }
    let all = text.as_str();
    let mut limit = at_most(limit);
    let mut found = Vec::new();
    // What is left to split.
    let (mut start, mut end) = (0, all.len());
    while limit > 0 {
        let mut rest = &all[start..end];
        if separator.is_none() {
            let kept =
                if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
            (start, end) = if from_right { (start, start + kept.len()) } else { (end - kept.len(), end) };
            rest = kept;
        }
        let width = |at: usize| rest[at..].chars().next().map_or(0, char::len_utf8);
        let cut = match (separator, from_right) {
            (Some(part), false) => rest.find(part).map(|at| (at, part.len())),
            (Some(part), true) => rest.rfind(part).map(|at| (at, part.len())),
            (None, false) => rest.find(is_space).map(|at| (at, width(at))),
            (None, true) => rest.rfind(is_space).map(|at| (at, width(at))),
        };
        let Some((at, length)) = cut else { break };
        r.budget.items::<Range<usize>>(1)?;
        if from_right {
            found.push(start + at + length..end);
            end = start + at;
        } else {
            found.push(start..start + at);
            start += at + length;
        }
        limit -= 1;
    }
    if separator.is_none() {
        let rest = &all[start..end];
        let kept =
            if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        (start, end) = if from_right { (start, start + kept.len()) } else { (end - kept.len(), end) };
    }
    if separator.is_some() || start < end {
        found.push(start..end);
    }
    if from_right {
        found.reverse();
    }
    parts(r, text, found)
}

/// The lines, by every end of line that Python knows.
pub(crate) fn lines(text: &str, keep_ends: bool) -> Vec<Range<usize>> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(length) = text[start..].find(is_end) {
        let at = start + length;
        let width = text[at..].chars().next().map_or(1, char::len_utf8);
        let end = at + if text[at..].starts_with("\r\n") { 2 } else { width };
        found.push(start..if keep_ends { end } else { at });
        start = end;
    }
    if start < text.len() {
        found.push(start..text.len());
    }
    found
}

fn partition(r: &Renderer<'_>, text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let separator = only(name, args)?;
    let part = wanted(&separator, name)?;
    if part.is_empty() {
        return Err(Fault::new("empty separator"));
    }
    let found = if name == "partition" { text.as_str().find(part) } else { text.as_str().rfind(part) };
    let end = text.len();
    let [left, middle, right] = match found {
        Some(at) => [0..at, at..at + part.len(), at + part.len()..end],
        None if name == "partition" => [0..end, end..end, end..end],
        None => [0..0, 0..0, 0..end],
    };
    Value::tuple(&r.budget, vec![r.part(text, left)?, r.part(text, middle)?, r.part(text, right)?])
}

/// Replaces at most `limit` occurrences, all if it is negative; the replacement keeps its own origin.
pub(crate) fn replace(
    r: &Renderer<'_>,
    text: &Text,
    old: &Value,
    new: &Value,
    limit: i128,
) -> Result<Value, Fault> {
    let part = wanted(old, "replace")?;
    let Some(new) = new.as_text() else { return Err(Fault::new("replace: expected str")) };
    r.budget.work(text.len() as u64 * 2)?;
    let mut out = TextBuilder::default();
    let mut start = 0;
    if part.is_empty() {
        let ends = text.as_str().char_indices().map(|(at, _)| at).chain([text.len()]);
        for at in ends.take(at_most(limit)) {
            out.range(&r.budget, text, start..at)?;
            out.text(&r.budget, new)?;
            r.budget.work(4)?;
            start = at;
        }
    } else {
        for (at, _) in text.as_str().match_indices(part).take(at_most(limit)) {
            out.range(&r.budget, text, start..at)?;
            out.text(&r.budget, new)?;
            r.budget.work(4)?;
            start = at + part.len();
        }
    }
    out.range(&r.budget, text, start..text.len())?;
    r.made(out)
}

fn search(r: &Renderer<'_>, text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let part = only(name, args)?;
    let part = wanted(&part, name)?;
    let all = text.as_str();
    r.budget.work(all.len() as u64)?;
    if name == "count" {
        return Ok((all.matches(part).count() as i64).into());
    }
    let found = if name.starts_with('r') { all.rfind(part) } else { all.find(part) };
    match found {
        Some(at) => Ok((all[..at].chars().count() as i64).into()),
        None if name.ends_with("find") => Ok((-1).into()),
        None => Err(Fault::new("substring not found")),
    }
}

fn join(r: &Renderer<'_>, separator: &Text, items: &Value) -> Result<Value, Fault> {
    let mut out = TextBuilder::default();
    for (at, item) in r.taken(items)?.iter().enumerate() {
        let Some(item) = item.as_text() else {
            return Err(Fault::new(format!(
                "sequence item {at}: expected str instance, {} found",
                item.type_name()
            )));
        };
        if at > 0 {
            out.text(&r.budget, separator)?;
        }
        out.text(&r.budget, item)?;
    }
    r.made(out)
}

/// Letters in another case. What a literal character becomes is literal.
pub(crate) fn change_case(r: &Renderer<'_>, text: &Text, name: &str) -> Result<Value, Fault> {
    r.budget.work(text.len() as u64 * 8)?;
    let mut out = TextBuilder::marked(text.markup);
    // Whether the character before is a letter; for `capitalize`, whether there is any character before.
    let mut inside = false;
    for (run, literal) in text.runs(0..text.len()) {
        let changed = match name {
            "upper" => run.to_uppercase(),
            "lower" => run.to_lowercase(),
            "capitalize" => {
                let first = if inside { "" } else { &run[..run.chars().next().map_or(0, char::len_utf8)] };
                inside = true;
                first.to_uppercase() + &run[first.len()..].to_lowercase()
            }
            "casefold" => run.to_lowercase().replace('ß', "ss"),
            _ => {
                let mut changed = String::with_capacity(run.len());
                for c in run.chars() {
                    let upper = if name == "swapcase" { c.is_lowercase() } else { !inside };
                    if upper {
                        changed.extend(c.to_uppercase());
                    } else {
                        changed.extend(c.to_lowercase());
                    }
                    inside = c.is_lowercase() || c.is_uppercase();
                }
                changed
            }
        };
        out.push(&r.budget, &changed, literal)?;
    }
    r.made(out)
}

fn pad(r: &Renderer<'_>, text: &Text, name: &str, args: Args) -> Result<Value, Fault> {
    let [width, fill] = args.bind(name, ["width", "fillchar"])?;
    let width = width.ok_or_else(|| Fault::new(format!("{name} expected at least 1 argument")))?;
    let width = usize::try_from(count(&width)?).unwrap_or(0);
    let default = Text::plain(if name == "zfill" { "0" } else { " " });
    let fill = match &fill {
        None => &default,
        Some(Value(Kind::Str(fill))) if fill.as_str().chars().count() == 1 => fill,
        Some(_) => return Err(Fault::new("the fill character must be exactly one character long")),
    };
    let length = text.as_str().chars().count();
    let missing = width.saturating_sub(length);
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    // Zeros go behind a sign.
    let sign = usize::from(name == "zfill" && text.as_str().starts_with(['-', '+']));
    let mut out = TextBuilder::default();
    out.range(&r.budget, text, 0..sign)?;
    out.repeat(&r.budget, fill, left)?;
    out.range(&r.budget, text, sign..text.len())?;
    out.repeat(&r.budget, fill, missing - left)?;
    r.made(out)
}

/// Python's predicates of strings.
pub(crate) fn is(text: &str, name: &str) -> bool {
    let some = !text.is_empty();
    let cased = |c: char| c.is_lowercase() || c.is_uppercase();
    match name {
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(is_printable),
        "isalnum" => some && text.chars().all(char::is_alphanumeric),
        "isalpha" => some && text.chars().all(char::is_alphabetic),
        "isdecimal" => some && text.chars().all(|c| c.is_numeric() && !c.is_ascii_punctuation()),
        "isdigit" | "isnumeric" => some && text.chars().all(char::is_numeric),
        "isspace" => some && text.chars().all(is_space),
        "islower" => text.chars().any(cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(cased) && !text.chars().any(char::is_lowercase),
        "isidentifier" => {
            text.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && text.chars().all(|c| c.is_alphanumeric() || c == '_')
        }
        _ => {
            let mut before = false;
            let mut title = text.chars().any(cased);
            for c in text.chars() {
                title &= if before { !c.is_uppercase() } else { !c.is_lowercase() };
                before = cased(c);
            }
            title
        }
    }
}
