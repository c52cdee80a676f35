//! 8-bit floats (E4M3), with a scale for the tensor, for each output, or for each block of outputs and inputs.
//!
//! `weight [outputs, inputs]`, and the factor of the elements, `weight_scale_inv` (DeepSeek) or `weight_scale`
//! (AutoFP8, compressed-tensors): one number, `[outputs]` or `[outputs, 1]`, or `[outputs / block, inputs / block]`,
//! rounded up.

use super::config::Fp8Scheme;
use super::{floats, need_type, unsupported};
use crate::safetensors::SafetensorsDir;
use crate::{Error, Result, StoredType, TensorFile};
use djinn_srg::BlockFormat;
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Fp8 {
    weight: String,
    scales: String,
    inputs: u64,
    /// Outputs and inputs that share a scale.
    block: [u64; 2],
}

/// Whether the tensor is stored as FP8.
pub(super) fn is_stored(file: &SafetensorsDir, name: &str) -> bool {
    file.tensor(name).is_some_and(|info| info.stored == StoredType::Other("F8_E4M3"))
}

impl Fp8 {
    /// The matrix of `module`, its shape `[outputs, inputs]`, and the format of its blocks.
    pub(super) fn open(
        file: &SafetensorsDir,
        module: &str,
        scheme: &Fp8Scheme,
    ) -> Result<(Fp8, [u64; 2], BlockFormat)> {
        let method = scheme.name;
        let weight = format!("{module}.weight");
        let shape = file.tensor(&weight).map(|info| &info.shape[..]).unwrap_or_default();
        let &[outputs, inputs] = shape else {
            let what = format!("shape {shape:?} of tensor {weight} ({method})");
            return Err(unsupported(what, "supported: two dimensions"));
        };
        let names = ["weight_scale_inv", "weight_scale"].map(|kind| format!("{module}.{kind}"));
        let scales = names.iter().find_map(|name| file.tensor(name));
        let missing = || Error::MissingTensor { name: names[0].clone(), architecture: method.to_owned() };
        let scales = scales.ok_or_else(missing)?;
        need_type(scales, scales.stored.dtype().is_some(), "F32, BF16, F16")?;
        let of_blocks =
            scheme.block.map(|[rows, columns]| [outputs.div_ceil(rows), inputs.div_ceil(columns)]);
        let block = match (&scales.shape[..], scheme.block) {
            (found, Some(block)) if Some(found) == of_blocks.as_ref().map(|shape| &shape[..]) => block,
            ([] | [1] | [1, 1], None) => [outputs.max(1), inputs.max(1)],
            (&[found] | &[found, 1], None) if found == outputs => [1, inputs.max(1)],
            (found, _) => {
                let expected = of_blocks.unwrap_or([outputs, 1]).to_vec();
                return Err(Error::WrongShape { name: scales.name.clone(), found: found.to_vec(), expected });
            }
        };
        let fits = |size: u64| {
            inputs > 0 && inputs.is_multiple_of(size) && (block[1] >= inputs || block[1].is_multiple_of(size))
        };
        let format = match () {
            () if fits(128) => BlockFormat::FP8_G128,
            () if fits(32) => BlockFormat::FP8_G32,
            () => {
                let what = format!("{inputs} inputs of tensor {weight} in blocks of {} ({method})", block[1]);
                return Err(unsupported(what, "supported: multiples of 32"));
            }
        };
        let scales = scales.name.clone();
        Ok((Fp8 { weight, scales, inputs, block }, [outputs, inputs], format))
    }

    /// Writes the blocks of some rows.
    pub(super) fn read(
        &self,
        file: &SafetensorsDir,
        format: BlockFormat,
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let (inputs, across) = (self.inputs as usize, self.inputs.div_ceil(self.block[1]));
        let mut codes = vec![0; (rows.end - rows.start) as usize * inputs];
        file.read_bytes(&self.weight, rows.start * self.inputs, &mut codes)?;
        let first = rows.start / self.block[0];
        let scales = floats(file, &self.scales, first * across..rows.end.div_ceil(self.block[0]) * across)?;
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(unsupported(format!("the scale {scale} in tensor {}", self.scales), "it is damaged"));
        }
        let [elements, bytes] = [format.elements(), format.bytes()].map(|size| size as usize);
        let (codes, out) = (codes.chunks_exact(elements), out.chunks_exact_mut(bytes));
        for (index, (codes, out)) in codes.zip(out).enumerate() {
            let (row, column) = (rows.start + (index * elements / inputs) as u64, index * elements % inputs);
            if codes.iter().fold(false, |found, code| found | (code & 0x7f == 0x7f)) {
                let what = format!("NaN in row {row} of tensor {}", self.weight);
                return Err(unsupported(what, "it is damaged"));
            }
            let scale = (row / self.block[0] - first) * across + column as u64 / self.block[1];
            out[..4].copy_from_slice(&scales[scale as usize].to_le_bytes());
            out[4..].copy_from_slice(codes);
        }
        Ok(())
    }
}
