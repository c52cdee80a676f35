//! The methods of strings. Each result knows which of its bytes are literal.

use crate::arguments::{Builtin, Given, unsupported};
use crate::budget::Budget;
use crate::error::{Eval, refuse};
use crate::format;
use crate::render::Renderer;
use crate::render::print::is_printable;
use crate::text::{Text, is_space};
use crate::value::Value;
use std::ops::Range;

pub(super) static METHODS: &[Builtin] = &[
    Builtin("capitalize", "", case),
    Builtin("casefold", "", case),
    Builtin("center", "width fillchar", pad),
    Builtin("count", "argument", search),
    Builtin("encode", "*", unsupported),
    Builtin("endswith", "argument", starts_or_ends),
    Builtin("expandtabs", "*", unsupported),
    Builtin("find", "argument", search),
    Builtin("format", "*", |r, value, given| format::braces(r, &*r.printed(value)?, &given.any)),
    Builtin("format_map", "*", unsupported),
    Builtin("index", "argument", search),
    Builtin("isalnum", "", is_method),
    Builtin("isalpha", "", is_method),
    Builtin("isascii", "", is_method),
    Builtin("isdecimal", "", is_method),
    Builtin("isdigit", "", is_method),
    Builtin("isidentifier", "", is_method),
    Builtin("islower", "", is_method),
    Builtin("isnumeric", "", is_method),
    Builtin("isprintable", "", is_method),
    Builtin("isspace", "", is_method),
    Builtin("istitle", "", is_method),
    Builtin("isupper", "", is_method),
    Builtin("join", "argument", join),
    Builtin("ljust", "width fillchar", pad),
    Builtin("lower", "", case),
    Builtin("lstrip", "chars", strip),
    Builtin("maketrans", "*", unsupported),
    Builtin("partition", "argument", partition),
    Builtin("removeprefix", "argument", remove),
    Builtin("removesuffix", "argument", remove),
    Builtin("replace", "old new count", |r, value, given| {
        let (old, new) = (given.required_text("old")?, given.required_text("new")?);
        replace(r, &*r.printed(value)?, old.as_str(), &new, given.limit("count")?)
    }),
    Builtin("rfind", "argument", search),
    Builtin("rindex", "argument", search),
    Builtin("rjust", "width fillchar", pad),
    Builtin("rpartition", "argument", partition),
    Builtin("rsplit", "sep maxsplit", split),
    Builtin("rstrip", "chars", strip),
    Builtin("split", "sep maxsplit", split),
    Builtin("splitlines", "keepends", |r, value, given| {
        let text = r.printed(value)?;
        parts(r, &text, lines(r.budget, text.as_str(), given.is_set("keepends"))?)
    }),
    Builtin("startswith", "argument", starts_or_ends),
    Builtin("strip", "chars", strip),
    Builtin("swapcase", "", case),
    Builtin("title", "", case),
    Builtin("translate", "*", unsupported),
    Builtin("upper", "", case),
    Builtin("zfill", "width", pad),
];

/// Without white space, or these characters, at its ends.
pub(crate) fn strip(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, chars) = (r.printed(value)?, given.text("chars")?);
    let all = text.as_str();
    r.budget.work(all.len() as u64 * (1 + chars.as_ref().map_or(0, |chars| chars.len()) as u64))?;
    let matches = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.as_str().contains(c));
    let start = if given.callee == "rstrip" { all } else { all.trim_start_matches(matches) };
    let kept = if given.callee == "lstrip" { start } else { start.trim_end_matches(matches) };
    let at = all.len() - start.len();
    r.part(&text, at..at + kept.len())
}

/// A list of parts.
fn parts(r: &Renderer<'_>, text: &Text, ranges: Vec<Range<usize>>) -> Eval {
    let parts: Eval<Vec<Value>> = ranges.into_iter().map(|range| r.part(text, range)).collect();
    Value::list(r.budget, parts?)
}

