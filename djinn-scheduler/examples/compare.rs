//! Compares policies in simulation: agents that think, and coding agents.
//!
//! `cargo run --release -p djinn-scheduler --example compare [SECONDS [SEED]]`

use djinn_scheduler::policy::Ttl;
use djinn_scheduler::sim::{Belady, Oracle, Profile, Report, RunSpan, Shape, SimBackend, Workload, simulate};
use djinn_scheduler::{Capacity, CostModel, Registry, Result, Scheduler, Settings};
use std::time::Duration;

/// A machine with a model, as a simulation sees it.
pub(crate) struct Machine {
    /// Pages and steps.
    pub(crate) capacity: Capacity,
    /// Times.
    pub(crate) profile: Profile,
}

impl Machine {
    /// Llama-2-7B in fp16 with 64-token pages: 48 sessions of 2,048 tokens (1.07 GB) on the device, as many
    /// again and half on the host, 50 GB/s each way, steps of 10 to 16 ms.
    pub(crate) fn llama_2_7b() -> Self {
        let pages = 2_048 / 64;
        Self::new(48 * pages, 72 * pages, 512 << 10, 13.5e9, Duration::from_millis(6))
    }

    /// Llama-3-8B in bf16: 64 GiB of KV on the device at 128 KiB a token, 128 GiB on the host.
    pub(crate) fn llama_3_8b() -> Self {
        Self::new(8_192, 16_384, 128 << 10, 16e9, Duration::from_millis(5))
    }

    /// The same with 96 GiB on the host, a link of 54 GB/s alone and 50 both ways, and slower prefill.
    pub(crate) fn llama_3_8b_small_host() -> Self {
        let mut machine = Self::llama_3_8b().with_link(54e9);
        machine.capacity.host_pages = 12_288;
        machine.profile.both_ways_bytes_per_s = 50e9;
        machine.profile.cost.prefill_tokens_per_s = 18_000.0;
        machine
    }

    /// The same with another link.
    pub(crate) fn with_link(mut self, bytes_per_s: f64) -> Self {
        let cost = &mut self.profile.cost;
        (cost.out_bytes_per_s, cost.in_bytes_per_s) = (bytes_per_s, bytes_per_s);
        self.profile.both_ways_bytes_per_s = 0.9 * bytes_per_s;
        self
    }

    fn new(device_pages: u32, host_pages: u32, token_bytes: u64, weight_bytes: f64, fixed: Duration) -> Self {
        let (page_tokens, chunk, sequences) = (64, 512, 256);
        let rows = sequences + chunk;
        let capacity = Capacity {
            device_pages,
            host_pages,
            page_tokens,
            rows,
            sequences,
            chunk,
            rows_beside_decodes: None,
        };
        let cost = CostModel {
            page_bytes: token_bytes * page_tokens as u64,
            out_bytes_per_s: 50e9,
            in_bytes_per_s: 50e9,
            prefill_tokens_per_s: 25_000.0,
        };
        Machine { capacity, profile: Profile::roofline(cost, page_tokens, weight_bytes, 3.4e12, fixed) }
    }
}

/// Settings under which no session is refused for having queued.
pub(crate) fn settings(policy: &str) -> Settings {
    let mut settings = Settings { policy: policy.to_owned(), ..Settings::default() };
    settings.rules.queue_timeout = Duration::from_secs(86_400);
    settings
}

/// Runs one policy: a name of the registry, `always` (swap at every wait) or `belady`.
pub(crate) fn run(machine: &Machine, policy: &str, workload: &Workload, span: RunSpan) -> Result<Report> {
    let cost = machine.profile.cost;
    let oracle = Oracle::default();
    let chosen = settings(if matches!(policy, "always" | "belady") { "lru" } else { policy });
    let mut parts = Registry::default().parts(&chosen, cost)?;
    match policy {
        "always" => parts.policy = Box::new(Ttl::new(Duration::ZERO)),
        "belady" => parts.policy = Box::new(Belady::knowing(&oracle)),
        _ => {}
    }
    let scheduler = Scheduler::new(machine.capacity, parts)?;
    let backend = Box::new(SimBackend::new(machine.profile.clone())?);
    let mut report = simulate(scheduler, backend, workload, span, Some(&oracle));
    report.policy = policy.to_owned();
    Ok(report)
}

