//! Experiment 1 from the outside: live on the CPU device with small models and short waits, and simulated.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_djinn-bench")).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// Runs exp1 with these arguments; what it printed, and its JSON.
fn exp1(folder: &Path, args: &[&str]) -> (String, Value) {
    let json = folder.join("exp1.json");
    let path = json.to_str().expect("UTF-8");
    let output = bench(&[&["exp1", "--json", path], args].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let document = std::fs::read_to_string(&json).expect("JSON");
    (text(&output.stdout), serde_json::from_str(&document).expect("JSON"))
}

fn row<'a>(document: &'a Value, policy: &str) -> &'a Value {
    let rows = document["policies"].as_array().expect("rows");
    rows.iter().find(|row| row["policy"] == policy).unwrap_or_else(|| panic!("no {policy} in {document}"))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

/// A small model whose device holds 8 contexts of 256 tokens.
const LIVE: [&str; 10] = [
    "--model",
    "synthetic:tiny",
    "--vram",
    "3MiB",
    "--threads",
    "1",
    "--context",
    "256",
    "--turn-tokens",
    "8",
];
const QUICK: [&str; 2] = ["--think", "0.05,0.1"];

#[test]
fn agents_run_live_under_each_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let figures = folder.path().join("figures");
    let figures_args = ["--figures", figures.to_str().expect("UTF-8")];
    let what = ["--agents", "12", "--sessions", "2", "--seconds", "60", "--policies", "none,always,signal"];
    let more = ["--simulate-too", "--density", "12", "--seed", "3"];
    let args = [&LIVE[..], &QUICK[..], &what[..], &more[..], &figures_args[..]].concat();
    let (report, document) = exp1(folder.path(), &args);
    for policy in ["none", "always", "signal"] {
        let row = row(&document, policy);
        assert_eq!([number(row, "finished"), number(row, "open"), number(row, "refused")], [24.0, 0.0, 0.0]);
        assert_eq!((number(row, "turns"), number(row, "tokens")), (72.0, 576.0), "{policy}");
        assert_eq!(row["turn_samples"].as_array().map(Vec::len), Some(72));
        assert_eq!(row["simulated"]["turns"], 72, "{policy}: the simulated agents do the same");
        assert_eq!(row["signals"]["count"], 72);
        assert!(number(&row["signals"]["cost_us"], "p99") > 0.0);
        let lines = row["map"]["sessions"].as_array().expect("sessions");
        assert!(!lines.is_empty() && lines.len() <= 24, "{policy}: {}", lines.len());
    }
    assert_eq!(number(row(&document, "none"), "swaps_out"), 0.0);
    assert_eq!(row(&document, "none")["ratio"], 1.0);
    let always = row(&document, "always");
    assert!(number(always, "swaps_out") > 0.0 && number(always, "swaps_in") > 0.0);
    assert!(number(always, "out_gbps") > 0.0 && number(always, "in_gbps") > 0.0);
    assert!(number(&always["signals"]["free_ms"], "p50") > 0.0);
    // Profile, one agent alone, density by the row that was measured already.
    assert!(number(&document["profile"]["cost"], "prefill_tokens_per_s") > 0.0);
    assert_eq!(document["unloaded"]["turns"], 9);
    assert_eq!(document["density"]["points"].as_array().map(Vec::len), Some(3));
    assert!(number(&document, "contexts_on_device") < 12.0, "{}", document["contexts_on_device"]);
    for heading in ["### Policies", "### Turn latency", "### Signals", "### Simulator beside", "### Density"]
    {
        assert!(report.contains(heading), "{heading}: {report}");
    }
    for figure in ["density.svg", "sessions.svg", "residency-none.svg", "residency-always.svg"] {
        let svg = std::fs::read_to_string(figures.join(figure)).expect("a figure");
        assert!(svg.starts_with("<svg") && svg.contains("<polyline"), "{figure}");
    }
    // The report from the file is the one that was printed, and its figures are drawn again.
    let path = folder.path().join("exp1.json").display().to_string();
    let again = bench(&["report", &path]);
    assert!(text(&again.stdout).ends_with(&report), "{}", text(&again.stdout));
    let out = folder.path().join("again").display().to_string();
    assert!(bench(&["figures", "--exp1", &path, "--out", &out]).status.success());
    assert!(Path::new(&out).join("residency-signal.svg").is_file());
    // Its profile is one for the simulator: the same sizes, without a device.
    let what = ["--model", "synthetic:tiny", "--context", "256", "--turn-tokens", "8", "--agents", "12"];
    let drawn = folder.path().join("simulated");
    let drawn_path = drawn.display().to_string();
    let machine = ["--simulate", "--profile", &path, "--policies", "signal", "--sessions", "2"];
    let machine = [&machine[..], &["--density", "12", "--figures", &drawn_path]].concat();
    let simulated = tempfile::tempdir().expect("a folder");
    let (_, other) = exp1(simulated.path(), &[&what[..], &QUICK[..], &machine[..]].concat());
    assert_eq!(other["profile"], document["profile"]);
    assert_eq!(other["config"]["device"], "simulated");
    let times = other["times"].as_str().expect("words");
    assert!(times.starts_with("from exp1.json, measured on "), "{times}");
    for figure in ["density.svg", "sessions.svg", "residency-signal.svg"] {
        let svg = std::fs::read_to_string(drawn.join(figure)).expect("a figure");
        let axis = if figure == "density.svg" { "P99 turn latency, seconds" } else { "seconds" };
        for text in ["simulated", "synthetic:tiny", "GiB of device memory", "measured on", "commit", axis] {
            assert!(svg.contains(text), "{figure} without {text}");
        }
    }
}