/// `split` and `rsplit`. Without a separator runs of white space separate, and are dropped at the ends.
fn split(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, separator, limit) = (r.printed(value)?, given.text("sep")?, given.limit("maxsplit")?);
    let (all, from_right) = (text.as_str(), given.callee == "rsplit");
    r.budget.find(all, separator.as_ref().map_or("", |part| part.as_str()))?;
    let words = all.split(is_space).filter(|word| !word.is_empty());
    let pieces: Box<dyn Iterator<Item = &str>> =
        match (separator.as_ref().map(|part| part.as_str()), from_right) {
            (Some(""), _) => return refuse!("empty separator"),
            (Some(part), false) => Box::new(all.split(part)),
            (Some(part), true) => Box::new(all.rsplit(part)),
            (None, false) => Box::new(words),
            (None, true) => Box::new(words.rev()),
        };
    let mut found = Vec::new();
    for piece in pieces.take(limit.saturating_add(1)) {
        r.budget.items::<Range<usize>>(1)?;
        let start = piece.as_ptr() as usize - all.as_ptr() as usize;
        found.push(start..start + piece.len());
    }
    // Behind the last cut that is allowed, the rest stays whole.
    let cuts_left = found.len() <= limit;
    match found.last_mut() {
        Some(rest) if !cuts_left && from_right => rest.start = 0,
        Some(rest) if !cuts_left => rest.end = all.len(),
        _ => {}
    }
    if from_right {
        found.reverse();
    }
    parts(r, &text, found)
}

/// The lines, by every end of line that Python knows.
pub(crate) fn lines(budget: &Budget, text: &str, keep_ends: bool) -> Eval<Vec<Range<usize>>> {
    budget.work(text.len() as u64 * 2)?;
    let is_end = |c: char| {
        let others = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];
        ('\u{1c}'..='\u{1e}').contains(&c) || others.contains(&c)
    };
    let mut found = Vec::new();
    let mut start = 0;
    while let Some((length, end)) = text[start..].match_indices(is_end).next() {
        let at = start + length;
        let end = at + if text[at..].starts_with("\r\n") { 2 } else { end.len() };
        budget.items::<Range<usize>>(1)?;
        found.push(start..if keep_ends { end } else { at });
        start = end;
    }
    if start < text.len() {
        budget.items::<Range<usize>>(1)?;
        found.push(start..text.len());
    }
    Ok(found)
}

/// `partition` and `rpartition`.
fn partition(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, separator) = (r.printed(value)?, given.required_text("argument")?);
    let (part, end, from_left) = (separator.as_str(), text.len(), given.callee == "partition");
    if part.is_empty() {
        return refuse!("empty separator");
    }
    r.budget.find(text.as_str(), part)?;
    let found = if from_left { text.as_str().find(part) } else { text.as_str().rfind(part) };
    let ranges = match found {
        Some(at) => [0..at, at..at + part.len(), at + part.len()..end],
        None if from_left => [0..end, end..end, end..end],
        None => [0..0, 0..0, 0..end],
    };
    let parts: Eval<Vec<Value>> = ranges.into_iter().map(|range| r.part(&text, range)).collect();
    Value::tuple(r.budget, parts?)
}

/// Replaces at most `limit` occurrences; the replacement keeps its own origin.
pub(crate) fn replace(r: &Renderer<'_>, text: &Text, old: &str, new: &Text, limit: usize) -> Eval {
    r.budget.find(text.as_str(), old)?;
    r.budget.work(text.len() as u64)?;
    let mut out = r.builder();
    let mut start = 0;
    for (at, _) in text.as_str().match_indices(old).take(limit) {
        r.budget.work(4)?;
        out.range(text, start..at)?;
        out.text(new)?;
        start = at + old.len();
    }
    out.range(text, start..text.len())?;
    out.value()
}

/// `removeprefix` and `removesuffix`.
fn remove(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, part) = (r.printed(value)?, given.required_text("argument")?);
    let (all, part) = (text.as_str(), part.as_str());
    let range = match given.callee {
        "removeprefix" if all.starts_with(part) => part.len()..all.len(),
        "removesuffix" if all.ends_with(part) => 0..all.len() - part.len(),
        _ => 0..all.len(),
    };
    r.part(&text, range)
}

/// `startswith` and `endswith` of a string, or of any in a sequence.
fn starts_or_ends(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, argument) = (r.printed(value)?, given.required("argument")?);
    let parts = argument.as_list().unwrap_or(std::slice::from_ref(&argument));
    let mut found = false;
    for part in parts {
        let part = given.as_text(part)?.as_str();
        r.budget.work(8 + part.len().min(text.len()) as u64 / 4)?;
        let starts = given.callee == "startswith";
        found |= if starts { text.as_str().starts_with(part) } else { text.as_str().ends_with(part) };
    }
    Ok(found.into())
}

/// `count`, and `find` and `index` from both sides.
fn search(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let (text, part) = (r.printed(value)?, given.required_text("argument")?);
    let (all, part) = (text.as_str(), part.as_str());
    r.budget.find(all, part)?;
    if given.callee == "count" {
        // Every byte may be an occurrence.
        r.budget.work(all.len() as u64)?;
        return Ok((all.matches(part).count() as i64).into());
    }
    match if given.callee.starts_with('r') { all.rfind(part) } else { all.find(part) } {
        Some(at) => Ok((all[..at].chars().count() as i64).into()),
        None if given.callee.ends_with("find") => Ok((-1_i64).into()),
        None => refuse!("substring not found"),
    }
}

