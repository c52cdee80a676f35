//! Experiment 1 as Markdown: the policies side by side, their latencies, signals, the simulator, density.

use super::{circumstances, number, table};
use crate::document::Document;
use crate::exp1::results::{Config, Density, Exp1, Row, Simulated, Split, Spread};
use crate::size::human;
use djinn_scheduler::sim::StepTimes;

/// All of it.
pub(crate) fn exp1(document: &Document<Exp1>) -> String {
    let exp1 = &document.body;
    let mut text = circumstances(document) + "\n" + &setting(exp1);
    for note in &exp1.notes {
        text += &format!("\n{note}\n");
    }
    if let Some(alone) = &exp1.unloaded {
        text += &format!(
            "\nOne agent alone: P50 {:.3} s, P99 {:.3} s over {} turns.\n",
            alone.p50_s, alone.p99_s, alone.turns
        );
    }
    let rows = &exp1.policies;
    text += &format!("\n### Policies\n\n{}", policies(rows));
    for row in rows.iter().filter(|row| row.failure.is_some()) {
        text += &format!("\n{}: {}.\n", row.policy, row.failure.as_deref().unwrap_or_default());
    }
    text += &format!(
        "\n### Turn latency\n\n{}",
        latencies(rows.iter().map(|row| (row.policy.clone(), &row.p50, &row.p99)))
    );
    if rows.iter().any(|row| row.signals.count > 0) {
        text += &format!("\n### Signals\n\n{}", signals(rows));
    }
    if rows.iter().any(|row| row.simulated.is_some()) {
        text += &format!("\n### Simulator beside engine\n\n{}", simulated(rows));
    }
    if let Some(found) = &exp1.density {
        text += &format!("\n### Density\n\n{}", density(found));
    }
    text + &format!("\n### Times\n\n{}", times(exp1))
}

fn setting(exp1: &Exp1) -> String {
    let Config { model, device, vram_bytes, host_kv_bytes, workload, warm_up_s, seconds, seed, .. } =
        &exp1.config;
    format!(
        "{model} on {device}, {} of device memory, {} of host memory for KV: {} contexts fit the device. {workload}. \
         Measured for {seconds} s at most after {warm_up_s} s, seed {seed}.\n",
        human(*vram_bytes),
        human(*host_kv_bytes),
        exp1.contexts_on_device
    )
}

fn policies(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let gb = |bytes: u64| format!("{:.2}", bytes as f64 / 1e9);
        vec![
            row.policy.clone(),
            format!("{:.1}", row.measured_s),
            row.sessions.to_string(),
            row.turns.to_string(),
            format!("{:.1}", row.tokens_per_s),
            number(row.ratio, 2),
            format!("{:.1}", row.mean_decodes),
            row.swaps_out.to_string(),
            row.swaps_in.to_string(),
            gb(row.bytes_out),
            gb(row.bytes_in),
            number(row.out_gbps, 1),
            number(row.in_gbps, 1),
            row.discards.to_string(),
            row.refused.to_string(),
            row.open.to_string(),
        ]
    };
    let head = [
        "policy",
        "seconds",
        "sessions",
        "turns",
        "tokens/s",
        "times none",
        "decodes a step",
        "swaps out",
        "swaps in",
        "GB out",
        "GB in",
        "GB/s out",
        "GB/s in",
        "discards",
        "refused",
        "open",
    ];
    table(1, &head, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Turn latency and its parts, under the names of what was run.
fn latencies<'a>(runs: impl Iterator<Item = (String, &'a Split, &'a Split)>) -> String {
    let cells = |(name, p50, p99): (String, &Split, &Split)| {
        let pair = |p50: f64, p99: f64| format!("{p50:.3} / {p99:.3}");
        vec![
            name,
            pair(p50.latency_s, p99.latency_s),
            pair(p50.queue_s, p99.queue_s),
            pair(p50.restore_s, p99.restore_s),
            pair(p50.prefill_s, p99.prefill_s),
            pair(p50.decode_s, p99.decode_s),
        ]
    };
    let head = ["P50 / P99, s", "turn", "queue", "restore", "prefill", "decode"];
    let text = table(1, &head, &runs.map(cells).collect::<Vec<_>>());
    text + "\nEach part's percentile is its own.\n"
}

fn signals(rows: &[Row]) -> String {
    let pair = |spread: &Option<Spread>, digits: usize| {
        let pair = spread.map(|s| format!("{:.digits$} / {:.digits$}", s.p50, s.p99));
        pair.unwrap_or_else(|| "–".to_owned())
    };
    let cells = |row: &Row| {
        let signals = &row.signals;
        vec![
            row.policy.clone(),
            signals.count.to_string(),
            pair(&signals.cost_us, 2),
            pair(&signals.submit_ms, 1),
            pair(&signals.call_to_first_byte_ms, 3),
            pair(&signals.first_byte_ms, 1),
            pair(&signals.free_ms, 1),
        ]
    };
    let head = [
        "P50 / P99",
        "signals",
        "cost µs",
        "signal → copy asked ms",
        "asked → first byte ms",
        "signal → first byte ms",
        "signal → pages free ms",
    ];
    table(1, &head, &rows.iter().map(cells).collect::<Vec<_>>())
}

