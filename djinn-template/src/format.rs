//! Python's two ways to format text: `%` and `str.format`.

use crate::arguments::Args;
use crate::error::{Eval, Fault, refuse};
use crate::numbers::{digits_work, float, not_finite, with_exponent};
use crate::operators::{integer, number};
use crate::printable::one_line;
use crate::render::Renderer;
use crate::text::{Text, TextBuilder};
use crate::value::{Kind, SeqKind, Value};
use std::iter::Peekable;
use std::str::CharIndices;
use std::sync::Arc;

/// Widest field and finest precision.
const MAX_WIDTH: usize = 10_000;

/// How one value is written.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+` or a space before numbers that are not negative.
    sign: Option<char>,
    alternate: bool,
    width: usize,
    /// `,` or `_` between thousands.
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

type Chars<'t> = Peekable<CharIndices<'t>>;

fn next_if(chars: &mut Chars<'_>, wanted: impl Fn(char) -> bool) -> Option<char> {
    chars.next_if(|(_, c)| wanted(*c)).map(|(_, c)| c)
}

/// A number in decimal digits, 0 without one.
fn digits(chars: &mut Chars<'_>) -> Eval<Option<usize>> {
    let mut found = None;
    while let Some(c) = next_if(chars, |c| c.is_ascii_digit()) {
        let value = found.unwrap_or(0) * 10 + (c as usize - '0' as usize);
        if value > MAX_WIDTH {
            return Err(Fault::Limit(format!("formats a field wider than {MAX_WIDTH} characters")));
        }
        found = Some(value);
    }
    Ok(found)
}

fn malformed<T>(what: &str) -> Eval<T> {
    refuse!("the format is malformed: {what}")
}

/// Counts the work of reading a format: a character may be looked at several times.
fn look_at(r: &Renderer<'_>, format: &Text) -> Eval<()> {
    r.budget.work(format.len() as u64 * 8)
}

/// `text % values`.
pub(crate) fn percent(r: &Renderer<'_>, text: &Text, values: &Value) -> Eval {
    let several = match &values.0 {
        Kind::Seq(seq) if matches!(seq.kind, SeqKind::Tuple) => Some(seq.items.as_slice()),
        _ => None,
    };
    let mut positional = several.unwrap_or(std::slice::from_ref(values)).iter();
    // Of a mapping what is not used is no error, nor where keys are used.
    let mut leaves = several.is_none() && values.as_dict().is_some();
    look_at(r, text)?;
    let mut out = r.builder();
    let mut plain = 0;
    let mut chars: Chars<'_> = text.as_str().char_indices().peekable();
    while let Some((at, _)) = chars.find(|(_, c)| *c == '%') {
        r.budget.work(20)?;
        out.range(text, plain..at)?;
        let mut named = None;
        if next_if(&mut chars, |c| c == '(').is_some() {
            let Some((end, _)) = chars.find(|(_, c)| *c == ')') else {
                return malformed("a key is not closed");
            };
            let key = &text.as_str()[at + 2..end];
            r.budget.work(key.len() as u64)?;
            named = Some(values.get(key).map_or_else(|| refuse!("no key '{}'", one_line(key)), Ok)?);
            leaves = true;
        }
        let spec = percent_spec(&mut chars)?;
        plain = chars.peek().map_or(text.len(), |(at, _)| *at);
        if spec.kind == Some('%') {
            out.plain("%")?;
            continue;
        }
        let Some(value) = named.or_else(|| positional.next()) else {
            return refuse!("not enough arguments for format string");
        };
        percent_field(r, &mut out, spec, value)?;
    }
    out.range(text, plain..text.len())?;
    if positional.next().is_some() && !leaves {
        return refuse!("not all arguments converted during string formatting");
    }
    out.value()
}

