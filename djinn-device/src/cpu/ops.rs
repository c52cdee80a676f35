//! Operations as commands: one table of them for every device that queues them on the host.

use super::CpuDevice;
use super::memory::Memory;
use crate::args::{
    self, Add, Argmax, Attention, Checksum, Combine, CopyExpert, CopyPages, Embed, ExpertLinear, Gelu, Group,
    HeadNorm, KvPages, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows, SiluMul,
};
use crate::kernels::Kernels;
use crate::sim::SimDevice;
use crate::{Ops, Result, Span, Stream};

/// How a command uses a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read(Span),
    /// Written, and perhaps read as well.
    Write(Span),
}

impl Access {
    /// The span.
    pub(crate) fn span(self) -> Span {
        match self {
            Access::Read(span) | Access::Write(span) => span,
        }
    }
}

macro_rules! operations {
    ($($method:ident: $Args:ident),* $(,)?) => {
        /// An operation with its arguments.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Op {
            $($Args(args::$Args)),*
        }

        impl Op {
            /// Carries the operation out on this thread and the kernels' pool.
            pub(crate) fn run(&self, kernels: &Kernels, memory: &Memory) {
                match self {
                    $(Op::$Args(args) => kernels.$method(memory, args)),*
                }
            }
        }

        impl Ops for CpuDevice {
            $(fn $method(&self, stream: Stream, args: &args::$Args) -> Result<()> {
                if cfg!(debug_assertions) {
                    args.check();
                }
                self.launch(stream, Op::$Args(*args))
            })*
        }

        impl Ops for SimDevice {
            $(fn $method(&self, stream: Stream, args: &args::$Args) -> Result<()> {
                if cfg!(debug_assertions) {
                    args.check();
                }
                self.launch(stream, Op::$Args(*args))
            })*
        }
    };
}

operations! {
    embed: Embed,
    rope_table: RopeTable,
    rms_norm: RmsNorm,
    layer_norm: LayerNorm,
    head_norm: HeadNorm,
    linear: Linear,
    rope: Rope,
    kv_write: KvWrite,
    attention: Attention,
    silu_mul: SiluMul,
    gelu: Gelu,
    add: Add,
    select_rows: SelectRows,
    argmax: Argmax,
    copy_pages: CopyPages,
    route: Route,
    group: Group,
    expert_linear: ExpertLinear,
    combine: Combine,
    copy_expert: CopyExpert,
    checksum: Checksum,
}

impl Op {
    /// Calls `visit` with every span that the operation uses.
    pub(crate) fn each_access(&self, mut visit: impl FnMut(Access)) {
        let mut reads = |spans: &[Span]| spans.iter().for_each(|&s| visit(Access::Read(s)));
        let written = match *self {
            Op::Embed(Embed { tokens, table, out, .. }) => {
                reads(&[tokens, table.span]);
                out
            }
            Op::RopeTable(RopeTable { positions, inv_freq, out, .. }) => {
                reads(&[positions, inv_freq]);
                out
            }
            Op::RmsNorm(RmsNorm { x, weight, out, .. }) => {
                reads(&[x, weight.span]);
                out
            }
            Op::LayerNorm(LayerNorm { x, weight, bias, out, .. }) => {
                reads(&[x, weight.span, bias.span]);
                out
            }
            Op::HeadNorm(HeadNorm { qkv, query, key, .. }) => {
                reads(&[query.span, key.span]);
                qkv
            }
            Op::Linear(Linear { x, weight, bias, out, .. }) => {
                reads(&[x, weight.span]);
                reads(bias.map(|b| b.span).as_slice());
                out
            }
            Op::Rope(Rope { qkv, table, .. }) => {
                reads(&[table]);
                qkv
            }
            Op::KvWrite(KvWrite { qkv, kv, row_seq, positions, .. }) => {
                reads(&[qkv, kv.page_table, row_seq, positions]);
                kv.pages
            }
            Op::Attention(Attention { qkv, kv, row_seq, positions, out, .. }) => {
                reads(&[qkv, kv.pages, kv.page_table, row_seq, positions]);
                out
            }
            Op::SiluMul(SiluMul { x, out, .. }) => {
                reads(&[x]);
                out
            }
            Op::Gelu(Gelu { x, out, .. }) => {
                reads(&[x]);
                out
            }
            Op::Add(Add { a, b, out, .. }) => {
                reads(&[a, b]);
                out
            }
            Op::SelectRows(SelectRows { x, indices, out, .. }) => {
                reads(&[x, indices]);
                out
            }
            Op::Argmax(Argmax { x, out, .. }) => {
                reads(&[x]);
                out
            }
            Op::CopyPages(CopyPages { src, dst, src_pages, dst_pages, .. }) => {
                reads(&[src]);
                reads(src_pages.as_slice());
                reads(dst_pages.as_slice());
                dst
            }
            Op::Route(Route { logits, weights, ids, .. }) => {
                reads(&[logits]);
                visit(Access::Write(weights));
                ids
            }
            Op::Group(Group { ids, order, starts, .. }) => {
                reads(&[ids]);
                visit(Access::Write(order));
                starts
            }
            Op::ExpertLinear(ExpertLinear { x, weight, order, starts, out, .. }) => {
                reads(&[x, weight.span, order, starts]);
                out
            }
            Op::Combine(Combine { y, weights, out, .. }) => {
                reads(&[y, weights]);
                out
            }
            Op::CopyExpert(CopyExpert { src, dst, starts, moved, .. }) => {
                reads(&[src, starts]);
                visit(Access::Write(moved));
                dst
            }
            Op::Checksum(Checksum { src, out }) => {
                reads(&[src]);
                out
            }
        };
        visit(Access::Write(written));
    }

    /// Bytes that the operation moves, for a clock that charges for them: those of its spans, except where
    /// it uses a part of one. Read while the operation may run, since a part can depend on data.
    pub(crate) fn bytes_moved(&self, memory: &Memory) -> u64 {
        let spans = |op: &Op, except: Option<Span>| {
            let mut bytes = 0;
            op.each_access(|access| {
                bytes += if Some(access.span()) == except { 0 } else { access.span().len() };
            });
            bytes
        };
        match self {
            Op::Embed(a) => {
                let row = u64::from(a.width) * a.table.dtype.bytes();
                spans(self, Some(a.table.span)) + u64::from(a.rows) * row
            }
            Op::KvWrite(a) => spans(self, Some(a.kv.pages)) + u64::from(a.rows) * token_bytes(&a.kv),
            Op::Attention(a) => {
                let (row_seq, positions) = (memory.read_u32(a.row_seq), memory.read_u32(a.positions));
                let tokens = cached_tokens(&row_seq, &positions, a.window);
                spans(self, Some(a.kv.pages)) + tokens * token_bytes(&a.kv)
            }
            Op::CopyPages(a) => {
                let lists = [a.src_pages, a.dst_pages].into_iter().flatten().map(Span::len).sum::<u64>();
                lists + 2 * u64::from(a.count) * a.page_bytes
            }
            Op::ExpertLinear(a) => {
                let slots = expert_slots(memory, a.starts, a.expert);
                let weight = if slots > 0 { a.weight.span.len() } else { 0 };
                8 + weight + slots * 4 * (1 + u64::from(a.k) + u64::from(a.n))
            }
            Op::CopyExpert(a) => 12 + 2 * copied(memory, a),
            _ => spans(self, None),
        }
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
    2 * u64::from(kv.kv_heads) * u64::from(kv.head_dim) * kv.dtype.bytes()
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