#[test]
fn traces_and_poisson_arrivals_run_live() {
    let folder = tempfile::tempdir().expect("a folder");
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,40,5\n2023-11-16 18:17:04.03,100,3\n";
    let azure = write(folder.path(), "azure.csv", azure);
    let columns = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms";
    let lab = format!("{columns}\n0,0,0,0,50,6,30\n0,0,1,56,20,4,10\n1,5,0,0,64,2,20\n");
    let lab = write(folder.path(), "lab.csv", &lab);
    let small = ["--model", "synthetic:tiny", "--vram", "3MiB", "--threads", "1", "--policies", "predicted"];
    for (trace, sessions, turns, tokens, context) in
        [(&azure, 2.0, 2.0, 8.0, 103), (&lab, 2.0, 3.0, 12.0, 80)]
    {
        let (_, document) = exp1(folder.path(), &[&small[..], &["--workload", trace]].concat());
        let row = row(&document, "predicted");
        assert_eq!(
            [number(row, "sessions"), number(row, "turns"), number(row, "tokens")],
            [sessions, turns, tokens]
        );
        assert_eq!(document["config"]["context"], context, "that of the longest session");
        assert_eq!(document["unloaded"], Value::Null);
    }
    let reported = ["--workload", "reported", "--rate", "50", "--agents", "10", "--context", "128"];
    let rest = ["--turn-tokens", "4", "--think", "0.01,0.02"];
    let (report, document) = exp1(folder.path(), &[&small[..], &reported[..], &rest[..]].concat());
    assert_eq!(number(row(&document, "predicted"), "turns"), 20.0);
    assert!(report.contains("10 sessions, Poisson 50/s: sessions of 2 turns of 4 tokens"), "{report}");
}

