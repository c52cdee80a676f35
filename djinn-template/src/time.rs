//! `strftime_now`: the date in a template, in UTC.

use crate::error::{Eval, Fault};
use std::time::{SystemTime, UNIX_EPOCH};

/// Three letters of each are its short name.
const MONTHS: &str = "January February March April May June July August September October November December";
/// From the first of January 1970 on.
const DAYS: &str = "Thursday Friday Saturday Sunday Monday Tuesday Wednesday";

fn nth(names: &'static str, at: usize) -> &'static str {
    names.split(' ').nth(at).unwrap_or_default()
}

/// A point in time, taken apart.
struct Civil {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    weekday: &'static str,
    seconds: u64,
}

/// Formats a time as Python's `strftime` does, with the directives that templates use.
pub(crate) fn strftime(format: &str, now: SystemTime) -> Eval<String> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let civil = Civil::at(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let shown = directive.and_then(|directive| civil.shown(directive, padded));
        let Some(shown) = shown else {
            let directive = directive.map_or(String::new(), String::from);
            return Err(Fault::Unsupported(format!("strftime_now with %{directive}")));
        };
        out += &shown;
    }
    Ok(out)
}

impl Civil {
    fn at(seconds: u64) -> Self {
        let mut days = seconds / 86_400;
        let weekday = nth(DAYS, (days % 7) as usize);
        let leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        // 400 years have 146097 days: the loop below runs at most 400 times.
        let mut year = 1970 + days / 146_097 * 400;
        days %= 146_097;
        while days >= 365 + u64::from(leap(year)) {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let day_of_year = days + 1;
        let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while days >= lengths[month] {
            days -= lengths[month];
            month += 1;
        }
        Self { year, month, day: days + 1, day_of_year, weekday, seconds: seconds % 86_400 }
    }

    /// What one directive stands for; `None` if it is not known.
    fn shown(&self, directive: char, padded: bool) -> Option<String> {
        let number = |number: u64, width: usize| {
            let width = if padded { width } else { 0 };
            format!("{number:0width$}")
        };
        let hour = self.seconds / 3600;
        Some(match directive {
            'Y' => number(self.year, 4),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as u64 + 1, 2),
            'd' => number(self.day, 2),
            'j' => number(self.day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(self.seconds / 60 % 60, 2),
            'S' => number(self.seconds % 60, 2),
            'B' => nth(MONTHS, self.month).to_owned(),
            'b' => nth(MONTHS, self.month)[..3].to_owned(),
            'A' => self.weekday.to_owned(),
            'a' => self.weekday[..3].to_owned(),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_formatted_as_python_formats_them() {
        let at = |seconds, format: &str| strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        assert_eq!(at(0, "%Y-%m-%d %H:%M:%S %A %j %p"), "1970-01-01 00:00:00 Thursday 001 AM");
        // 29 February 2024, 13:05:09 UTC.
        assert_eq!(
            at(1_709_211_909, "%d %b %Y, %B %-d %y %I:%M:%S %p %a %j %%"),
            "29 Feb 2024, February 29 24 01:05:09 PM Thu 060 %"
        );
        assert_eq!(at(4_107_542_399, "%Y %j"), "2100 059");
        assert_eq!(at(12_622_780_800, "%Y-%m-%d %a"), "2370-01-01 Thu");
    }
}
