//! The graph's weights from a checkpoint's tensors: concatenation of rows, row order, element types.

#[cfg(test)]
mod tests;

use crate::{Error, OpenOptions, Result, StoredType, TensorFile, TensorInfo};
use djinn_srg::{BlockFormat, DType, Encoding, RowEncodings};
use djinn_vmu::{SourceError, WeightSource};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The order of a weight's rows in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The graph's order.
    AsStored,
    /// Heads of `head_rows` rows. In each, rows `2i` and `2i + 1` are a rotary pair; in the graph the pair is at `i`
    /// and `i + head_rows / 2`. GGUF stores Llama's queries and keys like this.
    Interleaved {
        /// Rows of a head; even.
        head_rows: u64,
    },
    /// Rows `first` to `first + rows` of each group of `group_rows` rows: the queries, keys or values of a matrix with
    /// all three for each key head. Falcon's are stored like this.
    Grouped {
        group_rows: u64,
        /// First row within a group.
        first: u64,
        /// Rows within a group.
        rows: u64,
    },
    /// Rows are columns of the tensor: a matrix stored `[inputs, outputs]`, as GPT-2's.
    Transposed,
}

/// A run of rows of a weight, from one tensor of the file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    tensor: String,
    /// The shape that the configuration implies.
    shape: Vec<u64>,
    order: RowOrder,
    rows: u64,
    columns: u64,
    /// The index of the tensor's element with which the part's matrix begins.
    start: u64,
}

impl Part {
    /// All rows of a tensor of one or two dimensions.
    pub(crate) fn new(tensor: impl Into<String>, shape: &[u64]) -> Part {
        let [rows, columns] = match *shape {
            [rows] => [rows, 1],
            [.., rows, columns] => [rows, columns],
            [] => [1, 1],
        };
        let (tensor, shape) = (tensor.into(), shape.to_owned());
        Part { tensor, shape, order: RowOrder::AsStored, rows, columns, start: 0 }
    }

    pub(crate) fn ordered(self, order: RowOrder) -> Part {
        // A transposed matrix has no other order.
        if self.order == RowOrder::Transposed { self } else { Part { order, ..self } }
    }

    pub(crate) fn transposed(self) -> Part {
        Part { order: RowOrder::Transposed, rows: self.columns, columns: self.rows, ..self }
    }

    /// That many of the tensor's rows, by the part's order.
    pub(crate) fn of_rows(self, rows: u64) -> Part {
        Part { rows, ..self }
    }

    /// The matrix at `index` of a tensor of three dimensions.
    pub(crate) fn slab(self, index: u64) -> Part {
        Part { start: index * self.rows * self.columns, ..self }
    }

    /// The encoding in which a matrix's part of a tensor can be in memory; why it is decoded otherwise.
    fn encoding(&self, info: &TensorInfo, options: &OpenOptions) -> Result<Encoding, &'static str> {
        let encoding = info.encoding().unwrap_or_default();
        let dtype = info.stored.dtype().unwrap_or(DType::F32);
        let whole_blocks = encoding.tile(dtype, self.rows, self.columns).is_some();
        if options.dtype.is_some_and(|wanted| !info.lossless || wanted != dtype) {
            Err("another type was asked for")
        } else if self.order == RowOrder::Transposed || !whole_blocks {
            Err("its rows are columns of the tensor")
        } else if encoding != Encoding::Plain && !options.encodings.contains(&encoding) {
            Err("the device does not compute from it")
        } else {
            Ok(encoding)
        }
    }

    /// Where row `row` of the part is among the tensor's rows.
    fn stored_row(&self, row: u64) -> u64 {
        match self.order {
            RowOrder::AsStored | RowOrder::Transposed => row,
            RowOrder::Interleaved { head_rows } => {
                let (head, row) = (row / head_rows, row % head_rows);
                let half = head_rows / 2;
                head * head_rows + 2 * (row % half) + row / half
            }
            RowOrder::Grouped { group_rows, first, rows } => row / rows * group_rows + first + row % rows,
        }
    }

    /// The runs of stored rows that `rows` are, in their order.
    fn runs(&self, rows: Range<u64>) -> Vec<Range<u64>> {
        if self.order == RowOrder::AsStored {
            return vec![rows];
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for row in rows.map(|row| self.stored_row(row)) {
            match runs.last_mut() {
                Some(run) if run.end == row => run.end += 1,
                _ => runs.push(row..row + 1),
            }
        }
        runs
    }
}

