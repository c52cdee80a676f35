//! Results of the project's scripts: `bench_gpu.py`, `bench_families.py`, `bench_cpu.py`, `compare_templates.py` and
//! `hostile.py`.

use super::table;
use serde_json::Value;

/// As Markdown; `None` if it is none of them.
pub(super) fn render(value: &Value) -> Option<String> {
    gpu(value).or_else(|| cpu(value)).or_else(|| templates(value)).or_else(|| hostile(value))
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

/// `scripts/compare_templates.py`.
fn templates(value: &Value) -> Option<String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let count = |key: &str| value.get(key).and_then(Value::as_u64);
    let head = format!(
        "{} published templates and {} conversations, with and without the beginning of an answer, beside transformers {} \
         and Jinja2 {}.\n\n",
        count("templates")?,
        count("conversations")?,
        text("transformers")?,
        text("jinja2")?
    );
    let outcomes = ["equal", "both_raise", "we_raise", "they_raise", "differ"];
    let total = value.get("total")?;
    let counts = outcomes.map(|outcome| total.get(outcome).and_then(Value::as_u64).unwrap_or(0).to_string());
    let row = [vec![count("renderings")?.to_string()], counts.to_vec()].concat();
    let columns = ["renderings", "equal", "both raise", "only Djinn raises", "only Python raises", "differ"];
    Some(head + &table(0, &columns, &[row]))
}

/// `scripts/hostile.py`.
fn hostile(value: &Value) -> Option<String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let head = format!(
        "{}, {}, {}: `{}`. Each case is a process; a fault is a signal, a panic, more than 2 s of processor time or 1 GiB, \
         or a refusal that is not one printable line.\n\n",
        text("machine")?,
        text("date")?,
        text("version")?,
        text("command")?
    );
    let row = |(name, found): (&String, &Value)| {
        let number = |key: &str| found.get(key).map(Value::to_string);
        let columns = ["cases", "answered", "refused", "faults", "most_cpu_s", "most_peak_mib"];
        let cells: Option<Vec<String>> = columns.into_iter().map(number).collect();
        Some([vec![name.clone()], cells?].concat())
    };
    let rows: Option<Vec<Vec<String>>> = value.get("families")?.as_object()?.iter().map(row).collect();
    let columns = ["", "cases", "answered", "refused", "faults", "most s of processor time", "most MiB"];
    Some(head + &table(1, &columns, &rows?))
}
