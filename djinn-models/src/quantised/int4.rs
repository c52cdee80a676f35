//! GPTQ's and AWQ's 4-bit integers: eight in a word, for each group of inputs a scale and a zero point of each output.
//!
//! GPTQ (Frantar et al. 2022, as AutoGPTQ stores it): `qweight [inputs / 8, outputs]`, where bits `4i` of a word are input
//! `i` of eight; `qzeros [groups, outputs / 8]`, where bits `4i` are output `i`; `scales [groups, outputs]`; `g_idx`, the
//! group of each input. AWQ (Lin et al. 2023, its GEMM version): `qweight [inputs, outputs / 8]`, `qzeros [groups,
//! outputs / 8]`, where bits `4i` of a word are output `[0, 2, 4, 6, 1, 3, 5, 7][i]`; `scales [groups, outputs]`.

use super::config::{Int4Scheme, Packing};
use super::{floats, need, need_type, unsupported};
use crate::safetensors::SafetensorsDir;
use crate::{Error, Result, StoredType, TensorFile};
use djinn_srg::BlockFormat;
use half::f16;
use std::ops::Range;

/// The place in AWQ's word of each of eight outputs.
const AWQ_PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Integers of a word.
const WORD: u64 = 8;

/// The most inputs, and the most outputs, of a matrix: far above any model's. The groups of all inputs and the bias of
/// all outputs are read when the file is opened.
const MOST: u64 = 1 << 24;

#[derive(Debug)]
pub(super) struct Int4 {
    module: String,
    packing: Packing,
    outputs: u64,
    inputs: u64,
    /// Inputs of a group.
    group: u64,
}

impl Int4 {
    /// The matrix of `module`, its shape `[outputs, inputs]`, and the format of its blocks.
    pub(super) fn open(
        file: &SafetensorsDir,
        module: &str,
        scheme: &Int4Scheme,
    ) -> Result<(Int4, [u64; 2], BlockFormat)> {
        let name = |kind: &str| format!("{module}.{kind}");
        let (packing, method) = (scheme.packing, scheme.packing.name());
        let missing = || Error::MissingTensor { name: name("qweight"), architecture: method.to_owned() };
        let packed = file.tensor(&name("qweight")).ok_or_else(missing)?;
        need_type(packed, packed.stored == StoredType::Other("I32"), "I32")?;
        let sizes = match (&packed.shape[..], packing) {
            (&[words, outputs], Packing::Gptq { .. }) => {
                words.checked_mul(WORD).map(|inputs| [outputs, inputs])
            }
            (&[inputs, words], Packing::Awq) => words.checked_mul(WORD).map(|outputs| [outputs, inputs]),
            _ => None,
        };
        let refused = || {
            let what = format!("shape {:?} of tensor {} ({method})", packed.shape, packed.name);
            let sizes = format!("inputs and outputs in multiples of 32 and 8, at most {MOST}");
            unsupported(what, &format!("supported: two dimensions, {sizes}"))
        };
        let fits = |&[outputs, inputs]: &[u64; 2]| inputs > 0 && inputs.max(outputs) <= MOST;
        let [outputs, inputs] = sizes.filter(fits).ok_or_else(refused)?;
        let group = scheme.group.unwrap_or(inputs);
        let format = match group {
            group if !inputs.is_multiple_of(group) || !outputs.is_multiple_of(WORD) => return Err(refused()),
            group if group.is_multiple_of(128) => BlockFormat::INT4_G128,
            group if group.is_multiple_of(32) => BlockFormat::INT4_G32,
            _ => return Err(refused()),
        };
        let groups = inputs / group;
        let zeros = need(file, &name("qzeros"), &[groups, outputs / WORD], method)?;
        need_type(zeros, zeros.stored == StoredType::Other("I32"), "I32")?;
        let scales = need(file, &name("scales"), &[groups, outputs], method)?;
        need_type(scales, scales.stored.dtype().is_some(), "F16, BF16, F32")?;
        let int4 = Int4 { module: module.to_owned(), packing, outputs, inputs, group };
        if let (Packing::Gptq { .. }, Some(_)) = (packing, file.tensor(&name("g_idx"))) {
            int4.refuse_other_groups(file)?;
        }
        Ok((int4, [outputs, inputs], format))
    }

    fn name(&self, kind: &str) -> String {
        format!("{}.{kind}", self.module)
    }

    /// Refuses groups that are not runs of inputs: GPTQ's activation order, without static groups.
    fn refuse_other_groups(&self, file: &SafetensorsDir) -> Result<()> {
        let name = self.name("g_idx");
        let info = need(file, &name, &[self.inputs], "gptq")?;
        need_type(info, info.stored == StoredType::Other("I32"), "I32")?;
        let groups = words(file, &name, [1, self.inputs], 0..self.inputs)?;
        match groups.iter().zip(0u64..).find(|&(&group, input)| u64::from(group) != input / self.group) {
            None => Ok(()),
            Some((&group, input)) => Err(unsupported(
                format!(
                    "quantization_config.desc_act (gptq): tensor {name} has input {input} in group {group}, which"
                ),
                "use a checkpoint whose groups are runs of inputs: desc_act false, or static_groups",
            )),
        }
    }