/// What a weight is made of.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    /// Parts with the same number of columns, one below the other.
    Rows(Vec<Part>),
    /// Bytes of an f32 vector that follows from the configuration.
    Computed(Vec<u8>),
}

impl Recipe {
    pub(crate) fn computed(values: &[f32]) -> Recipe {
        Recipe::Computed(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// How the weight is in memory. Matrices are of the type that `options` want, if they want one; blocks whose
    /// encoding they allow stay as they are, and so do rows without loss if all of the weight's are of one type.
    /// Everything else has the type in `file`, the widest of unequal parts, and f16 for blocks, which count for none. A
    /// missing tensor's does not matter: [`WeightMap::check`] refuses it.
    pub(crate) fn storage(&self, file: &dyn TensorFile, options: &OpenOptions) -> Storage {
        let Recipe::Rows(parts) = self else { return Storage::plain(DType::F32) };
        let matrix = parts[0].shape.len() > 1;
        let kept = |part: &Part| match file.tensor(&part.tensor) {
            Some(info) if matrix => part.encoding(info, options).unwrap_or_default(),
            _ => Encoding::Plain,
        };
        let natural =
            |part: &Part| file.tensor(&part.tensor).map_or(DType::F32, |info| natural_dtype(info.stored));
        let first = natural(&parts[0]);
        if parts.iter().all(|part| kept(part) == Encoding::Lossless && natural(part) == first) {
            let mut encodings = RowEncodings::default();
            parts.iter().for_each(|part| encodings.push(part.rows, Encoding::Lossless));
            return Storage { dtype: first, encodings };
        }
        if let Some(dtype) = options.dtype.filter(|_| matrix) {
            return Storage::plain(dtype);
        }
        let mut encodings = RowEncodings::default();
        parts.iter().for_each(|part| encodings.push(part.rows, kept(part)));
        let encodings = encodings.without_lossless();
        let plain = parts.iter().filter(|part| !matches!(kept(part), Encoding::Blocks(_)));
        let mut dtypes = plain.map(natural);
        let first = dtypes.next().unwrap_or(DType::F32);
        let dtype = if dtypes.all(|dtype| dtype == first) { first } else { DType::F32 };
        if encodings.is_plain() { Storage::plain(dtype) } else { Storage { dtype, encodings } }
    }

    /// The storage of a matrix whose parts are in blocks, of the format that `of` gives a tensor; `None` for vectors.
    pub(crate) fn in_blocks(&self, of: impl Fn(&str) -> BlockFormat) -> Option<Storage> {
        let Recipe::Rows(parts) = self else { return None };
        let mut encodings = RowEncodings::default();
        parts.iter().for_each(|part| encodings.push(part.rows, Encoding::Blocks(of(&part.tensor))));
        (parts[0].shape.len() > 1).then_some(Storage { dtype: DType::F32, encodings })
    }

    fn matrix(&self) -> [u64; 2] {
        match self {
            Recipe::Rows(parts) => [parts.iter().map(|p| p.rows).sum(), parts[0].columns],
            Recipe::Computed(bytes) => [bytes.len() as u64 / 4, 1],
        }
    }
}

/// The stored type. Blocks become f16: it keeps three more bits than bf16, and reading checks that nothing
/// overflows.
fn natural_dtype(stored: StoredType) -> DType {
    stored.dtype().unwrap_or(DType::F16)
}

/// Weights that are encoded in the checkpoint or in memory, and alike in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EncodedWeights {
    /// Their encoding in the checkpoint, or their element type.
    pub stored: &'static str,
    /// That in memory.
    pub in_memory: &'static str,
    /// Why they are plain in memory; none if they are not.
    pub why: Option<&'static str>,
    /// How many there are, each expert's and each part of a fused one by itself.
    pub weights: u64,
    /// Their bytes in memory.
    pub bytes: u64,
}

/// Adds up weights that are alike, in the order of their names.
#[derive(Default)]
pub(crate) struct Tally(BTreeMap<(&'static str, &'static str, Option<&'static str>), (u64, u64)>);

impl Tally {
    pub(crate) fn add(
        &mut self,
        stored: &'static str,
        in_memory: &'static str,
        why: Option<&'static str>,
        bytes: u64,
    ) {
        let sum = self.0.entry((stored, in_memory, why)).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }

    pub(crate) fn into_weights(self) -> Vec<EncodedWeights> {
        let of = |((stored, in_memory, why), (weights, bytes))| EncodedWeights {
            stored,
            in_memory,
            why,
            weights,
            bytes,
        };
        self.0.into_iter().map(of).collect()
    }
}

/// How a weight is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    /// The type of plain rows; f32 if there are none.
    pub(crate) dtype: DType,
    pub(crate) encodings: RowEncodings,
}

impl Storage {
    pub(crate) fn plain(dtype: DType) -> Self {
        Storage { dtype, encodings: RowEncodings::default() }
    }
}

/// What some rows are read as.
#[derive(Clone, Copy)]
struct Form {
    dtype: DType,
    encoding: Encoding,
}

impl Form {
    fn bytes(self, rows: u64, columns: u64) -> usize {
        let tile = self.encoding.tile(self.dtype, rows, columns);
        tile.expect("the graph's builder has checked the encoding").bytes as usize
    }
}

/// What each weight of a graph is made of.
#[derive(Debug, Default)]
pub(crate) struct WeightMap {
    recipes: HashMap<String, (Recipe, Storage)>,
    ignored: HashSet<String>,
}

impl WeightMap {
    /// The weight `name`, in memory as `storage` says.
    pub(crate) fn insert(&mut self, name: &str, recipe: Recipe, storage: Storage) {
        self.recipes.insert(name.to_owned(), (recipe, storage));
    }

    /// The checkpoint may have this tensor, which says nothing that is not known otherwise.
    pub(crate) fn ignore(&mut self, tensor: String) {
        self.ignored.insert(tensor);
    }

    /// The vector of a weight that follows from the configuration.
    pub(crate) fn vector(&self, name: &str) -> Option<&[u8]> {
        match self.recipes.get(name) {
            Some((Recipe::Computed(bytes), _)) => Some(bytes),
            _ => None,
        }
    }

    /// Checks that the file has every tensor in its right shape, and no tensor besides: one that is left
    /// over means that the model computes something that this architecture does not. `settings` is where the file's model
    /// is described.
    pub(crate) fn check(&self, file: &dyn TensorFile, architecture: &str, settings: &str) -> Result<()> {
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
            if let StoredType::Other(stored) = found.stored {
                return Err(Error::Unsupported {
                    what: format!("type {stored} of tensor {}", part.tensor),
                    remedy: "supported: f32, f16, bf16, GGML's quantised blocks, and what `quantization_config` describes".to_owned(),
                });
            }
            used.insert(part.tensor.as_str());
        }
        let known = |name: &str| used.contains(name) || self.ignored.contains(name);
        match file.tensors().map(|t| t.name.as_str()).filter(|name| !known(name)).min() {
            None => Ok(()),
            Some(name) => Err(Error::Unsupported {
                what: format!("tensor {name}, which is no part of {architecture},"),
                remedy: format!("check that {settings} belongs to these weights"),
            }),
        }
    }

    /// The encoded tensors of matrices, by what they are in memory and why; in the order of their names.
    pub(crate) fn encoded(&self, file: &dyn TensorFile, options: &OpenOptions) -> Vec<EncodedWeights> {
        let mut all = Tally::default();
        for (recipe, storage) in self.recipes.values() {
            let Recipe::Rows(parts) = recipe else { continue };
            let mut first = 0;
            for part in parts {
                let (info, encoding) = (info(file, part), storage.encodings.at(first));
                first += part.rows;
                let stored = match info.encoding() {
                    None | Some(Encoding::Plain) => continue,
                    Some(stored) => stored,
                };
                let why = match part.encoding(info, options) {
                    _ if encoding == stored => None,
                    Ok(_) => Some("other rows of the same weight are not encoded so"),
                    Err(why) => Some(why),
                };
                let in_memory =
                    if encoding == Encoding::Plain { storage.dtype.name() } else { encoding.name() };
                let bytes = encoding.tile(storage.dtype, part.rows, part.columns);
                all.add(stored.name(), in_memory, why, bytes.expect("it was checked").bytes);
            }
        }
        all.into_weights()
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.recipes.values().flat_map(|(recipe, _)| match recipe {
            Recipe::Rows(parts) => parts.as_slice(),
            Recipe::Computed(_) => &[],
        })
    }
}

/// A checkpoint as the source of a graph's weights.
pub(crate) struct CheckpointSource {
    file: Box<dyn TensorFile>,
    map: WeightMap,
}

impl CheckpointSource {
    /// The source of the weights in `map`, which has been [checked](WeightMap::check) against `file`.
    pub(crate) fn new(file: Box<dyn TensorFile>, map: WeightMap) -> Self {
        CheckpointSource { file, map }
    }

