//! Every bit pattern, every length, and records that no encoder writes.

use super::*;
use proptest::prelude::*;

const FORMS: [SixteenBit; 2] = [SixteenBit::BF16, SixteenBit::F16];

fn bytes(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn encode(form: SixteenBit, values: &[u16]) -> Option<Vec<u8>> {
    let row = LosslessRow::new(values.len()).unwrap();
    // Marks show what the encoder leaves as it was.
    let mut packed = vec![0xa5; row.bytes()];
    row.encode(form, &bytes(values), &mut packed).then_some(packed)
}

fn decode(form: SixteenBit, columns: usize, packed: &[u8]) -> Vec<u16> {
    let row = LosslessRow::new(columns).unwrap();
    row.check(form, packed).unwrap();
    let mut out = vec![0x5a; columns * 2];
    row.decode(form, packed, &mut out);
    out.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect()
}

/// Encodes, decodes and compares; whether the row could be encoded.
#[track_caller]
fn comes_back(form: SixteenBit, values: &[u16]) -> bool {
    let packed = encode(form, values);
    if let Some(packed) = &packed {
        assert_eq!(decode(form, values.len(), packed), values);
        assert_eq!(encode(form, values).as_ref(), Some(packed), "the encoder wrote all bytes");
    }
    packed.is_some()
}

#[test]
fn all_patterns_come_back_in_any_company() {
    for form in FORMS {
        for pattern in 0..=u16::MAX {
            // In a row of ones it is an escape or not; alone it sets the base.
            let mut row = [0x3f80; 35];
            row[usize::from(pattern) % 35] = pattern;
            row[33] = pattern;
            assert!(comes_back(form, &row), "{form:?} {pattern:#06x}");
            assert!(comes_back(form, &[pattern]), "{form:?} {pattern:#06x}");
        }
    }
}

#[test]
fn the_layout_is_aligned_and_its_sizes_are_these() {
    for columns in (1..1200).chain([4096, 5120, 14336, 65535, 65536]) {
        let row = LosslessRow::new(columns).unwrap();
        assert_eq!(row.sign_mantissa().len(), columns.next_multiple_of(32));
        assert_eq!(row.codes(), row.sign_mantissa().end..row.sign_mantissa().end / 2 * 3);
        assert!(row.bytes().is_multiple_of(16) && row.capacity() >= 4 + columns / 300, "{columns}");
        assert!(columns < 3072 || row.bytes().is_multiple_of(128), "{columns}");
    }
    let sizes = [576, 768, 4096, 5120, 8192].map(|columns| LosslessRow::new(columns).unwrap().bytes());
    assert_eq!(sizes, [896, 1184, 6272, 7808, 12416]);
    assert!(LosslessRow::new(0).is_none() && LosslessRow::new(65537).is_none());
    let pays = |columns| LosslessRow::new(columns).unwrap().pays();
    assert!(!pays(32) && !pays(64) && pays(96) && pays(128) && !pays(97));
}

/// Ones, with `escapes` zeros spread among them.
fn with_escapes(columns: usize, escapes: usize) -> Vec<u16> {
    let mut row = vec![0x3f80; columns];
    (0..escapes).for_each(|i| row[i * columns / escapes] = 0);
    row
}

#[test]
fn values_have_the_order_of_an_operand_of_the_matrix_units() {
    // Column c has mantissa c and exponent 120 + c % 8.
    let values: Vec<u16> = (0..32).map(|c| (120 + c % 8) << 7 | c).collect();
    let packed = encode(SixteenBit::BF16, &values).unwrap();
    let order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
    let (low, high) = (order, order.map(|c| c + 16));
    assert_eq!(&packed[..32], [low, high].concat());
    let base = packed[48];
    let codes: Vec<u8> = order.iter().map(|c| (120 + c % 8 - base) * 0x11).collect();
    assert_eq!(&packed[32..48], codes);
}

#[test]
fn a_row_is_encoded_up_to_its_capacity() {
    for columns in [40, 96, 577, 4096] {
        let capacity = LosslessRow::new(columns).unwrap().capacity();
        assert!(comes_back(SixteenBit::BF16, &with_escapes(columns, capacity)));
        assert!(!comes_back(SixteenBit::BF16, &with_escapes(columns, capacity + 1)));
    }
}

#[test]
fn one_large_value_does_not_make_the_others_escapes() {
    // The codes below infinity's exponent hold none of the others.
    let mut row = vec![0x3c00; 1000];
    row[17] = 0x7f80;
    row[18] = 0xffff;
    assert!(comes_back(SixteenBit::BF16, &row));
}

#[test]
fn f16_is_encoded_where_its_low_bits_are_zero() {
    let converted: Vec<u16> = (0..512).map(|i| 0x3000 + i % 256 * 8).collect();
    assert!(comes_back(SixteenBit::F16, &converted));
    let full: Vec<u16> = converted.iter().map(|v| v + 1).collect();
    assert!(!comes_back(SixteenBit::F16, &full));
}

#[test]
fn records_that_no_encoder_writes_are_refused() {
    let (form, columns) = (SixteenBit::BF16, 70);
    let row = LosslessRow::new(columns).unwrap();
    let mut values = vec![0x3f80; columns];
    (values[3], values[69]) = (0, 1);
    let good = encode(form, &values).unwrap();
    let tail = row.codes().end;
    let fault = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        row.check(form, &bad).unwrap_err()
    };
    assert_eq!(fault(tail, 242), RowFault::Base { found: 242, most: 241 });
    assert_eq!(fault(tail + 3, 1), RowFault::Count { found: 258, capacity: row.capacity() });
    assert_eq!(fault(tail + 2, 1), RowFault::Unlisted { escapes: 2, listed: 1 });
    // The third entry is unused, and names column 0.
    assert_eq!(fault(tail + 2, 3), RowFault::Column { entry: 2, column: 0 });
    assert_eq!(fault(tail + 4, 4), RowFault::Column { entry: 0, column: 4 });
    assert_eq!(fault(tail + 8, 70), RowFault::Column { entry: 1, column: 70 });
    assert_eq!(fault(tail + 8, 3), RowFault::Column { entry: 1, column: 3 });
    assert_eq!(fault(tail + 9, 255), RowFault::Column { entry: 1, column: 0xff45 });
    // An escape among the values that only fill the last group.
    assert_eq!(fault(tail - 1, 0xf0), RowFault::Unlisted { escapes: 3, listed: 2 });
    assert_eq!(
        row.check(form, &good[1..]).unwrap_err(),
        RowFault::Length { found: row.bytes() - 1, expected: row.bytes() }
    );
    assert_eq!(row.check(SixteenBit::F16, &good).unwrap_err(), RowFault::Base { found: 113, most: 17 });
}

