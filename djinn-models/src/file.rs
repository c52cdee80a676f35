//! Checkpoint files, and the rows of their tensors.
//!
//! Files are read at positions, never mapped. A mapped page counts as the process's resident memory for as long as the
//! system keeps it, and if a mapped file shrinks, SIGBUS ends the process; a positional read past the end is an error.
//! Each read has its own offset, so several threads read one file without a lock.

pub(crate) mod regular;
#[cfg(test)]
mod tests;

pub use regular::read_bounded;
pub(crate) use regular::read_if_present;

use crate::quant;
use crate::{Error, Result, TensorInfo};
use djinn_srg::{DType, Encoding};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Elements that are decoded at once if the stored type is not the wanted one; a multiple of every block size.
const RUN_ELEMENTS: u64 = 64 * 1024;

/// Random-access bytes. A read past the end is [`io::ErrorKind::UnexpectedEof`].
pub(crate) trait Source: Send + Sync {
    /// Length in bytes when the source was opened.
    fn len(&self) -> u64;
    /// Fills `out` with the bytes from `offset` on.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;

    /// Whether these bytes, one or more, are whole rows stored as [`LosslessRow`](djinn_lossless::LosslessRow)s.
    fn keeps_rows(&self, _bytes: Range<u64>) -> bool {
        false
    }

    /// Fills `out` with encoded rows, from the one that begins at `offset` on. Only for rows that are [stored
    /// so](Self::keeps_rows).
    fn read_rows_at(&self, _out: &mut [u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Source for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..out.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

struct RegularFile {
    #[cfg(unix)]
    file: File,
    /// Without a positional read that leaves the file's cursor alone, reads take turns.
    #[cfg(not(unix))]
    file: std::sync::Mutex<File>,
    len: u64,
}

impl Source for RegularFile {
    fn len(&self) -> u64 {
        self.len
    }

    #[cfg(unix)]
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset)
    }

    #[cfg(not(unix))]
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

/// Bytes, and their name in errors.
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) source: Box<dyn Source>,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.source.len())
    }
}

impl Input {
    /// Opens a regular file. Others are refused.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = regular::open(path)?;
        let io_error = |source| Error::Io { path: path.to_owned(), source };
        let len = file.metadata().map_err(io_error)?.len();
        #[cfg(not(unix))]
        let file = std::sync::Mutex::new(file);
        Ok(Self { path: path.to_owned(), source: Box::new(RegularFile { file, len }) })
    }

    /// A file in memory; `name` replaces its path in errors.
    pub(crate) fn from_bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self { path: PathBuf::from(name), source: Box::new(bytes) }
    }

    /// Fills `out` from `offset`. `what` names the contents, for the error if the file has become shorter.
    pub(crate) fn read(&self, out: &mut [u8], offset: u64, what: fmt::Arguments<'_>) -> Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        self.source.read_exact_at(out, offset).map_err(|source| self.read_error(source, end, what))
    }

    fn read_error(&self, source: io::Error, end: u64, what: fmt::Arguments<'_>) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                self.malformed(format!("{what}: the file ends before byte {end}; it is truncated"))
            }
            _ => Error::Io { path: self.path.clone(), source },
        }
    }

    /// The error for invalid contents. `detail` may quote the file: its line breaks are escaped.
    pub(crate) fn malformed(&self, detail: String) -> Error {
        let detail =
            if detail.contains(char::is_control) { detail.escape_debug().to_string() } else { detail };
        Error::Malformed { path: self.path.clone(), detail }
    }
}

/// A tensor and its place. Its bytes were checked against the file's length at opening.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) info: TensorInfo,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
}

