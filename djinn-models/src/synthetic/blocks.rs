//! Synthetic weights in blocks: the formats of a model's matrices, and blocks of random bytes.

use super::normal::word;
use crate::decoder::{Decoder, Mlp};
use djinn_srg::BlockFormat;
use std::ops::Range;

/// The formats of a model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// All of one format.
    Of(BlockFormat),
    /// llama.cpp's `Q4_K_M`: Q4_K, with more bits where they help most.
    Q4KM,
}

impl Mix {
    /// `q4_k_m`, or a format's name in any case.
    pub(super) fn parse(text: &str) -> Option<Mix> {
        let named = |format: &BlockFormat| format.name().eq_ignore_ascii_case(text);
        match text.eq_ignore_ascii_case("q4_k_m") {
            true => Some(Mix::Q4KM),
            false => BlockFormat::ALL.into_iter().find(named).map(Mix::Of),
        }
    }

    /// The format of a tensor, by its name in a checkpoint of `layers` layers.
    pub(super) fn format(self, tensor: &str, decoder: &Decoder, layers: u64) -> BlockFormat {
        if let Mix::Of(format) = self {
            return format;
        }
        let layer = tensor.split('.').find_map(|part| part.parse::<u64>().ok()).unwrap_or(0);
        let is = |parts: &[&str]| parts.iter().any(|part| tensor.contains(part));
        let eight = matches!(decoder.mlp, Mlp::Experts { count: 8, .. });
        // The rules of `llama_tensor_get_type` for this mix.
        let more = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        if is(&["lm_head", "embed_out"]) || (decoder.tied && is(&["embed_tokens"])) {
            BlockFormat::Q6_K
        } else if eight && is(&["v_proj", "k_proj"]) {
            BlockFormat::Q8_0
        } else if eight && is(&["o_proj"]) {
            BlockFormat::Q5_K
        } else if is(&["v_proj", "down_proj", ".w2."]) && more {
            BlockFormat::Q6_K
        } else if is(&["v_proj"]) && decoder.sizes.layers == 80 {
            BlockFormat::Q5_K
        } else {
            BlockFormat::Q4_K
        }
    }
}

/// Blocks of random bytes in one format, with scales that give elements a mean near 0 and a given deviation.
pub(super) struct RandomBlocks {
    format: BlockFormat,
    /// The scales of a block: one set for each value of two random bits.
    scales: [Vec<f32>; 4],
}

impl RandomBlocks {
    pub(super) fn new(format: BlockFormat, deviation: f32) -> RandomBlocks {
        // A decoded block is linear in its scales: elements with one scale of 1 and the others of 0.
        let unit = |scale: usize| {
            let with = |at: usize| if at == scale { 1.0 } else { 0.0 };
            let scales: Vec<_> = (0..format.scales().len()).map(with).collect();
            let blocks = RandomBlocks { format, scales: [0; 4].map(|_| scales.clone()) };
            let count = 64;
            let mut bytes = vec![0; count * format.bytes() as usize];
            blocks.fill(0, 0..count as u64, &mut bytes);
            let mut elements = vec![0.0; count * format.elements() as usize];
            format.decode(&bytes, &mut elements);
            elements
        };
        let units: Vec<Vec<f32>> = (0..format.scales().len()).map(unit).collect();
        let mean = |elements: &[f32]| elements.iter().sum::<f32>() / elements.len() as f32;
        let offset = units.get(1).map_or(0.0, |offsets| -mean(&units[0]) / mean(offsets));
        let second = units.get(1).map_or(&units[0][..0], |offsets| offsets);
        let square =
            |(i, &element): (usize, &f32)| (element + offset * second.get(i).copied().unwrap_or(0.0)).powi(2);
        let squares: Vec<f32> = units[0].iter().enumerate().map(square).collect();
        let scale = deviation / mean(&squares).sqrt();
        let scales = [0.75, 0.9, 1.05, 1.2].map(|factor: f32| {
            let each = [scale * factor, scale * factor * offset];
            each[..units.len()].to_vec()
        });
        RandomBlocks { format, scales }
    }

    pub(super) fn format(&self) -> BlockFormat {
        self.format
    }

    /// Writes some blocks of the stream `key`, by their numbers.
    pub(super) fn fill(&self, key: u64, blocks: Range<u64>, out: &mut [u8]) {
        let bytes = self.format.bytes() as usize;
        let words = bytes.div_ceil(8) as u64 + 1;
        for (block, out) in blocks.zip(out.chunks_exact_mut(bytes)) {
            let first = block.wrapping_mul(words);
            for (part, counter) in out.chunks_mut(8).zip(first..) {
                part.copy_from_slice(&word(key, counter).to_le_bytes()[..part.len()]);
            }
            let choice = word(key, first + words - 1) % 4;
            let mut scales = self.scales[choice as usize].iter().copied();
            self.format.set_scales(out, || scales.next().expect("a scale for each place"));
            if let BlockFormat::INT4_G32 | BlockFormat::INT4_G128 = self.format {
                // A zero point in the middle.
                out[2] = 8;
            }
        }
    }
}
