//! Jinja's filters, by name.

mod sequences;
mod texts;

pub(crate) use sequences::sorted;
pub(crate) use texts::escape;

use crate::error::Fault;
use crate::numbers::{parse_float, parse_integer, round};
use crate::operators::{integer, number};
use crate::render::{Args, Renderer};
use crate::value::{Kind, Value, truth, undefined};

/// A filter: a value to another, with arguments.
pub(crate) type FilterFn = fn(&mut Renderer<'_>, &Value, Args) -> Result<Value, Fault>;

/// A filter by its name.
pub(crate) fn find(name: &str) -> Option<FilterFn> {
    Some(match name {
        "abs" => abs,
        "attr" => sequences::attr,
        "batch" => sequences::batch,
        "capitalize" => |r, value, args| texts::case(r, value, args, "capitalize"),
        "center" => texts::center,
        "count" | "length" => sequences::length,
        "d" | "default" => default,
        "dictsort" => sequences::dictsort,
        "e" | "escape" => |r, value, args| texts::escape_filter(r, value, args, false),
        "forceescape" => |r, value, args| texts::escape_filter(r, value, args, true),
        "first" => sequences::first,
        "float" => float,
        "format" => texts::format,
        "groupby" => sequences::groupby,
        "indent" => texts::indent,
        "int" => int,
        "items" => sequences::items,
        "join" => texts::join,
        "last" => sequences::last,
        "list" => sequences::list,
        "lower" => |r, value, args| texts::case(r, value, args, "lower"),
        "map" => sequences::map,
        "max" => |r, value, args| sequences::extreme(r, value, args, "max"),
        "min" => |r, value, args| sequences::extreme(r, value, args, "min"),
        "reject" => |r, value, args| sequences::select(r, value, args, false, false),
        "rejectattr" => |r, value, args| sequences::select(r, value, args, true, false),
        "replace" => texts::replace,
        "reverse" => sequences::reverse,
        "round" => round_filter,
        "safe" => texts::safe,
        "string" => |r, value, _| r.string(value),
        "select" => |r, value, args| sequences::select(r, value, args, false, true),
        "selectattr" => |r, value, args| sequences::select(r, value, args, true, true),
        "slice" => sequences::slice,
        "sort" => sequences::sort,
        "sum" => sequences::sum,
        "title" => texts::title,
        "tojson" => crate::json::tojson,
        "trim" => texts::trim,
        "truncate" => texts::truncate,
        "unique" => sequences::unique,
        "upper" => |r, value, args| texts::case(r, value, args, "upper"),
        "urlencode" => texts::urlencode,
        "wordcount" => texts::wordcount,
        _ => return None,
    })
}

/// An argument that is a number of things.
fn count_of(value: Option<Value>, default: usize) -> Result<usize, Fault> {
    let Some(value) = value else { return Ok(default) };
    let found =
        integer(&value).ok_or_else(|| Fault::new(format!("'{}' is no integer", value.type_name())))?;
    Ok(usize::try_from(found.max(0)).unwrap_or(usize::MAX))
}

fn is_set(value: Option<Value>) -> bool {
    value.is_some_and(|value| truth(&value))
}

fn default(_: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [otherwise, falsy] = args.bind("default", ["default_value", "boolean"])?;
    let replaced = value.is_undefined() || (is_set(falsy) && !truth(value));
    Ok(if replaced { otherwise.unwrap_or_else(|| Value::token("")) } else { value.clone() })
}

fn abs(_: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [] = args.bind("abs", [])?;
    match (integer(value), &value.0) {
        (Some(number), _) => Ok(Value(Kind::Int(number.saturating_abs()))),
        (_, Kind::Float(number)) => Ok(number.abs().into()),
        _ => Err(Fault::new(format!("bad operand type for abs: '{}'", value.type_name()))),
    }
}

fn int(_: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let default = default.unwrap_or_else(|| 0.into());
    let truncated = |number: f64| (number.is_finite() && number.abs() < 1e38).then(|| number.trunc() as i128);
    let found = match &value.0 {
        Kind::Str(text) => {
            let base = u32::try_from(count_of(base, 10)?).unwrap_or(0);
            parse_integer(text.as_str(), base).or_else(|| parse_float(text.as_str()).and_then(truncated))
        }
        Kind::Undefined(name) => return Err(undefined(name.as_deref())),
        Kind::Float(number) => truncated(*number),
        _ => integer(value),
    };
    Ok(found.map_or(default, |number| Value(Kind::Int(number))))
}

fn float(_: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [default] = args.bind("float", ["default"])?;
    let found = match &value.0 {
        Kind::Str(text) => parse_float(text.as_str()),
        Kind::Undefined(name) => return Err(undefined(name.as_deref())),
        _ => number(value),
    };
    Ok(found.map_or_else(|| default.unwrap_or_else(|| 0.0.into()), Value::from))
}

fn round_filter(_: &mut Renderer<'_>, value: &Value, args: Args) -> Result<Value, Fault> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Some(0), |value| integer(&value));
    let Some(digits) = precision.and_then(|value| i32::try_from(value).ok()) else {
        return Err(Fault::new("round: the precision is no integer"));
    };
    let Some(given) = number(value) else {
        return Err(Fault::new(format!("round: '{}' is no number", value.type_name())));
    };
    let unit = 10_f64.powi(digits);
    match method.as_ref().map_or(Some("common"), Value::as_str) {
        Some("common") if digits >= 0 && integer(value).is_some() => Ok(value.clone()),
        Some("common") => Ok(round(given, digits).into()),
        Some("ceil") => Ok(((given * unit).ceil() / unit).into()),
        Some("floor") => Ok(((given * unit).floor() / unit).into()),
        _ => Err(Fault::new("round: the method must be common, ceil or floor")),
    }
}
