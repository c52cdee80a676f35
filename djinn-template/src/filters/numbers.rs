//! Filters of numbers.

use crate::arguments::Given;
use crate::error::{Eval, refuse};
use crate::numbers::{digits_work, parse_float, parse_integer, rounded};
use crate::operators::{integer, number};
use crate::render::Renderer;
use crate::value::{Kind, Value, undefined};

pub(super) fn abs(_: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    match (integer(value), &value.0) {
        (Some(number), _) => Ok(number.saturating_abs().into()),
        (_, Kind::Float(number)) => Ok(number.abs().into()),
        _ => refuse!("bad operand type for abs: '{}'", value.type_name()),
    }
}

/// Counts the work of reading a number in a text: it is read several times, and copied.
fn look_at(r: &Renderer<'_>, value: &Value) -> Eval<()> {
    r.budget.work(value.as_str().map_or(0, |text| text.len() as u64 * 8))
}

pub(super) fn int(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    look_at(r, value)?;
    let truncated = |number: f64| (number.is_finite() && number.abs() < 1e38).then(|| number.trunc() as i128);
    let found = match &value.0 {
        Kind::Str(text) => {
            let base = u32::try_from(given.count("base", 10)?).unwrap_or(0);
            parse_integer(text.as_str(), base).or_else(|| parse_float(text.as_str()).and_then(truncated))
        }
        Kind::Undefined(name) => return undefined(name),
        Kind::Float(number) => truncated(*number),
        _ => integer(value),
    };
    Ok(found.map(Value::from).or(given.value("default")).unwrap_or(0_i64.into()))
}

pub(super) fn float(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    look_at(r, value)?;
    let found = match &value.0 {
        Kind::Str(text) => parse_float(text.as_str()),
        Kind::Undefined(name) => return undefined(name),
        _ => number(value),
    };
    Ok(found.map(Value::from).or(given.value("default")).unwrap_or(0.0.into()))
}

pub(super) fn round(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let Ok(digits) = i32::try_from(given.integer("precision")?.unwrap_or(0)) else {
        return refuse!("round: the precision is too large");
    };
    let Some(found) = number(value) else {
        return refuse!("round: '{}' is no number", value.type_name());
    };
    // It is written with these digits, and read again.
    r.budget.work(2 * digits_work(found, digits.clamp(0, 300) as usize))?;
    let unit = 10_f64.powi(digits);
    Ok(match given.value("method").as_ref().map_or(Some("common"), Value::as_str) {
        Some("common") if digits >= 0 && integer(value).is_some() => value.clone(),
        Some("common") => rounded(found, digits).into(),
        Some("ceil") => ((found * unit).ceil() / unit).into(),
        Some("floor") => ((found * unit).floor() / unit).into(),
        _ => return refuse!("round: the method must be common, ceil or floor"),
    })
}
