//! The places of the KV cache's values in a page.

use crate::{DType, Dim, Graph, Lifecycle, ValueId};

#[cfg(test)]
mod tests;

/// Places of all data values in a page of the KV cache. Each holds the page's tokens side by side,
/// `[k|v][kv head][token][head_dim]`, one value after the other in order of declaration. Where the type has scales, those
/// of a key or value head follow its elements: `[k|v][kv head]` of `[token][head_dim]` and `[token]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPlan {
    /// By [`ValueId`]; `None` for text and stack.
    places: Vec<Option<KvPlace>>,
    /// What follows the last value.
    end: KvPlace,
}

/// Place of a data value, in elements of one token: a page of `n` tokens has `n` times as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPlace {
    /// Elements before it.
    pub first: u64,
    /// Vectors before it: keys or values of one head.
    pub first_vector: u64,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl KvPlace {
    /// Bytes of one token before it, stored as `dtype`. Saturates.
    pub const fn first_byte(&self, dtype: DType) -> u64 {
        let scales = self.first_vector.saturating_mul(dtype.scale_bytes());
        self.first.saturating_mul(dtype.bytes()).saturating_add(scales)
    }
}

impl KvPlan {
    /// Places the data values of `graph`.
    pub fn new(graph: &Graph) -> Self {
        let mut end = KvPlace::default();
        let mut place = |shape: &[Dim]| {
            let &[Dim::Fixed(2), Dim::Fixed(kv_heads), Dim::Fixed(head_dim)] = shape else {
                panic!("a data value holds keys and values by head: {shape:?}")
            };
            let place = KvPlace { kv_heads: kv_heads as u32, head_dim: head_dim as u32, ..end };
            end.first += 2 * kv_heads * head_dim;
            end.first_vector += 2 * kv_heads;
            place
        };
        let is_data = |lifecycle| lifecycle == Lifecycle::Data;
        let places = graph.values.iter().map(|v| is_data(v.lifecycle).then(|| place(&v.shape))).collect();
        KvPlan { places, end }
    }

    /// The place of a data value.
    ///
    /// # Panics
    /// If the value is not a data value.
    pub fn place(&self, id: ValueId) -> KvPlace {
        self.places[id.0 as usize].unwrap_or_else(|| panic!("value {} is not in the KV cache", id.0))
    }

    /// Every data value's place, in order.
    pub fn places(&self) -> impl Iterator<Item = KvPlace> + '_ {
        self.places.iter().copied().flatten()
    }

    /// Bytes of one token's keys and values, stored as `dtype`. Saturates.
    pub fn token_bytes(&self, dtype: DType) -> u64 {
        self.end.first_byte(dtype)
    }
}
