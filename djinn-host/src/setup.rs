//! Device, budget and context for loading a model.

use crate::args::{self, dtype, share};
use crate::{DeviceName, Error, Result};
use djinn_device::DType;
use djinn_engine::{Budget, Options};
use djinn_models::{Location, Model, OpenOptions, Packing};
use djinn_srg::{BlockFormat, Encoding};
use serde::Serialize;

/// The form of a model's matrices in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightEncoding {
    /// As stored in the checkpoint if the device computes from that, or else plain.
    Stored,
    /// Plain elements, whatever the checkpoint stores.
    Plain,
    /// As stored, but plain 16-bit matrices are encoded in 12 bits an element, without loss, if that is smaller.
    Lossless,
}

impl std::fmt::Display for WeightEncoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WeightEncoding::Stored => "stored",
            WeightEncoding::Plain => "plain",
            WeightEncoding::Lossless => "lossless",
        })
    }
}

/// The activations of products with weights in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// Unchanged activations.
    #[default]
    Float,
    /// Activations rounded to 8 bits, on the CPU device only. Plain, lossless and FP8 weights keep float activations.
    Int8,
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Activations::Float => "float",
            Activations::Int8 => "int8",
        })
    }
}

/// Device and limits for a model; commands take it from flags. `None` leaves a choice to Djinn.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args, Serialize)]
#[command(next_help_heading = "Memory")]
#[serde(rename_all = "kebab-case")]
pub struct Setup {
    /// The device. By default the GPU, if there is one. [`DeviceArgs`](crate::DeviceArgs) has its flags.
    #[arg(skip)]
    #[serde(skip)]
    pub device: DeviceName,
    /// Threads of the CPU device. `None`: as many as the machine runs at once.
    #[arg(skip)]
    #[serde(skip)]
    pub threads: Option<u32>,
    /// Cap over everything on the device, e.g. 20GiB or 20G [default: on a GPU what is free, else none]
    #[arg(long, value_name = "SIZE", value_parser = args::bytes)]
    pub vram: Option<u64>,
    /// Cap over weights and swapped pages in host memory [default: on a GPU what is available, else none]
    #[arg(long, value_name = "SIZE", value_parser = args::bytes)]
    pub ram: Option<u64>,
    /// Share of the weights that stays on the device, 0 to 1 [default: as much as fits]
    #[arg(long, value_name = "F", value_parser = share)]
    pub resident_fraction: Option<f64>,
    /// Largest unit of residency and transfer [default: the model's tile size]
    #[arg(long, value_name = "SIZE", value_parser = args::bytes)]
    pub chunk: Option<u64>,
    /// Ring through which weights stream [default: three chunks, fewer where that does not fit]
    #[arg(long, value_name = "SIZE", value_parser = args::bytes)]
    pub ring: Option<u64>,
    /// Share of the streamed weights, or of each token's experts, 0 to 1, that stays in host memory in steps of up to 8
    /// tokens: the CPU computes their products beside the link. On a GPU, results change in the last bits [default: 0]
    #[arg(long, value_name = "F", value_parser = share)]
    pub cpu_share: Option<f64>,
    /// Check every streamed chunk against its host copy
    #[arg(long)]
    pub stream_check: bool,
    /// Tokens that a sequence may have, rounded up to pages of 16 [default: what the request needs]
    #[arg(long = "ctx", short = 'c', value_name = "N", visible_aliases = ["ctx-size", "max-model-len"],
          value_parser = clap::value_parser!(u64).range(1..))]
    #[serde(rename = "ctx")]
    pub context: Option<u64>,
    /// Element type of the KV cache; int8 takes about half the bytes of f16 [default: f32 on the CPU and for f32 weights, else f16]
    #[arg(long, value_name = "TYPE", visible_alias = "kv-cache-dtype", value_parser = args::kv_type())]
    pub kv_dtype: Option<DType>,
    /// Element type of the weights in memory [default: as stored; f16 for quantised ones that are decoded]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub dtype: Option<DType>,
    /// How matrices are in memory [default: stored]
    #[arg(long, value_name = "HOW", value_enum)]
    pub encoding: Option<WeightEncoding>,
    /// What products with quantised weights compute from, on the CPU: int8 is faster and less exact [default: float]
    #[arg(long, value_name = "TYPE", value_enum)]
    pub activations: Option<Activations>,
    /// Tokens of a prefill chunk; a step of a GPU takes up to eight [default: 512]
    #[arg(long = "prefill-chunk", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(rename = "prefill-chunk")]
    pub prefill_rows: Option<u32>,
}

impl Setup {
    /// Opens the model at `place` (a directory, a `.gguf` or `.safetensors` file, `synthetic:NAME`). Reads weights
    /// only to encode them.
    ///
    /// # Errors
    /// As [`Location::find`] and [`djinn_models::open`].
    pub fn open(&self, place: &str) -> Result<Model> {
        Ok(djinn_models::open(&Location::find(place)?, &self.open_options())?)
    }

