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
    pub(crate) out: &'a mut [f32],
}

/// See [`crate::args::SiluMul`]; rows are `out.len() / width`.
pub(crate) struct SiluMul<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
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
