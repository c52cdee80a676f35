//! From a checkpoint's tensors to the graph's weights: concatenation of rows, row order, element types.

#[cfg(test)]
mod tests;

use crate::{Encoding, Error, Result, TensorFile, TensorInfo};
use djinn_srg::DType;
use djinn_vmu::{SourceError, WeightSource};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// How a tensor's rows lie in its file, against the order that the graph wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the graph wants them.
    AsStored,
    /// Heads of `head_rows` rows, in each of which rows `2i` and `2i + 1` are a rotary pair; the graph wants
    /// the pair at `i` and `i + head_rows / 2`. GGUF stores the queries and keys of Llama like this.
    Interleaved {
        /// Rows of a head; even.
        head_rows: u64,
    },
}

/// One tensor of the file as a run of rows of a weight.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    tensor: String,
    /// The shape that the configuration asks for.
    shape: Vec<u64>,
    order: RowOrder,
}

impl Part {
    pub(crate) fn new(tensor: &str, shape: &[u64]) -> Part {
        Part { tensor: tensor.to_owned(), shape: shape.to_owned(), order: RowOrder::AsStored }
    }

    pub(crate) fn ordered(self, order: RowOrder) -> Part {
        Part { order, ..self }
    }

    fn rows(&self) -> u64 {
        self.shape[0]
    }

    fn columns(&self) -> u64 {
        self.shape[1..].iter().product()
    }
}

#[derive(Clone, Debug)]
enum Recipe {
    /// Parts with the same number of columns, one below the other.
    Rows(Vec<Part>),
    /// Bytes of an f32 vector that follows from the configuration.
    Computed(Vec<u8>),
}

/// What each weight of a graph is made of.
#[derive(Debug, Default)]
pub(crate) struct WeightMap {
    recipes: HashMap<String, Recipe>,
    ignored: HashSet<String>,
}

impl WeightMap {
    /// The weight `name` is `parts` one below the other.
    pub(crate) fn rows(&mut self, name: &str, parts: Vec<Part>) {
        self.recipes.insert(name.to_owned(), Recipe::Rows(parts));
    }

    /// The weight `name` is the vector `values` in f32.
    pub(crate) fn computed(&mut self, name: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.recipes.insert(name.to_owned(), Recipe::Computed(bytes));
    }

    /// The checkpoint may have this tensor, which says nothing that is not known otherwise.
    pub(crate) fn ignore(&mut self, tensor: &str) {
        self.ignored.insert(tensor.to_owned());
    }

    /// Checks that the file has every tensor in its right shape, and no tensor besides: one that is left
    /// over means that the model computes something that this architecture does not.
    pub(crate) fn check(&self, file: &dyn TensorFile, architecture: &str) -> Result<()> {
        let mut used = HashSet::new();
        let mut parts: Vec<&Part> = self.parts().collect();
        parts.sort_by(|a, b| a.tensor.cmp(&b.tensor));
        for part in parts {
            let found = file.tensor(&part.tensor).ok_or_else(|| Error::MissingTensor {
                name: part.tensor.clone(),
                architecture: architecture.to_owned(),
            })?;
            if found.shape != part.shape {
                return Err(Error::WrongShape {
                    name: part.tensor.clone(),
                    found: found.shape.clone(),
                    expected: part.shape.clone(),
                });
            }
            if let Encoding::Other(stored) = found.encoding {
                return Err(Error::Unsupported {
                    what: format!("type {stored} of tensor {}", part.tensor),
                    remedy: "supported: f32, f16, bf16 and GGML's quantised blocks".to_owned(),
                });
            }
            used.insert(part.tensor.as_str());
        }
        let known = |name: &str| used.contains(name) || self.ignored.contains(name);
        match file.tensors().map(|t| t.name.as_str()).filter(|name| !known(name)).min() {
            None => Ok(()),
            Some(name) => Err(Error::Unsupported {
                what: format!("tensor {name}, which is no part of {architecture},"),
                remedy: "check that config.json belongs to these weights".to_owned(),
            }),
        }
    }

    /// The element type of each weight: `wanted` for matrices; otherwise as stored, the widest of unequal
    /// parts, and f16 for quantised blocks. Vectors (norms, biases) are always as stored.
    ///
    /// # Panics
    /// If the file lacks a tensor: [`WeightMap::check`] comes first.
    pub(crate) fn dtypes(&self, file: &dyn TensorFile, wanted: Option<DType>) -> HashMap<String, DType> {
        let stored = |part: &Part| natural_dtype(info(file, part).encoding);
        let dtype = |recipe: &Recipe| match recipe {
            Recipe::Computed(_) => DType::F32,
            Recipe::Rows(parts) => match wanted {
                Some(dtype) if parts[0].shape.len() > 1 => dtype,
                _ => {
                    let first = stored(&parts[0]);
                    if parts.iter().all(|p| stored(p) == first) { first } else { DType::F32 }
                }
            },
        };
        self.recipes.iter().map(|(name, recipe)| (name.clone(), dtype(recipe))).collect()
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.recipes.values().flat_map(|recipe| match recipe {
            Recipe::Rows(parts) => parts.as_slice(),
            Recipe::Computed(_) => &[],
        })
    }
}

/// The stored type. Blocks become f16: it keeps three more bits than bf16, and reading checks that nothing
/// overflows.
fn natural_dtype(encoding: Encoding) -> DType {
    encoding.dtype().unwrap_or(DType::F16)
}

fn info<'a>(file: &'a dyn TensorFile, part: &Part) -> &'a TensorInfo {
    file.tensor(&part.tensor).unwrap_or_else(|| panic!("unchecked tensor {}", part.tensor))
}

