//! Sizes in bytes: parsed from text, and printed.

/// Units, as powers of ten or two. `20G` means 20 GiB, as in other engines.
const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// The most digits after the decimal point that count.
const MAX_FRACTION: usize = 9;

/// Reads a size: a number of bytes, or a decimal number with a unit, such as `20GiB`, `20G` (the same) or `1.5 GB` (a
/// power of ten). A fraction of a byte is dropped.
///
/// # Errors
/// One line, for anything else and for sizes beyond 64 bits.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some(&(_, factor)) => factor,
        None if unit.is_empty() => 1,
        None => {
            return Err(
                "expected a number of bytes, or a number with K, M or G (KiB, MiB, GiB), or KB, MB or GB"
                    .into(),
            );
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let dangling = number.contains('.') && (unit.is_empty() || fraction.is_empty());
    if whole.is_empty() || dangling || fraction.len() > MAX_FRACTION || fraction.contains('.') {
        return Err("expected a number such as 512MiB or 1.5GiB".into());
    }
    let too_large = || "the size is beyond 64 bits".to_owned();
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| too_large())? };
    let scale = 10u128.pow(fraction.len() as u32);
    let bytes = whole.checked_mul(factor as u128).and_then(|b| b.checked_add(parts * factor as u128 / scale));
    bytes.and_then(|b| u64::try_from(b).ok()).ok_or_else(too_large)
}

/// A size in binary units with three or four significant digits.
pub fn human(bytes: u64) -> String {
    let unit = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut index) = (bytes as f64 / 1024.0, 0);
    while value >= 1023.95 && index + 1 < unit.len() {
        value /= 1024.0;
        index += 1;
    }
    let digits = if value < 10.0 { 2 } else { 1 };
    format!("{value:.digits$} {}", unit[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_units_are_read() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("1048576"), Ok(1 << 20));
        assert_eq!(parse("20GiB"), Ok(20 << 30));
        assert_eq!(parse(" 3 kib "), Ok(3 << 10));
        assert_eq!((parse("20G"), parse("200m"), parse("1.5T")), (Ok(20 << 30), Ok(200 << 20), Ok(3 << 39)));
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse("0.1KB"), Ok(100));
        assert_eq!(parse("2TB"), Ok(2_000_000_000_000));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse("16777215.999TiB").map(|b| b >> 40), Ok(16_777_215));
    }

    #[test]
    fn anything_else_is_refused() {
        let garbage = [
            "",
            " ",
            "GiB",
            "-1",
            "-1GiB",
            "+1",
            "1e9",
            "1.2.3GiB",
            "1.GiB",
            ".5GiB",
            "1.5",
            "1Gi",
            "1 GiB x",
            "0x10",
            "nan",
            "inf",
            "1_000",
            "１GiB",
            "1.0000000001GiB",
        ];
        for text in garbage {
            assert!(parse(text).is_err(), "{text:?} became {:?}", parse(text));
        }
    }

    #[test]
    fn overflow_is_refused() {
        let huge = "9".repeat(200);
        for text in ["18446744073709551616", "16777216TiB", "18446744073709551615KiB", &huge] {
            assert_eq!(parse(text), Err("the size is beyond 64 bits".to_owned()), "{text}");
        }
    }

    #[test]
    fn people_see_four_digits_at_most() {
        let shown = [0, 1023, 1024, 1536, 10 << 10, 1 << 20, (1 << 20) - 1, 20 << 30, u64::MAX].map(human);
        let expected = [
            "0 B", "1023 B", "1.00 KiB", "1.50 KiB", "10.0 KiB", "1.00 MiB", "1.00 MiB", "20.0 GiB",
            "16.0 EiB",
        ];
        assert_eq!(shown, expected);
    }
}
