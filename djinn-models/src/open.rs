//! Opens a model: finds it, reads its configuration, checks its tensors, builds its graph. Weights stay in their
//! files.

mod generation;
mod json;
#[cfg(test)]
pub(crate) mod tests;

pub use generation::GenerationDefaults;
pub(crate) use json::JsonKeys;

use crate::decoder::{self, Decoder};
use crate::families;
use crate::gguf::Gguf;
use crate::safetensors::SafetensorsDir;
use crate::weights::{CheckpointSource, EncodedWeights, Recipe};
use crate::{
    ChatTemplate, Error, Result, TensorFile, Tokenizer, packed, packing, quantised, stored, synthetic,
};
use djinn_srg::{DType, Encoding, Graph};
use djinn_vmu::WeightSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model's location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory in Hugging Face's layout, or one with a single GGUF file.
    Directory(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A safetensors file, or a [packed](crate::packed) one, with `config.json` beside it.
    Safetensors(PathBuf),
    /// Seeded random weights in the shape of a known model: `llama-2-13b`, `tiny?layers=1&seed=3`
    /// ([`synthetic`]).
    Synthetic(String),
    /// A model of a content store ([`stored`]). [`find`](Self::find) never returns it.
    Stored {
        /// The folder of its manifest and small files.
        folder: PathBuf,
        /// The folder of all pieces.
        blobs: PathBuf,
        /// The model's name.
        name: String,
    },
}

impl Location {
    /// The location that a user's `place` names: `synthetic:NAME` or an existing path.
    ///
    /// # Errors
    /// [`Error::NotAModel`] for anything else.
    pub fn find(place: &str) -> Result<Location> {
        if let Some(name) = place.strip_prefix(synthetic::PREFIX) {
            return Ok(Location::Synthetic(name.to_owned()));
        }
        let path = PathBuf::from(place);
        if path.is_dir() {
            return Ok(Location::Directory(path));
        }
        if !path.exists() {
            return Err(not_a_model(&path, "no such file or directory"));
        }
        let extension = path.extension().map(|e| e.to_ascii_lowercase());
        match extension.as_deref().and_then(|e| e.to_str()) {
            Some("gguf") => Ok(Location::Gguf(path)),
            Some("safetensors" | packed::EXTENSION) => Ok(Location::Safetensors(path)),
            _ => Err(not_a_model(&path, "expected a directory, a .gguf, a .safetensors or a .packed file")),
        }
    }
}

/// Options for opening a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Element type of matrices in memory: f32, f16 or bf16. `None` keeps the stored type, and decodes quantised
    /// blocks to f16 unless [`encodings`](Self::encodings) has them. Norms and biases always keep their stored type.
    pub dtype: Option<DType>,
    /// The encodings that the device computes from, besides plain elements: matrices stored so keep them. Default:
    /// none.
    pub encodings: &'static [Encoding],
    /// Whether plain 16-bit matrices are encoded without loss during loading; requires that encoding in `encodings`.
    pub packing: Packing,
}

/// Whether plain 16-bit matrices of a checkpoint are encoded without loss during loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// They are not.
    #[default]
    Never,
    /// Those that become at least 3 % smaller are. Opening reads all of them, on all cores.
    Fitting,
    /// All bf16 matrices are, unchecked: for plans. Loading fails at a row that does not fit.
    Assumed,
}

/// An open model.
pub struct Model {
    /// For display: the directory's or file's name, or `synthetic:NAME`.
    pub name: String,
    /// The checkpoint's name for it, such as `LlamaForCausalLM`.
    pub architecture: String,
    /// Its graph.
    pub graph: Graph,
    /// Its weights, by their names in the graph.
    pub source: Arc<dyn WeightSource>,
    /// `None` if the checkpoint has none. Synthetic models have a stand-in ([`synthetic`]).
    pub tokenizer: Option<Tokenizer>,
    /// The chat template; `None` for base models.
    pub chat: Option<ChatTemplate>,
    /// The sampling defaults of the model's makers.
    pub defaults: GenerationDefaults,
    /// Its location.
    pub location: Location,
    /// The form in memory of weights that are encoded in the checkpoint or in memory; empty if there are none.
    pub encoded: Vec<EncodedWeights>,
}

impl Model {
    /// Every token that ends a text or a turn, as the model's makers or its tokenizer say; sorted.
    pub fn end_tokens(&self) -> Vec<u32> {
        let mut ids = self.defaults.eos.clone();
        ids.extend(self.tokenizer.iter().flat_map(Tokenizer::end_tokens));
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("architecture", &self.architecture)
            .field("parameters", &self.graph.parameters())
            .finish_non_exhaustive()
    }
}

