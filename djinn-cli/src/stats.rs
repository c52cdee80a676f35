//! What a generation cost: for people on standard error, for programs in `run --json`.

use crate::{output, size};
use djinn_device::Space;
use djinn_engine::{PassStats, Stats};
use djinn_host::{AnyEngine, system};
use serde::Serialize;
use std::time::Duration;

/// Times, bytes and rates of a generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RunStats {
    pub(crate) device: String,
    /// Of the random numbers; none for greedy decoding.
    pub(crate) seed: Option<u64>,
    /// Prompt tokens that were computed.
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens whose keys and values were still there.
    pub(crate) reused_tokens: usize,
    pub(crate) load_ms: f64,
    pub(crate) ttft_ms: f64,
    /// Mean time of a token after the first.
    pub(crate) tpot_ms: Option<f64>,
    pub(crate) tokens_per_s: Option<f64>,
    pub(crate) decode_passes: usize,
    /// Decode passes that the device repeated from a capture.
    pub(crate) replayed_passes: u64,
    /// Weights that cross to the device in every pass; at most, where it depends on the experts that a pass uses.
    pub(crate) streamed_bytes_per_pass: u64,
    /// Weights that crossed in all passes.
    pub(crate) streamed_bytes: u64,
    /// Those of decode passes, for each token.
    pub(crate) streamed_bytes_per_token: Option<u64>,
    /// Weights that the CPU computed with in host memory, for each token after the first.
    pub(crate) cpu_bytes_per_token: Option<u64>,
    /// How long that took, on a GPU.
    pub(crate) cpu_ms_per_token: Option<f64>,
    /// Streamed bytes by the time in which copies ran, GB/s.
    pub(crate) copy_gbps: Option<f64>,
    /// Time in which operations waited for a copy.
    pub(crate) stall_ms: f64,
    pub(crate) stalls: u32,
    /// Share of the copies' time that computation hid.
    pub(crate) copy_hidden: Option<f64>,
    /// Weights that stay on the device.
    pub(crate) resident_bytes: u64,
    /// Streamed weights that the host holds once for several layers.
    pub(crate) shared_host_bytes: u64,
    /// The most that the device held at once, by its own accounting.
    pub(crate) device_peak_bytes: u64,
    /// The cap on it.
    pub(crate) vram_bytes: Option<u64>,
    /// The most host memory that the process had resident; on the CPU device that includes the device's.
    pub(crate) host_peak_bytes: Option<u64>,
}

impl RunStats {
    /// The report on `stats` of an engine that took `load` to load.
    pub(crate) fn new(engine: &dyn AnyEngine, stats: &Stats, load: Duration, seed: Option<u64>) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut all = PassStats::default();
        all.add(&stats.prefill_streamed);
        all.add(&stats.decode_streamed);
        let (usage, device) = (engine.usage(Space::Device), engine.device_info());
        let copied = (!all.copy.is_zero()).then(|| all.streamed_bytes as f64 / all.copy.as_secs_f64() / 1e9);
        let tpot = stats.time_per_token();
        let placement = &engine.plan().placement;
        RunStats {
            device: device.name,
            seed,
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            load_ms: ms(load),
            ttft_ms: ms(stats.ttft),
            tpot_ms: tpot.map(ms),
            tokens_per_s: tpot.filter(|t| !t.is_zero()).map(|t| 1.0 / t.as_secs_f64()),
            decode_passes: stats.decode_passes,
            replayed_passes: engine.replayed_passes(),
            streamed_bytes_per_pass: placement.streamed_bytes(),
            streamed_bytes: all.streamed_bytes,
            streamed_bytes_per_token: stats
                .decode_streamed
                .streamed_bytes
                .checked_div(stats.decode_passes as u64),
            cpu_bytes_per_token: stats.decode_streamed.cpu_bytes.checked_div(stats.decode_passes as u64),
            cpu_ms_per_token: (stats.decode_passes > 0 && !stats.decode_streamed.cpu.is_zero())
                .then(|| ms(stats.decode_streamed.cpu) / stats.decode_passes as f64),
            copy_gbps: copied,
            stall_ms: ms(all.stall),
            stalls: all.stalls,
            copy_hidden: all.hidden(),
            resident_bytes: engine.plan().segments.resident,
            shared_host_bytes: placement.streamed_bytes() - placement.host_bytes(),
            device_peak_bytes: usage.peak + device.reserved_bytes,
            host_peak_bytes: system::peak_memory(),
            vram_bytes: (usage.limit != u64::MAX).then(|| usage.limit + device.reserved_bytes),
        }
    }

    /// Prints the report for people to standard error.
    pub(crate) fn remark(&self) {
        output::remark(&self.times());
        output::remark(&self.memory());
        if self.shared_host_bytes > 0 {
            let shared = size::human(self.shared_host_bytes);
            output::remark(&format!(
                "layers share weights: {shared} of the streamed ones are no bytes of their own"
            ));
        }
        if let Some(streaming) = self.streaming() {
            output::remark(&streaming);
        }
    }

    fn times(&self) -> String {
        let mut line = format!("{} prompt tokens", self.prompt_tokens);
        if self.reused_tokens > 0 {
            line += &format!(" (+ {} reused)", self.reused_tokens);
        }
        line += &format!(", first token after {:.1} ms", self.ttft_ms);
        if let (Some(tpot), Some(rate)) = (self.tpot_ms, self.tokens_per_s) {
            line +=
                &format!(", then {tpot:.2} ms per token ({rate:.1} tokens/s over {})", self.decode_passes);
        }
        if let Some(seed) = self.seed {
            line += &format!(", seed {seed}");
        }
        format!("{line}; {}", self.device)
    }

    fn memory(&self) -> String {
        let cap = match self.vram_bytes {
            Some(cap) => format!("of {} allowed", size::human(cap)),
            None => "without a cap".to_owned(),
        };
        format!(
            "weights: {} resident, {} streamed per pass; device memory: {} at most, {cap}",
            size::human(self.resident_bytes),
            size::human(self.streamed_bytes_per_pass),
            size::human(self.device_peak_bytes)
        )
    }

    fn streaming(&self) -> Option<String> {
        let each = self.streamed_bytes_per_token.map_or_else(String::new, |bytes| {
            format!(", {} for each token after the first", size::human(bytes))
        });
        let on_cpu = match self.cpu_bytes_per_token {
            Some(0) | None => String::new(),
            Some(bytes) => {
                let time = self.cpu_ms_per_token.map_or_else(String::new, |ms| format!(", {ms:.2} ms"));
                format!(" ({} more stay in host memory, for the CPU{time})", size::human(bytes))
            }
        };
        let copies = self.copy_gbps.zip(self.copy_hidden).map(|(rate, hidden)| {
            let (stalls, ms, hidden) = (self.stalls, self.stall_ms, hidden * 100.0);
            format!(", at {rate:.2} GB/s; {stalls} stalls, {ms:.1} ms; {hidden:.0} % of the copies hidden")
        });
        let copies = copies.or_else(|| (!on_cpu.is_empty()).then(String::new))?;
        Some(format!("streamed {}{each}{on_cpu}{copies}", size::human(self.streamed_bytes)))
    }
}
