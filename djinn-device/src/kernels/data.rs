//! The operations' arguments as slices. Shapes and meanings are those of [`crate::args`].

use super::element::{Elements, ElementsMut};
use crate::RopeStyle;

/// See [`crate::args::Embed`]; rows are `tokens.len()`.
pub(crate) struct Embed<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) table: Elements<'a>,
    pub(crate) first_row: u32,
    pub(crate) table_rows: u32,
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}

impl Embed<'_> {
    /// The table's row for a token, if it has it.
    pub(crate) fn row_of(&self, token: u32) -> Option<usize> {
        let row = token.checked_sub(self.first_row)?;
        (row < self.table_rows).then_some(row as usize)
    }
}

/// See [`crate::args::RopeTable`]; rows are `positions.len()`.
pub(crate) struct RopeTable<'a> {
    pub(crate) positions: &'a [u32],
    pub(crate) inv_freq: &'a [f32],
    pub(crate) scale: f32,
    pub(crate) out: &'a mut [f32],
}

impl RopeTable<'_> {
    /// Cosine and sine of a position. The angle is rounded to f32 as Hugging Face does.
    #[inline]
    pub(crate) fn pair(position: u32, inv_freq: f32, scale: f32) -> (f32, f32) {
        let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
        (cos as f32 * scale, sin as f32 * scale)
    }
}

/// See [`crate::args::RmsNorm`]; the width is `weight`'s length.
pub(crate) struct RmsNorm<'a> {
    /// `None` where `out` holds the input.
    pub(crate) x: Option<&'a [f32]>,
    pub(crate) weight: Elements<'a>,
    pub(crate) eps: f32,
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::LayerNorm`].
pub(crate) struct LayerNorm<'a> {
    /// `None` where `out` holds the input.
    pub(crate) x: Option<&'a [f32]>,
    pub(crate) weight: Elements<'a>,
    pub(crate) bias: Elements<'a>,
    pub(crate) eps: f32,
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::HeadNorm`].
pub(crate) struct HeadNorm<'a> {
    pub(crate) qkv: &'a mut [f32],
    pub(crate) query: Elements<'a>,
    pub(crate) key: Elements<'a>,
    pub(crate) eps: f32,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

/// See [`crate::args::Linear`]; rows are `x.len() / k`.
pub(crate) struct Linear<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: Elements<'a>,
    pub(crate) bias: Option<Elements<'a>>,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) out_width: usize,
    pub(crate) out_column: usize,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::Rope`]; rows are `table.len() / rotary_dim`.
pub(crate) struct Rope<'a> {
    pub(crate) qkv: &'a mut [f32],
    pub(crate) table: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rotary_dim: usize,
    pub(crate) style: RopeStyle,
}

/// Where a layer's keys and values lie in the pages, in elements.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout<'a> {
    pub(crate) page_elements: usize,
    pub(crate) page_tokens: usize,
    pub(crate) layer: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) page_table: &'a [u32],
    pub(crate) table_width: usize,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
}

impl KvLayout<'_> {
    /// The first element of a head's vector at a position of a sequence. Those of the positions that follow
    /// in the same page follow each other, `head_dim` apart.
    ///
    /// # Panics
    /// If the page table has no such entry.
    #[inline]
    pub(crate) fn offset(&self, sequence: usize, position: usize, part: Part, head: usize) -> usize {
        let (column, slot) = (position / self.page_tokens, position % self.page_tokens);
        assert!(
            column < self.table_width,
            "position {position} lies past {} pages of {} tokens",
            self.table_width,
            self.page_tokens
        );
        let page = self.page_table[sequence * self.table_width + column] as usize;
        let plane = (self.layer * 2 + usize::from(part == Part::Values)) * self.kv_heads + head;
        page * self.page_elements + (plane * self.page_tokens + slot) * self.head_dim
    }
}

/// See [`crate::args::KvWrite`]; rows are `positions.len()`.
pub(crate) struct KvWrite<'a> {
    pub(crate) qkv: &'a [f32],
    pub(crate) pages: ElementsMut<'a>,
    pub(crate) layout: KvLayout<'a>,
    pub(crate) row_seq: &'a [u32],
    pub(crate) positions: &'a [u32],
    pub(crate) heads: usize,
}

/// See [`crate::args::Attention`]; rows are `positions.len()`.
pub(crate) struct Attention<'a> {
    pub(crate) qkv: &'a [f32],
    pub(crate) pages: Elements<'a>,
    pub(crate) layout: KvLayout<'a>,
    pub(crate) row_seq: &'a [u32],
    pub(crate) positions: &'a [u32],
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
    pub(crate) alibi: bool,
    pub(crate) out: &'a mut [f32],
}

/// The first position that a row at `position` sees.
pub(crate) fn first_seen(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// See [`crate::args::SiluMul`]; rows are `out.len() / width`.
pub(crate) struct SiluMul<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::Gelu`].
pub(crate) struct Gelu<'a> {
    /// `None` where `out` holds it.
    pub(crate) x: Option<&'a [f32]>,
    pub(crate) form: crate::Gelu,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::Add`].
pub(crate) struct Add<'a> {
    /// `None` where `out` holds it.
    pub(crate) a: Option<&'a [f32]>,
    /// `None` where `out` holds it.
    pub(crate) b: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::SelectRows`]; rows are `indices.len()`.
