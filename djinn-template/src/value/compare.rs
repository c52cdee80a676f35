//! Truth, equality, order and membership, as Python has them.

use super::{Key, Kind, Seq, SeqKind, Value, undefined};
use crate::budget::Budget;
use crate::error::{Eval, refuse};
use crate::operators::integer;
use std::cmp::Ordering;
use std::sync::Arc;

/// Python's truth of a value.
pub(crate) fn truth(value: &Value) -> bool {
    match &value.0 {
        Kind::Undefined(_) | Kind::None => false,
        Kind::Bool(value) => *value,
        Kind::Int(value) => *value != 0,
        Kind::Float(value) => *value != 0.0,
        Kind::Str(text) => text.len() > 0,
        Kind::Seq(seq) => !seq.items.is_empty() || matches!(seq.kind, SeqKind::Generator(_)),
        Kind::Dict(dict) => !dict.entries.is_empty(),
        Kind::Object(_) | Kind::Loop(_) | Kind::Macro(_) | Kind::Function(_) | Kind::Method(_) => true,
    }
}

/// Two numbers by their values; `None` if one is none.
fn numbers(a: &Value, b: &Value) -> Option<Option<Ordering>> {
    match (integer(a), integer(b), &a.0, &b.0) {
        (Some(a), Some(b), ..) => Some(Some(a.cmp(&b))),
        (Some(a), None, _, Kind::Float(b)) => Some(integer_and_float(a, *b)),
        (None, Some(b), Kind::Float(a), _) => Some(integer_and_float(b, *a).map(Ordering::reverse)),
        (_, _, Kind::Float(a), Kind::Float(b)) => Some(a.partial_cmp(b)),
        _ => None,
    }
}

/// Exact, also where the integer is no float.
fn integer_and_float(a: i128, b: f64) -> Option<Ordering> {
    // The cast saturates, which keeps the order: no integer here is beyond the limits.
    let whole = b.trunc();
    let rest = 0.0_f64.partial_cmp(&(b - whole));
    (!b.is_nan()).then(|| a.cmp(&(whole as i128)).then(rest.unwrap_or(Ordering::Equal)))
}

/// Python's `==`.
pub(crate) fn equal(budget: &Budget, a: &Value, b: &Value) -> Eval<bool> {
    budget.work(8)?;
    if let Some(order) = numbers(a, b) {
        return Ok(order == Some(Ordering::Equal));
    }
    Ok(match (&a.0, &b.0) {
        (Kind::Undefined(_), Kind::Undefined(_)) | (Kind::None, Kind::None) => true,
        (Kind::Str(a), Kind::Str(b)) => {
            if a.len() == b.len() {
                budget.work(a.len() as u64 / 4)?;
            }
            a.as_str() == b.as_str()
        }
        (Kind::Seq(a), Kind::Seq(b)) => return equal_sequences(budget, a, b),
        (Kind::Dict(a), Kind::Dict(b)) => {
            let mut same = a.entries.len() == b.entries.len();
            for (key, value) in &a.entries {
                if !same || Arc::ptr_eq(a, b) {
                    break;
                }
                budget.work(20)?;
                Key::look_at(budget, &key.0)?;
                same = b.entries.get(key).map_or(Ok(false), |other| equal(budget, value, other))?;
            }
            same
        }
        (Kind::Object(a), Kind::Object(b)) => a == b,
        (Kind::Loop(a), Kind::Loop(b)) => a == b,
        (Kind::Macro(a), Kind::Macro(b)) => Arc::ptr_eq(a, b),
        (Kind::Function(a), Kind::Function(b)) => a.0 == b.0,
        (Kind::Method(a), Kind::Method(b)) => Arc::ptr_eq(a, b),
        _ => false,
    })
}

/// Whether sequences may be equal at all, by their kinds.
fn comparable(a: &Seq, b: &Seq) -> bool {
    use SeqKind::{Items, Keys, List, Range, Tuple};
    matches!(
        (&a.kind, &b.kind),
        (List, List) | (Tuple, Tuple) | (Range(_), Range(_)) | (Keys, Keys) | (Items, Items)
    )
}

fn equal_sequences(budget: &Budget, a: &Arc<Seq>, b: &Arc<Seq>) -> Eval<bool> {
    if Arc::ptr_eq(a, b) {
        return Ok(true);
    }
    Ok(comparable(a, b) && a.items.len() == b.items.len() && all_equal(budget, &a.items, &b.items)?)
}

/// Whether values are equal, as far as both lists go.
pub(crate) fn all_equal(budget: &Budget, a: &[Value], b: &[Value]) -> Eval<bool> {
    for (a, b) in a.iter().zip(b) {
        if !equal(budget, a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Python's `<` as an order; what cannot be ordered is refused. `None` is the order of what is not a number.
fn order(budget: &Budget, operator: &str, a: &Value, b: &Value) -> Eval<Option<Ordering>> {
    budget.work(8)?;
    if let Some(order) = numbers(a, b) {
        return Ok(order);
    }
    match (&a.0, &b.0) {
        (Kind::Str(a), Kind::Str(b)) => {
            budget.work(a.len().min(b.len()) as u64 / 4)?;
            // Bytes of UTF-8 are in the order of their characters.
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        (Kind::Seq(x), Kind::Seq(y))
            if comparable(x, y) && matches!(x.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            for (a, b) in x.items.iter().zip(&y.items) {
                if !equal(budget, a, b)? {
                    return order(budget, operator, a, b);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        (Kind::Undefined(name), _) | (_, Kind::Undefined(name)) => undefined(name),
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            refuse!("'{operator}' not supported between instances of '{a}' and '{b}'")
        }
    }
}

/// One of Python's comparisons by its sign.
pub(crate) fn compare(budget: &Budget, operator: &str, a: &Value, b: &Value) -> Eval<bool> {
    let accepts = match operator {
        "==" => return equal(budget, a, b),
        "!=" => return Ok(!equal(budget, a, b)?),
        "in" => return contains(budget, a, b),
        "not in" => return Ok(!contains(budget, a, b)?),
        "<" => Ordering::is_lt,
        "<=" => Ordering::is_le,
        ">" => Ordering::is_gt,
        _ => Ordering::is_ge,
    };
    Ok(order(budget, operator, a, b)?.is_some_and(accepts))
}

/// Python's `item in container`.
fn contains(budget: &Budget, item: &Value, container: &Value) -> Eval<bool> {
    budget.work(8)?;
    match &container.0 {
        Kind::Str(text) => {
            let Some(part) = item.as_str() else {
                let found = item.type_name();
                return refuse!("'in <string>' requires string as left operand, not {found}");
            };
            budget.work(text.len() as u64 + part.len() as u64)?;
            Ok(text.as_str().contains(part))
        }
        Kind::Dict(dict) => Ok(dict.entries.contains_key(&Key::new(budget, item.clone())?)),
        Kind::Seq(seq) => {
            for (at, other) in seq.rest().iter().enumerate() {
                if equal(budget, item, other)? {
                    seq.advance(at + 1);
                    return Ok(true);
                }
            }
            seq.advance(usize::MAX);
            Ok(false)
        }
        Kind::Undefined(_) => Ok(false),
        _ => refuse!("argument of type '{}' is not iterable", container.type_name()),
    }
}