fn join(r: &mut Renderer<'_>, separator: &Value, given: &Given) -> Eval {
    let (separator, items) = (r.printed(separator)?, given.required("argument")?);
    let mut out = r.builder();
    for (at, item) in r.taken(&items)?.iter().enumerate() {
        let Some(text) = item.as_text() else {
            return refuse!("sequence item {at}: expected str instance, {} found", item.type_name());
        };
        if at > 0 {
            out.text(&separator)?;
        }
        out.text(text)?;
    }
    out.value()
}

/// Another case, by the method's name.
pub(crate) fn case(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    change_case(r, &*r.printed(value)?, given.callee)
}

/// Letters in another case: by a method's name, or as `words`, which begin behind white space, `-` and opening
/// brackets. What a literal character becomes is literal.
pub(crate) fn change_case(r: &Renderer<'_>, text: &Text, name: &str) -> Eval {
    // What becomes of a sigma depends on the letters around it.
    let sigmas = text.as_str().matches('Σ').count();
    r.budget.work(text.len() as u64 * 4 + sigmas as u64 * 150)?;
    let mut out = r.builder();
    out.markup = text.markup && name != "words";
    // Whether the character before belongs to the same word; for `capitalize`, whether there is one.
    let mut inside = false;
    out.runs(text, |out, run| match name {
        "upper" => *out += &run.to_uppercase(),
        "lower" => *out += &run.to_lowercase(),
        "casefold" => *out += &run.to_lowercase().replace('ß', "ss"),
        "capitalize" => {
            let first = if inside { 0 } else { run.chars().next().map_or(0, char::len_utf8) };
            inside = true;
            *out += &run[..first].to_uppercase();
            *out += &run[first..].to_lowercase();
        }
        _ => {
            for c in run.chars() {
                let upper = if name == "swapcase" { c.is_lowercase() } else { !inside };
                if upper {
                    out.extend(c.to_uppercase())
                } else {
                    out.extend(c.to_lowercase())
                }
                inside = if name == "words" { !is_space(c) && !"-({[<".contains(c) } else { is_cased(c) };
            }
        }
    })?;
    out.value()
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// `center`, `ljust`, `rjust` and `zfill`.
fn pad(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    given.required("width")?;
    let fill = if given.callee == "zfill" { None } else { given.value("fillchar") };
    let fill = fill.unwrap_or_else(|| Value::token(if given.callee == "zfill" { "0" } else { " " }));
    pad_to(r, &*r.printed(value)?, given.callee, given.count("width", 0)?, &fill)
}

pub(crate) fn pad_to(r: &Renderer<'_>, text: &Text, name: &str, width: usize, fill: &Value) -> Eval {
    let Some(fill) = fill.as_text().filter(|fill| fill.as_str().chars().count() == 1) else {
        return refuse!("the fill character must be exactly one character long");
    };
    let missing = width.saturating_sub(text.as_str().chars().count());
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    // Zeros go behind a sign.
    let sign = usize::from(name == "zfill" && text.as_str().starts_with(['-', '+']));
    let mut out = r.builder();
    out.range(text, 0..sign)?;
    out.repeat(fill, left)?;
    out.range(text, sign..text.len())?;
    out.repeat(fill, missing - left)?;
    out.value()
}

fn is_method(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    is(r, &*r.printed(value)?, given.callee)
}

/// Python's predicates of strings.
pub(crate) fn is(r: &Renderer<'_>, text: &Text, name: &str) -> Eval {
    r.budget.work(text.len() as u64 * 8)?;
    let text = text.as_str();
    let every = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    let found = match name {
        "isascii" => text.is_ascii(),
        "isprintable" => text.chars().all(is_printable),
        "isalnum" => every(char::is_alphanumeric),
        "isalpha" => every(char::is_alphabetic),
        "isdecimal" | "isdigit" | "isnumeric" => every(char::is_numeric),
        "isspace" => every(is_space),
        "islower" => text.chars().any(is_cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(is_cased) && !text.chars().any(char::is_lowercase),
        "isidentifier" => {
            let begins = |c: char| c.is_alphabetic() || c == '_';
            text.starts_with(begins) && text.chars().all(|c| begins(c) || c.is_alphanumeric())
        }
        _ => {
            let mut before = false;
            let mut title = text.chars().any(is_cased);
            for c in text.chars() {
                title &= if before { !c.is_uppercase() } else { !c.is_lowercase() };
                before = is_cased(c);
            }
            title
        }
    };
    Ok(found.into())
}