    /// Writes `rows` of the concatenated `parts`.
    fn read_parts(&self, parts: &[Part], form: Form, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        let mut first = 0;
        for part in parts {
            let end = first + part.rows;
            let wanted = rows.start.max(first)..rows.end.min(end);
            if !wanted.is_empty() {
                let bytes = form.bytes(wanted.end - wanted.start, part.columns);
                let (out, tail) = rest.split_at_mut(bytes);
                self.read_part(part, form, wanted.start - first..wanted.end - first, out)?;
                rest = tail;
            }
            first = end;
        }
        Ok(())
    }

    fn read_part(&self, part: &Part, form: Form, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        if part.order == RowOrder::Transposed {
            return self.read_columns(part, form.dtype, rows, out);
        }
        let mut rest = out;
        for run in part.runs(rows) {
            let elements = (run.end - run.start) * part.columns;
            let (out, tail) = rest.split_at_mut(form.bytes(run.end - run.start, part.columns));
            let start = part.start + run.start * part.columns;
            let elements = start..start + elements;
            match form.encoding {
                Encoding::Plain => self.read_decoded(part, form.dtype, elements, out)?,
                Encoding::Blocks(format) => self.read_blocks(part, format, elements, out)?,
                _ => self.file.read_stored(&part.tensor, elements, out)?,
            }
            rest = tail;
        }
        Ok(())
    }

