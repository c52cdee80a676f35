//! Sizes of tiles, and runs of rows.

use super::*;
use proptest::prelude::*;

#[test]
fn rows_take_the_bytes_of_whole_blocks_and_padding() {
    let bytes = |encoding: Encoding, rows, columns| Some(encoding.tile(DType::BF16, rows, columns)?.bytes);
    assert_eq!(bytes(Encoding::Plain, 3, 5), Some(30));
    assert_eq!(bytes(Encoding::Lossless, 3, 4096), Some(3 * 6272));
    assert_eq!(bytes(Encoding::Lossless, 1, LosslessRow::MAX_COLUMNS as u64 + 1), None);
    assert_eq!(bytes(Encoding::Lossless, u64::MAX / 2, 4096), None);
    assert_eq!(Encoding::Lossless.tile(DType::F32, 1, 4096), None);
    for format in BlockFormat::ALL {
        let (blocks, elements) = (Encoding::Blocks(format), format.elements());
        assert_eq!(bytes(blocks, 7, 16 * elements), Some(7 * 16 * format.bytes()));
        assert_eq!(bytes(blocks, 7, 3 * elements), Some(7 * (3 * format.bytes()).next_multiple_of(16)));
        assert_eq!(bytes(blocks, 7, 3 * elements - 1), None, "{format:?} divides its rows");
        assert_eq!(bytes(blocks, u64::MAX / 2, elements * 5), None, "{format:?} overflows");
        assert_eq!(format.blocks_bytes(3 * elements), Some(3 * format.bytes()));
        assert!(BlockFormat::MOST_ELEMENTS.is_multiple_of(elements));
        let mut block = vec![0xff; format.bytes() as usize];
        let mut decoded = vec![f32::NAN; elements as usize];
        format.set_scales(&mut block, || 0.25);
        format.decode(&block, &mut decoded);
        assert!(decoded.iter().all(|x| x.is_finite() && *x != 0.0), "{format:?} has scales that are not set");
    }
    // Rows of Qwen3-30B-A3B, whose blocks are no multiple of 16 bytes, and of Llama-3.1-8B.
    let row = |format, columns| Encoding::Blocks(format).row_bytes(DType::F32, columns);
    assert_eq!([768, 4096].map(|columns| row(BlockFormat::Q6_K, columns)), [Some(640), Some(3360)]);
    assert_eq!(row(BlockFormat::Q4_K, 768), Some(432));
}

#[test]
fn planes_start_aligned_and_end_with_the_tile() {
    let layout = TileLayout::of([5, 0, 300, 1]).unwrap();
    assert_eq!(
        layout.planes.map(|plane| (plane.offset, plane.bytes)),
        [(0, 5), (0, 0), (256, 300), (768, 1)]
    );
    assert_eq!(layout.bytes, 769);
    assert_eq!(TileLayout::of([u64::MAX, 1, 0, 0]), None);
}

proptest! {
    #[test]
    fn rows_lie_one_after_the_other(
        encoding in prop::sample::select(&Encoding::ENCODED[..]),
        blocks in 1u64..200,
        counts in prop::collection::vec(0u64..50, 1..5),
    ) {
        let columns = match encoding {
            Encoding::Blocks(format) => blocks * format.elements(),
            _ => blocks,
        };
        let row = encoding.row_bytes(DType::BF16, columns).unwrap();
        prop_assert!(row.is_multiple_of(16));
        if let Encoding::Blocks(format) = encoding {
            let padding = row - format.blocks_bytes(columns).unwrap();
            prop_assert!(padding < 16, "{} bytes of padding", padding);
        }
        let (mut encodings, mut first) = (RowEncodings::default(), 0);
        counts.iter().for_each(|&count| encodings.push(count, encoding));
        for count in counts {
            let bytes = encodings.bytes(DType::BF16, columns, first..first + count);
            prop_assert_eq!(bytes, Some(count * row));
            prop_assert_eq!(encoding.tile(DType::BF16, count, columns).unwrap().bytes, count * row);
            first += count;
        }
    }

    #[test]
    fn runs_cover_any_rows_in_order(lens in prop::collection::vec((0u64..5, 0usize..4), 0..6), a in 0u64..25, b in 0u64..25) {
        let kinds = [Encoding::Plain, Encoding::Lossless, Encoding::Blocks(BlockFormat::Q4_0), Encoding::Blocks(BlockFormat::Q6_K)];
        let (mut encodings, mut each) = (RowEncodings::default(), Vec::new());
        for (rows, kind) in lens {
            encodings.push(rows, kinds[kind]);
            each.extend((0..rows).map(|_| kinds[kind]));
        }
        let wanted = a.min(b)..a.max(b);
        let mut next = wanted.start;
        let mut before = None;
        for (run, encoding) in encodings.runs(wanted.clone()) {
            prop_assert!(run.start == next && run.end > next);
            prop_assert_ne!(Some(encoding), before.replace(encoding).filter(|_| run.start != encodings.rows()));
            for row in run.clone() {
                let want = each.get(row as usize).copied().unwrap_or_default();
                prop_assert_eq!(encoding, want);
                prop_assert_eq!(encodings.at(row), want);
            }
            next = run.end;
        }
        prop_assert_eq!(next, wanted.end);
        prop_assert_eq!(encodings.is_plain(), each.iter().all(|&encoding| encoding == Encoding::Plain));
    }
}
