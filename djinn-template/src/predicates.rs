//! Jinja's tests: what stands behind `is`.

use crate::ast::Comparison;
use crate::error::Fault;
use crate::functions::Object;
use crate::methods::strings;
use crate::operators::{integer, number};
use crate::render::{Args, Renderer};
use crate::value::{Kind, SeqKind, Value};
use std::sync::Arc;

/// A test: whether it holds for a value, with arguments.
pub(crate) type TestFn = fn(&mut Renderer<'_>, &Value, Args) -> Result<bool, Fault>;

/// A test by its name.
pub(crate) fn find(name: &str) -> Option<TestFn> {
    Some(match name {
        "defined" => |_, value, args| plain("defined", args, !value.is_undefined()),
        "undefined" => |_, value, args| plain("undefined", args, value.is_undefined()),
        "none" => |_, value, args| plain("none", args, value.is_none()),
        "boolean" => |_, value, args| plain("boolean", args, matches!(value.0, Kind::Bool(_))),
        "true" => |_, value, args| plain("true", args, matches!(value.0, Kind::Bool(true))),
        "false" => |_, value, args| plain("false", args, matches!(value.0, Kind::Bool(false))),
        "integer" => |_, value, args| plain("integer", args, matches!(value.0, Kind::Int(_))),
        "float" => |_, value, args| plain("float", args, matches!(value.0, Kind::Float(_))),
        "number" => |_, value, args| plain("number", args, number(value).is_some()),
        "string" => |_, value, args| plain("string", args, value.as_str().is_some()),
        "mapping" => |_, value, args| plain("mapping", args, value.as_dict().is_some()),
        "sequence" => |_, value, args| plain("sequence", args, is_sequence(value)),
        "iterable" => |_, value, args| plain("iterable", args, is_iterable(value)),
        "callable" => |r, value, args| plain("callable", args, is_callable(r, value)),
        "escaped" => |_, _, args| plain("escaped", args, false),
        "odd" => |_, value, args| remainder("odd", args, value, 2, 1),
        "even" => |_, value, args| remainder("even", args, value, 2, 0),
        "divisibleby" => |_, value, args| {
            let divisor = only("divisibleby", args)?;
            let Some(divisor) = integer(&divisor).filter(|divisor| *divisor != 0) else {
                return Err(Fault::new("divisibleby needs an integer other than 0"));
            };
            remainder("divisibleby", Args::default(), value, divisor, 0)
        },
        "lower" => |r, value, args| letters(r, "islower", value, args),
        "upper" => |r, value, args| letters(r, "isupper", value, args),
        "sameas" => |_, value, args| only("sameas", args).map(|other| is_same(value, &other)),
        "filter" => {
            |_, value, args| named("filter", args, value, |name| crate::filters::find(name).is_some())
        }
        "test" => |_, value, args| named("test", args, value, |name| find(name).is_some()),
        "eq" | "equalto" | "==" => |r, value, args| compared(r, Comparison::Equal, value, args),
        "ne" | "!=" => |r, value, args| compared(r, Comparison::NotEqual, value, args),
        "lt" | "lessthan" | "<" => |r, value, args| compared(r, Comparison::Less, value, args),
        "le" | "<=" => |r, value, args| compared(r, Comparison::LessEqual, value, args),
        "gt" | "greaterthan" | ">" => |r, value, args| compared(r, Comparison::Greater, value, args),
        "ge" | ">=" => |r, value, args| compared(r, Comparison::GreaterEqual, value, args),
        "in" => |r, value, args| compared(r, Comparison::In, value, args),
        _ => return None,
    })
}

fn plain(name: &str, args: Args, holds: bool) -> Result<bool, Fault> {
    let [] = args.bind(name, [])?;
    Ok(holds)
}

fn only(name: &str, args: Args) -> Result<Value, Fault> {
    let [other] = args.bind(name, ["other"])?;
    other.ok_or_else(|| Fault::new(format!("the test {name} needs an argument")))
}

fn compared(r: &Renderer<'_>, comparison: Comparison, value: &Value, args: Args) -> Result<bool, Fault> {
    let other = only("comparison", args)?;
    r.compare(comparison, value, &other)
}

fn remainder(name: &str, args: Args, value: &Value, divisor: i128, wanted: i128) -> Result<bool, Fault> {
    let [] = args.bind(name, [])?;
    match (integer(value), &value.0) {
        (Some(value), _) => Ok(value.checked_rem_euclid(divisor) == Some(wanted)),
        (None, Kind::Float(value)) => Ok(value.rem_euclid(divisor as f64) == wanted as f64),
        _ => Err(Fault::new(format!("the test {name} needs a number, not {}", value.type_name()))),
    }
}

/// `islower` and `isupper` of a value's text.
fn letters(r: &Renderer<'_>, method: &str, value: &Value, args: Args) -> Result<bool, Fault> {
    let [] = args.bind(method, [])?;
    let text = r.string(value)?;
    let text = text.as_str().unwrap_or_default();
    r.budget.work(text.len() as u64 * 4)?;
    Ok(strings::is(text, method))
}

fn named(name: &str, args: Args, value: &Value, known: fn(&str) -> bool) -> Result<bool, Fault> {
    let [] = args.bind(name, [])?;
    Ok(value.as_str().is_some_and(known))
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
    match (&a.0, &b.0) {
        (Kind::None, Kind::None) => true,
        (Kind::Bool(a), Kind::Bool(b)) => a == b,
        (Kind::Int(a), Kind::Int(b)) => a == b,
        (Kind::Str(a), Kind::Str(b)) => a.as_str() == b.as_str(),
        (Kind::Seq(a), Kind::Seq(b)) => {
            Arc::ptr_eq(a, b)
                || a.items.is_empty()
                    && b.items.is_empty()
                    && matches!((&a.kind, &b.kind), (SeqKind::Tuple, SeqKind::Tuple))
        }
        (Kind::Dict(a), Kind::Dict(b)) => Arc::ptr_eq(a, b),
        (Kind::Object(a), Kind::Object(b)) => a == b,
        _ => false,
    }
}