/// Opens the model: reads headers and configuration. Reads weights only to [encode](Packing::Fitting) them.
///
/// # Errors
/// One line that names the place, and the key, tensor or feature at fault: see [`Error`].
pub fn open(location: &Location, options: &OpenOptions) -> Result<Model> {
    if let Some(dtype) = options.dtype.filter(|d| !matches!(d, DType::F32 | DType::F16 | DType::BF16)) {
        return Err(Error::Unsupported {
            what: format!("dtype {dtype} for weights"),
            remedy: "supported: f32, f16, bf16".to_owned(),
        });
    }
    let mut model = match location {
        Location::Directory(path) => open_directory(path, options),
        Location::Gguf(path) => open_gguf(path, options),
        Location::Safetensors(path) => {
            let directory = path.parent().unwrap_or(Path::new(""));
            if !directory.join("config.json").exists() {
                return Err(not_a_model(path, "a file of weights needs its config.json beside it"));
            }
            open_safetensors(directory, path, options)
        }
        Location::Synthetic(name) => synthetic::open(name, options),
        Location::Stored { folder, blobs, name } => stored::open(folder, blobs, name, options),
    }?;
    model.location = location.clone();
    packing::pack(&mut model, options)?;
    Ok(model)
}

fn open_directory(path: &Path, options: &OpenOptions) -> Result<Model> {
    refuse_adapter(path)?;
    if path.join("config.json").exists() {
        return open_safetensors(path, path, options);
    }
    match gguf_files(path)?.as_slice() {
        [file] => open_gguf(file, options),
        [] => Err(not_a_model(path, "it has neither config.json nor a .gguf file")),
        files => Err(not_a_model(path, &format!("it has {} .gguf files; name one of them", files.len()))),
    }
}

/// Refuses an adapter: alone it is not a model, and beside a model it must not be ignored.
fn refuse_adapter(directory: &Path) -> Result<()> {
    let files = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"];
    match files.into_iter().find(|file| directory.join(file).exists()) {
        None => Ok(()),
        Some(file) => Err(Error::Unsupported {
            what: format!("an adapter ({file} in {})", directory.display()),
            remedy: "merge it into its base model first".to_owned(),
        }),
    }
}

pub(crate) fn gguf_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { path: directory.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Opens the tensors at `weights`, and everything else in `directory`.
fn open_safetensors(directory: &Path, weights: &Path, options: &OpenOptions) -> Result<Model> {
    let keys = JsonKeys::open(&directory.join("config.json"))?;
    of_safetensors(directory, keys, SafetensorsDir::open(weights)?, file_name(weights), options)
}

/// A model called `name` from these tensors and keys, and everything else in `directory`.
pub(crate) fn of_safetensors(
    directory: &Path,
    keys: JsonKeys,
    tensors: SafetensorsDir,
    name: String,
    options: &OpenOptions,
) -> Result<Model> {
    let decoder = families::from_json(&keys)?;
    let file = quantised::tensors(tensors, &keys, &decoder)?;
    let architecture = decoder.architecture.to_owned();
    let (graph, source, encoded) = assemble(decoder, &name, file, "config.json", options)?;
    Ok(Model {
        architecture,
        graph,
        source,
        encoded,
        tokenizer: Tokenizer::from_dir(directory)?,
        chat: ChatTemplate::from_dir(directory)?,
        defaults: GenerationDefaults::from_dir(directory)?,
        location: Location::Directory(directory.to_owned()),
        name,
    })
}

fn open_gguf(path: &Path, options: &OpenOptions) -> Result<Model> {
    of_gguf(Gguf::open(path)?, file_name(path), options)
}

/// The model called `name` in a GGUF file.
pub(crate) fn of_gguf(gguf: Gguf, name: String, options: &OpenOptions) -> Result<Model> {
    let decoder = families::from_gguf(&gguf)?;
    let architecture = decoder.architecture.to_owned();
    let path = gguf.path().to_owned();
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let chat = ChatTemplate::from_gguf(&gguf)?;
    let defaults = GenerationDefaults::from_gguf(&gguf)?;
    let (graph, source, encoded) = assemble(decoder, &name, Box::new(gguf), "the file's metadata", options)?;
    let location = Location::Gguf(path);
    Ok(Model { architecture, graph, source, tokenizer, chat, defaults, location, encoded, name })
}

/// Checks the tensors against the configuration. Returns the graph, the source of its weights, and the form of encoded
/// weights in memory.
fn assemble(
    mut decoder: Decoder,
    name: &str,
    file: Box<dyn TensorFile>,
    settings: &str,
    options: &OpenOptions,
) -> Result<(Graph, Arc<dyn WeightSource>, Vec<EncodedWeights>)> {
    decoder.tensors.fit_prefix(|tensor| file.tensor(tensor).is_some());
    let storage = |recipe: &Recipe| recipe.storage(&*file, options);
    let layers = decoder.sizes.layers;
    let (graph, map) = decoder::build(&decoder, name, layers, &storage)?;
    map.check(&*file, decoder.architecture, settings)?;
    let encoded = map.encoded(&*file, options);
    Ok((graph, Arc::new(CheckpointSource::new(file, map)), encoded))
}

/// The name of a path's resolved target, without a weight file's extension.
fn file_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if full.is_dir() { full.file_name() } else { full.file_stem() };
    name.map_or_else(|| full.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn not_a_model(path: &Path, detail: &str) -> Error {
    Error::NotAModel { place: path.display().to_string(), detail: detail.to_owned() }
}
