//! Opening a model: find it, read its configuration, check its tensors, build its graph. Weights stay in
//! their files.

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

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory in Hugging Face's layout, or one that holds a single GGUF file.
    Directory(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A safetensors file, or a [packed](crate::packed) one, with `config.json` beside it.
    Safetensors(PathBuf),
    /// Seeded random weights in the shape of a known model: `llama-2-13b`, `tiny?layers=1&seed=3`
    /// ([`synthetic`]).
    Synthetic(String),
    /// A model of a content store ([`stored`]); never found by [`find`](Self::find).
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
    /// The location that a user means by `place`: `synthetic:NAME` or a path that exists.
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

/// How to open a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Element type of matrices in memory: f32, f16 or bf16. `None` keeps the stored type, and makes f16 of
    /// quantised blocks that [`encodings`](Self::encodings) does not keep. Norms and biases keep their stored type in any
    /// case.
    pub dtype: Option<DType>,
    /// What the device computes from, besides plain elements: matrices that are stored so stay so. None by default.
    pub encodings: &'static [Encoding],
    /// Whether 16-bit matrices are encoded without loss while they load; `encodings` must have that.
    pub packing: Packing,
}

/// Whether 16-bit matrices that a checkpoint stores plain are encoded without loss while they load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// They stay as they are stored.
    #[default]
    Never,
    /// Those that it makes at least 3 % smaller are. Opening looks through all of them, on all cores.
    Fitting,
    /// Those of bf16 are taken to fit, without looking: for plans. Loading fails at a row that does not.
    Assumed,
}

/// A model that is ready to be placed and run.
pub struct Model {
    /// For people: the directory's or file's name, or `synthetic:NAME`.
    pub name: String,
    /// In the checkpoint's own words, e.g. `LlamaForCausalLM`.
    pub architecture: String,
    /// What it computes.
    pub graph: Graph,
    /// Its weights, by the names in the graph.
    pub source: Arc<dyn WeightSource>,
    /// None when the checkpoint has none. That of synthetic models is a stand-in ([`synthetic`]).
    pub tokenizer: Option<Tokenizer>,
    /// How a conversation becomes text; none for base models.
    pub chat: Option<ChatTemplate>,
    /// What the model's makers suggest for sampling.
    pub defaults: GenerationDefaults,
    /// Where it was opened.
    pub location: Location,
    /// How the weights that are encoded, in the checkpoint or in memory, are in memory; none if there are none.
    pub encoded: Vec<EncodedWeights>,
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

/// Opens the model: reads headers and configuration, and no weights but to [pack](Packing::Fitting) them.
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

/// An adapter changes a model that is elsewhere: its directory is none, and beside a model it must not be overlooked.
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

/// Opens the tensors at `weights`, with everything else in `directory`.
fn open_safetensors(directory: &Path, weights: &Path, options: &OpenOptions) -> Result<Model> {
    let keys = JsonKeys::open(&directory.join("config.json"))?;
    of_safetensors(directory, keys, SafetensorsDir::open(weights)?, file_name(weights), options)
}

/// The model called `name` of these tensors and keys, with everything else in `directory`.
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
    let (graph, source, encoded) = assemble(decoder, &name, file, options)?;
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
    let (graph, source, encoded) = assemble(decoder, &name, Box::new(gguf), options)?;
    let location = Location::Gguf(path);
    Ok(Model { architecture, graph, source, tokenizer, chat, defaults, location, encoded, name })
}

/// Checks the tensors against the configuration; the graph, the source of its weights, and how encoded ones are in
/// memory.
fn assemble(
    mut decoder: Decoder,
    name: &str,
    file: Box<dyn TensorFile>,
    options: &OpenOptions,
) -> Result<(Graph, Arc<dyn WeightSource>, Vec<EncodedWeights>)> {
    decoder.tensors.fit_prefix(|tensor| file.tensor(tensor).is_some());
    let storage = |recipe: &Recipe| recipe.storage(&*file, options);
    let layers = decoder.sizes.layers;
    let (graph, map) = decoder::build(&decoder, name, layers, &storage)?;
    map.check(&*file, decoder.architecture)?;
    let encoded = map.encoded(&*file, options);
    Ok((graph, Arc::new(CheckpointSource::new(file, map)), encoded))
}

/// The last component of the path that `path` stands for, without a weight file's extension.
fn file_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if full.is_dir() { full.file_name() } else { full.file_stem() };
    name.map_or_else(|| full.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn not_a_model(path: &Path, detail: &str) -> Error {
    Error::NotAModel { place: path.display().to_string(), detail: detail.to_owned() }
}
