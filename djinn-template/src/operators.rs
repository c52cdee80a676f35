//! Arithmetic, as Python does it on numbers, text and sequences. An operator is its sign.

use crate::error::{Eval, Fault, refuse};
use crate::filters::escape;
use crate::format;
use crate::render::Renderer;
use crate::value::{Kind, Seq, SeqKind, Value, undefined};

/// Integers beyond this are refused, where Python's have no end.
pub(crate) fn too_large() -> Fault {
    Fault::Limit("computes an integer of more than 127 bits".into())
}

/// `-value` or `+value`.
pub(crate) fn signed(minus: bool, value: &Value) -> Eval {
    match (&value.0, integer(value)) {
        (_, Some(value)) if minus => value.checked_neg().map(Value::from).ok_or_else(too_large),
        (_, Some(value)) => Ok(value.into()),
        (Kind::Float(value), _) => Ok(if minus { -value } else { *value }.into()),
        (Kind::Undefined(name), _) => undefined(name),
        _ => refuse!("bad operand type for a sign: '{}'", value.type_name()),
    }
}

/// The number of an integer or a boolean.
pub(crate) fn integer(value: &Value) -> Option<i128> {
    match value.0 {
        Kind::Int(value) => Some(value),
        Kind::Bool(value) => Some(value.into()),
        _ => None,
    }
}

/// Any number as a float.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value.0 {
        Kind::Float(value) => Some(value),
        _ => integer(value).map(|value| value as f64),
    }
}

/// One operator on two values.
pub(crate) fn arithmetic(r: &Renderer<'_>, operator: &str, a: &Value, b: &Value) -> Eval {
    let formats = operator == "%" && a.as_text().is_some();
    if let (Kind::Undefined(name), _) | (_, Kind::Undefined(name)) = (&a.0, &b.0)
        && !formats
    {
        return undefined(name);
    }
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return floats(operator, a, b);
    }
    match (operator, &a.0, &b.0) {
        ("+", Kind::Str(x), Kind::Str(y)) => {
            let mut out = r.builder();
            out.markup = x.markup || y.markup;
            for text in [x, y] {
                if out.markup && !text.markup { escape(&mut out, text)? } else { out.text(text)? }
            }
            out.value()
        }
        ("+", Kind::Seq(x), Kind::Seq(y)) if same_list(x, y) => {
            r.budget.items::<Value>(x.items.len() + y.items.len())?;
            like(r, x, [x.items.as_slice(), &y.items].concat())
        }
        ("*", Kind::Str(_) | Kind::Seq(_), Kind::Int(_) | Kind::Bool(_)) => repeated(r, a, b),
        ("*", Kind::Int(_) | Kind::Bool(_), Kind::Str(_) | Kind::Seq(_)) => repeated(r, b, a),
        ("%", Kind::Str(text), _) => format::percent(r, text, b),
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            refuse!("unsupported operand types for {operator}: '{a}' and '{b}'")
        }
    }
}

/// Two lists, or two tuples.
fn same_list(a: &Seq, b: &Seq) -> bool {
    matches!((&a.kind, &b.kind), (SeqKind::List, SeqKind::List) | (SeqKind::Tuple, SeqKind::Tuple))
}

/// A list or tuple, whichever the first one is.
fn like(r: &Renderer<'_>, first: &Seq, items: Vec<Value>) -> Eval {
    let kind = if matches!(first.kind, SeqKind::Tuple) { SeqKind::Tuple } else { SeqKind::List };
    Value::seq(r.budget, kind, items)
}

fn repeated(r: &Renderer<'_>, value: &Value, times: &Value) -> Eval {
    let times = usize::try_from(integer(times).unwrap_or_default().max(0)).unwrap_or(usize::MAX);
    match &value.0 {
        Kind::Str(text) => {
            let mut out = r.builder();
            out.repeat(text, times)?;
            out.value()
        }
        Kind::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            let count = seq.items.len().saturating_mul(times);
            r.budget.items::<Value>(count)?;
            like(r, seq, seq.items.iter().cycle().take(count).cloned().collect())
        }
        _ => refuse!("cannot repeat a {}", value.type_name()),
    }
}

fn integers(operator: &str, a: i128, b: i128) -> Eval {
    let found = match operator {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" | "//" | "%" if b == 0 => return refuse!("division by zero"),
        "/" => return Ok((a as f64 / b as f64).into()),
        "//" => {
            let whole = a.checked_div(b).ok_or_else(too_large)?;
            Some(if a % b != 0 && (a < 0) != (b < 0) { whole - 1 } else { whole })
        }
        "%" => {
            let rest = a.checked_rem(b).unwrap_or(0);
            Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        _ if b < 0 && a == 0 => return refuse!("division by zero"),
        _ if b < 0 => return Ok((a as f64).powf(b as f64).into()),
        _ => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(b)) => a.checked_pow(b),
            _ => None,
        },
    };
    found.map(Value::from).ok_or_else(too_large)
}

fn floats(operator: &str, a: f64, b: f64) -> Eval {
    let rest = || {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
    };
    let found = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" | "//" | "%" if b == 0.0 => return refuse!("float division by zero"),
        "/" => a / b,
        "//" => ((a - rest()) / b).round_ties_even(),
        "%" => rest(),
        _ if a == 0.0 && b < 0.0 => return refuse!("0.0 cannot be raised to a negative power"),
        _ => a.powf(b),
    };
    if operator == "**" && found.is_infinite() && a.is_finite() && b.is_finite() {
        return refuse!("the result of ** is too large");
    }
    Ok(found.into())
}