    /// Reads rows of blocks, which lie one after the other in the file, to where they begin in memory.
    fn read_blocks(
        &self,
        part: &Part,
        format: BlockFormat,
        elements: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let rows = ((elements.end - elements.start) / part.columns) as usize;
        let blocks = format.blocks_bytes(part.columns).expect("the graph's builder has checked the encoding");
        let (blocks, row) = (blocks as usize, out.len() / rows);
        self.file.read_stored(&part.tensor, elements, &mut out[..rows * blocks])?;
        if blocks < row {
            for index in (0..rows).rev() {
                out.copy_within(index * blocks..(index + 1) * blocks, index * row);
                out[index * row + blocks..(index + 1) * row].fill(0);
            }
        }
        Ok(())
    }

    /// Reads columns of the tensor as rows.
    fn read_columns(&self, part: &Part, dtype: DType, columns: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (width, bytes) = ((columns.end - columns.start) as usize, dtype.bytes() as usize);
        let row_bytes = part.columns as usize * bytes;
        let mut stored = vec![0; width * bytes];
        for input in 0..part.columns {
            let start = input * part.rows + columns.start;
            self.read_decoded(part, dtype, start..start + width as u64, &mut stored)?;
            let at = input as usize * bytes;
            for (out, element) in out.chunks_exact_mut(row_bytes).zip(stored.chunks_exact(bytes)) {
                out[at..at + bytes].copy_from_slice(element);
            }
        }
        Ok(())
    }

