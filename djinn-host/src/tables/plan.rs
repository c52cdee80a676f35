//! A plan as text.

use super::count;
use crate::forecast::HALF;
use crate::{Activations, Known, Target, TaskPlan};
use djinn_models::EncodedWeights;
use djinn_vmu::{Bottleneck, ProductRates, size};

/// The plan as text: the place of every byte, and the predicted speed.
pub fn plan_table(f: &TaskPlan) -> String {
    let human = size::human;
    let cap = match (f.vram_bytes, f.machine.card) {
        (None, _) => "no cap".to_owned(),
        (Some(cap), Some(card)) if cap == card.memory_bytes() => format!("{} has {}", card.name, human(cap)),
        (Some(cap), _) => format!("cap {}", human(cap)),
    };
    let mut lines =
        vec![format!("{}: {} parameters, {}", f.model, count(f.parameters), human(f.weight_bytes))];
    lines.extend(f.encoded.iter().map(encoded));
    if let Some(bytes) = f.lossless_weight_bytes {
        let share = bytes as f64 / f.weight_bytes as f64;
        lines.push(format!(
            "packed without loss: about {} ({share:.3}), with --encoding lossless",
            human(bytes)
        ));
    }
    if let Some(bytes) = f.plain_weight_bytes {
        lines.push(format!("decoded: {}, with --encoding plain", human(bytes)));
    }
    if f.activations == Activations::Int8 {
        lines.push("activations: int8 in products with quantised weights; predicted as float".to_owned());
    }
    lines.push(format!("device memory: {} ({} bytes), {cap}", human(f.device_bytes), f.device_bytes));
    lines.extend(segments(f));
    let p = &f.predicted;
    let cpu = match p.cpu_ms {
        0.0 => String::new(),
        ms => format!(", the CPU's {ms:.2} ms"),
    };
    lines.extend([
        host(f.host_weight_bytes, f.host_kv_bytes, f.shared_host_bytes),
        streamed(f),
        format!("predicted for {}:", machine(&f.machine)),
        format!(
            "  first token of a {}-token prompt after {:.1} ms, limited by {}",
            p.prompt_tokens,
            p.ttft_ms,
            limit(f.bottleneck.prefill)
        ),
        format!(
            "  then {:.2} ms per token, limited by {} (copies {:.2} ms, operations {:.2} ms{cpu})",
            p.tpot_ms,
            limit(f.bottleneck.decode),
            p.copy_ms,
            p.compute_ms
        ),
    ]);
    lines.extend(f.tpot_ms_with_half_on_cpu.map(|ms| {
        format!("  with --cpu-share {HALF} about {ms:.2} ms, if the CPU reads weights as fast as the link")
    }));
    lines.extend(f.without_effect.iter().map(|what| (*what).to_owned()));
    if let Some(card) = f.machine.card.filter(|card| !card.runs()) {
        let (major, minor) = card.capability;
        lines.push(format!(
            "Djinn's kernels need compute capability 8.0; {} has {major}.{minor} and does not run them",
            card.name
        ));
    }
    lines.join("\n")
}

/// The machine, its assumed rates, and their origin.
fn machine(target: &Target) -> String {
    let known = match target.chosen {
        Known::Named => "",
        Known::Measured => ", as measured by djinn doctor",
        Known::Quick => ", measured just now; djinn doctor --save measures for longer and keeps it",
    };
    let m = &target.machine;
    let flops = match m.flops {
        flops if flops < 1e12 => format!("{:.1} GFLOP/s", flops / 1e9),
        flops => format!("{:.1} TFLOP/s", flops / 1e12),
    };
    let encoded =
        |(name, rates): (&String, &ProductRates)| format!(", {name} {:.1} GB/s", rates.memory / 1e9);
    let encoded: String = m.encoded.iter().map(encoded).collect();
    let (link, memory) = (m.link / 1e9, m.memory / 1e9);
    format!("{} (link {link:.1} GB/s, memory {memory:.1} GB/s{encoded}, {flops}{known})", m.name)
}

