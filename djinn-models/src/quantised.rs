//! Quantised safetensors checkpoints (`quantization_config` of `config.json`), read as tensors in blocks.
//!
//! GPTQ, AWQ and FP8 store a matrix in several tensors: packed integers, zero points, scales. Here they are one tensor
//! `NAME.weight` of `[outputs, inputs]`, whose rows are blocks of a [`BlockFormat`]. They are repacked when they are
//! read, a few rows at a time, without changing a number. So all code that reads blocks can read them. Only weights
//! are quantised: activations are not, even if a checkpoint has scales for them.

mod config;
mod fp8;
mod int4;

use crate::decoder::Decoder;
use crate::file;
use crate::open::JsonKeys;
use crate::safetensors::SafetensorsDir;
use crate::{Error, Result, StoredType, TensorFile, TensorInfo, quant};
use config::Method;
use djinn_srg::{BlockFormat, DType};
use fp8::Fp8;
use int4::Int4;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

/// Elements decoded at once; at least a row.
const RUN_ELEMENTS: u64 = 64 * 1024;

/// A quantised checkpoint. Tensors are read from several threads at once.
#[derive(Debug)]
pub struct QuantisedDir {
    file: SafetensorsDir,
    /// By their names, `NAME.weight`.
    matrices: HashMap<String, Matrix>,
    /// Tensors of the file that belong to a matrix, or are redundant.
    hidden: HashSet<String>,
}

/// A matrix stored in several tensors.
#[derive(Debug)]
struct Matrix {
    info: TensorInfo,
    format: BlockFormat,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Int4(Int4),
    Fp8(Fp8),
}

/// The tensors of a checkpoint with the configuration `keys`, quantised or not.
///
/// # Errors
/// [`Error::Unsupported`] names an unsupported method or setting. Tensors that are missing, or have the wrong shape or
/// type for the method.
pub(crate) fn tensors(
    file: SafetensorsDir,
    keys: &JsonKeys,
    decoder: &Decoder,
) -> Result<Box<dyn TensorFile>> {
    let Some(method) = config::method(keys)? else { return Ok(Box::new(file)) };
    // Its matrices are `[inputs, outputs]` before quantisation, and not all of them after it.
    if decoder.tensors.transposed {
        return Err(Error::Unsupported {
            what: format!("quantization_config {} of {}", method.name(), decoder.architecture),
            remedy: "use an unquantised checkpoint or a GGUF file".to_owned(),
        });
    }
    Ok(Box::new(QuantisedDir::new(file, &method)?))
}

impl QuantisedDir {
    /// A checkpoint in memory: the bytes of its `config.json` (only `quantization_config` is read) and of one
    /// safetensors file.
    ///
    /// # Errors
    /// A configuration that is not a JSON object, or has no or an unsupported method. A file that is malformed, or
    /// does not fit the method.
    pub fn from_bytes(config: &[u8], weights: Vec<u8>) -> Result<Self> {
        let keys = JsonKeys::parse(Path::new("config.json in memory"), config)?;
        let method = config::method(&keys)?;
        let method = keys.need("quantization_config", method)?;
        QuantisedDir::new(SafetensorsDir::from_bytes(weights)?, &method)
    }

    fn new(file: SafetensorsDir, method: &Method) -> Result<Self> {
        let mut names: Vec<&str> = file.tensors().map(|info| info.name.as_str()).collect();
        names.sort_unstable();
        let mut matrices = HashMap::new();
        let mut hidden = HashSet::new();
        for name in names {
            let suffix = match method {
                Method::Int4(_) => ".qweight",
                Method::Fp8(_) => ".weight",
            };
            let Some(module) = name.strip_suffix(suffix) else { continue };
            let (parts, shape, format) = match method {
                Method::Int4(scheme) => {
                    let (int4, shape, format) = Int4::open(&file, module, scheme)?;
                    (Parts::Int4(int4), shape, format)
                }
                Method::Fp8(_) if !fp8::is_stored(&file, name) => continue,
                Method::Fp8(scheme) => {
                    let (fp8, shape, format) = Fp8::open(&file, module, scheme)?;
                    (Parts::Fp8(fp8), shape, format)
                }
            };
            let own = format!("{module}.weight");
            let stored = StoredType::Blocks(format);
            if own != name && file.tensor(&own).is_some() {
                return Err(unsupported(format!("tensor {own} beside {name}"), "keep one of them"));
            }
            // General conditions for a matrix in blocks: counts that fit, whole blocks in each row.
            if file::stored_bytes(&shape, (format.elements(), format.bytes())).is_none() {
                return Err(unsupported(format!("shape {shape:?} of {own}"), "it is too large"));
            }
            hidden.extend(parts.tensors(&file, module, shape[0])?);
            let info = TensorInfo { name: own.clone(), shape: shape.to_vec(), stored, lossless: false };
            matrices.insert(own, Matrix { info, format, parts });
        }
        Ok(QuantisedDir { file, matrices, hidden })
    }
}

