//! `djinn run` and `logits` on token ids.

use super::{Place, checkpoint, checkpoints, copy_checkpoint};
use serde_json::Value;

fn ids(value: &Value) -> String {
    let ids = value.as_array().unwrap().iter().map(Value::to_string);
    ids.collect::<Vec<_>>().join(",")
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let place = Place::new();
    let mut count = 0;
    for entry in std::fs::read_dir(checkpoints()).unwrap() {
        let path = entry.unwrap().path();
        let expected = std::fs::read_to_string(path.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let tokens = expected["greedy"]["tokens"].as_array().unwrap();
        let (model, prompt) = (path.to_str().unwrap(), ids(&expected["greedy"]["prompt"]));
        let n = tokens.len().to_string();
        let output = place.json(&[
            "run",
            model,
            "--greedy",
            "--ignore-eos",
            "--json",
            "--vram=256KiB",
            "-n",
            &n,
            "--prompt-tokens",
            &prompt,
        ]);
        assert_eq!(output["tokens"].as_array().unwrap(), tokens, "{model}");
        assert_eq!(output["finish"], "length");
        count += 1;
    }
    assert!(count >= 34, "{count} checkpoints");
}

#[test]
fn statistics_are_complete_and_true() {
    let place = Place::new();
    let output = place.json(&[
        "run",
        "synthetic:tiny",
        "--prompt-tokens=1,2,3",
        "-n=9",
        "--json",
        "--resident-fraction=0.25",
        "--stream-check",
        "--vram=1MiB",
    ]);
    assert_eq!(output["prompt_tokens"], serde_json::json!([1, 2, 3]));
    assert_eq!(output["tokens"].as_array().unwrap().len(), 9);
    assert!(output["text"].is_string());
    let stats = &output["stats"];
    let number = |key: &str| stats[key].as_f64().unwrap_or_else(|| panic!("{key} in {stats}"));
    assert_eq!((number("prompt_tokens"), number("reused_tokens"), number("decode_passes")), (3.0, 0.0, 8.0));
    assert_eq!(number("streamed_bytes"), 9.0 * number("streamed_bytes_per_pass"));
    assert!(number("streamed_bytes_per_pass") > 0.0 && number("copy_gbps") > 0.0);
    assert!((0.0..=1.0).contains(&number("copy_hidden")));
    assert!(number("device_peak_bytes") <= number("vram_bytes"));
    assert_eq!(number("vram_bytes"), (1u64 << 20) as f64);
    for key in ["ttft_ms", "tpot_ms", "load_ms", "tokens_per_s", "resident_bytes"] {
        assert!(number(key) > 0.0, "{key}");
    }
    assert!(number("stall_ms") >= 0.0 && number("stalls") >= 0.0);
    assert_eq!(stats["seed"], Value::Null);
    let resident = place.json(&["run", "synthetic:tiny", "--prompt-tokens=1", "-n=2", "--json"]);
    for key in ["copy_hidden", "copy_gbps"] {
        assert_eq!(resident["stats"][key], Value::Null, "nothing is copied");
    }
}

#[test]
fn the_plan_is_what_the_device_holds() {
    let place = Place::new();
    let settings = ["--resident-fraction=0.5", "--ctx=64", "--kv-dtype=f16"];
    let join = |head: &[&'static str]| [head, &settings[..]].concat();
    let plan = place.json(&join(&["plan", "synthetic:tiny", "--json", "--prompt-len=3", "-n=4"]));
    let run = place.json(&join(&["run", "synthetic:tiny", "--prompt-tokens=1,2,3", "-n=4", "--json"]));
    let stats = &run["stats"];
    assert_eq!(plan["device_bytes"], stats["device_peak_bytes"]);
    assert_eq!(plan["resident_bytes"], stats["resident_bytes"]);
    assert_eq!(plan["streamed_bytes_per_pass"], stats["streamed_bytes_per_pass"]);
}

/// Weights are held once, on one side or the other, with little beside them.
#[test]
#[cfg(target_os = "linux")]
fn host_memory_stays_near_the_weights() {
    let place = Place::new();
    let peak_of = |run: Value| run["stats"]["host_peak_bytes"].as_f64().unwrap();
    // How much of the program's code is resident depends on how the page cache holds its file. A tiny model has as much.
    let tiny = checkpoint("gqa-bf16");
    let code = peak_of(place.json(&["run", &tiny, "--prompt-tokens=1,2", "-n=3", "--json", "--ctx=16"]));
    for fraction in ["0", "0.5", "1"] {
        let args = ["run", "synthetic:smollm2-135m", "--prompt-tokens=1,2", "-n=3", "--json"];
        let plan = ["plan", "synthetic:smollm2-135m", "--prompt-len=2", "-n=3", "--json"];
        let fraction = ["--resident-fraction", fraction, "--ctx=16"];
        let (run, plan) =
            (place.json(&[&args, &fraction[..]].concat()), place.json(&[&plan, &fraction[..]].concat()));
        let bytes = |key: &str| plan["segments"][key].as_f64().unwrap();
        let weights = plan["weight_bytes"].as_f64().unwrap();
        let rest = bytes("ring") + bytes("data") + bytes("stack");
        let peak = peak_of(run);
        assert!(peak > weights, "{peak} bytes cannot hold {weights}");
        assert!(
            peak <= 1.05 * weights + rest + code + (48 << 20) as f64,
            "{peak} for {weights}, {rest} and {code}, {fraction:?}"
        );
    }
}

#[test]
fn a_seed_repeats_and_the_checkpoint_decides_whether_to_sample() {
    let place = Place::new();
    let run = |model: &str, more: &[&str]| {
        let args: Vec<&str> = ["run", model, "--prompt-tokens=5,6", "-n=24", "--ignore-eos", "--json"]
            .iter()
            .chain(more)
            .copied()
            .collect();
        place.json(&args)
    };
    // This one asks for sampling in its generation_config.json.
    let model = checkpoint("gqa-bf16");
    let first = run(&model, &[]);
    let seed = first["stats"]["seed"].as_u64().unwrap();
    assert_eq!(run(&model, &["--seed", &seed.to_string()])["tokens"], first["tokens"]);
    assert_ne!(run(&model, &["--seed=1"])["tokens"], run(&model, &["--seed=2"])["tokens"]);
    let greedy = run(&model, &["--greedy"]);
    assert_eq!(greedy["stats"]["seed"], Value::Null);
    assert_eq!(run(&model, &["--temperature=0"])["tokens"], greedy["tokens"]);
    assert_eq!(run(&model, &["--top-k=1"])["tokens"], greedy["tokens"]);
    assert_eq!(run("synthetic:tiny", &[])["stats"]["seed"], Value::Null);
    assert_eq!(run("synthetic:tiny", &["--min-p=0.1", "--seed=3"])["stats"]["seed"], 3);
    let free = run("synthetic:tiny", &[])["tokens"].clone();
    assert_ne!(run("synthetic:tiny", &["--repetition-penalty=5"])["tokens"], free);
    // A seed for nothing is refused on the command line, and elsewhere waits for a run that samples.
    let args = ["run", "synthetic:tiny", "--prompt-tokens=1", "--seed=3", "-q"];
    assert!(place.refused(&args).starts_with("--seed has no effect without --temperature"));
    place.write("djinn.toml", "seed = 3");
    assert_eq!(run("synthetic:tiny", &[])["stats"]["seed"], Value::Null);
    assert_eq!(run("synthetic:tiny", &["--temperature=1"])["stats"]["seed"], 3);
}

#[test]
fn what_a_checkpoint_asks_for_without_effect_is_named() {
    let place = Place::new();
    let folder = place.path().join("model");
    super::copy_checkpoint("tied-f32", &folder);
    std::fs::write(folder.join("generation_config.json"), r#"{"typical_p": 0.9, "num_beams": 4}"#).unwrap();
    let args = ["run", "./model", "--prompt-tokens=9,8", "-n=2"];
    let error = String::from_utf8(place.output(&args, "").stderr).unwrap();
    assert!(error.contains("model asks for num_beams, typical_p, which has no effect here\n"), "{error}");
    assert!(place.output(&[&args[..], &["-q"]].concat(), "").stderr.is_empty());
}

#[test]
fn end_tokens_end_and_contexts_are_full() {
    let place = Place::new();
    let greedy =
        place.json(&["run", "synthetic:tiny?context=10", "--prompt-tokens=1,2,3", "-n=50", "--json"]);
    // Seven decode passes fill the context; the last one's token needs no place.
    assert_eq!((greedy["tokens"].as_array().unwrap().len(), &greedy["finish"]), (8, &"length".into()));

    let folder = place.path().join("model");
    super::copy_checkpoint("tied-f32", &folder);
    let run = |more: &[&str]| {
        let args: Vec<&str> = ["run", "./model", "--prompt-tokens=9,8", "-n=6", "--greedy", "--json"]
            .iter()
            .chain(more)
            .copied()
            .collect();
        place.json(&args)
    };
    let free = run(&["--ignore-eos"]);
    let fourth = free["tokens"][3].clone();
    let position = free["tokens"].as_array().unwrap().iter().position(|t| *t == fourth).unwrap();
    let generation = serde_json::json!({ "eos_token_id": [fourth] }).to_string();
    std::fs::write(folder.join("generation_config.json"), generation).unwrap();
    let ended = run(&[]);
    assert_eq!(ended["finish"], "stop");
    assert_eq!(ended["tokens"].as_array().unwrap()[..], free["tokens"].as_array().unwrap()[..=position]);
    assert_eq!(run(&["--ignore-eos"])["tokens"], free["tokens"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_keeps_what_it_has() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let place = Place::new();
    let trace = place.path().join("trace.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["run", "synthetic:tiny?context=1000000", "--prompt-tokens=1", "-n=900000", "--ctx=900000"])
        .arg(format!("--trace={}", trace.display()))
        .env("DJINN_CACHE", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut begun = [0; 20];
    out.read_exact(&mut begun).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(rest.ends_with('\n'));
    assert!(String::from_utf8(output.stderr).unwrap().contains("1 prompt tokens, first token after"));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["otherData"]["passes"].as_u64().unwrap() > 5);
}

/// A run of `djinn` that is interrupted once `wait` has seen what it waits for; its standard error.
#[cfg(unix)]
pub(super) fn interrupted(args: &[&str], wait: impl FnOnce(&mut std::process::Child)) -> String {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .env("DJINN_CACHE", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait(&mut child);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    error
}

#[cfg(unix)]
#[test]
fn an_interrupt_is_heard_within_a_prompt() {
    use std::io::{BufRead, BufReader};
    let prompt = format!("--prompt-tokens={}", vec!["1"; 30_000].join(","));
    let args = ["run", "synthetic:tiny?context=40000", &prompt, "--prefill-chunk=1"];
    let error = interrupted(&args, |child| {
        // A line that tells of loading comes before the prompt is computed.
        let stderr = child.stderr.as_mut().unwrap();
        assert!(BufReader::new(stderr).read_line(&mut String::new()).unwrap() > 0);
    });
    let done =
        error.strip_prefix("interrupted after ").and_then(|rest| rest.split_once(" of 30000 prompt tokens"));
    assert!(done.is_some_and(|(done, _)| done.parse::<u32>().unwrap() < 30_000), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_is_heard_while_weights_are_loaded() {
    let args = ["run", "synthetic:llama-2-7b?layers=4", "--prompt-tokens=1", "--resident-fraction=0"];
    assert_eq!(interrupted(&args, loads), "interrupted while loading\n");
}

/// Waits until 64 MB of a model's weights, which are many more, are there.
#[cfg(target_os = "linux")]
pub(super) fn loads(child: &mut std::process::Child) {
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
        resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    while memory() < 64_000 {
        std::thread::yield_now();
    }
}

/// Statistics tell of rounded activations where products round them, and only there.
#[test]
fn activations_in_int8_are_told_where_they_are() {
    let place = Place::new();
    let run = |model: &str, more: &[&str]| {
        let args = ["run", model, "--prompt-tokens=1, 2", "-n=2", "--device=cpu", "--activations=int8"];
        let output = place.output(&[&args[..], more].concat(), "");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let remark = "--activations int8 has no effect: ";
    let rounded = run("synthetic:tiny?encoding=q8_0", &[]);
    assert!(rounded.contains("activations int8 (") && !rounded.contains(remark), "{rounded}");
    for (model, more) in
        [("synthetic:tiny", &[][..]), ("synthetic:tiny?encoding=q8_0", &["--encoding=plain"])]
    {
        let plain = run(model, more);
        assert!(!plain.contains("activations int8 (") && plain.contains(remark), "{plain}");
    }
    assert_eq!(run("synthetic:tiny", &["-q"]), "");
    let plan =
        |model: &str| place.json(&["plan", model, "--json", "--activations=int8"])["activations"].clone();
    assert_eq!([plan("synthetic:tiny"), plan("synthetic:tiny?encoding=q8_0")], ["float", "int8"]);
    let message = place.refused(&["plan", "synthetic:tiny", "--gpu=h200", "--activations=int8"]);
    assert!(message.starts_with("--activations int8 is for the CPU alone; drop it"), "{message}");
    assert!(message.contains("a plan without --gpu"), "{message}");
}

/// A share that the CPU computes with is told, and a share of nothing as well. The tokens do not change.
#[test]
fn a_share_for_the_cpu_is_told() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let args = ["run", "synthetic:tiny", "--prompt-tokens=1, 2", "-n=3", "--device=cpu", "--greedy"];
        let output = place.output(&[&args[..], more].concat(), "");
        assert!(output.status.success(), "{output:?}");
        (output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    let (told, none) = (" more stay in host memory, for the CPU)", "--cpu-share has no effect: ");
    let (expected, all) = run(&["--resident-fraction=0.2"]);
    assert!(!all.contains(told) && !all.contains(none), "{all}");
    let (text, shared) = run(&["--resident-fraction=0.2", "--cpu-share=0.5"]);
    assert!(text == expected && shared.contains(told) && !shared.contains(none), "{shared}");
    let (text, resident) = run(&["--cpu-share=0.5", "--ring=1MiB"]);
    assert!(text == expected && !resident.contains(told) && resident.contains(none), "{resident}");
    assert!(resident.contains("--ring has no effect: all weights are resident"), "{resident}");
    // The prompt has few tokens as well, so nothing is copied.
    let (text, shared) = run(&["--resident-fraction=0", "--cpu-share=1"]);
    assert!(text == expected && shared.contains(told) && !shared.contains("GB/s"), "{shared}");
    let streamed = |share: &str| {
        let share = format!("--cpu-share={share}");
        let args = ["plan", "synthetic:llama-2-13b", "--gpu=h200", "--vram=20GiB", "--json", &share];
        let plan = place.json(&args);
        ["expected_streamed_bytes_per_pass", "cpu_bytes_per_pass"].map(|bytes| plan[bytes].as_u64().unwrap())
    };
    let plan = ["plan", "synthetic:llama-2-13b", "--gpu=h200", "--vram=20GiB"];
    let suggests = |args: &[&str]| place.ok(args).contains("with --cpu-share 0.5 about ");
    assert!(suggests(&plan), "the link is the limit");
    assert!(!suggests(&[&plan[..], &["--cpu-share=0.3"]].concat()));
    let ([whole, zero], [rest, on_cpu]) = (streamed("0"), streamed("0.5"));
    assert!(zero == 0 && on_cpu > whole * 2 / 5 && rest < whole * 3 / 5, "{whole}, {rest} and {on_cpu}");
}

#[test]
fn weights_that_are_not_numbers_give_no_text() {
    let place = Place::new();
    copy_checkpoint("gqa-bf16", &place.path().join("model"));
    let file = place.path().join("model/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for weight in bytes[header..].chunks_exact_mut(2) {
        weight.copy_from_slice(&0x7fc0u16.to_le_bytes());
    }
    std::fs::write(file, bytes).unwrap();
    for args in [
        &["run", "./model", "--prompt-tokens=1,2,3", "-q"][..],
        &["logits", "./model", "--tokens=1,2,3", "-q"],
    ] {
        let message = place.refused(args);
        assert!(message.starts_with("the logit of token 0 at position "), "{message}");
        assert!(message.contains(" is NaN; use f32 weights"), "{message}");
    }
}

#[test]
fn people_see_tokens_and_statistics_unless_quiet() {
    let place = Place::new();
    let args = ["run", "synthetic:tiny?vocab=255", "--prompt-tokens=1,2,3", "-n=4"];
    let output = place.output(&args, "");
    let (text, remarks) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(text.split_whitespace().filter(|t| t.parse::<u32>().is_ok()).count(), 4, "{text}");
    assert!(text.ends_with('\n'));
    for part in
        ["loading synthetic:tiny", "3 prompt tokens, first token after", "streamed per pass", "without a cap"]
    {
        assert!(remarks.contains(part), "{part} is missing in {remarks}");
    }
    let quiet = place.output(&[&args[..], &["-q"]].concat(), "");
    assert_eq!((String::from_utf8(quiet.stdout).unwrap(), quiet.stderr), (text, Vec::new()));
}

#[test]
fn a_synthetic_model_takes_text_and_gives_text() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let args = ["run", "synthetic:tiny?vocab=100000", "--ignore-eos", "--greedy", "-n=40", "--json"];
        place.json(&[&args[..], more].concat())
    };
    let raw = run(&["--raw", "Hé"]);
    assert_eq!(raw["prompt_tokens"], serde_json::json!("Hé".as_bytes()));
    let text = raw["text"].as_str().unwrap();
    // Most tokens of such a vocabulary are one character, and are the same token when the text is sent back.
    assert_eq!(run(&["--raw", text])["prompt_tokens"], raw["tokens"], "{text}");
    let untold = ["run", "synthetic:tiny?vocab=255", "--prompt-tokens=1", "-n=1", "--json"];
    assert_eq!(place.json(&untold)["text"], Value::Null);
    let chat = run(&["Hi", "--system="]);
    assert_eq!(chat["prompt_tokens"].as_array().unwrap().len(), "?user\nHi?\n?assistant\n".len());
}

#[test]
fn logits_agree_with_generation() {
    let place = Place::new();
    let run = place.json(&["run", "synthetic:tiny", "--prompt-tokens=7,8,9", "-n=1", "--json"]);
    let logits = place.json(&["logits", "synthetic:tiny", "--tokens=7,8,9", "--json"]);
    let rows = logits["logits"].as_array().unwrap();
    assert_eq!((rows.len(), rows[2].as_array().unwrap().len()), (3, 256));
    let row: Vec<f64> = rows[2].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
    let best = (0..256).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    assert_eq!(run["tokens"], serde_json::json!([best]));
    let text = place.ok(&["logits", "synthetic:tiny", "--tokens=7,8,9"]);
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().nth(2).unwrap().starts_with(&format!("2: {best} ")), "{text}");
}
