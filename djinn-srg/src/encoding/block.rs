//! GGML's block formats: the one table of them, and what a block stands for.
//!
//! The arithmetic is that of GGML's reference decoders, in f32 and in their order, so that decoded weights are the same
//! bits. It is written so that a caller's instruction set vectorises it.

mod classic;
mod k;

use half::f16;

/// A format that stores a fixed number of neighbouring elements of a row as small integers with shared scales. Layouts
/// are those of `block_q*` in GGML's `ggml-common.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs, reason = "the formats' own names")]
pub enum BlockFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [BlockFormat; 10] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q2_K,
        BlockFormat::Q3_K,
        BlockFormat::Q4_K,
        BlockFormat::Q5_K,
        BlockFormat::Q6_K,
    ];

    /// The most elements of any format's block, a multiple of every other's.
    pub const MOST_ELEMENTS: u64 = 256;

    /// Elements of a block, bytes of a block, the name, and where the f16 scales of a block begin.
    const fn row(self) -> (u64, u64, &'static str, &'static [usize]) {
        match self {
            BlockFormat::Q4_0 => (32, 18, "Q4_0", &[0]),
            BlockFormat::Q4_1 => (32, 20, "Q4_1", &[0, 2]),
            BlockFormat::Q5_0 => (32, 22, "Q5_0", &[0]),
            BlockFormat::Q5_1 => (32, 24, "Q5_1", &[0, 2]),
            BlockFormat::Q8_0 => (32, 34, "Q8_0", &[0]),
            BlockFormat::Q2_K => (256, 84, "Q2_K", &[80, 82]),
            BlockFormat::Q3_K => (256, 110, "Q3_K", &[108]),
            BlockFormat::Q4_K => (256, 144, "Q4_K", &[0, 2]),
            BlockFormat::Q5_K => (256, 176, "Q5_K", &[0, 2]),
            BlockFormat::Q6_K => (256, 210, "Q6_K", &[208]),
        }
    }

    /// Elements of a block.
    pub const fn elements(self) -> u64 {
        self.row().0
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> u64 {
        self.row().1
    }

    /// The name in GGML's spelling.
    pub const fn name(self) -> &'static str {
        self.row().2
    }

    /// Where a block's f16 scales begin, in bytes from its first. Blocks whose other bytes are anything are valid.
    pub const fn scales(self) -> &'static [usize] {
        self.row().3
    }

    /// The elements of whole blocks.
    ///
    /// # Panics
    /// If `blocks` are no whole number of blocks with as many elements as `out`.
    #[inline(always)]
    pub fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let (elements, bytes) = (self.elements() as usize, self.bytes() as usize);
        assert!(
            blocks.len().is_multiple_of(bytes) && blocks.len() / bytes * elements == out.len(),
            "{} encoded bytes in blocks of {bytes} do not decode to {} elements",
            blocks.len(),
            out.len()
        );
        /// A macro, since a function that is passed on is called, and compiled without its caller's instruction set.
        macro_rules! each {
            ($decode:path) => {
                for (block, out) in blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                    $decode(block, out);
                }
            };
        }
        match self {
            BlockFormat::Q4_0 => each!(classic::q4_0),
            BlockFormat::Q4_1 => each!(classic::q4_1),
            BlockFormat::Q5_0 => each!(classic::q5_0),
            BlockFormat::Q5_1 => each!(classic::q5_1),
            BlockFormat::Q8_0 => each!(classic::q8_0),
            BlockFormat::Q2_K => each!(k::q2_k),
            BlockFormat::Q3_K => each!(k::q3_k),
            BlockFormat::Q4_K => each!(k::q4_k),
            BlockFormat::Q5_K => each!(k::q5_k),
            BlockFormat::Q6_K => each!(k::q6_k),
        }
    }
}

/// The f16 at `at`, widened: the scales of all block formats.
#[inline(always)]
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
