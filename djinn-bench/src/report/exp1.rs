//! Experiment 1 as Markdown: the policies side by side, their latencies, signals, the simulator, density.

use super::{Column, circumstances, gb, grid, number, percent, table};
use crate::document::Document;
use crate::exp1::results::{Config, Density, Exp1, Row, Simulated, Split, Spread};
use crate::size::human;
use djinn_scheduler::sim::StepTimes;

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
    for (policy, steps) in rows.iter().filter_map(|row| Some((&row.policy, row.step_shares?))) {
        let [idle, ahead, replayed] = [steps.idle, steps.ahead, steps.replayed].map(|share| share * 100.0);
        text += &format!(
            "\n{policy}: the device idles between steps for {idle:.2} % of the time; {ahead:.1} % of the steps are \
             enqueued ahead, {replayed:.1} % replayed.\n"
        );
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
    let columns: [Column<'_, &Row>; 18] = [
        ("policy", &|row| row.policy.clone()),
        ("seconds", &|row| number(row.measured_s, 1)),
        ("sessions", &|row| row.sessions.to_string()),
        ("turns", &|row| row.turns.to_string()),
        ("tokens/s", &|row| number(row.tokens_per_s, 1)),
        ("times none", &|row| number(row.ratio, 2)),
        ("at once", &|row| number(row.admitted.map(f64::from), 0)),
        ("tokens found", &|row| number(row.found.map(|found| found as f64), 0)),
        ("decodes a step", &|row| number(row.mean_decodes, 1)),
        ("swaps out", &|row| row.swaps_out.to_string()),
        ("swaps in", &|row| row.swaps_in.to_string()),
        ("GB out", &|row| gb(row.bytes_out, 2)),
        ("GB in", &|row| gb(row.bytes_in, 2)),
        ("GB/s out", &|row| number(row.out_gbps, 1)),
        ("GB/s in", &|row| number(row.in_gbps, 1)),
        ("discards", &|row| row.discards.to_string()),
        ("refused", &|row| row.refused.to_string()),
        ("open", &|row| row.open.to_string()),
    ];
    table(1, rows, &columns)
}

/// Turn latency and its parts, under the names of what was run.
fn latencies<'a>(runs: impl Iterator<Item = (String, &'a Split, &'a Split)>) -> String {
    let pair =
        |p50: &Split, p99: &Split, part: fn(&Split) -> f64| format!("{:.3} / {:.3}", part(p50), part(p99));
    let columns: [Column<'_, (String, &Split, &Split)>; 6] = [
        ("P50 / P99, s", &|(name, ..)| name.clone()),
        ("turn", &|(_, p50, p99)| pair(p50, p99, |split| split.latency_s)),
        ("queue", &|(_, p50, p99)| pair(p50, p99, |split| split.queue_s)),
        ("restore", &|(_, p50, p99)| pair(p50, p99, |split| split.restore_s)),
        ("prefill", &|(_, p50, p99)| pair(p50, p99, |split| split.prefill_s)),
        ("decode", &|(_, p50, p99)| pair(p50, p99, |split| split.decode_s)),
    ];
    table(1, runs, &columns) + "\nEach part's percentile is its own.\n"
}

fn signals(rows: &[Row]) -> String {
    let pair = |spread: &Option<Spread>, digits: usize| match spread {
        Some(Spread { p50, p99 }) => format!("{p50:.digits$} / {p99:.digits$}"),
        None => "–".to_owned(),
    };
    let columns: [Column<'_, &Row>; 7] = [
        ("P50 / P99", &|row| row.policy.clone()),
        ("signals", &|row| row.signals.count.to_string()),
        ("cost µs", &|row| pair(&row.signals.cost_us, 3)),
        ("signal → copy asked ms", &|row| pair(&row.signals.submit_ms, 1)),
        ("asked → first byte ms", &|row| pair(&row.signals.call_to_first_byte_ms, 3)),
        ("signal → first byte ms", &|row| pair(&row.signals.first_byte_ms, 1)),
        ("signal → pages free ms", &|row| pair(&row.signals.free_ms, 1)),
    ];
    table(1, rows, &columns)
}

fn simulated(rows: &[Row]) -> String {
    let both = || rows.iter().filter_map(|row| Some((row, row.simulated.as_ref()?)));
    let columns: [Column<'_, (&Row, &Simulated)>; 9] = [
        ("policy", &|(row, _)| row.policy.clone()),
        ("turns", &|(row, _)| row.turns.to_string()),
        ("simulated", &|(_, simulated)| simulated.turns.to_string()),
        ("error", &|(_, simulated)| percent(simulated.turns_error)),
        ("sessions", &|(row, _)| row.sessions.to_string()),
        ("simulated", &|(_, simulated)| simulated.sessions.to_string()),
        ("error", &|(_, simulated)| percent(simulated.sessions_error)),
        ("P99 s", &|(row, _)| number(row.p99.latency_s, 3)),
        ("simulated", &|(_, simulated)| number(simulated.p99_s, 3)),
    ];
    let worst = |error: fn(&Simulated) -> Option<f64>| {
        both()
            .filter_map(|(_, simulated)| error(simulated))
            .map(|error| 100.0 * error.abs())
            .fold(0.0, f64::max)
    };
    format!(
        "{}\nAt most {:.1} % off in turns and {:.1} % in sessions.\n",
        table(1, both(), &columns),
        worst(|simulated| simulated.turns_error),
        worst(|simulated| simulated.sessions_error)
    )
}

fn density(density: &Density) -> String {
    let agents = density.agents();
    let cell = |policy: &str, count: u32| {
        let point = density.points.iter().find(|point| point.policy == policy && point.agents == count);
        let Some(point) = point else { return number(None, 0) };
        let simulated = point.simulated_p99_s.map(|p99_s| format!(" (simulated {p99_s:.3})"));
        let verdict = if point.holds { "holds" } else { "exceeds" };
        format!("{:.3} {verdict}{}", point.p99.latency_s, simulated.unwrap_or_default())
    };
    let row = |policy: &str| {
        let cells = agents.iter().map(|&count| cell(policy, count));
        [policy.to_owned(), density.most(policy).to_string()].into_iter().chain(cells).collect()
    };
    let counts = agents.iter().map(|count| format!("{count} agents"));
    let heads = ["policy".to_owned(), "the most".to_owned()].into_iter().chain(counts).collect();
    let held = density.policies().into_iter().filter_map(|policy| density.last_to_hold(policy));
    format!(
        "P99 turn latency in s, and whether it holds {} × that of one agent alone, {:.3} s. Counts beyond the first that \
         exceeds it are not measured.\n\n{}\nWith the most agents:\n\n{}",
        density.factor,
        density.bound_s,
        grid(1, heads, density.policies().into_iter().map(row)),
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
         copies take {:.3} times as long. KV pages of {} bytes. Milliseconds of a step by tokens before it:\n\n{}{}",
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
    let contexts = times.contexts.iter().map(|context| format!("after {context}"));
    let heads = [sizes.to_owned()].into_iter().chain(contexts).collect();
    let row = |(size, times): (&u32, &Vec<f64>)| {
        [size.to_string()].into_iter().chain(times.iter().map(|&ms| number(ms, 2))).collect()
    };
    grid(1, heads, times.sizes.iter().zip(&times.ms).map(row))
}
