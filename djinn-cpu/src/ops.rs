//! The bytes that operations move.

use crate::memory::Memory;
use djinn_device::args::{CopyExpert, KvPages};
use djinn_device::{Operation, Span};

/// Bytes that an operation moves, for a clock that charges for them: those of its spans, except where it uses a part of
/// one. Read while the operation may run, since a part can depend on data.
pub(crate) fn bytes_moved(operation: &Operation, memory: &Memory) -> u64 {
    let spans = |except: Option<Span>| {
        let mut bytes = 0;
        operation.each_access(|access| {
            bytes += if Some(access.span()) == except { 0 } else { access.span().len() };
        });
        bytes
    };
    match operation {
        Operation::Embed(a) => {
            let row = a.table.span.len() / u64::from(a.table_rows);
            spans(Some(a.table.span)) + u64::from(a.rows) * row
        }
        Operation::KvWrite(a) => spans(Some(a.kv.pages)) + u64::from(a.rows) * token_bytes(&a.kv),
        Operation::Attention(a) => {
            let (row_seq, positions) = (memory.read_u32(a.row_seq), memory.read_u32(a.positions));
            let tokens = cached_tokens(&row_seq, &positions, a.window);
            spans(Some(a.kv.pages)) + tokens * token_bytes(&a.kv)
        }
        Operation::ExpertLinear(a) => {
            let slots = expert_slots(memory, a.starts, a.expert);
            let weight = if slots > 0 { a.weight.span.len() } else { 0 };
            8 + weight + slots * 4 * (1 + u64::from(a.k) + u64::from(a.n))
        }
        Operation::CopyExpert(a) => 12 + 2 * copied(memory, a),
        _ => spans(None),
    }
}

/// Slots of one expert.
fn expert_slots(memory: &Memory, starts: Span, expert: u32) -> u64 {
    let (starts, at) = (memory.read_u32(starts), expert as usize);
    u64::from(starts[at + 1].saturating_sub(starts[at]))
}

/// Bytes that the copy would move now.
pub(crate) fn copied(memory: &Memory, copy: &CopyExpert) -> u64 {
    if expert_slots(memory, copy.starts, copy.expert) > 0 { copy.src.len() } else { 0 }
}

/// Bytes of one token's keys and values in one layer.
fn token_bytes(kv: &KvPages) -> u64 {
    2 * u64::from(kv.kv_heads) * kv.dtype.vector_bytes(kv.head_dim.into())
}

/// Tokens whose keys and values the rows attend to, those that rows of one sequence share counted once.
fn cached_tokens(row_seq: &[u32], positions: &[u32], window: Option<u32>) -> u64 {
    let rows: Vec<(u32, u32)> = row_seq.iter().copied().zip(positions.iter().copied()).collect();
    let seen = |run: &[(u32, u32)]| {
        let [first, last] = [run[0], run[run.len() - 1]].map(|(_, position)| u64::from(position) + 1);
        last - window.map_or(0, |window| first.saturating_sub(window.into()))
    };
    rows.chunk_by(|a, b| a.0 == b.0).map(seen).sum()
}

#[cfg(test)]
mod tests {
    use super::cached_tokens;

    #[test]
    fn rows_of_a_sequence_share_its_tokens() {
        assert_eq!(cached_tokens(&[], &[], None), 0);
        assert_eq!(cached_tokens(&[0], &[9], None), 10);
        let (row_seq, positions) = ([0, 0, 0, 1, 2, 2], [7, 8, 9, 0, 3, 4]);
        assert_eq!(cached_tokens(&row_seq, &positions, None), 10 + 1 + 5);
        assert_eq!(cached_tokens(&row_seq, &positions, Some(1)), 3 + 1 + 2);
        assert_eq!(cached_tokens(&row_seq, &positions, Some(4)), 6 + 1 + 5);
    }
}
