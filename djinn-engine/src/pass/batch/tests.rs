//! Layouts of batches, checked against what they promise.

use super::*;
use proptest::prelude::*;

fn info(batch_invariant_rows: u32, batch_invariant_run: u32) -> DeviceInfo {
    let name = "a device".to_owned();
    DeviceInfo {
        name,
        host_memory: false,
        reserved_bytes: 0,
        captures: false,
        batch_invariant_rows,
        wide_products: false,
        batch_invariant_run,
        encodings: &[],
        int8_cache: false,
        most_head_dim: u32::MAX,
        cpu_products: true,
    }
}

/// Counts and cuts of entries: how many tokens each has, and which of them are chunks.
fn entries() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<Range<usize>>, u8)>> {
    let entry = (1usize..70, proptest::collection::vec((0usize..70, 1usize..40), 0..3), 0u8..3).prop_map(
        |(count, chunks, wanted)| {
            let mut cut: Vec<Range<usize>> = Vec::new();
            for (start, len) in chunks {
                let start = start.max(cut.last().map_or(0, |chunk| chunk.end));
                if start < count {
                    cut.push(start..start + len);
                }
            }
            ((0..count as u32).collect(), cut, wanted)
        },
    );
    proptest::collection::vec(entry, 1..6)
}

proptest! {
    #[test]
    fn every_row_is_launched_once_with_its_own(
        entries in entries(), alone in 1u32..20, run in 1u32..40,
    ) {
        // All begin at 0, so positions are checked by their order.
        let batch: Vec<BatchEntry<'_>> = entries.iter().map(|(tokens, chunks, wanted)| {
            let wanted = [Wanted::Nothing, Wanted::Last, Wanted::All][*wanted as usize];
            let (pages, after, choose): (&[u32], _, _) = (&[], None, None);
            let changes = Changes::default();
            BatchEntry { pages, from: 0, tokens, after, chunks, wanted, choose, changes, interventions: &[] }
        }).collect();
        let layout = Layout::new(&batch, &info(alone, run));
        let total: usize = entries.iter().map(|(tokens, ..)| tokens.len()).sum();
        for launches in [&layout.runs.products, &layout.runs.attention] {
            let covered: Vec<u32> = launches.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..total as u32).collect::<Vec<_>>());
        }
        // A launch is a whole chunk of one entry, or few rows, none of them of a chunk.
        let in_chunk = |row: u32| {
            let (seq, at) = (layout.row_seq[row as usize] as usize, layout.positions[row as usize] as usize);
            let found = batch[seq].chunks().find(|chunk| chunk.contains(&at));
            found.map(|chunk| (seq, chunk))
        };
        for rows in &layout.runs.products {
            match in_chunk(rows.start) {
                Some((seq, chunk)) => {
                    prop_assert_eq!(rows.len(), chunk.len());
                    prop_assert!(rows.clone().all(|row| in_chunk(row) == Some((seq, chunk.clone()))));
                }
                None => prop_assert!(rows.len() <= alone as usize && rows.clone().all(|row| in_chunk(row).is_none())),
            }
        }
        // No run of a sequence is longer than the device computes row by row, but for chunks.
        for rows in layout.runs.attention.iter().filter(|rows| in_chunk(rows.start).is_none()) {
            for seq in 0..batch.len() as u32 {
                let own = rows.clone().filter(|&row| layout.row_seq[row as usize] == seq).count();
                prop_assert!(own <= run as usize || rows.len() <= run as usize);
            }
        }
        // A run of a chunk's rows is that chunk, or chunks that are each longer than the device computes row by row and follow
        // one another.
        for rows in layout.runs.attention.iter().filter(|rows| in_chunk(rows.start).is_some()) {
            let mut row = rows.start;
            while row < rows.end {
                let (_, chunk) = in_chunk(row).expect("a row of a chunk");
                prop_assert!(chunk.len() == rows.len() || chunk.len() > run as usize);
                let next = row + chunk.len() as u32;
                if next < rows.end && layout.row_seq[row as usize] == layout.row_seq[next as usize] {
                    prop_assert_eq!(layout.positions[next as usize], chunk.end as u32);
                }
                row = next;
            }
        }
        for (pieces, most) in [(&layout.runs.narrow_products, alone), (&layout.runs.narrow_attention, run)] {
            prop_assert_eq!(pieces.iter().cloned().flatten().count(), total);
            prop_assert!(pieces.iter().all(|rows| rows.start % most == 0 && rows.len() <= most as usize));
        }
        // The rows whose logits are wanted are the entries' last ones, in order.
        let wanted: Vec<(u32, u32)> = layout.wanted.iter()
            .map(|&row| (layout.row_seq[row as usize], layout.positions[row as usize])).collect();
        let expected: Vec<(u32, u32)> = batch.iter().enumerate().flat_map(|(seq, entry)| {
            let count = entry.tokens.len() as u32;
            (count - entry.logit_rows() as u32..count).map(move |at| (seq as u32, at))
        }).collect();
        prop_assert_eq!(wanted, expected);
        let logits: Vec<u32> = layout.runs.logits.iter().cloned().flatten().collect();
        prop_assert_eq!(logits, (0..layout.wanted.len() as u32).collect::<Vec<_>>());
    }
}
