//! Results of the project's scripts: `bench_gpu.py`, `bench_families.py` and `bench_cpu.py`.

use super::table;
use serde_json::Value;

/// As Markdown; `None` if it is neither.
pub(super) fn render(value: &Value) -> Option<String> {
    gpu(value).or_else(|| cpu(value))
}

/// `scripts/bench_gpu.py` and `scripts/bench_families.py`.
fn gpu(value: &Value) -> Option<String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("unknown");
    let results = value.get("results")?.as_array()?;
    let link = value.get("link_gbps")?.as_f64()?;
    let rows: Option<Vec<Vec<String>>> = results
        .iter()
        .map(|result| {
            let number = |key: &str| result.get(key)?.as_f64();
            // What moved, where experts make it less than what could have.
            let per_token = result.pointer("/samples/0/streamed_bytes_per_token").and_then(Value::as_f64);
            let flags = result.get("flags")?.as_array()?.iter().filter_map(Value::as_str);
            Some(vec![
                result.get("model")?.as_str()?.to_owned(),
                flags.collect::<Vec<_>>().join(" "),
                format!("{:.3}", number("streamed_bytes_per_pass")? / 1e9),
                per_token.map_or_else(String::new, |bytes| format!("{:.3}", bytes / 1e9)),
                format!("{:.1}", number("ttft_ms")?),
                format!("{:.2}", number("tpot_ms")?),
                format!("{:.3}", number("share_of_link")?),
                format!("{:.0}", number("nvml_peak_mib")?),
            ])
        })
        .collect();
    let head = [
        "model",
        "flags",
        "GB streamed per pass, at most",
        "per token",
        "TTFT ms",
        "ms/token",
        "share of link",
        "peak MiB (outside)",
    ];
    let mut out = format!(
        "{}, driver {}, {}, commit {}: `{}`\n\n",
        text("gpu"),
        text("driver"),
        text("date"),
        text("commit"),
        text("command")
    );
    if let Some(conformance) = value.get("conformance").and_then(Value::as_str) {
        out += &format!("{conformance}; ");
    }
    out += &format!("the link gave {link:.1} GB/s.\n\n");
    Some(out + &table(2, &head, &rows?))
}

/// `scripts/bench_cpu.py`.
fn cpu(value: &Value) -> Option<String> {
    let medians = value.get("medians")?.as_object()?;
    let text = |at: &str| value.pointer(at).and_then(Value::as_str).unwrap_or("unknown");
    let count = |at: &str| value.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let rows: Option<Vec<Vec<String>>> = medians
        .iter()
        .map(|(name, median)| {
            let number = |key: &str| median.get(key)?.as_f64();
            Some(vec![
                name.clone(),
                format!("{:.1}", number("ttft_ms")?),
                format!("{:.2}", number("tpot_ms")?),
                format!("{:.0}", number("peak_rss")? / (1 << 20) as f64),
            ])
        })
        .collect();
    // Older results name the whole hash of the script's tree.
    let head = || text("/commit/head").chars().take(7).collect();
    let commit: String = value.get("commit").and_then(Value::as_str).map_or_else(head, str::to_owned);
    let out = format!(
        "{}, {} threads, {}, commit {commit}: `{}`\n\nmedians of {} runs, {}-token prompt, {} further tokens.\n\n",
        text("/machine/cpu"),
        count("/settings/threads"),
        text("/date"),
        text("/command"),
        count("/settings/runs"),
        count("/settings/prompt_tokens"),
        count("/settings/decode_tokens")
    );
    Some(out + &table(1, &["", "TTFT ms", "ms/token", "peak MiB"], &rows?))
}