/// Reads a run of the elements of `stored` from `input`, as [`crate::TensorFile::read`] defines it.
///
/// # Panics
/// If the run reaches past the tensor, or `out` does not have its length.
pub(crate) fn read(
    input: &Input,
    stored: &Stored,
    run: Range<u64>,
    dtype: DType,
    out: &mut [u8],
) -> Result<()> {
    let TensorInfo { name, stored: stored_type, .. } = &stored.info;
    check_run(&stored.info, &run);
    let elements = run.end - run.start;
    assert_eq!(
        out.len() as u64,
        elements * dtype.bytes(),
        "bytes of output for {elements} elements of {name} as {dtype}"
    );
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::Unsupported {
            what: format!("reading tensor {name} as {dtype}"),
            remedy: "weights are read as f32, f16 or bf16".into(),
        });
    }
    let [mut offset, _] = extent(stored, &run)?;
    if stored_type.dtype() == Some(dtype) {
        return input.read(out, offset, format_args!("tensor {name}"));
    }
    let (block_elements, block_bytes) = stored_type.block().expect("a type with an extent has blocks");
    let encoded_bytes = |elements: u64| (elements / block_elements * block_bytes) as usize;
    let mut scratch = vec![0; encoded_bytes(elements.min(RUN_ELEMENTS))];
    for out in out.chunks_mut((RUN_ELEMENTS * dtype.bytes()) as usize) {
        let encoded = &mut scratch[..encoded_bytes(out.len() as u64 / dtype.bytes())];
        input.read(encoded, offset, format_args!("tensor {name}"))?;
        quant::decode(*stored_type, encoded, dtype, out);
        offset += encoded.len() as u64;
    }
    Ok(())
}

/// Reads the bytes of a run of elements, as [`crate::TensorFile::read_stored`] defines it.
///
/// # Panics
/// If the run reaches past the tensor, or `out` does not have its length.
pub(crate) fn read_stored(input: &Input, stored: &Stored, run: Range<u64>, out: &mut [u8]) -> Result<()> {
    check_run(&stored.info, &run);
    let [offset, bytes] = extent(stored, &run)?;
    let TensorInfo { name, shape, stored: stored_type, lossless } = &stored.info;
    if !lossless {
        assert_eq!(out.len() as u64, bytes, "bytes of output for elements {run:?} of {name} as stored");
        return input.read(out, offset, format_args!("tensor {name}"));
    }
    let columns = shape.last().copied().unwrap_or(1);
    let dtype = stored_type.dtype().expect("floats are kept without loss");
    let encoded = Encoding::Lossless.tile(dtype, (run.end - run.start) / columns, columns);
    assert!(
        run.start.is_multiple_of(columns) && run.end.is_multiple_of(columns),
        "elements {run:?} of {name} are no whole rows"
    );
    assert_eq!(Some(out.len() as u64), encoded.map(|rows| rows.bytes), "encoded bytes of {run:?} of {name}");
    let error = |source| input.read_error(source, offset + bytes, format_args!("tensor {name}"));
    input.source.read_rows_at(out, offset).map_err(error)
}

fn check_run(TensorInfo { name, shape, .. }: &TensorInfo, run: &Range<u64>) {
    let count = shape.iter().product::<u64>();
    assert!(run.start <= run.end && run.end <= count, "elements {run:?} of {name}, which has {count}");
}

/// The offset and the bytes of a run of elements in the file.
fn extent(stored: &Stored, run: &Range<u64>) -> Result<[u64; 2]> {
    let TensorInfo { name, stored: stored_type, .. } = &stored.info;
    let Some((block_elements, block_bytes)) = stored_type.block() else {
        return Err(Error::Unsupported {
            what: format!("the type {} of tensor {name}", stored_type.name()),
            remedy: "convert the checkpoint to bf16, f16, f32, Q8_0 or a K-quantised type".into(),
        });
    };
    let (first, elements) = (run.start, run.end - run.start);
    if !first.is_multiple_of(block_elements) || !elements.is_multiple_of(block_elements) {
        let type_name = stored_type.name();
        return Err(Error::Unsupported {
            what: format!("reading elements {run:?} of tensor {name}, inside a block of {type_name}"),
            remedy: format!("read multiples of {block_elements} elements"),
        });
    }
    let bytes = |elements: u64| elements / block_elements * block_bytes;
    Ok([stored.offset + bytes(first), bytes(elements)])
}

/// Bytes of a tensor of this shape, in blocks of (elements, bytes). `None` if the number does not fit, or if a row is
/// not a whole number of blocks; blocks run along the innermost dimension.
pub(crate) fn stored_bytes(shape: &[u64], block: (u64, u64)) -> Option<u64> {
    let (block_elements, block_bytes) = block;
    if shape.last().is_some_and(|row| !row.is_multiple_of(block_elements)) {
        return None;
    }
    let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    // The tensor decoded to any type must fit: 4 bytes an element at most.
    elements.checked_mul(4)?;
    (elements / block_elements).checked_mul(block_bytes)
}

/// The error for an unknown tensor.
pub(crate) fn missing(name: &str) -> Error {
    Error::MissingTensor { name: name.into(), architecture: "the model".into() }
}