fn encoded(of: &EncodedWeights) -> String {
    let how = match of.why {
        None if of.stored == of.in_memory => "as stored".to_owned(),
        None => format!("{} in memory", of.in_memory),
        Some(why) if of.stored == of.in_memory => format!("as stored: {why}"),
        Some(why) => format!("decoded to {}: {why}", of.in_memory),
    };
    format!("  {} {} weights, {}, {how}", of.weights, of.stored, size::human(of.bytes))
}

fn host(weights: u64, kv: u64, shared: u64) -> String {
    let shared = match shared {
        0 => String::new(),
        bytes => format!(", for {} more that layers share", size::human(bytes)),
    };
    let kv = match kv {
        0 => String::new(),
        bytes => format!("; {} of KV pages for parked sessions", size::human(bytes)),
    };
    format!("host memory: {} of weights{shared}{kv}", size::human(weights))
}

fn streamed(f: &TaskPlan) -> String {
    let (most, expected) = (f.streamed_bytes_per_pass, f.expected_streamed_bytes_per_pass);
    let human = size::human;
    if expected == most {
        return format!("streamed per pass: {} ({most} bytes)", human(most));
    }
    let on_cpu = match f.cpu_bytes_per_pass {
        0 => String::new(),
        bytes => format!("; the CPU computes with {} in host memory", human(bytes)),
    };
    format!(
        "streamed per pass: at most {} ({most} bytes), about {} per decode pass{on_cpu}",
        human(most),
        human(expected)
    )
}

/// A line for each segment with bytes, and for those that every plan has. The bytes are the device's.
fn segments(f: &TaskPlan) -> Vec<String> {
    let s = &f.segments;
    let rows = [
        ("resident", s.resident, format!("{} of {} chunks", f.chunks.resident, f.chunks.count)),
        ("ring", s.ring, format!("for {} streamed chunks", f.chunks.streamed)),
        ("bounce", s.bounce, "joins chunks that straddle the ring's wrap".to_owned()),
        ("data", s.data, format!("KV cache of {} x {} tokens, {}", f.sequences, f.context, f.kv_dtype)),
        ("stack", s.stack, "activations".to_owned()),
        ("check", s.check, "checksums of streamed chunks".to_owned()),
        ("flags", s.flags, "which streamed chunks a pass moved".to_owned()),
        ("reserved", s.reserved, "the driver's context, kernels, workspaces".to_owned()),
    ];
    let always = ["resident", "ring", "data", "stack"];
    let width = f.device_bytes.to_string().len();
    rows.into_iter()
        .filter(|(name, bytes, _)| *bytes > 0 || always.contains(name))
        .map(|(name, bytes, what)| format!("  {name:<10} {bytes:>width$} {:>11}  {what}", size::human(bytes)))
        .collect()
}

fn limit(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::Link => "the link",
        Bottleneck::Memory => "device memory",
        Bottleneck::Compute => "arithmetic",
        Bottleneck::Cpu => "the CPU",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantised_weights_are_told_with_the_reason_to_decode_them() {
        let of = EncodedWeights { stored: "Q4_1", in_memory: "Q4_1", why: None, weights: 3, bytes: 5 << 20 };
        assert_eq!(encoded(&of), "  3 Q4_1 weights, 5.00 MiB, as stored");
        let of = EncodedWeights { in_memory: "f16", why: Some("no kernel"), ..of };
        assert_eq!(encoded(&of), "  3 Q4_1 weights, 5.00 MiB, decoded to f16: no kernel");
    }

    #[test]
    fn host_memory_is_told_by_what_it_holds() {
        assert_eq!(host(3 << 30, 0, 0), "host memory: 3.00 GiB of weights");
        assert_eq!(
            host(3 << 30, 2 << 30, 1 << 30),
            "host memory: 3.00 GiB of weights, for 1.00 GiB more that layers share; 2.00 GiB of KV pages for parked \
             sessions"
        );
    }
}