#[test]
fn simulations_repeat_and_show_what_moving_pages_is_worth() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--simulate", "--policies", "none,signal,belady", "--seconds", "60"];
    let (_, document) = exp1(folder.path(), &args);
    let (_, again) = exp1(folder.path(), &args);
    assert_eq!(document["policies"], again["policies"]);
    assert_eq!(document["contexts_on_device"], 49, "63 GiB less weights, in contexts of 1 GiB");
    // 80 agents where 49 fit.
    assert!(number(row(&document, "signal"), "ratio") > 1.4, "{}", row(&document, "signal")["ratio"]);
    assert_eq!(row(&document, "signal")["signals"]["cost_us"], Value::Null, "simulated calls take no time");
    // More memory for none, and a link, matter.
    let wide = exp1(folder.path(), &[&args[..], &["--vram", "120GiB", "--gpu", "h200"]].concat()).1;
    assert!((number(row(&wide, "signal"), "ratio") - 1.0).abs() < 0.05);
    let coding = ["--workload", "coding", "--agents", "6", "--seconds", "30"];
    let (report, _) = exp1(folder.path(), &[&args[..3], &coding[..]].concat());
    assert!(report.contains("Token counts of coding agents are scaled by 0.062"), "{report}");
    let model = ["--model", "synthetic:mistral-7b", "--workload", "hard", "--agents", "6", "--seconds", "30"];
    let (report, _) = exp1(folder.path(), &[&args[..3], &model[..]].concat());
    assert!(report.contains("contexts that end at 32768 tokens"), "{report}");
}

/// In 63 GiB a twelfth context of 32,768 tokens fits only beside steps of two prefill chunks, in 64 GiB beside steps of four.
/// The least budget is one for shorter steps.
#[test]
fn steps_are_shorter_where_one_more_context_fits_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let hard = ["--simulate", "--workload", "hard", "--agents", "20", "--policies", "none", "--seconds", "1"];
    let hard =
        [&hard[..], &["--model", "synthetic:llama-3.1-8b", "--gpu", "h200", "--host-kv", "60GiB"]].concat();
    for (vram, chunks) in [("63GiB", 2), ("64GiB", 4)] {
        let (_, document) = exp1(folder.path(), &[&hard[..], &["--vram", vram]].concat());
        assert_eq!(document["contexts_on_device"], 12, "{vram}");
        assert_eq!(document["capacity"]["rows"], chunks * 512 + 128, "{vram}");
    }
    let output = bench(&[&["exp1", "--vram", "17GiB"], &hard[..]].concat());
    let said = text(&output.stderr);
    let least = said.split_once("; give ").and_then(|(_, rest)| rest.split_once(" bytes")).expect("a size").0;
    let (_, document) = exp1(folder.path(), &[&hard[..], &["--vram", least]].concat());
    assert_eq!(document["contexts_on_device"], 1);
    assert_eq!(document["capacity"]["rows"], 2 * 512 + 128);
}

/// Under `none` a session holds the pages of its whole context from its admission to its end. Where three quarters of all
/// first prompts are equal, the first session takes a context, and each further one what is not in whole common chunks.
#[test]
fn a_shared_prefix_raises_admission_as_the_pages_say() {
    let simulated = ["--simulate", "--agents", "120"];
    let live = ["--model", "synthetic:tiny", "--vram", "6MiB", "--threads", "1", "--context", "1024"];
    let live = [&live[..], &["--turn-tokens", "8", "--agents", "16", "--sessions", "3"], &QUICK].concat();
    // First prompts of 1632 and of 968 tokens; chunks of 512.
    for (args, context_pages, shared_tokens) in [(&simulated[..], 128, 1024), (&live, 64, 512)] {
        let folder = tempfile::tempdir().expect("a folder");
        let run = |share| {
            let more = ["--policies", "none", "--shared-prefix", share];
            exp1(folder.path(), &[args, &more].concat())
        };
        let at_once = |document: &Value, shared_pages| {
            let pages = document["capacity"]["device_pages"].as_u64().expect("pages");
            let fit = 1 + (pages - context_pages) / (context_pages - shared_pages);
            assert_eq!(document["contexts_on_device"], fit);
            assert_eq!(row(document, "none")["admitted"], fit, "{shared_pages} of {pages} pages are shared");
            fit
        };
        let ((_, distinct), (report, shared)) = (run("0"), run("0.75"));
        let (few, many) = (at_once(&distinct, 0), at_once(&shared, shared_tokens / 16));
        assert!(few > 1 && many >= 2 * few - 1, "{few} and {many}");
        assert_eq!(row(&distinct, "none")["found"], 0);
        let found = row(&shared, "none")["found"].as_u64().expect("tokens");
        assert!(found > 0 && found.is_multiple_of(512), "{found}");
        assert_eq!(row(&shared, "none")["refused"], 0);
        assert!(report.contains("first prompts begin with the same "), "{report}");
    }
}

