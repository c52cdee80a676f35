//! Numbers as Python writes and reads them.

use crate::text::is_space;

/// A float as Python's `repr`: the shortest digits that read back, with an exponent from 1e16 on and below
/// 1e-4.
pub(crate) fn float(number: f64) -> String {
    if let Some(text) = not_finite(number) {
        return text.to_owned();
    }
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    with_exponent(&format!("{number:e}"))
}

/// `nan` and the infinities.
pub(crate) fn not_finite(number: f64) -> Option<&'static str> {
    match number {
        _ if number.is_nan() => Some("nan"),
        f64::INFINITY => Some("inf"),
        f64::NEG_INFINITY => Some("-inf"),
        _ => None,
    }
}

/// Python's exponents have a sign and two digits.
pub(crate) fn with_exponent(shown: &str) -> String {
    let (digits, exponent) = shown.split_once('e').unwrap_or((shown, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The work of writing a float with this many digits behind its point. Its digits are computed one by one.
pub(crate) fn digits_work(number: f64, precision: usize) -> u64 {
    let before_point = number.abs().log10().clamp(0.0, 310.0) as u64;
    200 + 30 * (precision as u64 + before_point)
}

/// An integer in text, as Python's `int` reads it.
pub(crate) fn parse_integer(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let lower = digits.get(..prefix.len()).is_some_and(|front| front.eq_ignore_ascii_case(prefix));
    let digits = if lower { &digits[prefix.len()..] } else { digits };
    let ends = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    if digits.starts_with(['-', '+']) || ends || !(2..=36).contains(&base) {
        return None;
    }
    let value = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -value } else { value })
}

/// A float in text, as Python's `float` reads it.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Python's `round`: half to even, decided on the exact value.
pub(crate) fn rounded(number: f64, digits: i32) -> f64 {
    if !number.is_finite() || digits > 300 {
        return number;
    }
    if digits >= 0 {
        return format!("{number:.*}", digits as usize).parse().unwrap_or(number);
    }
    if digits < -308 {
        return 0.0 * number;
    }
    let unit = 10_f64.powi(-digits);
    (number / unit).round_ties_even() * unit
}
