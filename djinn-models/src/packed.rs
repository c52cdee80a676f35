//! Packed checkpoints: safetensors files with 16-bit matrices in 12 bits, without loss.
//!
//! A packed file represents one safetensors file, byte for byte, and is read at that file's positions. So all code
//! that reads safetensors can read it. `docs/packed-format.md` describes the format, `djinn-lossless` the rows.

mod bands;
mod folder;
mod index;
mod parallel;
mod partial;
mod source;
mod write;

pub use folder::{PackReport, pack, unpack};

use crate::Result;
use crate::file::Input;
use djinn_lossless::LosslessRow;
use djinn_srg::{DType, Encoding, Graph, Value};
use std::path::{Path, PathBuf};

/// The extension that is appended to a safetensors file's name.
pub const EXTENSION: &str = "packed";

/// Opens a safetensors file, packed or not, by its extension.
pub(crate) fn open(path: &Path) -> Result<Input> {
    let input = Input::open(path)?;
    if path.extension().is_some_and(|e| e == EXTENSION) { unpacked(input) } else { Ok(input) }
}

/// The safetensors file that a packed one represents.
///
/// # Errors
/// A file that is truncated, corrupt, or of an unknown version.
pub(crate) fn unpacked(packed: Input) -> Result<Input> {
    let path = packed.path.clone();
    Ok(Input { path, source: Box::new(source::PackedSource::open(packed)?) })
}

/// Bytes of a model's weights with its bf16 matrices in 12 bits a value; `None` if none would be. The gain for f16
/// depends on the values.
pub fn lossless_bytes(graph: &Graph) -> Option<u64> {
    let sizes = graph.weights().map(|(_, value)| {
        let [rows, columns] = value.matrix();
        let plain = value.text_bytes();
        let encoded = (value.dtype() == DType::BF16 && value.encodings.is_plain())
            .then(|| LosslessRow::new(usize::try_from(columns).ok()?))
            .flatten()
            .filter(|row| row.pays())
            .map(|row| rows * row.bytes() as u64);
        (plain, encoded)
    });
    let sizes: Vec<(u64, Option<u64>)> = sizes.collect();
    let any = sizes.iter().any(|(_, encoded)| encoded.is_some());
    any.then(|| sizes.iter().map(|(plain, encoded)| encoded.unwrap_or(*plain)).sum())
}

/// Bytes of a model's weights with its encoded matrices as 16-bit elements; `None` if none is encoded.
pub fn plain_bytes(graph: &Graph) -> Option<u64> {
    let plain = |value: &Value| {
        let [_, columns] = value.matrix();
        let runs = value.encodings.runs(0..value.matrix()[0]);
        let row_bytes =
            |encoding| columns * if encoding == Encoding::Plain { value.dtype().bytes() } else { 2 };
        runs.map(|(rows, encoding)| (rows.end - rows.start) * row_bytes(encoding)).sum::<u64>()
    };
    let any = graph.weights().any(|(_, value)| !value.encodings.is_plain());
    any.then(|| graph.weights().map(|(_, value)| plain(value)).sum())
}

/// The file, or else its packed form; `None` if neither exists.
pub(crate) fn find(path: &Path) -> Option<PathBuf> {
    [path.to_owned(), with_extension(path)].into_iter().find(|path| path.exists())
}

/// Whether `file` is the safetensors file called `name`, or its packed form.
pub(crate) fn stands_for(file: &Path, name: &str) -> bool {
    let own = file.file_name().and_then(|own| own.to_str());
    own.is_some_and(|own| own == name || own.strip_suffix(EXTENSION) == Some(&format!("{name}.")))
}

/// The path of a file's packed form.
fn with_extension(path: &Path) -> PathBuf {
    suffixed(path, EXTENSION)
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}