#[test]
fn an_interrupt_ends_the_run_and_keeps_what_was_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("exp1.json");
    let what = ["--agents", "4", "--warm-up", "0", "--seconds", "600", "--policies", "signal,lru"];
    let mut harness = Command::new(env!("CARGO_BIN_EXE_djinn-bench"))
        .args(["exp1", "--json", json.to_str().expect("UTF-8")])
        .args([&LIVE[..], &QUICK[..], &what[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stderr = BufReader::new(harness.stderr.take().expect("a pipe"));
    let id = harness.id().to_string();
    let mut last = String::new();
    for line in stderr.lines().map(|line| line.expect("text")) {
        if line.starts_with("signal: 4 agents") {
            // Turns end in it on a busy machine too.
            std::thread::sleep(std::time::Duration::from_secs(2));
            assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
        }
        last = line;
    }
    assert!(!harness.wait().expect("it ends").success());
    assert_eq!(last, "error: signal: interrupted");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect("JSON")).expect("JSON");
    assert_eq!(document["policies"].as_array().map(Vec::len), Some(1), "the other policy is not begun");
    assert!(number(row(&document, "signal"), "turns") > 0.0);
}

#[test]
fn without_flags_it_fits_the_machine_and_says_what_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    // What takes time is cut short; model, budget, load and policies are as without flags.
    let output = Command::new(env!("CARGO_BIN_EXE_djinn-bench"))
        .args(["exp1", "--sessions", "1", "--think", "0.05,0.1", "--threads", "1"])
        .args(["--json", folder.path().join("exp1.json").to_str().expect("UTF-8")])
        .output()
        .expect("it starts");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut lines = said.lines();
    for stage in [
        "synthetic:tiny within 2.00 MiB, none, lru, always, signal",
        "loading synthetic:tiny",
        "measuring steps of 1 to",
        "measuring the link",
        "measuring chunks of prompts",
        "one agent alone",
        "none: 12 agents",
        "lru: 12 agents",
        "signal: 12 agents",
    ] {
        assert!(lines.any(|line| line.starts_with(stage)), "`{stage}` in its place: {said}");
    }
    assert!(said.contains("(policy 2 of 4)"), "{said}");
    let document = std::fs::read_to_string(folder.path().join("exp1.json")).expect("JSON");
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let fit = number(&document, "contexts_on_device");
    assert!((1.0..12.0).contains(&fit), "policies differ only where not all contexts fit: {fit}");
    // `signal` moves pages only where its costs, measured on a machine that may be busy, say so.
    assert!(number(row(&document, "always"), "swaps_out") > 0.0);
}