fn simulated(rows: &[Row]) -> String {
    let cells = |row: &Row| {
        let simulated = row.simulated.as_ref()?;
        let percent =
            |error: Option<f64>| error.map_or_else(|| "–".to_owned(), |e| format!("{:+.1} %", 100.0 * e));
        Some(vec![
            row.policy.clone(),
            row.turns.to_string(),
            simulated.turns.to_string(),
            percent(simulated.turns_error),
            row.sessions.to_string(),
            simulated.sessions.to_string(),
            percent(simulated.sessions_error),
            format!("{:.3}", row.p99.latency_s),
            format!("{:.3}", simulated.p99_s),
        ])
    };
    let head =
        ["policy", "turns", "simulated", "error", "sessions", "simulated", "error", "P99 s", "simulated"];
    let worst = |error: fn(&Simulated) -> Option<f64>| {
        let errors = rows.iter().filter_map(|row| error(row.simulated.as_ref()?));
        errors.map(|error| 100.0 * error.abs()).fold(0.0, f64::max)
    };
    format!(
        "{}\nAt most {:.1} % off in turns and {:.1} % in sessions.\n",
        table(1, &head, &rows.iter().filter_map(cells).collect::<Vec<_>>()),
        worst(|simulated| simulated.turns_error),
        worst(|simulated| simulated.sessions_error)
    )
}

fn density(density: &Density) -> String {
    let agents = density.agents();
    let cell = |policy: &str, count: u32| {
        let point = density.points.iter().find(|point| point.policy == policy && point.agents == count);
        point.map_or_else(
            || "–".to_owned(),
            |point| {
                let simulated = point.simulated_p99_s.map(|p99_s| format!(" (simulated {p99_s:.3})"));
                let verdict = if point.holds { "holds" } else { "exceeds" };
                format!("{:.3} {verdict}{}", point.p99.latency_s, simulated.unwrap_or_default())
            },
        )
    };
    let row = |policy: &str| {
        let cells = agents.iter().map(|&count| cell(policy, count));
        [policy.to_owned(), density.most(policy).to_string()].into_iter().chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = density.policies().into_iter().map(row).collect();
    let held = density.policies().into_iter().filter_map(|policy| density.last_to_hold(policy));
    let counts: Vec<String> = agents.iter().map(|count| format!("{count} agents")).collect();
    let head: Vec<&str> =
        ["policy", "the most"].into_iter().chain(counts.iter().map(String::as_str)).collect();
    format!(
        "P99 turn latency in s, and whether it holds {} × that of one agent alone, {:.3} s. Counts beyond the first that \
         exceeds it are not measured.\n\n{}\nWith the most agents:\n\n{}",
        density.factor,
        density.bound_s,
        table(1, &head, &rows),
        latencies(held.map(|point| (
            format!("{}, {} agents", point.policy, point.agents),
            &point.p50,
            &point.p99
        )))
    )
}

fn times(exp1: &Exp1) -> String {
    let profile = &exp1.profile;
    let cost = &profile.cost;
    format!(
        "Profile: {}. Copies out {:.1} GB/s, in {:.1}, both at once {:.1} each; prefill {:.0} tokens/s; steps beside \
         copies take {:.3} times as long. KV pages of {} bytes. Steps after so many tokens, in ms:\n\n{}{}",
        exp1.times,
        cost.out_bytes_per_s / 1e9,
        cost.in_bytes_per_s / 1e9,
        profile.both_ways_bytes_per_s / 1e9,
        cost.prefill_tokens_per_s,
        profile.slowed_by_copies,
        cost.page_bytes,
        steps("sessions", &profile.decode),
        profile.chunk.as_ref().map_or_else(String::new, |chunk| {
            format!("\nWhat a chunk of a prompt adds to a step:\n\n{}", steps("tokens", chunk))
        })
    )
}

/// Times in ms, by size and context.
fn steps(sizes: &str, times: &StepTimes) -> String {
    let contexts: Vec<String> = times.contexts.iter().map(|context| format!("after {context}")).collect();
    let head: Vec<&str> = [sizes].into_iter().chain(contexts.iter().map(String::as_str)).collect();
    let row = |(size, times): (&u32, &Vec<f64>)| {
        let times = times.iter().map(|ms| format!("{ms:.2}"));
        [size.to_string()].into_iter().chain(times).collect()
    };
    let rows: Vec<Vec<String>> = times.sizes.iter().zip(&times.ms).map(row).collect();
    table(1, &head, &rows)
}