fn percent_spec(chars: &mut Chars<'_>) -> Eval<Spec> {
    let mut spec = Spec::default();
    while let Some(flag) = next_if(chars, |c| "-+ 0#".contains(c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '0' if spec.align.is_none() => (spec.fill, spec.align) = (Some('0'), Some('=')),
            '#' => spec.alternate = true,
            '+' => spec.sign = Some('+'),
            ' ' if spec.sign.is_none() => spec.sign = Some(' '),
            _ => {}
        }
    }
    if spec.align == Some('<') {
        spec.fill = None;
    }
    spec.width = digits(chars)?.unwrap_or(0);
    if next_if(chars, |c| c == '.').is_some() {
        spec.precision = Some(digits(chars)?.unwrap_or(0));
    }
    while next_if(chars, |c| "hlL".contains(c)).is_some() {}
    spec.kind = chars.next().map(|(_, c)| c);
    Ok(spec)
}

fn percent_field(r: &Renderer<'_>, out: &mut TextBuilder<'_>, spec: Spec, value: &Value) -> Eval<()> {
    let Some(kind) = spec.kind else { return malformed("it ends in %") };
    match (kind, integer(value), number(value)) {
        ('s' | 'r' | 'a', ..) => {
            let text = if kind == 's' { r.printed(value)? } else { repr(r, value)? };
            // Zeros are for numbers, and text stands on the right.
            let align = Some(if spec.align == Some('<') { '<' } else { '>' });
            write_text(out, &Spec { align, fill: None, ..spec }, &text)
        }
        ('d' | 'i' | 'u', Some(value), _) => write_integer(r, out, &Spec { kind: Some('d'), ..spec }, value),
        ('d' | 'i' | 'u', None, Some(value)) => {
            write_integer(r, out, &Spec { kind: Some('d'), ..spec }, value.trunc() as i128)
        }
        ('x' | 'X' | 'o', Some(value), _) => write_integer(r, out, &spec, value),
        ('e' | 'E' | 'f' | 'F' | 'g' | 'G', _, Some(value)) => write_float(r, out, &spec, value),
        ('c', Some(code), _) => match u32::try_from(code).ok().and_then(char::from_u32) {
            Some(c) => out.plain(c.encode_utf8(&mut [0; 4])),
            None => refuse!("%c arg not in range"),
        },
        ('c', None, _) => match value.as_text() {
            Some(text) if text.as_str().chars().count() == 1 => out.text(text),
            _ => refuse!("%c requires int or char"),
        },
        ('d' | 'i' | 'u' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G', ..) => {
            refuse!("%{kind} format: a number is required, not {}", value.type_name())
        }
        _ => malformed(&format!("unknown %{}", one_line(&kind.to_string()))),
    }
}

fn repr(r: &Renderer<'_>, value: &Value) -> Eval<Arc<Text>> {
    let mut out = r.builder();
    r.repr(&mut out, value)?;
    Ok(Arc::new(out.finish()))
}

/// `text.format(…)`.
pub(crate) fn braces(r: &Renderer<'_>, text: &Text, args: &Args) -> Eval {
    look_at(r, text)?;
    let mut out = r.builder();
    let mut plain = 0;
    let mut automatic = 0..;
    let mut chars: Chars<'_> = text.as_str().char_indices().peekable();
    while let Some((at, c)) = chars.find(|(_, c)| matches!(c, '{' | '}')) {
        r.budget.work(20)?;
        // Doubled brackets stand for one.
        if next_if(&mut chars, |next| next == c).is_some() {
            out.range(text, plain..at + 1)?;
            plain = at + 2;
            continue;
        }
        if c == '}' {
            return malformed("a single '}'");
        }
        out.range(text, plain..at)?;
        let Some((end, _)) = chars.find(|(_, c)| *c == '}') else { return malformed("a single '{'") };
        field(r, &mut out, &text.as_str()[at + 1..end], args, &mut automatic)?;
        plain = end + 1;
    }
    out.range(text, plain..text.len())?;
    out.value()
}

