//! Many sessions on one engine: each gets the tokens that it would get alone, whatever happens to the others.

mod ahead;
mod clients;
mod constrained;
mod ended;
mod hook_memory;
mod odd_widths;
mod pool;
mod random;
mod scripts;
mod sharing;
mod stopped;
mod stopped_cache;
mod stopped_random;
mod stopped_replay;
mod stopped_steps;
mod transfer;
mod waiting;

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{DType, Ops};
use djinn_engine::{Budget, Engine, Generate, Options, Request, Service};
use djinn_models::{Location, OpenOptions, open};
use djinn_scheduler::{CostModel, Registry, Settings};
use std::ops::ControlFlow;
use std::time::Duration;

const PAGE: u32 = 8;
/// Longer than a run that is computed row by row.
const CHUNK: u32 = 40;
const CONTEXT: u64 = 96;

/// The streams of pages that leave and that come back: the first after the compute stream.
const SWAP_STREAMS: [u32; 2] = [1, 2];

fn load<D: Ops>(device: D, family: &str, options: &Options) -> Engine<D> {
    let model = open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
    Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it loads")
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

/// A simulator whose products of more than four rows depend on their number, so that steps are cut as on devices that
/// need it.
fn sim(config: SimConfig) -> SimDevice {
    SimDevice::new(SimConfig { math: Math::Fast, batch_invariant_rows: 4, ..config }).expect("a device")
}

/// Pages for some contexts on the device and in host memory, steps of up to four sessions.
fn options(pages: u32, host_pages: u32) -> Options {
    let options = Options {
        budget: Budget { stream_check: true, ..Budget::default() },
        context: CONTEXT,
        pages: Some(pages),
        host_pages,
        prefill_rows: CHUNK,
        page_tokens: PAGE,
        ..Options::default()
    };
    options.serving(4)
}

fn cost() -> CostModel {
    CostModel { page_bytes: 4096, out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 }
}

fn settings(policy: &str) -> Settings {
    let mut settings = Settings::from_yaml("scheduler: {ttl_ms: 0}").expect("valid settings");
    settings.policy = policy.to_owned();
    // No session is refused for having queued, however slow the machine is, and leases end at once.
    settings.rules.queue_timeout = Duration::from_secs(3_600);
    settings.rules.lease = Duration::ZERO;
    settings.rules.max_lease = Duration::ZERO;
    settings
}

fn serve<D: Ops>(device: D, family: &str, options: &Options, settings: &Settings) -> Service<D> {
    let engine = load(device, family, options);
    let registry = Registry::default();
    Service::new(engine, |capacity| registry.scheduler(settings, capacity, cost())).expect("it serves")
}

/// What a session alone generates on the CPU: for each turn, the new tokens after its prompt.
fn alone(family: &str, turns: &[(Vec<u32>, u64)]) -> Vec<Vec<u32>> {
    alone_on(cpu(), family, turns)
}

fn alone_on<D: Ops>(device: D, family: &str, turns: &[(Vec<u32>, u64)]) -> Vec<Vec<u32>> {
    alone_in(DType::F32, device, family, turns)
}

/// With keys and values in a type.
fn alone_in<D: Ops>(kv_dtype: DType, device: D, family: &str, turns: &[(Vec<u32>, u64)]) -> Vec<Vec<u32>> {
    let (prefill_rows, page_tokens) = (CHUNK, PAGE);
    let options = Options { context: CONTEXT, prefill_rows, page_tokens, kv_dtype, ..Options::default() };
    let mut service = Service::single(load(device, family, &options)).expect("it serves");
    let mut session = None;
    let (mut prompt, mut generated) = (Vec::new(), Vec::new());
    for (tokens, max_tokens) in turns {
        prompt.extend(tokens);
        let request =
            Request { prompt: prompt.clone(), max_tokens: *max_tokens as usize, ..Request::default() };
        let new =
            service.generate(&mut session, &request, &mut |_| ControlFlow::Continue(())).expect("it runs");
        prompt.extend(&new.tokens);
        generated.push(new.tokens);
    }
    generated
}

/// Tokens that differ from session to session and from turn to turn.
fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64).map(|i| ((seed * 7919 + i * 37 + i * i * seed) % 256) as u32).collect()
}