#[allow(dead_code, reason = "a test includes this file for the machines and for `run`")]
fn print(title: &str, reports: &[Report]) {
    println!("\n{title}");
    println!(
        "{:<10} {:>8} {:>8} {:>8} {:>8} | P99: {:>7} {:>8} {:>8} {:>8} | {:>6} {:>6} {:>9} {:>8}",
        "policy",
        "tokens/s",
        "turns/s",
        "P50 s",
        "P99 s",
        "queue",
        "restore",
        "prefill",
        "decode",
        "out",
        "in",
        "GB moved",
        "discards"
    );
    for report in reports {
        let s = |time: Duration| time.as_secs_f64();
        let parts = report.parts(0.99);
        println!(
            "{:<10} {:>8.1} {:>8.2} {:>8.2} {:>8.2} |      {:>7.2} {:>8.2} {:>8.2} {:>8.2} | {:>6} {:>6} {:>9.0} {:>8}",
            report.policy,
            report.tokens_per_second(),
            report.turns_per_second(),
            s(report.latency(0.5)),
            s(report.latency(0.99)),
            s(parts.queue),
            s(parts.restore),
            s(parts.prefill),
            s(parts.decode),
            report.swaps_out,
            report.swaps_in,
            (report.bytes_out + report.bytes_in) as f64 / 1e9,
            report.discards
        );
    }
}

/// The most agents, in eights, that hold 1.5 times the latency of one alone.
#[allow(dead_code, reason = "a test includes this file for the machines and for `run`")]
fn density(machine: &Machine, policy: &str, seed: u64) -> Result<u32> {
    let span = RunSpan { warm_up: Duration::from_secs(60), end: Duration::from_secs(360) };
    let p99 = |agents| {
        let workload = Workload::closed_loop(&Shape::thinkers(8), agents, Duration::from_secs(15), seed);
        run(machine, policy, &workload, span).map(|report| report.latency(0.99))
    };
    let bound = p99(1)?.mul_f64(1.5);
    let mut most = 0;
    while p99(most + 8)? <= bound {
        most += 8;
    }
    Ok(most)
}

#[allow(dead_code, reason = "a test includes this file for the machines and for `run`")]
fn main() -> Result<()> {
    let number = |at, default| match std::env::args().nth(at) {
        Some(text) => {
            text.parse().unwrap_or_else(|_| panic!("`{text}` is no whole number; give seconds and a seed"))
        }
        None => default,
    };
    let (seconds, seed) = (number(1, 900).max(10), number(2, 1));
    let span = RunSpan { warm_up: Duration::from_secs(seconds / 5), end: Duration::from_secs(seconds) };
    let policies = ["none", "lru", "always", "ttl", "signal", "predicted", "belady"];

    let machine = Machine::llama_2_7b();
    for agents in [40, 80] {
        let workload = Workload::closed_loop(&Shape::thinkers(3), agents, Duration::from_secs(15), seed);
        let reports: Result<Vec<_>> = policies.iter().map(|p| run(&machine, p, &workload, span)).collect();
        print(&format!("{agents} agents, think U(10, 20) s, 2,048 tokens; 48 fit"), &reports?);
    }

    println!(
        "\ndensity: the most thinking agents whose P99 turn latency is at most 1.5 times that of one alone"
    );
    for policy in policies {
        println!("{policy:<10} {:>4}", density(&machine, policy, seed)?);
    }

    let workload = Workload::poisson(&Shape::thinkers(2), 80, 0.2, seed);
    let whole = RunSpan { warm_up: Duration::ZERO, end: Duration::from_secs(86_400) };
    let reports: Result<Vec<_>> = policies.iter().map(|p| run(&machine, p, &workload, whole)).collect();
    print("80 sessions of two turns, Poisson 0.2/s, think U(10, 20) s, 2,048 tokens; 48 fit", &reports?);

    for agents in [24, 32, 40, 48] {
        let (machine, ramp) = (Machine::llama_3_8b_small_host(), Duration::from_secs(60));
        let workload = Workload::closed_loop(&Shape::coding_agents(), agents, ramp, seed);
        let reports: Result<Vec<_>> = policies.iter().map(|p| run(&machine, p, &workload, span)).collect();
        print(&format!("{agents} coding agents, 96 GiB on the host; about 36 fit in all"), &reports?);
    }

    for (link, agents) in [(50, 12), (50, 24), (50, 36), (50, 48), (10, 24), (10, 36)] {
        let machine = Machine::llama_3_8b().with_link(link as f64 * 1e9);
        let ramp = Duration::from_secs(60);
        let workload = Workload::closed_loop(&Shape::coding_agents(), agents, ramp, seed);
        let reports: Result<Vec<_>> = policies.iter().map(|p| run(&machine, p, &workload, span)).collect();
        print(
            &format!("{agents} coding agents, contexts from 25k tokens, link {link} GB/s; about 20 fit"),
            &reports?,
        );
    }
    Ok(())
}