/// One field of `str.format`: `name!conversion:spec`.
fn field(
    r: &Renderer<'_>,
    out: &mut TextBuilder<'_>,
    field: &str,
    args: &Args,
    automatic: &mut std::ops::RangeFrom<usize>,
) -> Eval<()> {
    let (name, spec) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = name.split_once('!').map_or((name, None), |(name, rest)| (name, Some(rest)));
    if name.contains(['.', '[']) || spec.contains('{') {
        return Err(Fault::Unsupported("str.format with attributes, items or nested fields".into()));
    }
    let found = if name.bytes().all(|byte| byte.is_ascii_digit()) {
        let at = if name.is_empty() { automatic.next() } else { name.parse().ok() };
        at.and_then(|at| args.positional.get(at))
    } else {
        args.position(r.budget, name)?.map(|at| &args.named[at].1)
    };
    let Some(value) = found else { return refuse!("no argument '{}' for str.format", one_line(name)) };
    let value = match conversion {
        None => value.clone(),
        Some("s") => r.printed(value)?.into(),
        Some("r") => repr(r, value)?.into(),
        Some(other) => return malformed(&format!("unknown conversion '{}'", one_line(other))),
    };
    if spec.is_empty() {
        return r.write(out, &value);
    }
    let spec = braces_spec(spec)?;
    match (&value.0, spec.kind) {
        (Kind::Str(_), None | Some('s'))
            if spec.sign.is_some() || spec.align == Some('=') || spec.grouping.is_some() =>
        {
            refuse!("the format is not for text")
        }
        (Kind::Str(text), None | Some('s')) => {
            write_text(out, &Spec { align: Some(spec.align.unwrap_or('<')), ..spec }, text)
        }
        (Kind::Int(_) | Kind::Bool(_), None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n')) => {
            if spec.precision.is_some() {
                return refuse!("Precision not allowed in integer format specifier");
            }
            write_integer(r, out, &spec, integer(&value).unwrap_or_default())
        }
        (
            Kind::Int(_) | Kind::Bool(_) | Kind::Float(_),
            None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'),
        ) => write_float(r, out, &spec, number(&value).unwrap_or_default()),
        _ => refuse!("the format is not for a {}", value.type_name()),
    }
}

fn braces_spec(text: &str) -> Eval<Spec> {
    let mut spec = Spec::default();
    let mut chars: Chars<'_> = text.char_indices().peekable();
    let is_align = |c: char| "<>^=".contains(c);
    if text.chars().nth(1).is_some_and(is_align) {
        spec.fill = next_if(&mut chars, |_| true);
    }
    spec.align = next_if(&mut chars, is_align);
    spec.sign = next_if(&mut chars, |c| "+- ".contains(c)).filter(|c| *c != '-');
    spec.alternate = next_if(&mut chars, |c| c == '#').is_some();
    if next_if(&mut chars, |c| c == '0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = (Some('0'), Some('='));
    }
    spec.width = digits(&mut chars)?.unwrap_or(0);
    spec.grouping = next_if(&mut chars, |c| c == ',' || c == '_');
    if next_if(&mut chars, |c| c == '.').is_some() {
        spec.precision = digits(&mut chars)?;
        spec.precision.map_or_else(|| malformed("the precision is missing"), Ok)?;
    }
    spec.kind = chars.next().map(|(_, c)| c);
    if chars.next().is_some() {
        return malformed("invalid format specifier");
    }
    Ok(spec)
}

/// Writes text to its width, cut to its precision.
fn write_text(out: &mut TextBuilder<'_>, spec: &Spec, text: &Text) -> Eval<()> {
    let cut = spec.precision.and_then(|length| text.as_str().char_indices().nth(length));
    padded(out, spec, text, cut.map_or(text.len(), |(at, _)| at))
}

/// Writes a text up to `end`, with what fills its width.
fn padded(out: &mut TextBuilder<'_>, spec: &Spec, text: &Text, end: usize) -> Eval<()> {
    let missing = spec.width.saturating_sub(text.as_str()[..end].chars().count());
    let left = match spec.align {
        Some('<') => 0,
        Some('^') => missing / 2,
        _ => missing,
    };
    let fill = Text::plain(spec.fill.unwrap_or(' '));
    out.repeat(&fill, left)?;
    out.range(text, 0..end)?;
    out.repeat(&fill, missing - left)
}

