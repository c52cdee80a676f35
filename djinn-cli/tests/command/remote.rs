//! `--server`: what the commands print is what they print of a model on this machine.

use super::serve::serve;
use super::text::place;

const GREEDY: [&str; 3] = ["--greedy", "--ignore-eos", "-n=12"];

#[test]
fn a_server_gives_what_this_machine_gives() {
    let place = place();
    let serving = serve(&place, &[]);
    let server = format!("--server=http://{}", serving.address);
    for args in [
        &["logits", "--tokens=72,105,33"][..],
        &["logits", "--tokens=72,105,33", "--json"],
        &["plan", "--gpu=h200", "--vram=2GiB", "--batch=2"],
        &["plan", "--gpu=rtx-4090", "--json", "--prompt-len=9", "-n=3", "--ctx=64", "--dtype=f16"],
        &["srg", "--gpu=h200"],
        &["srg", "--gpu=h200", "--json", "--phase=prefill"],
        &["srg", "--gpu=h200", "--dot", "--tflops=1.5"],
        &[&["run", "Hi there", "-q"], &GREEDY[..]].concat(),
        &[&["run", "Hi", "--raw", "-q", "--temperature=1.5", "--seed=7"], &GREEDY[1..]].concat(),
    ] {
        let local = [&[args[0], "./model"], &args[1..]].concat();
        let elsewhere = [&[args[0], "model", server.as_str()], &args[1..]].concat();
        assert_eq!(place.ok(&elsewhere), place.ok(&local), "{args:?}");
    }
    let json = |model: &str, more: &[&str]| {
        place.json(&[&["run", model, "Hi", "--json"], &GREEDY[..], more].concat())
    };
    let (mut local, mut elsewhere) = (json("./model", &[]), json("model", &[&server]));
    assert!(elsewhere["stats"]["server_ttft_ms"].as_f64().unwrap() > 0.0);
    for answer in [&mut local, &mut elsewhere] {
        answer.as_object_mut().unwrap().remove("stats");
    }
    assert_eq!(elsewhere, local);
    // A stop string, and tokens in place of text.
    let text = local["text"].as_str().unwrap();
    let stop = format!("--stop={}", &text[4..6]);
    let stopped = json("model", &[&server, &stop]);
    assert_eq!((&stopped["text"], &stopped["finish"]), (&json("./model", &[&stop])["text"], &"stop".into()));

    for (args, why) in [
        (&["logits", "none", "--tokens=1", &server][..], "the model `none` does not exist"),
        (&["logits", "model", "--tokens=500", &server], "token 500 is outside the vocabulary"),
        (&["plan", "none", "--gpu=h200", &server], "the model `none` does not exist"),
        (&["run", "model", "", "-q", &server], "the prompt is empty"),
        (&["run", "model", "Hi", "-q", "--greedy", "--seed=5", &server], "--seed has no effect without"),
        (
            &["run", "model", "Hi", "--server=http://127.0.0.1:1"],
            "no answer from http://127.0.0.1:1/v1/generate",
        ),
    ] {
        assert!(place.refused(args).contains(why), "{args:?}");
    }
    let no_addresses: &[(&str, &str)] = &[
        ("http://127.0.0.1:99999", "--server: http://127.0.0.1:99999 is no address of this program's"),
        #[cfg(not(feature = "hub"))]
        ("https://127.0.0.1:1", "--server: https://127.0.0.1:1 needs TLS, and this build speaks http only"),
    ];
    for (url, why) in no_addresses {
        let message = place.refused(&["run", "model", "Hi", "--api-key=secret", "--server", url]);
        assert!(message.starts_with(why), "{message}");
    }
    let usage = place.output(&["run", "model", "Hi", &server, "--vram=1GiB"], "");
    let usage = String::from_utf8(usage.stderr).unwrap();
    assert!(usage.contains("--vram") && usage.contains("cannot be used with"), "{usage}");
    // Parameters that mean nothing, or too much work.
    for (query, why) in [
        ("plan?none=1", "unexpected argument"),
        ("plan?gpu=abacus", "there is no card abacus"),
        ("plan?gpu=h200&prompt-len=4000000&prefill-chunk=1", "more than 4096 passes"),
        ("srg?phase=prefill&batch=2", "a prefill is of one sequence"),
    ] {
        let answer = serving.ask(&format!("GET /v1/models/model/{query}"), "", "");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(why), "{query}: {answer}");
    }
}

/// What has come of an answer is printed, as by a run on this machine.
#[cfg(unix)]
#[test]
fn an_interrupt_keeps_what_a_server_has_answered() {
    use std::process::{Command, Stdio};
    let place = super::chat::place();
    let serving = serve(&place, &["--ctx=400000"]);
    let server = format!("--server=http://{}", serving.address);
    let args = ["run", "model", "Hi", "--json", "--greedy", "--ignore-eos", "-n=390000", &server];
    let mut command = place.command(&args);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let generated = || {
        let page = serving.ask("GET /metrics", "", "");
        let count = page.lines().find(|line| line.starts_with("djinn_generation_tokens_total{"));
        count.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    while generated() < 1000.0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["finish"], "cancelled");
    assert!(!answer["text"].as_str().unwrap().is_empty() && answer["stats"]["ttft_ms"].is_f64(), "{answer}");
    assert!(!answer["prompt_tokens"].as_array().unwrap().is_empty(), "{answer}");
}
