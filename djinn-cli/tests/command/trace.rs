//! `--trace` writes what ran when.

use super::Place;
use serde_json::Value;

const STREAMED: [&str; 4] = ["synthetic:tiny", "--resident-fraction=0.5", "--chunk=64KiB", "-q"];

fn args<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [command].iter().chain(&STREAMED).chain(more).copied().collect()
}

/// The names of the spans in a trace.
fn spans(place: &Place, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(place.path().join(file)).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter(|e| e["ph"] == "X").map(|e| e["name"].as_str().unwrap().to_owned()).collect()
}

fn count(spans: &[String], what: &str) -> usize {
    spans.iter().filter(|name| name.starts_with(what)).count()
}

#[test]
fn run_and_logits_write_it() {
    let place = Place::new();
    let plain = place.json(&args("run", &["--json", "--prompt-tokens=1,2,3", "-n=4"]));
    let traced =
        place.json(&args("run", &["--json", "--prompt-tokens=1,2,3", "-n=4", "--trace", "run.json"]));
    assert_eq!(plain["tokens"], traced["tokens"]);
    let found = spans(&place, "run.json");
    // The compute track has waits for chunks, if any.
    let waits = found.iter().filter(|name| *name == "wait").count();
    assert_eq!((count(&found, "load"), count(&found, "sample"), waits), (1, 4, 4));
    let plan = place.json(&args("plan", &["--json", "--prompt-len=3", "-n=4"]));
    let streamed = plan["chunks"]["streamed"].as_u64().unwrap() as usize;
    assert!(streamed > 0 && count(&found, "chunk ") == 4 * streamed, "{found:?}");

    // A longer file from before is cut.
    place.write("logits.json", &"x".repeat(1 << 20));
    place.ok(&args("logits", &["--tokens=1,2", "--trace=logits.json"]));
    assert_eq!(count(&spans(&place, "logits.json"), "chunk "), streamed);
}

#[test]
fn the_variable_and_the_key_ask_for_it_as_well() {
    let place = Place::new().with("DJINN_TRACE", "variable.json");
    place.ok(&args("logits", &["--tokens=1"]));
    assert!(count(&spans(&place, "variable.json"), "load") == 1);
    let place = Place::new();
    place.write("named.toml", "trace = \"file.json\"\n");
    place.ok(&args("logits", &["--tokens=1", "--config=named.toml"]));
    assert!(count(&spans(&place, "file.json"), "load") == 1);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_model_is_looked_for() {
    let place = Place::new();
    for (command, tokens) in [("run", "--prompt-tokens=1"), ("logits", "--tokens=1")] {
        for file in ["nosuch/trace.json", "."] {
            let message = place.refused(&[command, "./nosuch", tokens, "--trace", file]);
            assert!(message.starts_with(&format!("--trace: cannot write {file}: ")), "{message}");
        }
    }
}

#[test]
fn a_command_that_fails_before_leaves_no_file_and_harms_none() {
    let place = Place::new();
    let command = ["run", "synthetic:tiny", "--prompt-tokens=1", "--vram=1KiB", "--trace=trace.json"];
    place.refused(&command);
    assert!(!place.path().join("trace.json").exists());
    place.write("trace.json", "the last one");
    place.refused(&command);
    assert_eq!(std::fs::read_to_string(place.path().join("trace.json")).unwrap(), "the last one");
}