    /// Writes the blocks of some rows.
    pub(super) fn read(
        &self,
        file: &SafetensorsDir,
        format: BlockFormat,
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let count = (rows.end - rows.start) as usize;
        if count == 0 {
            return Ok(());
        }
        let groups = self.inputs / self.group;
        let eights = rows.start / WORD..rows.end.div_ceil(WORD);
        let zeros = words(file, &self.name("qzeros"), [groups, self.outputs / WORD], eights.clone())?;
        let zeros = Columns { words: &zeros, across: (eights.end - eights.start) as usize };
        let scales = self.scales(file, rows.clone())?;
        let (shape, columns) = match self.packing {
            Packing::Gptq { .. } => ([self.inputs / WORD, self.outputs], rows.clone()),
            Packing::Awq => ([self.inputs, self.outputs / WORD], eights.clone()),
        };
        let across = (columns.end - columns.start) as usize;
        let packed = words(file, &self.name("qweight"), shape, columns)?;
        let packed = Columns { words: &packed, across };

        let [elements, bytes] = [format.elements(), format.bytes()].map(|size| size as usize);
        let row_bytes = self.inputs as usize / elements * bytes;
        for (index, out) in out.chunks_exact_mut(row_bytes).enumerate() {
            let row = rows.start + index as u64;
            let (eight, place) = ((row / WORD - eights.start) as usize, (row % WORD) as usize);
            let (place, less) = match self.packing {
                Packing::Gptq { less } => (place as u32, less),
                Packing::Awq => (AWQ_PLACES[place], 0),
            };
            for (block, out) in out.chunks_exact_mut(bytes).enumerate() {
                let group = block * elements / self.group as usize;
                let (head, integers) = out.split_at_mut(bytes - elements / 2);
                head.fill(0);
                head[..2].copy_from_slice(&scales[group * count + index].to_le_bytes());
                head[2] = nibble(zeros.word(group, eight), place) + less;
                for (run, out) in integers.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                    let first = block * elements + run * 32;
                    *out = match self.packing {
                        Packing::Gptq { .. } => packed.run_of_words(first / 8, index),
                        Packing::Awq => packed.run_of_places(first, eight, place),
                    };
                }
            }
        }
        Ok(())
    }

    /// The scales of some rows, group by group. They must be f16 numbers.
    fn scales(&self, file: &SafetensorsDir, rows: Range<u64>) -> Result<Vec<f16>> {
        let name = self.name("scales");
        let mut scales = Vec::new();
        for group in 0..self.inputs / self.group {
            let start = group * self.outputs;
            for scale in floats(file, &name, start + rows.start..start + rows.end)? {
                let rounded = f16::from_f32(scale);
                if rounded.to_f32() != scale || !scale.is_finite() {
                    let what = format!("the scale {scale} of group {group} in tensor {name}, no finite f16,");
                    return Err(unsupported(what, "use a checkpoint with f16 scales"));
                }
                scales.push(rounded);
            }
        }
        Ok(scales)
    }
}

/// Some columns of a matrix of words.
struct Columns<'a> {
    /// Row by row.
    words: &'a [u32],
    /// How many columns.
    across: usize,
}

impl Columns<'_> {
    fn word(&self, row: usize, column: usize) -> u32 {
        self.words[row * self.across + column]
    }

    /// A block's run of 32 integers, from four words in one column.
    fn run_of_words(&self, row: usize, column: usize) -> [u8; 16] {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| spread(self.word(row + i, column)));
        bytemuck::cast([(a | c << 4).to_le_bytes(), (b | d << 4).to_le_bytes()])
    }

    /// A block's run of 32 integers, from one place of 32 words in one column.
    fn run_of_places(&self, row: usize, column: usize, place: u32) -> [u8; 16] {
        let integer = |i: usize| nibble(self.word(row + i, column), place);
        std::array::from_fn(|i| integer(i) | integer(i + 16) << 4)
    }
}

/// Columns of a matrix of 32-bit words, row by row.
fn words(file: &SafetensorsDir, name: &str, shape: [u64; 2], columns: Range<u64>) -> Result<Vec<u32>> {
    let [rows, width] = shape;
    let row = (columns.end - columns.start) as usize * 4;
    let mut bytes = vec![0; rows as usize * row];
    if row as u64 == width * 4 {
        file.read_bytes(name, 0, &mut bytes)?;
    } else {
        for (index, out) in bytes.chunks_exact_mut(row).enumerate() {
            file.read_bytes(name, (index as u64 * width + columns.start) * 4, out)?;
        }
    }
    Ok(bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect())
}

/// The integer at one of a word's eight places.
fn nibble(word: u32, place: u32) -> u8 {
    (word >> (4 * place)) as u8 & 15
}

/// The eight integers of a word, one in each byte, in order.
fn spread(word: u32) -> u64 {
    let word = u64::from(word);
    let quarters = (word | word << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (quarters | quarters << 8) & 0x00ff_00ff_00ff_00ff;
    (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f
}