#[test]
fn an_interrupt_ends_the_program_while_it_loads() {
    let mut harness = Command::new(env!("CARGO_BIN_EXE_djinn-bench"))
        .args(["exp1", "--model", "synthetic:tiny?hidden=1024&intermediate=4096&layers=24", "--vram", "2GiB"])
        .args([&LIVE[4..], &QUICK[..], &["--sessions", "1", "--agents", "1", "--policies", "none"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stderr = BufReader::new(harness.stderr.take().expect("a pipe"));
    let id = harness.id().to_string();
    let mut lines = Vec::new();
    for line in stderr.lines().map(|line| line.expect("text")) {
        if line.starts_with("loading") {
            assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
        }
        lines.push(line);
    }
    assert_eq!(harness.wait().expect("it ends").code(), Some(130), "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("error: interrupted"));
    assert!(!lines.iter().any(|line| line.starts_with("none: ")), "no policy is begun: {lines:?}");
}

#[test]
fn settings_files_set_the_constants() {
    let folder = tempfile::tempdir().expect("a folder");
    let eager = write(folder.path(), "eager.toml", "[scheduler]\npolicy = \"ttl\"\nttl_ms = 0\n");
    let args = ["--simulate", "--seconds", "20", "--agents", "20"];
    let swaps = |more: &[&str], policy| {
        let (report, document) = exp1(folder.path(), &[&args[..], more].concat());
        (number(row(&document, policy), "swaps_out"), report)
    };
    let (eager_swaps, report) = swaps(&["--policies", "ttl", "--config", &eager], "ttl");
    assert!(report.contains("Constants of the policies from eager.toml"), "{report}");
    assert_eq!(eager_swaps, swaps(&["--policies", "always"], "always").0);
    let patient = write(folder.path(), "patient.yaml", "scheduler:\n  policy: ttl\n  ttl_ms: 3600000\n");
    assert_eq!(swaps(&["--policies", "ttl", "--config", &patient], "ttl").0, 0.0);
    assert!(eager_swaps > 0.0);
}

/// Runs with these arguments fail with one line that has all of `parts`.
fn refused(args: &[&str], parts: &[&str]) {
    let output = bench(&[&["exp1"], args].concat());
    let said = text(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!output.status.success() && errors.len() == 1, "{args:?}: {said}");
    assert_eq!(said.trim_end(), errors[0], "{args:?}: nothing but the error");
    for part in parts {
        assert!(errors[0].contains(part), "{args:?} without `{part}`: {}", errors[0]);
    }
}

#[test]
fn bad_flags_are_refused_in_one_line() {
    let tiny =
        |args: &[&str], parts: &[&str]| refused(&[&["--model", "synthetic:tiny"], args].concat(), parts);
    tiny(&["--policies", "none,fifo"], &["--policies", "`fifo`", "known names: none, always, belady, lru"]);
    tiny(&["--policies", "lru,lru"], &["twice"]);
    tiny(&["--workload", "busy"], &["there is no `busy`", "closed, hard, reported, coding"]);
    tiny(&["--workload", "hard"], &["32768 tokens", "--context 2048"]);
    tiny(&["--context", "100"], &["3 turns of 128 tokens", "--turn-tokens"]);
    tiny(&["--think", "3"], &["--think wants two"]);
    tiny(&["--think", "3,1"], &["--think wants two"]);
    tiny(&["--workload", "coding", "--think", "1,2"], &["--think has no meaning for the workload coding"]);
    tiny(&["--rate", "3"], &["--rate has no meaning"]);
    tiny(&["--workload", "reported", "--rate", "0"], &["--rate 0 is not above 0"]);
    tiny(&["--workload", "reported", "--density", "3"], &["--density is of closed loops"]);
    tiny(&["--shared-prefix", "1.5"], &["--shared-prefix 1.5 is out of range"]);
    tiny(&["--seconds", "0"], &["--seconds 0"]);
    tiny(&["--seconds", "NaN"], &["--seconds NaN is out of range"]);
    tiny(&["--warm-up=-1"], &["--warm-up -1 is out of range"]);
    tiny(&["--host-kv", "1KiB"], &["--host-kv 1.00 KiB is less than a KV page, 16.0 KiB"]);
    tiny(&["--simulate", "--device", "cuda"], &["--simulate uses no device"]);
    tiny(&["--json", "/no/such/folder/a.json"], &["no such folder for --json"]);
    tiny(&["--profile", "/no/such/profile.json"], &["--profile /no/such/profile.json"]);
    tiny(&["--device", "cuda:99"], &["--device cuda:99"]);
    refused(&["--model", "synthetic:none"], &["--model synthetic:none"]);
}

#[test]
fn a_budget_below_one_context_is_refused_with_the_least_that_would_do() {
    let args = [
        "--model",
        "synthetic:tiny",
        "--agents",
        "1",
        "--context",
        "128",
        "--turn-tokens",
        "4",
        "--threads",
        "1",
    ];
    let quick = ["--policies", "none", "--sessions", "1", "--turns", "1", "--think", "0,0"];
    let args = [&["exp1"], &args[..], &quick[..]].concat();
    let said = text(&bench(&[&args[..], &["--vram", "64KiB"]].concat()).stderr);
    assert!(said.starts_with("error: --vram 64.0 KiB does not hold synthetic:tiny"), "{said}");
    let least = said.split("; give ").nth(1).and_then(|rest| rest.split(' ').next()).expect("the least");
    let output = bench(&[&args[..], &["--vram", least]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn bad_files_are_refused_with_line_field_and_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| write(folder.path(), name, text);
    let tiny = ["--model", "synthetic:tiny", "--simulate"];
    let config = |name: &str, text: &str, more: &[&str], parts: &[&str]| {
        refused(&[&tiny[..], &["--config", &file(name, text)], more].concat(), parts);
    };
    config(
        "a.yaml",
        "scheduler:\n  policy: fifo\n",
        &[],
        &["a.yaml: line 2: policy", "`fifo`", "known names"],
    );
    config("b.yaml", "scheduler:\n  policy: ttl\n  ttl_ms: soon\n", &[], &["b.yaml: line 3: ttl_ms"]);
    config("c.toml", "[scheduler]\nhysteresis = \"much\"\n", &[], &["c.toml: line 2: hysteresis"]);
    config(
        "d.toml",
        "[scheduler]\npolicy = \"ttl\"\n",
        &["--policies", "lru"],
        &["--policies does not name"],
    );
    config("e.toml", "[scheduler]\nbackend = \"sim\"\n", &[], &["backend", "leave it out"]);
    config("f.json", "{}", &[], &["must end with .yaml"]);
    let trace = |name: &str, text: &str, parts: &[&str]| {
        refused(&[&tiny[..], &["--workload", &file(name, text)]].concat(), parts);
    };
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,40,5\n";
    let shared = ["--shared-prefix", "0.5", "--workload", &file("whole.csv", azure)];
    refused(&[&tiny[..], &shared].concat(), &["--shared-prefix has no meaning"]);
    trace("a.csv", "a,b\n1,2\n", &["a.csv: line 1: header", "Azure's", "TraceLab's"]);
    trace("esc.csv", "\u{1b}]0;owned\u{7}\0,b\n1,2\n", &["`\\u{1b}]0;owned\\u{7}\\u{0},b`"]);
    trace("b.csv", &format!("{azure}2023-11-16 18:17:04.0,x,5\n"), &["b.csv: line 3: ContextTokens", "`x`"]);
    trace(
        "c.csv",
        &format!("{azure}2023-11-16 18:17:04.0,2040,9\n"),
        &["c.csv: line 3: GeneratedTokens", "2049", "2048"],
    );
    trace("d.csv", &format!("{azure}2023-11-16 18:17:04.0,4\n"), &["d.csv: line 3: row: 2 fields"]);
    let profile = |name: &str, text: &str, parts: &[&str]| {
        refused(&[&tiny[..], &["--profile", &file(name, text)]].concat(), parts);
    };
    profile("a.json", "{\"a\": 1}", &["a.json: neither a result of exp1 nor a profile"]);
    let rates = r#""out_bytes_per_s": 1e9, "in_bytes_per_s": 1e9, "prefill_tokens_per_s": 1e4"#;
    let table = r#"{"sizes": [1], "contexts": [64], "ms": [[1.0]]}"#;
    let whole = |bytes: u64, slowed: f64| {
        format!(
            r#"{{"cost": {{"page_bytes": {bytes}, {rates}}}, "both_ways_bytes_per_s": 1e9,
                "slowed_by_copies": {slowed}, "decode": {table}}}"#
        )
    };
    profile("b.json", &whole(12_345, 1.0), &["12345 bytes", "take a profile of the same model"]);
    profile("c.json", &whole(8_192, 0.5), &["slowed_by_copies is not 1 to 100"]);
}
