//! Rows of numbers in JSON: each is one string, so that thousands of samples stay readable.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// `[1.0, 2.5]` as `"1 2.5"`; numbers keep six digits after the point.
pub(super) fn serialize<S: Serializer, const N: usize>(
    rows: &[[f64; N]],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let number = |value: &f64| ((value * 1e6).round() / 1e6).to_string();
    let row = |row: &[f64; N]| row.iter().map(number).collect::<Vec<_>>().join(" ");
    rows.iter().map(row).collect::<Vec<_>>().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
    deserializer: D,
) -> Result<Vec<[f64; N]>, D::Error> {
    let row = |text: String| {
        let numbers: Option<Vec<f64>> = text.split(' ').map(|number| number.parse().ok()).collect();
        let row = numbers.and_then(|numbers| numbers.try_into().ok());
        row.ok_or_else(|| D::Error::custom(format!("`{text}` is no row of {N} numbers")))
    };
    Vec::<String>::deserialize(deserializer)?.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Rows(#[serde(with = "super")] Vec<[f64; 3]>);

    #[test]
    fn rows_come_back_and_others_are_refused() {
        let rows = Rows(vec![[1.0, 2.5, -0.000_001], [0.0, 1e9, 3.0]]);
        let text = serde_json::to_string(&rows).unwrap();
        assert_eq!(text, r#"["1 2.5 -0.000001","0 1000000000 3"]"#);
        assert_eq!(serde_json::from_str::<Rows>(&text).unwrap(), rows);
        for wrong in [r#"["1 2"]"#, r#"["1 2 x"]"#, r#"["1 2 3 4"]"#] {
            assert!(serde_json::from_str::<Rows>(wrong).is_err(), "{wrong}");
        }
    }
}
