//! Bad input: one line, non-zero, no panic.

use super::{Place, checkpoint, copy_checkpoint};

const TINY: [&str; 4] = ["synthetic:tiny", "--prompt-tokens", "1,2,3", "-n=4"];

fn run_tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["run"].iter().chain(&TINY).chain(more).copied().collect()
}

#[test]
fn budgets_that_are_too_small_name_the_least() {
    let place = Place::new();
    let message = place.refused(&run_tiny(&["--vram", "50KB"]));
    assert!(message.starts_with("a device budget of 48.8 KiB is too small"), "{message}");
    let least = message.split_once(" (").unwrap().1.split_whitespace().next().unwrap();
    let output = place.json(&run_tiny(&["--json", "--vram", least]));
    let (peak, cap) = (&output["stats"]["device_peak_bytes"], &output["stats"]["vram_bytes"]);
    assert!(peak.as_u64().unwrap() <= cap.as_u64().unwrap(), "{output}");
    assert_eq!(cap.to_string(), least);
    let below = (least.parse::<u64>().unwrap() - 1).to_string();
    assert!(place.refused(&run_tiny(&["--vram", &below])).contains(least));
    assert!(place.refused(&run_tiny(&["--vram", "0"])).contains("is too small"));

    let message = place.refused(&run_tiny(&["--ram", "1KiB", "--resident-fraction", "0"]));
    assert!(message.starts_with("a host budget of 1.00 KiB is too small"), "{message}");
    assert!(place.refused(&run_tiny(&["--chunk", "1KiB"])).contains("--chunk of 1.00 KiB"));
    let message = place.refused(&run_tiny(&["--ring", "1KiB", "--resident-fraction", "0"]));
    assert!(message.contains("--ring of 1.00 KiB"), "{message}");
}

#[test]
fn models_and_prompts_that_cannot_be() {
    let seventeen = vec!["1"; 17].join(",");
    let untold = checkpoint("gqa-bf16");
    let place = Place::new();
    for (args, expected) in [
        (&["run", "nosuch", "x"][..], "nosuch is no model that Djinn knows by name"),
        (&["plan", "./nosuch"], "./nosuch is no model: no such file or directory"),
        (&["plan", "synthetic:nosuch"], "synthetic:nosuch is no model: known shapes: "),
        (
            &["plan", "synthetic:tiny?layers=0"],
            "synthetic:tiny?layers=0: `num_hidden_layers`: 0 is not in 1..=",
        ),
        (&["run", "What is it?"], "\"What is it?\" is no model; the model comes before the prompt"),
        (
            &["run", "synthetic:tiny?vocab=255", "x"],
            "synthetic:tiny?vocab=255 has no tokenizer; give --prompt-tokens",
        ),
        (&["run", &untold, "hello"], "gqa-bf16 has no tokenizer; give --prompt-tokens"),
        (&["run", "synthetic:tiny"], "the prompt is empty"),
        (&["run", "synthetic:tiny", "-"], "the prompt is empty"),
        (&["run", "synthetic:tiny", "--prompt-tokens=256"], "token 256 is outside the vocabulary of 256"),
        (&["logits", "synthetic:tiny", "--tokens=1,256"], "token 256 is outside the vocabulary of 256"),
        (&["run", &untold, "--system=x", "y"], "--system needs a chat template"),
        (&["run", &untold, "--stop=x", "--prompt-tokens=1"], "--stop needs a tokenizer"),
        (
            &["run", "synthetic:tiny?context=4", "--prompt-tokens=1,2,3,4,5"],
            "5 tokens exceed the model's context of 4",
        ),
        (
            &["logits", "synthetic:tiny?context=4", "--tokens=1,2,3,4,5"],
            "5 tokens exceed the model's context of 4",
        ),
        (
            &["run", "synthetic:tiny", "-q", "--ctx=1", "--prompt-tokens", &seventeen],
            "a sequence of 17 tokens does not fit",
        ),
        (
            &["run", "synthetic:tiny", "--ctx=4096", "--prompt-tokens=1"],
            "--ctx 4096 exceeds the model's context",
        ),
        (
            &["plan", "synthetic:tiny", "--ctx=9", "--prompt-len=10"],
            "a sequence of 10 tokens does not fit a context of 9",
        ),
        (&["srg", "synthetic:tiny", "--phase=prefill", "--batch=2"], "--batch is for decoding"),
        (&["plan", "synthetic:llama-2-70b?layers=9999&hidden=1048576", "--vram=1GiB"], ""),
    ] {
        let message = place.refused(args);
        assert!(message.starts_with(expected), "{args:?}: {message}");
    }
}

#[test]
fn cuda_is_refused_by_a_build_without_it() {
    for device in ["cuda", "cuda:0"] {
        let message = Place::new().refused(&run_tiny(&["--device", device]));
        assert_eq!(
            message,
            "--device cuda:0: this build has no CUDA support; build with --features cuda, or use --device cpu"
        );
    }
}