    /// How to open a model for the device: in the stored encodings that the device computes from, unless the setup has
    /// another one.
    pub fn open_options(&self) -> OpenOptions {
        let encodings = match self.encoding {
            Some(WeightEncoding::Plain) => &[],
            Some(WeightEncoding::Stored | WeightEncoding::Lossless) | None => self.device.encodings(),
        };
        let lossless = self.encoding == Some(WeightEncoding::Lossless);
        OpenOptions {
            dtype: self.dtype,
            encodings,
            packing: if lossless { Packing::Fitting } else { Packing::Never },
        }
    }

    /// The same for plans, without reading weights.
    pub fn planning_options(&self) -> OpenOptions {
        let options = self.open_options();
        let packing = if options.packing == Packing::Fitting { Packing::Assumed } else { options.packing };
        OpenOptions { packing, ..options }
    }

    /// The same setup for `models`, with activations in int8 only if a product of theirs rounds them. A GPU refuses
    /// them in any case.
    #[must_use]
    pub fn for_models<'a>(self, models: impl IntoIterator<Item = &'a Model>) -> Self {
        let is_idle = self.activations == Some(Activations::Int8)
            && self.device.meant() == DeviceName::Cpu
            && !models.into_iter().any(rounds_activations);
        if is_idle { Setup { activations: None, ..self } } else { self }
    }

    /// The engine's options for `model`, with sequences of `tokens` tokens in whole pages.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] if the model's context is shorter.
    pub fn options_for(&self, model: &Model, tokens: u64) -> Result<Options> {
        let context = model.graph.max_context;
        if tokens > context {
            return Err(Error::PromptTooLong { tokens, context });
        }
        Ok(self.options(model, context_for(tokens, model)))
    }

    /// The engine's options for `model`, with sequences of up to `context` tokens unless the setup has another number.
    pub fn options(&self, model: &Model, context: u64) -> Options {
        let default = Options::default();
        Options {
            budget: Budget {
                vram: self.vram.or_else(|| self.device.free_bytes()),
                ram: self.ram,
                resident_fraction: self.resident_fraction,
                chunk: self.chunk,
                ring: self.ring,
                cpu_share: self.cpu_share.unwrap_or(0.0),
                stream_check: self.stream_check,
                ..Budget::default()
            },
            context: self.context.unwrap_or(context),
            prefill_rows: self.prefill_rows.unwrap_or(default.prefill_rows),
            prefill_chunks: if self.device.meant() == DeviceName::Cpu { 1 } else { CHUNKS_OF_A_STEP },
            kv_dtype: self.kv_dtype.unwrap_or_else(|| kv_dtype(self.device.meant(), model)),
            ..default
        }
    }
}

/// The most prefill chunks of a step on a GPU: 4,096 tokens, since other sessions of the step wait for them. [`Options`] has
/// the rules.
const CHUNKS_OF_A_STEP: u32 = 8;

/// Whether the model has weights in blocks of integers, for which the CPU device can round activations.
fn rounds_activations(model: &Model) -> bool {
    let is_rounded = |encoding| match encoding {
        Encoding::Blocks(format) => !matches!(format, BlockFormat::FP8_G32 | BlockFormat::FP8_G128),
        _ => false,
    };
    encodings(model).any(is_rounded)
}

/// The encodings of a model's weights, each of them repeatedly.
pub(crate) fn encodings(model: &Model) -> impl Iterator<Item = Encoding> {
    model.graph.weights().flat_map(|(_, weight)| {
        let rows = weight.encodings.rows();
        weight.encodings.runs(0..rows).map(|(_, encoding)| encoding)
    })
}

/// The default element type of the KV cache: f32 on the CPU and for f32 models, or else f16.
pub fn kv_dtype(device: DeviceName, model: &Model) -> DType {
    let unembed = model.graph.nodes.last().and_then(|node| node.weights.first());
    let is_f32 = unembed.map(|&w| model.graph.value(w)).is_some_and(|weight| {
        // Blocks without plain rows have this type as well.
        weight.dtype() == DType::F32 && weight.encodings.is_plain()
    });
    if device == DeviceName::Cpu || is_f32 { DType::F32 } else { DType::F16 }
}

/// The default context of a conversation and of a server, if the model has as many tokens.
pub const DEFAULT_CONTEXT: u64 = 4096;

/// The context for `tokens` tokens: whole pages, within what the model can do.
pub fn context_for(tokens: u64, model: &Model) -> u64 {
    let page = Options::default().page_tokens as u64;
    tokens.div_ceil(page).saturating_mul(page).min(model.graph.max_context)
}
