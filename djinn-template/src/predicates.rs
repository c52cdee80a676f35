//! Jinja's tests: what stands behind `is`.

use crate::arguments::{Builtin, Given};
use crate::error::{Eval, refuse};
use crate::functions::Object;
use crate::methods::strings;
use crate::operators::{integer, number};
use crate::render::Renderer;
use crate::value::{Kind, SeqKind, Value, compare};
use std::sync::Arc;

/// The tests; each gives a boolean.
pub(crate) static TESTS: &[Builtin] = &[
    Builtin("!=", "other", |r, a, given| compared(r, "!=", a, given)),
    Builtin("<", "other", |r, a, given| compared(r, "<", a, given)),
    Builtin("<=", "other", |r, a, given| compared(r, "<=", a, given)),
    Builtin("==", "other", |r, a, given| compared(r, "==", a, given)),
    Builtin(">", "other", |r, a, given| compared(r, ">", a, given)),
    Builtin(">=", "other", |r, a, given| compared(r, ">=", a, given)),
    Builtin("boolean", "", |_, value, _| Ok(matches!(value.0, Kind::Bool(_)).into())),
    Builtin("callable", "", |r, value, _| Ok(is_callable(r, value).into())),
    Builtin("defined", "", |_, value, _| Ok((!value.is_undefined()).into())),
    Builtin("divisibleby", "num", |_, value, given| match integer(&given.required("num")?) {
        None | Some(0) => refuse!("divisibleby needs an integer other than 0"),
        Some(divisor) => remainder(given, value, divisor, 0),
    }),
    Builtin("eq", "other", |r, a, given| compared(r, "==", a, given)),
    Builtin("equalto", "other", |r, a, given| compared(r, "==", a, given)),
    Builtin("escaped", "", |_, _, _| Ok(false.into())),
    Builtin("even", "", |_, value, given| remainder(given, value, 2, 0)),
    Builtin("false", "", |_, value, _| Ok(matches!(value.0, Kind::Bool(false)).into())),
    Builtin("filter", "", |_, value, _| Ok(is_in(crate::filters::FILTERS, value))),
    Builtin("float", "", |_, value, _| Ok(matches!(value.0, Kind::Float(_)).into())),
    Builtin("ge", "other", |r, a, given| compared(r, ">=", a, given)),
    Builtin("greaterthan", "other", |r, a, given| compared(r, ">", a, given)),
    Builtin("gt", "other", |r, a, given| compared(r, ">", a, given)),
    Builtin("in", "other", |r, a, given| compared(r, "in", a, given)),
    Builtin("integer", "", |_, value, _| Ok(matches!(value.0, Kind::Int(_)).into())),
    Builtin("iterable", "", |_, value, _| Ok(is_iterable(value).into())),
    Builtin("le", "other", |r, a, given| compared(r, "<=", a, given)),
    Builtin("lessthan", "other", |r, a, given| compared(r, "<", a, given)),
    Builtin("lower", "", |r, value, _| letters(r, "islower", value)),
    Builtin("lt", "other", |r, a, given| compared(r, "<", a, given)),
    Builtin("mapping", "", |_, value, _| Ok(value.as_dict().is_some().into())),
    Builtin("ne", "other", |r, a, given| compared(r, "!=", a, given)),
    Builtin("none", "", |_, value, _| Ok(value.is_none().into())),
    Builtin("number", "", |_, value, _| Ok(number(value).is_some().into())),
    Builtin("odd", "", |_, value, given| remainder(given, value, 2, 1)),
    Builtin("sameas", "other", |_, a, given| Ok(is_same(a, &given.required("other")?).into())),
    Builtin("sequence", "", |_, value, _| Ok(is_sequence(value).into())),
    Builtin("string", "", |_, value, _| Ok(value.as_str().is_some().into())),
    Builtin("test", "", |_, value, _| Ok(is_in(TESTS, value))),
    Builtin("true", "", |_, value, _| Ok(matches!(value.0, Kind::Bool(true)).into())),
    Builtin("undefined", "", |_, value, _| Ok(value.is_undefined().into())),
    Builtin("upper", "", |r, value, _| letters(r, "isupper", value)),
];

fn is_in(table: &'static [Builtin], name: &Value) -> Value {
    name.as_str().is_some_and(|name| Builtin::find(table, name).is_some()).into()
}

fn compared(r: &Renderer<'_>, operator: &str, value: &Value, given: &Given) -> Eval {
    compare(r.budget, operator, value, &given.required("other")?).map(Value::from)
}

fn remainder(given: &Given, value: &Value, divisor: i128, wanted: i128) -> Eval {
    match (integer(value), &value.0) {
        (Some(value), _) => Ok((value.checked_rem_euclid(divisor) == Some(wanted)).into()),
        (None, Kind::Float(value)) => Ok((value.rem_euclid(divisor as f64) == wanted as f64).into()),
        _ => refuse!("the test {} needs a number, not {}", given.callee, value.type_name()),
    }
}

/// `islower` and `isupper` of a value's text.
fn letters(r: &Renderer<'_>, method: &str, value: &Value) -> Eval {
    strings::is(r, &*r.printed(value)?, method)
}

/// What has a length and positions; mappings as well, for Jinja.
fn is_sequence(value: &Value) -> bool {
    match &value.0 {
        Kind::Str(_) | Kind::Dict(_) | Kind::Undefined(_) => true,
        Kind::Seq(seq) => seq.is_indexed(),
        _ => false,
    }
}

fn is_iterable(value: &Value) -> bool {
    matches!(value.0, Kind::Str(_) | Kind::Dict(_) | Kind::Undefined(_) | Kind::Seq(_) | Kind::Loop(_))
}

fn is_callable(r: &Renderer<'_>, value: &Value) -> bool {
    match value.0 {
        Kind::Object(at) => matches!(r.objects[at], Object::Joiner { .. }),
        // Jinja's undefined has a method that refuses the call.
        _ => matches!(value.0, Kind::Macro(_) | Kind::Function(_) | Kind::Method(_) | Kind::Undefined(_)),
    }
}

/// Python's `is`, where it does not depend on how Python stores small values.
fn is_same(a: &Value, b: &Value) -> bool {
    let empty_tuple = |value: &Value| matches!(&value.0, Kind::Seq(seq) if seq.items.is_empty() && matches!(seq.kind, SeqKind::Tuple));
    match (&a.0, &b.0) {
        (Kind::None, Kind::None) => true,
        (Kind::Bool(a), Kind::Bool(b)) => a == b,
        (Kind::Int(a), Kind::Int(b)) => a == b,
        (Kind::Str(a), Kind::Str(b)) => a.as_str() == b.as_str(),
        (Kind::Seq(x), Kind::Seq(y)) => Arc::ptr_eq(x, y) || empty_tuple(a) && empty_tuple(b),
        (Kind::Dict(a), Kind::Dict(b)) => Arc::ptr_eq(a, b),
        (Kind::Object(a), Kind::Object(b)) => a == b,
        _ => false,
    }
}