impl Parts {
    /// The tensors of the file that nothing else reads, for a matrix of this number of outputs.
    fn tensors(&self, file: &SafetensorsDir, module: &str, outputs: u64) -> Result<Vec<String>> {
        let of = |names: &[&str]| names.iter().map(|name| format!("{module}.{name}")).collect();
        let mut tensors: Vec<String> = match self {
            Parts::Int4(_) => of(&["qweight", "qzeros", "scales", "g_idx"]),
            Parts::Fp8(_) => of(&["weight_scale_inv", "weight_scale", "input_scale"]),
        };
        // Early versions of AutoGPTQ store a bias of zeros for every matrix.
        let bias = format!("{module}.bias");
        if let (Parts::Int4(_), Some(info)) = (self, file.tensor(&bias))
            && info.stored.dtype().is_some()
        {
            if info.shape != [outputs] {
                let (found, expected) = (info.shape.clone(), vec![outputs]);
                return Err(Error::WrongShape { name: bias, found, expected });
            }
            let zeros = floats(file, &bias, 0..outputs)?.iter().all(|&x| x == 0.0);
            tensors.extend(zeros.then_some(bias));
        }
        Ok(tensors)
    }
}

impl Matrix {
    /// Writes the blocks of some elements, which are whole rows.
    fn read(&self, file: &SafetensorsDir, elements: &Range<u64>, out: &mut [u8]) -> Result<()> {
        let TensorInfo { name, shape, .. } = &self.info;
        let columns = shape[1];
        if !elements.start.is_multiple_of(columns) || !elements.end.is_multiple_of(columns) {
            let what = format!("reading elements {elements:?} of {name}, inside a row");
            return Err(unsupported(what, &format!("read multiples of {columns} elements")));
        }
        let rows = elements.start / columns..elements.end / columns;
        assert!(rows.start <= rows.end && rows.end <= shape[0], "rows {rows:?} of {name} {shape:?}");
        let bytes = self.row_bytes() * (rows.end - rows.start);
        assert_eq!(out.len() as u64, bytes, "bytes of output for rows {rows:?} of {name} as stored");
        match &self.parts {
            Parts::Int4(int4) => int4.read(file, self.format, rows, out),
            Parts::Fp8(fp8) => fp8.read(file, self.format, rows, out),
        }
    }

    fn row_bytes(&self) -> u64 {
        self.info.shape[1] / self.format.elements() * self.format.bytes()
    }
}

impl TensorFile for QuantisedDir {
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.matrices.get(name).map(|matrix| &matrix.info).or_else(|| self.file.tensor(name))
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        let is_own =
            |info: &&TensorInfo| !self.hidden.contains(&info.name) && !self.matrices.contains_key(&info.name);
        let others = self.file.tensors().filter(is_own);
        Box::new(self.matrices.values().map(|matrix| &matrix.info).chain(others))
    }

    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let Some(matrix) = self.matrices.get(name) else {
            return self.file.read(name, elements, dtype, out);
        };
        let columns = matrix.info.shape[1];
        // Bounded by the actual number, since a matrix without rows may have any row length.
        let rows = (RUN_ELEMENTS / columns).max(1).min(matrix.info.shape[0]);
        let run_bytes = ((rows * columns * dtype.bytes()) as usize).max(1);
        let mut blocks = vec![0; (matrix.row_bytes() * rows) as usize];
        let mut first = elements.start;
        for out in out.chunks_mut(run_bytes) {
            let run = first..first + out.len() as u64 / dtype.bytes();
            let blocks = &mut blocks[..((run.end - run.start) / columns * matrix.row_bytes()) as usize];
            matrix.read(&self.file, &run, blocks)?;
            quant::decode(matrix.info.stored, blocks, dtype, out);
            first = run.end;
        }
        Ok(())
    }

    fn read_stored(&self, name: &str, elements: Range<u64>, out: &mut [u8]) -> Result<()> {
        match self.matrices.get(name) {
            Some(matrix) => matrix.read(&self.file, &elements, out),
            None => self.file.read_stored(name, elements, out),
        }
    }
}

fn unsupported(what: String, remedy: &str) -> Error {
    Error::Unsupported { what, remedy: remedy.to_owned() }
}

/// The tensor `name`, which must have this shape.
fn need<'a>(file: &'a SafetensorsDir, name: &str, shape: &[u64], method: &str) -> Result<&'a TensorInfo> {
    let missing = || Error::MissingTensor { name: name.to_owned(), architecture: method.to_owned() };
    let info = file.tensor(name).ok_or_else(missing)?;
    if info.shape != shape {
        let (found, expected) = (info.shape.clone(), shape.to_owned());
        return Err(Error::WrongShape { name: name.to_owned(), found, expected });
    }
    Ok(info)
}

/// Refuses a tensor of another stored type.
fn need_type(info: &TensorInfo, fits: bool, types: &str) -> Result<()> {
    if fits {
        return Ok(());
    }
    let what = format!("type {} of tensor {}", info.stored.name(), info.name);
    Err(unsupported(what, &format!("supported: {types}")))
}

/// Elements of a plain tensor.
fn floats(file: &SafetensorsDir, name: &str, elements: Range<u64>) -> Result<Vec<f32>> {
    let mut bytes = vec![0; (elements.end - elements.start) as usize * 4];
    file.read(name, elements, DType::F32, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}