/// A checkpoint as the source of a graph's weights.
pub(crate) struct CheckpointSource {
    file: Box<dyn TensorFile>,
    map: WeightMap,
    dtypes: HashMap<String, DType>,
}

impl CheckpointSource {
    /// The source of the weights in `map`, which has been [checked](WeightMap::check) against `file`, in the
    /// types that [`WeightMap::dtypes`] gave.
    pub(crate) fn new(file: Box<dyn TensorFile>, map: WeightMap, dtypes: HashMap<String, DType>) -> Self {
        CheckpointSource { file, map, dtypes }
    }

    /// Writes `rows` of the concatenated `parts`.
    fn read_parts(&self, parts: &[Part], dtype: DType, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let row_bytes = (parts[0].columns() * dtype.bytes()) as usize;
        let mut rest = out;
        let mut first = 0;
        for part in parts {
            let end = first + part.rows();
            let wanted = rows.start.max(first)..rows.end.min(end);
            if !wanted.is_empty() {
                let bytes = (wanted.end - wanted.start) as usize * row_bytes;
                let (out, tail) = rest.split_at_mut(bytes);
                self.read_part(part, dtype, wanted.start - first..wanted.end - first, out)?;
                rest = tail;
            }
            first = end;
        }
        Ok(())
    }

    fn read_part(&self, part: &Part, dtype: DType, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        match part.order {
            RowOrder::AsStored => self.read_stored(part, dtype, rows, out),
            RowOrder::Interleaved { head_rows } => self.read_heads(part, dtype, head_rows, rows, out),
        }
    }

    /// Reads each head that `rows` touches once, whole, and deals its rows out.
    fn read_heads(
        &self,
        part: &Part,
        dtype: DType,
        head_rows: u64,
        rows: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let row_bytes = (part.columns() * dtype.bytes()) as usize;
        let mut head = vec![0; head_rows as usize * row_bytes];
        let mut out = out.chunks_exact_mut(row_bytes);
        for start in (rows.start / head_rows * head_rows..rows.end).step_by(head_rows as usize) {
            self.read_stored(part, dtype, start..start + head_rows, &mut head)?;
            let wanted = rows.start.max(start)..rows.end.min(start + head_rows);
            for (row, out) in wanted.zip(&mut out) {
                let from = interleaved(row - start, head_rows) as usize * row_bytes;
                out.copy_from_slice(&head[from..from + row_bytes]);
            }
        }
        Ok(())
    }

    /// Reads rows of the file's tensor, and refuses a number that f16 cannot hold.
    fn read_stored(&self, part: &Part, dtype: DType, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        self.file.read_rows(&part.tensor, rows.clone(), dtype, out)?;
        let narrowed = dtype == DType::F16 && info(&*self.file, part).encoding != Encoding::F16;
        // No early end: the loop runs over nothing but finite numbers, and so it vectorises.
        if narrowed && out.as_chunks::<2>().0.iter().fold(false, |found, h| found | is_infinite_f16(h)) {
            self.explain_infinity(part, rows, out)?;
        }
        Ok(())
    }

    /// An error if an infinity in `out` stands for a finite number of the file.
    fn explain_infinity(&self, part: &Part, rows: Range<u64>, out: &[u8]) -> Result<()> {
        let columns = part.columns() as usize;
        let mut exact = vec![0; columns * 4];
        for (row, out) in rows.zip(out.chunks_exact(columns * 2)) {
            self.file.read_rows(&part.tensor, row..row + 1, DType::F32, &mut exact)?;
            let exact = exact.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            let mut pairs = exact.zip(out.as_chunks::<2>().0);
            if let Some((value, _)) = pairs.find(|(value, half)| value.is_finite() && is_infinite_f16(half)) {
                return Err(Error::Unsupported {
                    what: format!("tensor {} in f16: its row {row} holds {value}, which", part.tensor),
                    remedy: "use --dtype bf16".to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// Where row `row` of a head in half order lies among the head's rows in interleaved order.
fn interleaved(row: u64, head_rows: u64) -> u64 {
    let half = head_rows / 2;
    2 * (row % half) + row / half
}

fn is_infinite_f16(bytes: &[u8; 2]) -> bool {
    u16::from_le_bytes(*bytes) & 0x7fff == 0x7c00
}

impl WeightSource for CheckpointSource {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let fail = |source| SourceError { name: name.to_owned(), source };
        let (Some(recipe), Some(&dtype)) = (self.map.recipes.get(name), self.dtypes.get(name)) else {
            return Err(fail("the model has no such weight".into()));
        };
        let (total, row_bytes) = match recipe {
            Recipe::Rows(parts) => (parts.iter().map(Part::rows).sum(), parts[0].columns() * dtype.bytes()),
            Recipe::Computed(bytes) => (bytes.len() as u64 / 4, 4),
        };
        check_request(&rows, total, row_bytes, out.len()).map_err(|detail| fail(detail.into()))?;
        match recipe {
            Recipe::Rows(parts) => {
                self.read_parts(parts, dtype, rows, out).map_err(|error| fail(Box::new(error)))
            }
            Recipe::Computed(bytes) => {
                out.copy_from_slice(&bytes[rows.start as usize * 4..rows.end as usize * 4]);
                Ok(())
            }
        }
    }
}

/// Whether `rows` of a weight of `total` rows fill a buffer of `len` bytes; what is wrong otherwise.
pub(crate) fn check_request(rows: &Range<u64>, total: u64, row_bytes: u64, len: usize) -> Result<(), String> {
    if rows.start > rows.end || rows.end > total {
        return Err(format!("rows {rows:?} are not in 0..{total}"));
    }
    let bytes = (rows.end - rows.start) * row_bytes;
    if bytes != len as u64 {
        return Err(format!("rows {rows:?} are {bytes} bytes, the buffer has {len}"));
    }
    Ok(())
}
