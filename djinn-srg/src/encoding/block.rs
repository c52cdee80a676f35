//! Block formats: their table, and their decoders.
//!
//! The arithmetic of GGML's formats is that of its reference decoders, in f32 and in their order, so decoded weights
//! have the same bits. It is written such that the caller's instruction set vectorises it.

mod classic;
mod groups;
mod k;
mod tables;

use half::f16;

/// A format that stores a fixed number of neighbouring elements of a row in few bits with shared scales. Layouts are
/// those of `block_*` in GGML's `ggml-common.h`. The last four are Djinn's own, for rows of GPTQ, AWQ and FP8
/// checkpoints, which are converted when they are read.
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
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    /// Groups of 32 nibbles with an f16 scale and a zero point: GPTQ and AWQ with groups of 32, 64, 96 and so on.
    INT4_G32,
    /// The same with groups of 128.
    INT4_G128,
    /// Groups of 32 floats of 8 bits (E4M3, no NaN) with an f32 scale.
    FP8_G32,
    /// The same with groups of 128.
    FP8_G128,
}

/// The stored type of a block's scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleType {
    F16,
    F32,
    /// The exponent `e` of `2^(e - 128)`, where the integers are twice the elements.
    Exponent,
}

impl BlockFormat {
    /// Every format.
    pub const ALL: [BlockFormat; 17] = [
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
        BlockFormat::IQ4_NL,
        BlockFormat::IQ4_XS,
        BlockFormat::MXFP4,
        BlockFormat::INT4_G32,
        BlockFormat::INT4_G128,
        BlockFormat::FP8_G32,
        BlockFormat::FP8_G128,
    ];

    /// The most elements of any format's block, a multiple of every other's.
    pub const MOST_ELEMENTS: u64 = 256;

    /// The levels of the 4-bit codes of `IQ4_NL` and `IQ4_XS`, before scaling.
    pub const IQ4_LEVELS: [f32; 16] = tables::IQ4_LEVELS;

    /// The levels of the 4-bit codes of `MXFP4`, for half the block's scale.
    pub const MXFP4_LEVELS: [f32; 16] = tables::E2M1_DOUBLED;

    /// Elements of a block, bytes of a block, the name, and where the scales of a block begin.
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
            BlockFormat::IQ4_NL => (32, 18, "IQ4_NL", &[0]),
            BlockFormat::IQ4_XS => (256, 136, "IQ4_XS", &[0]),
            BlockFormat::MXFP4 => (32, 17, "MXFP4", &[0]),
            BlockFormat::INT4_G32 => (32, 19, "INT4_G32", &[0]),
            BlockFormat::INT4_G128 => (128, 68, "INT4_G128", &[0]),
            BlockFormat::FP8_G32 => (32, 36, "FP8_G32", &[0]),
            BlockFormat::FP8_G128 => (128, 132, "FP8_G128", &[0]),
        }
    }

    const fn scale_type(self) -> ScaleType {
        match self {
            BlockFormat::MXFP4 => ScaleType::Exponent,
            BlockFormat::FP8_G32 | BlockFormat::FP8_G128 => ScaleType::F32,
            _ => ScaleType::F16,
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

    /// Bytes of the blocks of `columns` elements, without padding. `None` if these are no whole number of blocks, or if the
    /// bytes overflow.
    pub const fn blocks_bytes(self, columns: u64) -> Option<u64> {
        if columns.is_multiple_of(self.elements()) {
            (columns / self.elements()).checked_mul(self.bytes())
        } else {
            None
        }
    }

    /// The name; GGML's formats in its spelling.
    pub const fn name(self) -> &'static str {
        self.row().2
    }

    /// Where a block's scales begin, in bytes from its first.
    pub const fn scales(self) -> &'static [usize] {
        self.row().3
    }

    /// Writes a block's scales: each is the next of `scales`, rounded to the format's type. Blocks with finite scales
    /// are valid whatever their other bytes are.
    pub fn set_scales(self, block: &mut [u8], mut scales: impl FnMut() -> f32) {
        for &at in self.scales() {
            let scale = scales();
            match self.scale_type() {
                ScaleType::F16 => block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes()),
                ScaleType::F32 => block[at..at + 4].copy_from_slice(&scale.to_le_bytes()),
                // The f32 exponent of the scale's power of two, less the doubling of the integers.
                ScaleType::Exponent => block[at] = (scale.to_bits() >> 23) as u8,
            }
        }
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
        /// A macro: a function passed as an argument would be compiled without its caller's instruction set.
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
            BlockFormat::IQ4_NL => each!(tables::iq4_nl),
            BlockFormat::IQ4_XS => each!(tables::iq4_xs),
            BlockFormat::MXFP4 => each!(tables::mxfp4),
            BlockFormat::INT4_G32 => each!(groups::int4::<19, 32>),
            BlockFormat::INT4_G128 => each!(groups::int4::<68, 128>),
            BlockFormat::FP8_G32 => each!(groups::fp8::<36, 32>),
            BlockFormat::FP8_G128 => each!(groups::fp8::<132, 128>),
        }
    }
}

/// The f16 at `at`, widened: the scales of all block formats.
#[inline(always)]
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