/// Writes a sign, a prefix and digits; between sign and digits is where `=` fills.
fn write_number(out: &mut TextBuilder<'_>, spec: &Spec, minus: bool, prefix: &str, digits: &str) -> Eval<()> {
    let sign = if minus { Some('-') } else { spec.sign };
    let front = sign.map_or(String::new(), String::from) + prefix;
    let digits = spec.grouping.map_or(digits.to_owned(), |mark| grouped(digits, mark));
    if spec.align == Some('=') {
        out.plain(&front)?;
        let spec = Spec { width: spec.width.saturating_sub(front.len()), fill: spec.fill, ..Spec::default() };
        return padded(out, &spec, &Text::plain(&*digits), digits.len());
    }
    let shown = Text::plain(front + &digits);
    padded(out, spec, &shown, shown.len())
}

/// Marks between thousands of the part before the point.
fn grouped(digits: &str, mark: char) -> String {
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    let mut out = String::new();
    for (at, c) in digits[..end].chars().enumerate() {
        if at > 0 && (end - at).is_multiple_of(3) {
            out.push(mark);
        }
        out.push(c);
    }
    out + &digits[end..]
}

fn write_integer(r: &Renderer<'_>, out: &mut TextBuilder<'_>, spec: &Spec, value: i128) -> Eval<()> {
    r.budget.work(spec.precision.unwrap_or(0) as u64 * 8)?;
    let size = value.unsigned_abs();
    let (prefix, mut digits) = match spec.kind {
        Some('x') => ("0x", format!("{size:x}")),
        Some('X') => ("0X", format!("{size:X}")),
        Some('o') => ("0o", format!("{size:o}")),
        Some('b') => ("0b", format!("{size:b}")),
        _ => ("", size.to_string()),
    };
    if let Some(least) = spec.precision {
        digits = format!("{digits:0>least$}");
    }
    write_number(out, spec, value < 0, if spec.alternate { prefix } else { "" }, &digits)
}

fn write_float(r: &Renderer<'_>, out: &mut TextBuilder<'_>, spec: &Spec, value: f64) -> Eval<()> {
    let size = value.abs();
    let upper = spec.kind.is_some_and(char::is_uppercase);
    let precision = spec.precision;
    r.budget.work(digits_work(size, precision.unwrap_or(6)))?;
    let mut digits = match (not_finite(size), spec.kind.map(|kind| kind.to_ascii_lowercase())) {
        (Some(text), _) => text.to_owned(),
        (None, Some('f')) => format!("{size:.*}", precision.unwrap_or(6)),
        (None, Some('e')) => with_exponent(&format!("{size:.*e}", precision.unwrap_or(6))),
        (None, Some('%')) => format!("{:.*}", precision.unwrap_or(6), size * 100.0),
        (None, None) if precision.is_none() => float(size),
        (None, kind) => general(size, precision.unwrap_or(6).max(1), kind.is_none()),
    };
    if spec.kind == Some('%') {
        digits.push('%');
    }
    if upper {
        digits = digits.to_uppercase();
    }
    write_number(out, spec, value.is_sign_negative() && !value.is_nan(), "", &digits)
}

/// The format `g`: `precision` significant digits, an exponent where the number is very small or large, no zeros
/// at the end. With `keeps_point` one digit stays behind the point.
fn general(size: f64, precision: usize, keeps_point: bool) -> String {
    let scientific = format!("{size:.*e}", precision - 1);
    let exponent: i64 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let limit = precision as i64 - i64::from(keeps_point);
    let bare = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= limit.max(1) && exponent >= limit {
        let (digits, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
        return with_exponent(&format!("{}e{exponent}", bare(digits)));
    }
    let fixed = bare(&format!("{size:.*}", (precision as i64 - 1 - exponent).max(0) as usize));
    if keeps_point && !fixed.contains('.') { fixed + ".0" } else { fixed }
}