/// Values of few exponents, with some of any pattern.
fn rows() -> impl Strategy<Value = Vec<u16>> {
    let near = (0x3c00u16..0x4000, any::<bool>()).prop_map(|(v, negative)| v | u16::from(negative) << 15);
    let special = prop_oneof![Just(0), Just(0x8000), Just(0x7f80), Just(0xff80), Just(0x7fc1), Just(1)];
    let value = prop_oneof![200 => near, 1 => special, 1 => any::<u16>()];
    proptest::collection::vec(value, 1..700)
}

proptest! {
    #[test]
    fn rows_come_back(values in rows()) {
        for form in FORMS {
            comes_back(form, &values);
        }
    }

    /// Whatever passes the check is decoded without a panic; and only what an encoder could have written passes, up
    /// to the bytes of escapes and the base.
    #[test]
    fn hostile_records_are_refused_or_decoded(
        values in rows(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let row = LosslessRow::new(values.len()).unwrap();
        for form in FORMS {
            let mut packed = vec![0; row.bytes()];
            row.encode(form, &bytes(&values), &mut packed);
            for (at, byte) in &changes {
                let at = at.index(packed.len());
                packed[at] = *byte;
            }
            if row.check(form, &packed).is_ok() {
                decode(form, values.len(), &packed);
            }
        }
    }
}
