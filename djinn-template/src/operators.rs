//! Arithmetic, as Python does it on numbers, text and sequences.

use crate::ast::Arithmetic;
use crate::error::Fault;
use crate::filters::escape;
use crate::format;
use crate::render::Renderer;
use crate::text::TextBuilder;
use crate::value::{Kind, Seq, SeqKind, Value, undefined};

/// Integers beyond this are refused, where Python's have no end.
fn too_large() -> Fault {
    Fault::Limit("computes an integer of more than 127 bits".into())
}

/// `-value` or `+value`.
pub(crate) fn signed(minus: bool, value: &Value) -> Result<Value, Fault> {
    Ok(Value(match value.0 {
        Kind::Float(value) => Kind::Float(if minus { -value } else { value }),
        Kind::Int(_) | Kind::Bool(_) => {
            let value = integer(value).unwrap_or_default();
            Kind::Int(if minus { value.checked_neg().ok_or_else(too_large)? } else { value })
        }
        Kind::Undefined(ref name) => return Err(undefined(name.as_deref())),
        _ => return Err(Fault::new(format!("bad operand type for a sign: '{}'", value.type_name()))),
    }))
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
pub(crate) fn arithmetic(
    renderer: &mut Renderer<'_>,
    operator: Arithmetic,
    a: &Value,
    b: &Value,
) -> Result<Value, Fault> {
    if let Some(missing) = [a, b].into_iter().find(|value| value.is_undefined())
        && !(operator == Arithmetic::Remainder && a.as_text().is_some())
        && let Kind::Undefined(name) = &missing.0
    {
        return Err(undefined(name.as_deref()));
    }
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return floats(operator, a, b);
    }
    match (operator, &a.0, &b.0) {
        (Arithmetic::Add, Kind::Str(x), Kind::Str(y)) => {
            let markup = x.markup || y.markup;
            let mut out = TextBuilder::marked(markup);
            for (text, value) in [(x, a), (y, b)] {
                match markup && !text.markup {
                    true => escape(renderer, &mut out, value)?,
                    false => out.text(&renderer.budget, text)?,
                }
            }
            renderer.made(out)
        }
        (Arithmetic::Add, Kind::Seq(x), Kind::Seq(y)) if same_list(x, y) => {
            renderer.budget.items::<Value>(x.items.len() + y.items.len())?;
            like(renderer, x, [x.items.as_slice(), &y.items].concat())
        }
        (Arithmetic::Multiply, Kind::Str(_) | Kind::Seq(_), _) if integer(b).is_some() => {
            repeated(renderer, a, integer(b).unwrap_or_default())
        }
        (Arithmetic::Multiply, _, Kind::Str(_) | Kind::Seq(_)) if integer(a).is_some() => {
            repeated(renderer, b, integer(a).unwrap_or_default())
        }
        (Arithmetic::Remainder, Kind::Str(text), _) => format::percent(renderer, text, b),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn unsupported(operator: Arithmetic, a: &Value, b: &Value) -> Fault {
    let sign = match operator {
        Arithmetic::Add => "+",
        Arithmetic::Subtract => "-",
        Arithmetic::Multiply => "*",
        Arithmetic::Divide => "/",
        Arithmetic::FloorDivide => "//",
        Arithmetic::Remainder => "%",
        Arithmetic::Power => "**",
    };
    let (a, b) = (a.type_name(), b.type_name());
    Fault::new(format!("unsupported operand types for {sign}: '{a}' and '{b}'"))
}

/// Two lists, or two tuples.
fn same_list(a: &Seq, b: &Seq) -> bool {
    matches!((&a.kind, &b.kind), (SeqKind::List, SeqKind::List) | (SeqKind::Tuple, SeqKind::Tuple))
}

/// A list or tuple, whichever the first one is.
fn like(renderer: &Renderer<'_>, first: &Seq, items: Vec<Value>) -> Result<Value, Fault> {
    let kind = if matches!(first.kind, SeqKind::Tuple) { SeqKind::Tuple } else { SeqKind::List };
    Value::seq(&renderer.budget, kind, items)
}

fn repeated(renderer: &Renderer<'_>, value: &Value, times: i128) -> Result<Value, Fault> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match &value.0 {
        Kind::Str(text) => {
            let mut out = TextBuilder::default();
            out.repeat(&renderer.budget, text, times)?;
            renderer.made(out)
        }
        Kind::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            renderer.budget.items::<Value>(seq.items.len().saturating_mul(times))?;
            let count = seq.items.len().saturating_mul(times);
            like(renderer, seq, seq.items.iter().cycle().take(count).cloned().collect())
        }
        _ => Err(Fault::new(format!("cannot repeat a {}", value.type_name()))),
    }
}

fn integers(operator: Arithmetic, a: i128, b: i128) -> Result<Value, Fault> {
    let zero = || Fault::new("division by zero");
    let found = match operator {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::Divide if b == 0 => return Err(zero()),
        Arithmetic::Divide => return Ok((a as f64 / b as f64).into()),
        Arithmetic::FloorDivide | Arithmetic::Remainder if b == 0 => return Err(zero()),
        Arithmetic::FloorDivide => {
            let whole = a.checked_div(b).ok_or_else(too_large)?;
            Some(if a % b != 0 && (a < 0) != (b < 0) { whole - 1 } else { whole })
        }
        Arithmetic::Remainder => {
            let rest = a.checked_rem(b).unwrap_or(0);
            Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Arithmetic::Power if b < 0 && a == 0 => return Err(zero()),
        Arithmetic::Power if b < 0 => return Ok((a as f64).powf(b as f64).into()),
        Arithmetic::Power => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(b)) => a.checked_pow(b),
            _ => None,
        },
    };
    found.map(|value| Value(Kind::Int(value))).ok_or_else(too_large)
}

fn floats(operator: Arithmetic, a: f64, b: f64) -> Result<Value, Fault> {
    let divides = matches!(operator, Arithmetic::Divide | Arithmetic::FloorDivide | Arithmetic::Remainder);
    if divides && b == 0.0 {
        return Err(Fault::new("float division by zero"));
    }
    let rest = || {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
    };
    Ok(match operator {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide => a / b,
        Arithmetic::FloorDivide => ((a - rest()) / b).round_ties_even(),
        Arithmetic::Remainder => rest(),
        Arithmetic::Power => {
            let found = a.powf(b);
            if a == 0.0 && b < 0.0 {
                return Err(Fault::new("0.0 cannot be raised to a negative power"));
            }
            if found.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Fault::new("the result of ** is too large"));
            }
            found
        }
    }
    .into())
}
