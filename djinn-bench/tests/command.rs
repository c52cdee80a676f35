//! The command from the outside, on the CPU device.

#[path = "command/remote.rs"]
mod remote;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// 3.7 MB of weights.
const MODEL: &str = "synthetic:tiny?hidden=128&intermediate=1024&layers=4";

/// A budget that holds about half of them.
const SMALL: [&str; 10] =
    ["--model", MODEL, "--vram", "3MiB", "--prompt", "12", "--tokens", "5", "--threads", "1"];

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_djinn-bench")).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).display().to_string()
}

/// Runs exp2 on the small model with `more` arguments; its JSON, and what it wrote to standard error.
fn exp2(folder: &Path, more: &[&str]) -> (Output, Value) {
    let json: PathBuf = folder.join("exp2.json");
    let mut args = vec!["exp2", "--json", json.to_str().expect("UTF-8")];
    args.extend(SMALL);
    args.extend(more);
    let output = bench(&args);
    let found = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output, serde_json::from_str(&found).expect("JSON"))
}

fn row<'a>(document: &'a Value, name: &str) -> &'a Value {
    let rows = document["systems"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {document}"))
}

#[test]
fn own_systems_are_measured_and_give_equal_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let figures = folder.path().join("figures");
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../djinn-models/tests/checkpoints/gqa-bf16")
        .display()
        .to_string();
    let more = ["--systems", "own", "--runs", "2", "--ablation-runs", "1", "--checkpoint", &checkpoint];
    let figures_args = ["--figures", figures.to_str().expect("UTF-8")];
    let (output, document) = exp2(folder.path(), &[&more[..], &figures_args[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let streamed =
        |name: &str| row(&document, name)["medians"]["streamed_bytes_per_pass"].as_u64().expect("bytes");
    for (name, runs) in
        [("FULL", 2), ("NO_PIPELINING", 1), ("NO_SKIP_END", 1), ("BASELINE", 1), ("RESIDENT", 2)]
    {
        let row = row(&document, name);
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(runs), "{name}");
        assert_eq!(row["same_as_full"], true, "{name}");
        assert_eq!(row["samples"][0]["tokens"].as_array().map(Vec::len), Some(5), "{name}");
        assert_eq!(row["samples"][0]["token_ms"].as_array().map(Vec::len), Some(4), "{name}");
    }
    assert!(0 < streamed("FULL") && streamed("FULL") < streamed("NO_FRACTIONAL"));
    assert_eq!((streamed("NO_PIPELINING"), streamed("RESIDENT")), (streamed("FULL"), 0));
    assert!(document["link"]["pinned"]["up_gbps"].as_f64().expect("a rate") > 0.0);
    assert_eq!(document["link"]["memcpy"], true);
    assert!(
        document["logits"]["relative_error"].as_f64().expect("an error") < 1e-4,
        "{}",
        document["logits"]
    );
    let report = text(&output.stdout);
    assert!(report.contains("### What each mechanism contributes"), "{report}");
    for figure in ["token-time.svg", "memory.svg"] {
        let svg = std::fs::read_to_string(figures.join(figure)).expect("a figure");
        assert!(svg.starts_with("<svg") && svg.contains("FULL"), "{figure}");
    }
    // The report from the file is the one that was printed.
    let again = bench(&["report", folder.path().join("exp2.json").to_str().expect("UTF-8")]);
    assert!(text(&again.stdout).ends_with(&report), "{}", text(&again.stdout));
}

#[test]
fn an_experiment_may_be_measured_in_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    exp2(folder.path(), &["--systems", "full", "--runs", "1"]);
    let part = ["--systems", "no-fractional", "--tokens", "6"];
    let other = bench(
        &[
            &["exp2", "--add", "--json", &folder.path().join("exp2.json").display().to_string()],
            &SMALL[..6],
            &part[..],
        ]
        .concat(),
    );
    assert!(text(&other.stderr).contains("the file's experiment is another"), "{}", text(&other.stderr));
    let (output, document) = exp2(folder.path(), &["--systems", "no-fractional,full", "--runs", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (output, added) = exp2(folder.path(), &["--systems", "baseline", "--add", "--runs", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let names: Vec<&Value> =
        added["systems"].as_array().expect("rows").iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["FULL", "NO_FRACTIONAL", "BASELINE"]);
    let share = |document: &Value| row(document, "NO_FRACTIONAL")["link_share"].clone();
    assert_eq!(share(&document), share(&added), "compared with the link of its own run");
    assert_eq!(row(&added, "FULL")["note"], Value::Null, "measured by the same build");
    let json = folder.path().join("exp2.json");
    let by_another = added.to_string().replace(env!("DJINN_COMMIT"), "0123abc");
    std::fs::write(&json, by_another).expect("a file");
    let (_, added) = exp2(folder.path(), &["--systems", "baseline", "--add", "--runs", "1"]);
    assert_eq!(added["commit"], env!("DJINN_COMMIT"));
    assert_eq!(row(&added, "FULL")["note"], "measured by commit 0123abc");
    assert_eq!(row(&added, "BASELINE")["note"], Value::Null);
}

#[test]
fn measuring_ends_after_the_seconds_that_it_may_take() {
    let common = ["--prompt", "4", "--runs", "1000", "--threads", "1", "--most-seconds", "1"];
    let model = ["sample", "--system", "FULL", "--model", "synthetic:tiny", "--tokens", "200"];
    let output = bench(&[&model[..], &common[..]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let runs = found["samples"].as_array().map_or(0, Vec::len);
    assert!((1..1000).contains(&runs), "{runs} runs");
}

#[test]
fn every_run_may_have_a_process_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (output, document) = exp2(folder.path(), &["--systems", "full", "--runs", "2", "--fresh"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = row(&document, "FULL");
    assert_eq!(row["samples"].as_array().map(Vec::len), Some(2));
    assert!(row["command"].as_str().expect("a command").contains("--runs 1"), "{row}");
}

#[test]
fn runs_in_processes_of_their_own_end_after_the_seconds_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--systems", "full", "--runs", "1000", "--fresh", "--most-seconds", "1", "--tokens", "400"];
    let args =
        [&["exp2", "--model", "synthetic:tiny", "--vram", "3MiB", "--prompt", "4"][..], &more].concat();
    let json = folder.path().join("exp2.json").display().to_string();
    let output = bench(&[&args[..], &["--threads", "1", "--json", &json]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(json).expect("JSON")).expect("JSON");
    let runs = row(&document, "FULL")["samples"].as_array().map_or(0, Vec::len);
    assert!((1..1000).contains(&runs), "{runs} runs");
}

#[test]
fn failing_peers_are_recorded_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let fake = fixture("fake-python.sh");
    let more = ["--systems", "peers", "--python", &fake, "--model", "synthetic:tiny"];
    let json = folder.path().join("exp2.json");
    let mut args = vec!["exp2", "--json", json.to_str().expect("UTF-8"), "--vram", "1MiB", "--prompt", "12"];
    args.extend(more);
    let output = bench(&args);
    assert!(output.status.success(), "peers may fail: {}", text(&output.stderr));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect("JSON")).expect("JSON");
    assert_eq!(row(&document, "three-slot")["medians"]["effective_gbps"], 2.0);
    assert_eq!(row(&document, "three-slot")["note"], "a fake");
    assert_eq!(row(&document, "blocking")["failure"], "exit status: 1: RuntimeError: out of memory");
    assert_eq!(row(&document, "accelerate")["failure"], "it printed no JSON object but \"garbage\"");
    assert_eq!(row(&document, "deepspeed")["unavailable"], "No module named deepspeed");
    assert!(row(&document, "eager")["failure"].as_str().expect("a failure").contains("not positive"));
    let missing = ["--systems", "three-slot", "--python", "/no/such/python"];
    let (output, document) = exp2(folder.path(), &missing);
    assert!(output.status.success());
    // The small model's shape is none that the peers know.
    assert!(row(&document, "three-slot")["unavailable"].as_str().expect("why").starts_with("the peers know"));
}

#[test]
fn an_interrupt_ends_one_sample_and_the_next_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("exp2.json");
    let path = json.to_str().expect("UTF-8");
    let fake = fixture("fake-python.sh");
    let args = ["exp2", "--json", path, "--model", "synthetic:tiny", "--prompt", "4", "--python", &fake];
    let mut harness = Command::new(env!("CARGO_BIN_EXE_djinn-bench"))
        .args(args)
        .args(["--systems", "blocking,three-slot"])
        .env("FAKE_HANG", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stderr = BufReader::new(harness.stderr.take().expect("a pipe"));
    let id = harness.id().to_string();
    for line in stderr.lines().map(|line| line.expect("text")) {
        if line.starts_with("blocking: PyTorch") {
            // The peer sleeps for longer than this test may take.
            std::thread::sleep(Duration::from_millis(300));
            assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
        }
    }
    assert!(harness.wait().expect("it ends").success());
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json).expect("JSON")).expect("JSON");
    assert_eq!(row(&document, "blocking")["failure"], "interrupted");
    assert_eq!(row(&document, "three-slot")["failure"], Value::Null);
}

#[test]
fn batches_and_predictions_are_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.json");
    let json = ["--json", path.to_str().expect("UTF-8")];
    let sweep =
        ["sweep", "--batch", "1,3", "--vram", "3MiB", "--prompt", "5", "--tokens", "3", "--threads", "1"];
    let model = ["--model", MODEL];
    let output = bench(&[&sweep[..], &model[..], &json[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read =
        || -> Value { serde_json::from_str(&std::fs::read_to_string(&path).expect("JSON")).expect("JSON") };
    let document = read();
    let [streaming, resident] = [&document["modes"][0], &document["modes"][1]];
    assert!(streaming["streamed_bytes_per_pass"].as_u64() > Some(0), "{streaming}");
    assert_eq!(resident["streamed_bytes_per_pass"], 0);
    let batch = &streaming["batches"][1];
    assert_eq!((&batch["batch"], batch["samples_ms"].as_array().map(Vec::len)), (&Value::from(3), Some(3)));
    assert!(batch["ratio"].as_f64().expect("a ratio") > 0.0);

    // The machine that predictions are for takes 657 MiB for itself.
    let case = &format!("{MODEL}@661MiB");
    let plan = ["plan", "--case", case, "--prompt", "5", "--tokens", "3", "--runs", "2", "--threads", "1"];
    let output = bench(&[&plan[..], &json[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let case = &read()["cases"][0];
    assert!(case["streamed_bytes_per_pass"].as_u64() > Some(0), "{case}");
    assert_eq!(case["samples_ms"].as_array().map(Vec::len), Some(2));
    let [predicted, measured] =
        ["predicted_tpot_ms", "measured_tpot_ms"].map(|key| case[key].as_f64().expect("ms"));
    let error = case["relative_error"].as_f64().expect("an error");
    assert!((error - (predicted / measured - 1.0)).abs() < 1e-9, "{case}");
}

/// More sessions stop than the device has pages for; all say what they would have said.
#[test]
fn stopped_sessions_give_their_pages_and_get_them_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("exp3.json");
    let path = path.to_str().expect("UTF-8");
    let size =
        ["--vram", "1200KiB", "--host-kv", "16MiB", "--context", "128", "--tokens", "8", "--sessions", "10"];
    let more = ["--batch", "3", "--steps", "10", "--device", "cpu", "--threads", "1", "--json", path];
    let output = bench(&[&["exp3", "--model", "synthetic:tiny"][..], &size[..], &more[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("JSON")).expect("JSON");
    let paused = &document["paused"];
    assert_eq!((paused["stopped"].as_u64(), paused["tokens"].as_u64()), (Some(10), Some(80)));
    assert_eq!(paused["equal_tokens"], paused["tokens"]);
    // Whether pages are copied or computed again follows from rates that are measured.
    let gone = ["on_host", "given_up"].map(|way| paused[way].as_u64().expect("a count"));
    assert!(gone.iter().sum::<u64>() > 0, "{paused}");
    let written = &document["written"];
    assert_eq!((written["tokens"].as_u64(), written["equal_tokens"].as_u64()), (Some(8), Some(8)));
    let vram = document["vram_bytes"].as_u64().expect("bytes");
    for moment in paused["memory"].as_array().expect("moments") {
        let parts = ["weights", "activations", "kv_running", "kv_stopped"].map(|part| moment[part].as_u64());
        assert!(parts.iter().flatten().sum::<u64>() <= vram, "{moment}");
    }
    let steering = document["steering"].as_array().expect("strengths");
    assert_eq!(
        (steering[0]["changed_tokens"].as_u64(), steering[0]["logits_change"].as_f64()),
        (Some(0), Some(0.0))
    );
    assert!(steering.last().expect("some")["logits_change"].as_f64() > Some(0.1), "{steering:?}");
    assert_eq!(document["cost"]["kinds"].as_array().map(Vec::len), Some(3));
    assert!(text(&output.stdout).contains("10 of 10 stopped at once"), "{}", text(&output.stdout));
}

/// A context that has room for one round of timed steps, and fewer sessions than decode together.
#[test]
fn breakpoints_cost_is_measured_in_short_contexts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("exp3.json").display().to_string();
    let size =
        ["--vram", "64MiB", "--host-kv", "1MiB", "--context", "256", "--sessions", "2", "--tokens", "8"];
    let more = ["--batch", "3", "--device", "cpu", "--threads", "1", "--json", &path];
    let output = bench(&[&["exp3", "--model", "synthetic:tiny"][..], &size[..], &more[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("JSON")).expect("JSON");
    for kind in document["cost"]["kinds"].as_array().expect("kinds") {
        assert_eq!(kind["samples_ms"].as_array().map(Vec::len), Some(20), "{kind}");
    }
}

#[test]
fn swaps_are_measured_alone_and_beside_decoding() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("swap.json");
    let path = path.to_str().expect("UTF-8");
    let size = ["--tokens", "48", "--steps", "12", "--runs", "2", "--moving", "1", "--threads", "1"];
    let output = bench(&[&["swap", "--model", MODEL, "--json", path][..], &size[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("JSON")).expect("JSON");
    let whole = document["session_bytes"].as_u64().expect("bytes");
    let copied: Vec<u64> = document["transfers"]
        .as_array()
        .expect("transfers")
        .iter()
        .map(|way| {
            assert_eq!(way["samples_ms"].as_array().map(Vec::len), Some(2), "{way}");
            way["bytes"].as_u64().expect("bytes")
        })
        .collect();
    assert_eq!(copied, [whole, whole, 0, whole, whole]);
    let [streamed, resident] = [&document["modes"][0], &document["modes"][1]];
    assert!(streamed["streamed_bytes_per_pass"].as_u64() > Some(0), "{streamed}");
    assert_eq!(resident["streamed_bytes_per_pass"], 0);
    for mode in [streamed, resident] {
        for (run, swaps) in [(&mode["runs"][0], false), (&mode["runs"][1], true)] {
            assert_eq!(
                (run["swaps"].as_bool(), run["samples_ms"].as_array().map(Vec::len)),
                (Some(swaps), Some(12))
            );
            assert!(run["token_ms"].as_f64() > Some(0.0), "{run}");
            assert_eq!(run["weights_gbps"].is_number(), mode["name"] == "streamed", "{run}");
            for way in ["in_gbps", "out_gbps"] {
                assert_eq!(run[way].is_number(), swaps, "{way} in {run}");
            }
        }
    }
    let report = text(&output.stdout);
    assert!(report.contains("| park again, unchanged | 0.000 |"), "{report}");
    // Where everything fits nothing streams: that is said, and the rest measured.
    let output =
        bench(&[&["swap", "--model", MODEL, "--vram", "1GiB", "--json", path][..], &size[..]].concat());
    assert!(text(&output.stderr).contains("error: all weights fit"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("| resident | swaps both ways |"), "{}", text(&output.stdout));
}

#[test]
fn bad_arguments_fail_in_one_line() {
    let cases: &[&[&str]] = &[
        &["exp2", "--model", "synthetic:none"],
        &["exp2", "--model", "synthetic:tiny", "--vram", "1KiB", "--prompt", "4", "--systems", "FULL"],
        &["exp2", "--model", "synthetic:tiny", "--prompt", "4000", "--systems", "FULL"],
        &["exp2", "--model", "synthetic:tiny", "--json", "/no/such/folder/a.json", "--prompt", "4"],
        &["exp2", "--model", "synthetic:tiny", "--prompt", "4", "--checkpoint", "/no/such/folder"],
        &["link", "--device", "cuda:99"],
        &["plan", "--case", "synthetic:tiny@1KiB"],
        &["exp3", "--model", "synthetic:tiny", "--context", "128", "--tokens", "65"],
        &["sweep", "--model", "/no/such/model"],
        &["swap", "--model", "synthetic:tiny", "--vram", "1KiB", "--tokens", "4"],
        &["swap", "--model", "synthetic:tiny", "--tokens", "4000"],
        &["report", "/no/such/results"],
        &["figures", "--trace", "/no/such/trace", "--out", "/tmp"],
    ];
    for args in cases {
        let output = bench(args);
        let said = text(&output.stderr);
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(!output.status.success() && errors.len() == 1, "{args:?}: {said}");
        assert!(said.trim_end().ends_with(errors[0]), "the error comes last: {args:?}: {said}");
    }
}
