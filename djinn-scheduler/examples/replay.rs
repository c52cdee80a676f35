//! Replays a trace in either CSV format: `… --example replay FILE [POLICY]`.

use djinn_scheduler::sim::{Profile, RunSpan, SimBackend, parse_azure, parse_tracelab, simulate};
use djinn_scheduler::{Capacity, CostModel, Registry, Settings};
use std::process::ExitCode;
use std::time::Duration;

/// A report of `policy` over the trace in `text`, on a machine that holds some 128k tokens.
fn replay(text: &str, policy: &str) -> Result<String, Box<dyn std::error::Error>> {
    let workload = if text.starts_with("TIMESTAMP") { parse_azure(text)? } else { parse_tracelab(text)? };
    let capacity = Capacity {
        device_pages: 2_048,
        host_pages: 4_096,
        page_tokens: 64,
        rows: 2_304,
        sequences: 256,
        chunk: 512,
        rows_beside_decodes: None,
    };
    let cost = CostModel {
        page_bytes: 8 << 20,
        out_bytes_per_s: 50e9,
        in_bytes_per_s: 50e9,
        prefill_tokens_per_s: 25_000.0,
    };
    let settings = Settings { policy: policy.to_owned(), ..Settings::default() };
    let scheduler = Registry::default().scheduler(&settings, capacity, cost)?;
    let profile = Profile::roofline(cost, 64, 16e9, 3.4e12, Duration::from_millis(5));
    let span = RunSpan { warm_up: Duration::ZERO, end: Duration::from_secs(86_400) };
    let report = simulate(scheduler, Box::new(SimBackend::new(profile)?), &workload, span, None);
    Ok(format!(
        "{}: {} sessions, {} finished, {} refused in {:.1} s; {:.1} tokens/s; turns P50 {:.2} s, P99 {:.2} s; \
         {} swaps out, {} in, {} discards",
        report.policy,
        report.arrived,
        report.finished,
        report.refused,
        report.ended.as_secs_f64(),
        report.tokens_per_second(),
        report.latency(0.5).as_secs_f64(),
        report.latency(0.99).as_secs_f64(),
        report.swaps_out,
        report.swaps_in,
        report.discards
    ))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        eprintln!("name a trace: replay FILE [POLICY]");
        return ExitCode::FAILURE;
    };
    let policy = arguments.next().unwrap_or_else(|| "signal".to_owned());
    let read = std::fs::read_to_string(&file).map_err(Into::into);
    match read.and_then(|text| replay(&text, &policy)) {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("{file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
