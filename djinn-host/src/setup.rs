//! What a model is loaded with: a device, a budget, a context.

use crate::{DeviceName, Result};
use djinn_device::DType;
use djinn_engine::{Budget, Options};
use djinn_models::Model;

/// Where and within what a model runs. `None` leaves a choice to Djinn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// The device.
    pub device: DeviceName,
    /// Threads of the CPU device: as many as the machine runs at once, if not given.
    pub threads: Option<u32>,
    /// Cap over everything on the device, in bytes.
    pub vram: Option<u64>,
    /// Cap over what is kept on the host, in bytes.
    pub ram: Option<u64>,
    /// Share of the weights that stays on the device, 0 to 1: as much as fits, if not given.
    pub resident_fraction: Option<f64>,
    /// Cap of a chunk, the unit of residency and transfer, in bytes: the model's tile size, if not given.
    pub chunk: Option<u64>,
    /// Bytes of the ring through which weights stream: three chunks, fewer where that does not fit.
    pub ring: Option<u64>,
    /// Check every streamed chunk against its host copy.
    pub stream_check: bool,
    /// Tokens that a sequence may have: what the work needs, if not given.
    pub context: Option<u64>,
    /// Element type of the KV cache: see [`kv_dtype`], if not given.
    pub kv_dtype: Option<DType>,
    /// Element type of the weights in memory: as stored, and f16 for quantised ones, if not given.
    pub dtype: Option<DType>,
    /// Tokens of a prompt that are run at once.
    pub prefill_rows: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            device: DeviceName::Auto,
            threads: None,
            vram: None,
            ram: None,
            resident_fraction: None,
            chunk: None,
            ring: None,
            stream_check: false,
            context: None,
            kv_dtype: None,
            dtype: None,
            prefill_rows: 512,
        }
    }
}

impl Setup {
    /// The engine's options for `model`, with sequences of up to `context` tokens unless the setup names
    /// another.
    ///
    /// # Errors
    /// As [`DeviceName::find`].
    pub fn options(&self, model: &Model, context: u64) -> Result<Options> {
        let kv_dtype = match self.kv_dtype {
            Some(dtype) => dtype,
            None => kv_dtype(self.device.find()?, model),
        };
        Ok(Options {
            budget: Budget {
                vram: self.vram,
                ram: self.ram,
                resident_fraction: self.resident_fraction,
                chunk: self.chunk,
                ring: self.ring,
                stream_check: self.stream_check,
                ..Budget::default()
            },
            context: self.context.unwrap_or(context),
            prefill_rows: self.prefill_rows,
            kv_dtype,
            ..Options::default()
        })
    }
}

/// The KV cache's element type where none is asked for: f32 on the CPU and for f32 models, else f16.
pub fn kv_dtype(device: DeviceName, model: &Model) -> DType {
    let unembed = model.graph.nodes.last().and_then(|node| node.weights.first());
    let is_f32 = unembed.is_some_and(|&w| model.graph.value(w).dtype == DType::F32);
    if device == DeviceName::Cpu || is_f32 { DType::F32 } else { DType::F16 }
}

/// The context for `tokens` tokens: whole pages, within what the model can do.
pub fn context_for(tokens: u64, model: &Model) -> u64 {
    let page = Options::default().page_tokens as u64;
    tokens.div_ceil(page).saturating_mul(page).min(model.graph.max_context)
}
