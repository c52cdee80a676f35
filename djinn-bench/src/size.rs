//! Sizes in bytes: as people write them, and for people to read.

const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Reads a whole number of bytes, or a decimal number with a unit: `20GiB`, `1.5GB`.
///
/// # Errors
/// In one line, for anything else and for sizes beyond 2^53 bytes, above which a fraction is not exact.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit.trim())) {
        Some(&(_, factor)) => factor,
        None if unit.is_empty() && !number.contains('.') => 1,
        None => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
    if bytes > (1u64 << 53) as f64 {
        return Err(format!("{text:?} is too large"));
    }
    Ok(bytes as u64)
}

/// A size with its unit, in GiB, or MiB below one: `20 GiB`, `1.5 GiB`, `3 MiB`.
pub(crate) fn human(bytes: u64) -> String {
    let (unit, factor) = if bytes < 1 << 30 { ("MiB", 1u64 << 20) } else { ("GiB", 1 << 30) };
    let text = format!("{:.2}", bytes as f64 / factor as f64);
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("20GiB"), Ok(20 << 30));
        assert_eq!(parse("1.5 gib"), Ok(3 << 29));
        assert_eq!(parse("1048576"), Ok(1 << 20));
        assert_eq!(parse("2GB"), Ok(2_000_000_000));
        for wrong in ["", "GiB", "-1", "1.5", "1.2.3GiB", "1e9", "3 bytes", "nan", "99999999999GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_short_for_people() {
        assert_eq!([20 << 30, 3 << 29, 1 << 20, 0].map(human), ["20 GiB", "1.5 GiB", "1 MiB", "0 MiB"]);
    }
}