    /// Reads elements of the file's tensor, and refuses a number that f16 cannot hold.
    fn read_decoded(&self, part: &Part, dtype: DType, elements: Range<u64>, out: &mut [u8]) -> Result<()> {
        self.file.read(&part.tensor, elements.clone(), dtype, out)?;
        let narrowed = dtype == DType::F16 && info(&*self.file, part).stored != StoredType::F16;
        // No early end: the loop runs over nothing but finite numbers, and so it vectorises.
        if narrowed && out.as_chunks::<2>().0.iter().fold(false, |found, h| found | is_infinite_f16(h)) {
            self.explain_infinity(part, elements, out)?;
        }
        Ok(())
    }

    /// An error if an infinity in `out` stands for a finite number of the file.
    fn explain_infinity(&self, part: &Part, elements: Range<u64>, out: &[u8]) -> Result<()> {
        let mut exact = vec![0; out.len() * 2];
        self.file.read(&part.tensor, elements.clone(), DType::F32, &mut exact)?;
        let exact = exact.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        let mut numbers = elements.zip(exact.zip(out.as_chunks::<2>().0));
        let lost = numbers.find(|(_, (value, half))| value.is_finite() && is_infinite_f16(half));
        match lost {
            None => Ok(()),
            Some((element, (value, _))) => Err(Error::Unsupported {
                what: format!(
                    "tensor {} in f16: its row {} holds {value}, which",
                    part.tensor,
                    element / part.shape[1..].last().copied().unwrap_or(1)
                ),
                remedy: "use `dtype` bf16".to_owned(),
            }),
        }
    }
}

fn info<'a>(file: &'a dyn TensorFile, part: &Part) -> &'a TensorInfo {
    file.tensor(&part.tensor).unwrap_or_else(|| panic!("unchecked tensor {}", part.tensor))
}

fn is_infinite_f16(bytes: &[u8; 2]) -> bool {
    u16::from_le_bytes(*bytes) & 0x7fff == 0x7c00
}

impl WeightSource for CheckpointSource {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let fail = |source| SourceError { name: name.to_owned(), source };
        let Some((recipe, Storage { dtype, encodings })) = self.map.recipes.get(name) else {
            return Err(fail("the model has no such weight".into()));
        };
        let [total, columns] = recipe.matrix();
        let bytes = |rows| encodings.bytes(*dtype, columns, rows);
        check_request(&rows, total, bytes, out.len()).map_err(|detail| fail(detail.into()))?;
        match recipe {
            Recipe::Rows(parts) => {
                let mut rest = out;
                encodings.runs(rows).try_for_each(|(run, encoding)| {
                    let form = Form { dtype: *dtype, encoding };
                    let bytes = form.bytes(run.end - run.start, columns);
                    let (out, tail) = std::mem::take(&mut rest).split_at_mut(bytes);
                    rest = tail;
                    self.read_parts(parts, form, run, out).map_err(|error| fail(Box::new(error)))
                })
            }
            Recipe::Computed(bytes) => {
                out.copy_from_slice(&bytes[rows.start as usize * 4..rows.end as usize * 4]);
                Ok(())
            }
        }
    }
}

/// Whether `rows` of a weight of `total` rows fill a buffer of `len` bytes, if some rows take `bytes`; what is wrong
/// otherwise.
pub(crate) fn check_request(
    rows: &Range<u64>,
    total: u64,
    bytes: impl Fn(Range<u64>) -> Option<u64>,
    len: usize,
) -> Result<(), String> {
    if rows.start > rows.end || rows.end > total {
        return Err(format!("rows {rows:?} are not in 0..{total}"));
    }
    let bytes = bytes(rows.clone());
    if bytes != Some(len as u64) {
        return Err(format!("rows {rows:?} are {} bytes, the buffer has {len}", bytes.unwrap_or(0)));
    }
    Ok(())
}