#[test]
fn values_and_combinations_that_no_flag_takes() {
    let place = Place::new();
    for args in [
        &["run", "--vram", "12 parsec"][..],
        &["run", "--vram", "-1"],
        &["run", "--vram", "99999999TiB"],
        &["run", "--resident-fraction", "1.1"],
        &["run", "--resident-fraction", "nan"],
        &["run", "--temperature", "inf"],
        &["run", "--top-p", "2"],
        &["run", "--device", "tpu"],
        &["run", "--device", "cuda:x"],
        &["run", "--dtype", "u32"],
        &["run", "--kv-dtype", "f8"],
        &["run", "--threads", "0"],
        &["run", "--max-tokens", "0"],
        &["run", "--ctx", "0"],
        &["run", "--greedy", "--top-k", "2"],
        &["run", "--trace"],
        &["plan", "synthetic:tiny", "--trace", "x"],
        &["run", "synthetic:tiny", "text", "--prompt-tokens", "1"],
        &["run", "--prompt-tokens", "1", "--raw"],
        &["run", "--raw", "--system", "x"],
        &["logits", "synthetic:tiny"],
        &["plan", "synthetic:tiny", "--gpu", "h9000"],
        &["plan", "synthetic:tiny", "--gpu", ""],
        &["plan", "synthetic:tiny", "--link-gbps", "0"],
        &["plan", "synthetic:tiny", "--hbm-gbps", "nan"],
        &["plan", "synthetic:tiny", "--tflops", "1e300"],
        &["srg", "synthetic:tiny", "--dot", "--json"],
        &["srg", "synthetic:tiny", "--phase", "training"],
        &["nosuch"],
        &[],
    ] {
        let output = place.output(args, "");
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
        assert!(
            args.is_empty() || error.starts_with("error: ") && error.lines().count() == 1,
            "{args:?}: {error}"
        );
    }
}

#[test]
fn flags_are_refused_by_their_names() {
    let place = Place::new();
    let refused = |args: &[&str]| {
        let output = place.output(args, "");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for unknown in ["fp8", "fp8_e4m3", "q8_0"] {
        let error = refused(&["run", "--kv-dtype", unknown]);
        assert!(error.contains("int8") && error.lines().count() == 1, "{error}");
    }
    for (flag, value) in [("--temperature", "-1"), ("--top-p", "-0.5"), ("--top-k", "-1"), ("--vram", "-1")] {
        let message = refused(&["run", "synthetic:tiny", flag, value]);
        assert!(message.starts_with(&format!("error: invalid value '{value}' for '{flag} ")), "{message}");
    }
    let message = refused(&["run", "--greedy", "--temperature", "0.8"]);
    assert!(message.starts_with("error: --greedy contradicts --temperature"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    use std::process::Command;
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "plan"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_djinn")).args(args).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.starts_with("error: standard output: ") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_weights_are_read() {
    let place = Place::new();
    let folder = place.path().join("model");
    copy_checkpoint("gqa-bf16", &folder);
    let seventeen = vec!["1"; 17].join(",");
    let run = ["run", "./model", "--prompt-tokens", &seventeen, "--vram=1GiB"];
    // What was loaded is told in a line of its own, and a refusal is one line.
    let loaded = place.output(&run, "");
    assert!(String::from_utf8(loaded.stderr).unwrap().contains("loading model"));
    for (more, expected) in [
        ("--ctx=16", "a sequence of 17 tokens does not fit a context of 16"),
        ("--ctx=4096", "--ctx 4096 exceeds the model's context of 512 tokens"),
    ] {
        let message = place.refused(&[&run[..], &[more]].concat());
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn checkpoints_that_are_cut_short_or_incomplete() {
    let place = Place::new();
    let folder = place.path().join("model");
    copy_checkpoint("gqa-bf16", &folder);
    let weights = folder.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 100, 9, 8, 7, 0] {
        std::fs::write(&weights, &whole[..length]).unwrap();
        for args in [&["run", "./model", "--prompt-tokens=1"][..], &["plan", "./model"]] {
            let message = place.refused(args);
            assert!(message.contains("model.safetensors"), "{length}: {message}");
        }
    }
    std::fs::remove_file(&weights).unwrap();
    place.refused(&["plan", "./model"]);
    std::fs::write(&weights, &whole).unwrap();
    place.ok(&["plan", "./model"]);
    std::fs::write(folder.join("config.json"), "{").unwrap();
    assert!(place.refused(&["plan", "./model"]).contains("config.json"));
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["run", &checkpoint("gqa-bf16"), "--prompt-tokens=1", "--ignore-eos", "-n=500", "-q"])
        .env("DJINN_CACHE", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