pub(crate) struct SelectRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) indices: &'a [u32],
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::Argmax`]; rows are `out.len()`.
pub(crate) struct Argmax<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) out: &'a mut [u32],
}

/// See [`crate::args::CopyPages`].
pub(crate) struct CopyPages<'a> {
    pub(crate) src: &'a [u8],
    pub(crate) dst: &'a mut [u8],
    pub(crate) src_pages: Option<&'a [u32]>,
    pub(crate) dst_pages: Option<&'a [u32]>,
    pub(crate) page_bytes: usize,
    pub(crate) count: usize,
}

impl CopyPages<'_> {
    /// The first bytes, in `src` and in `dst`, of page `i` of the copy.
    pub(crate) fn ends(&self, i: usize) -> (usize, usize) {
        let of = |list: Option<&[u32]>| list.map_or(i, |list| list[i] as usize) * self.page_bytes;
        (of(self.src_pages), of(self.dst_pages))
    }
}

/// See [`crate::args::Route`]; rows are `logits.len() / experts`.
pub(crate) struct Route<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) renormalise: bool,
    pub(crate) weights: &'a mut [f32],
    pub(crate) ids: &'a mut [u32],
}

impl Route<'_> {
    /// A logit as it is compared.
    pub(crate) fn rank(logit: f32) -> f32 {
        if logit.is_nan() { f32::NEG_INFINITY } else { logit }
    }
}

/// See [`crate::args::Group`]; experts are `starts.len() - 1`.
pub(crate) struct Group<'a> {
    pub(crate) ids: &'a [u32],
    pub(crate) order: &'a mut [u32],
    pub(crate) starts: &'a mut [u32],
}

/// See [`crate::args::ExpertLinear`].
pub(crate) struct ExpertLinear<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: Elements<'a>,
    /// The expert's.
    pub(crate) slots: &'a [u32],
    pub(crate) slots_per_row: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) out_width: usize,
    pub(crate) out_column: usize,
    pub(crate) out: &'a mut [f32],
}

impl<'a> ExpertLinear<'a> {
    /// The row of `x` that a slot reads.
    pub(crate) fn row(&self, slot: u32) -> &'a [f32] {
        &self.x[slot as usize / self.slots_per_row * self.k..][..self.k]
    }

    /// The columns of `out` that a slot writes.
    pub(crate) fn columns(&mut self, slot: u32) -> &mut [f32] {
        &mut self.out[slot as usize * self.out_width + self.out_column..][..self.n]
    }
}

/// See [`crate::args::CopyExpert`].
pub(crate) struct CopyExpert<'a> {
    pub(crate) src: &'a [u8],
    pub(crate) dst: &'a mut [u8],
    /// Where the expert's slots begin and end.
    pub(crate) starts: [u32; 2],
    pub(crate) moved: &'a mut u32,
}

/// See [`crate::args::Combine`]; rows are `out.len() / width`.
pub(crate) struct Combine<'a> {
    pub(crate) y: &'a [f32],
    pub(crate) weights: &'a [f32],
    pub(crate) top_k: usize,
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
}
