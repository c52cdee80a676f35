//! `djinn serve`, from its start to its end.

use super::Place;
use super::text::place;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

pub(super) struct Serving {
    child: Child,
    lines: BufReader<ChildStderr>,
    pub(super) address: String,
    /// What it said until it listened.
    opening: String,
}

pub(super) fn serve(place: &Place, more: &[&str]) -> Serving {
    serve_models(place, &[&["./model"], more].concat())
}

/// The models of `more`, if it has some.
pub(super) fn serve_models(place: &Place, more: &[&str]) -> Serving {
    let args = [&["serve", "--port=0", "--device=cpu", "--threads=1"], more].concat();
    let mut child = place.command(&args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (address, opening) = address(&mut lines);
    Serving { child, lines, address, opening }
}

/// Where a server listens, once it says so, and what it said until then.
fn address(lines: &mut BufReader<ChildStderr>) -> (String, String) {
    let mut opening = String::new();
    loop {
        let before = opening.len();
        assert!(lines.read_line(&mut opening).unwrap() > 0, "it ended before it served");
        if let Some((_, rest)) = opening[before..].split_once("at http://") {
            return (rest.split_once('/').unwrap().0.to_owned(), opening);
        }
    }
}

impl Serving {
    pub(super) fn ask(&self, request: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_model_is_served_until_sigterm() {
    let place = place();
    let mut serving = serve(&place, &["--alias=mine", "--alias=also", "--drain=5", "--cpu-share=0.5"]);
    let opening = &serving.opening;
    assert!(opening.contains("--cpu-share has no effect: it leaves no streamed weights"), "{opening}");
    let answer = serving.ask("GET /v1/models", "", "");
    assert!(answer.contains("\"id\":\"mine\"") && answer.contains("\"id\":\"also\""), "{answer}");
    let body =
        r#"{"model":"mine","messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"temperature":0}"#;
    let answer = serving.ask("POST /v1/chat/completions", "x-request-id: my-id\r\n", body);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":5"), "{answer}");
    let name = serving.ask("POST /v1/chat/completions", "", &body.replace("mine", "./model"));
    assert!(name.starts_with("HTTP/1.1 404"), "a path is no name: {name}");
    #[cfg(unix)]
    {
        let pid = rustix::process::Pid::from_child(&serving.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(serving.child.wait().unwrap().success(), "it ends well");
        let mut log = String::new();
        serving.lines.read_to_string(&mut log).unwrap();
        assert!(log.contains("id=my-id method=POST path=\"/v1/chat/completions\" status=200"), "{log}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_while_the_model_is_loaded_ends_the_server() {
    let args =
        ["serve", "synthetic:llama-2-7b?layers=4", "--port=0", "--device=cpu", "--resident-fraction=0"];
    let error = super::run::interrupted(&args, super::run::loads);
    assert_eq!(error, "interrupted while loading\n");
}

#[cfg(unix)]
#[test]
fn the_model_is_loaded_again_at_sigusr1() {
    let place = place();
    let mut serving = serve(&place, &["--alias=mine"]);
    let body = r#"{"model":"mine","prompt":"Once","max_tokens":5,"temperature":0}"#;
    let text = |serving: &Serving| {
        let answer = serving.ask("POST /v1/completions", "", body);
        answer.split("\"text\":").nth(1).map(|rest| rest.split('}').next().unwrap().to_owned())
    };
    let before = text(&serving);
    assert!(before.is_some());
    let pid = rustix::process::Pid::from_child(&serving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let mut log = String::new();
    // Each answer is a line.
    for _ in 0..2000 {
        serving.ask("GET /ready", "", "");
        serving.lines.read_line(&mut log).unwrap();
        if log.contains("the engine runs again") {
            break;
        }
    }
    assert!(log.contains("the engine runs again"), "{log}");
    assert_eq!(text(&serving), before);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_while_the_model_is_loaded_is_obeyed_when_it_is_served() {
    let place = Place::new();
    let args = ["serve", "synthetic:llama-2-7b?layers=1", "--port=0", "--device=cpu"];
    let mut child = place.command(&args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    super::run::loads(&mut child);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (address, opening) = address(&mut lines);
    let mut serving = Serving { child, lines, address, opening };
    while !serving.opening.contains("loading again") {
        assert!(serving.lines.read_line(&mut serving.opening).unwrap() > 0, "{}", serving.opening);
    }
}

/// Standard error is full, so the process waits where it reads its settings: it has to name an unknown variable there.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_before_the_settings_are_read_is_obeyed_too() {
    use rustix::process::{Pid, Signal, kill_process};
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(b"\n").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let place = place();
    let mut command = place.command(&["serve", "./model", "--port=0", "--device=cpu", "--threads=1"]);
    let mut child = command.env("DJINN_NONE", "1").stderr(writer).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let mask = status.split("SigCgt:").nth(1).unwrap().lines().next().unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap()
    };
    let began = std::time::Instant::now();
    while caught() >> (Signal::USR1.as_raw() - 1) & 1 == 0 {
        assert!(began.elapsed().as_secs() < 30, "SIGUSR1 still ends it");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("loading again")));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "it ends well");
}

/// A turn that is paused has no answer yet.
#[test]
fn a_client_that_leaves_before_its_answer_is_logged_as_such() {
    let place = place();
    let mut serving = serve(&place, &["--alias=mine"]);
    let created = serving.ask("POST /v1/sessions", "", r#"{"model":"mine","id":"left"}"#);
    assert!(created.starts_with("HTTP/1.1 200"), "{created}");
    let breakpoint = r#"{"hook":"blocks.0.hook_out","tokens":"generated","hits":1}"#;
    let set = serving.ask("POST /v1/sessions/left/breakpoints", "", breakpoint);
    assert!(set.starts_with("HTTP/1.1 201"), "{set}");
    let body = r#"{"model":"mine","prompt":"Once","max_tokens":5}"#;
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let length = body.len();
    let head = "host: localhost\r\nx-session-id: left\r\nx-request-id: gone";
    write!(stream, "POST /v1/completions HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    while !serving.ask("GET /v1/sessions/left", "", "").contains("\"state\":\"paused\"") {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    let mut line = String::new();
    while !line.contains("id=gone") {
        line.clear();
        assert!(serving.lines.read_line(&mut line).unwrap() > 0, "it ended");
    }
    assert!(line.contains("status=499"), "{line}");
}

/// Ten times in a row at one address: every client is answered, nothing stays open, and signals do what they did.
#[cfg(target_os = "linux")]
#[test]
fn it_begins_anew_at_sigusr2() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = place();
    let mut serving = serve(&place, &["--alias=mine"]);
    let pid = Pid::from_child(&serving.child);
    let folder = format!("/proc/{}/fd", serving.child.id());
    let open = || std::fs::read_dir(&folder).unwrap().count();
    let least = |open: &dyn Fn() -> usize| (0..50).map(|_| open()).min().unwrap();
    let body = r#"{"model":"mine","prompt":"Once","max_tokens":5,"temperature":0}"#;
    let text = |serving: &Serving| {
        let answer = serving.ask("POST /v1/completions", "", body);
        answer.split("\"text\":").nth(1).map(|rest| rest.split('}').next().unwrap().to_owned())
    };
    let (before, files) = (text(&serving), least(&open));
    assert!(before.is_some());
    for turn in 0..10 {
        kill_process(pid, Signal::USR2).unwrap();
        for _ in 0..3 {
            let answer = serving.ask("GET /ready", "", "");
            let known = ["HTTP/1.1 200", "HTTP/1.1 503"].iter().any(|status| answer.starts_with(status));
            assert!(known, "turn {turn}: {answer:?}");
        }
        assert_eq!(address(&mut serving.lines).0, serving.address, "turn {turn}");
        assert_eq!(text(&serving), before, "turn {turn}");
    }
    // The last connection may still be closing.
    let began = std::time::Instant::now();
    while open() > files {
        assert!(began.elapsed().as_secs() < 30, "{files} descriptors at first, {} now", open());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert!(serving.child.wait().unwrap().success(), "it ends well");
    assert!(TcpStream::connect(&serving.address).is_err(), "nobody listens any more");
}

/// A listening socket at standard input is served, by the rules of its own address.
#[cfg(unix)]
#[test]
fn a_socket_at_standard_input_is_served() {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    let place = place();
    let start = |at: &str| {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut command = place.command(&["serve", "./model", "--device=cpu", "--threads=1"]);
        (command.stdin(OwnedFd::from(listener)).stderr(Stdio::piped()).spawn().unwrap(), address)
    };
    let (mut child, given) = start("127.0.0.1:0");
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (address, opening) = address(&mut lines);
    let serving = Serving { child, lines, address, opening };
    assert_eq!(serving.address, given);
    assert!(serving.ask("GET /ready", "", "").starts_with("HTTP/1.1 200"));
    let (child, _) = start("0.0.0.0:0");
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("--insecure-public"), "{message}");
}

/// The log is not read, and no pipe holds all of it: requests are answered all the same, and the process ends.
#[cfg(unix)]
#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let place = place();
    let mut serving = serve(&place, &[]);
    let path = format!("GET /v1/{}", "x".repeat(500));
    for _ in 0..1500 {
        assert!(serving.ask(&path, "", "").starts_with("HTTP/1.1 404"));
    }
    let pid = rustix::process::Pid::from_child(&serving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(serving.child.wait().unwrap().success(), "it ends well");
    let mut log = String::new();
    serving.lines.read_to_string(&mut log).unwrap();
    assert!(log.lines().count() < 1500, "a pipe held all of it, and nothing was shown");
}

#[test]
fn the_log_is_json_where_that_is_asked_for() {
    let place = place();
    let mut serving = serve(&place, &["--log-format=json"]);
    serving.ask("GET /v1/nothing", "x-request-id: my-id\r\nauthorization: Bearer secret\r\n", "");
    let mut line = String::new();
    serving.lines.read_line(&mut line).unwrap();
    let found: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&found["level"], &found["message"]), (&"info".into(), &"request".into()), "{line}");
    assert_eq!(
        (&found["id"], &found["path"], &found["status"]),
        (&"my-id".into(), &"/v1/nothing".into(), &404.into())
    );
    assert!(found["time"].is_u64() && found["ms"].is_f64() && !line.contains("secret"), "{line}");
}

/// The line of a request that generates.
#[test]
fn the_log_tells_how_many_tokens_a_request_took() {
    let place = place();
    let mut serving = serve(&place, &["--log-format=json", "--alias=mine"]);
    serving.ask(
        "POST /v1/completions",
        "",
        r#"{"model":"mine","prompt":"a secret","max_tokens":5,"temperature":0}"#,
    );
    let mut line = String::new();
    serving.lines.read_line(&mut line).unwrap();
    let found: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&found["model"], &found["completion_tokens"]), (&"mine".into(), &5.into()), "{line}");
    assert!(found["prompt_tokens"].as_u64() > Some(0) && found["first_token_ms"].is_f64(), "{line}");
    assert!(!line.contains("secret"), "{line}");
}

/// A collector at an address, which takes one batch: its request line and body.
#[cfg(feature = "otel")]
fn one_batch(listener: std::net::TcpListener) -> (String, Vec<u8>) {
    let mut stream = BufReader::new(listener.accept().unwrap().0);
    let (mut first, mut length) = (String::new(), 0);
    stream.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line.strip_prefix("content-length: ").map_or(length, |length| length.parse().unwrap());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    (first, body)
}

/// The environment names collector and service; the last spans are sent at SIGTERM.
#[cfg(all(unix, feature = "otel"))]
#[test]
fn spans_go_where_the_environment_says() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let place =
        place().with("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint).with("OTEL_SERVICE_NAME", "my-service");
    let mut serving = serve(&place, &["--alias=mine"]);
    serving.ask("POST /v1/completions", "", r#"{"model":"mine","prompt":"Once","max_tokens":5}"#);
    let collector = std::thread::spawn(move || one_batch(listener));
    let pid = rustix::process::Pid::from_child(&serving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let (first, body) = collector.join().unwrap();
    assert_eq!(first.trim_end(), "POST /v1/traces HTTP/1.1");
    for part in ["my-service", "POST /v1/completions", "gen_ai.usage.output_tokens"] {
        assert!(body.windows(part.len()).any(|found| found == part.as_bytes()), "no {part}");
    }
    assert!(serving.child.wait().unwrap().success(), "it ends well");
    for (name, value, part) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4318", "http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
    ] {
        let place = Place::new().with("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint).with(name, value);
        let message = place.refused(&["serve", "./model", "--device=cpu"]);
        assert!(message.contains(part), "{name}: {message}");
    }
}

#[cfg(not(feature = "otel"))]
#[test]
fn a_build_without_spans_says_so() {
    let place = place().with("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    let mut child = place
        .command(&["serve", "./model", "--port=0", "--device=cpu"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        line.contains("level=warn OTEL_EXPORTER_OTLP_ENDPOINT is set") && line.contains("--features otel"),
        "{line}"
    );
}

#[test]
fn the_scheduler_is_chosen_by_name_or_file() {
    let place = place();
    let refused = |args: &[&str]| place.refused(&[&["serve", "./model", "--device=cpu"], args].concat());
    let message = refused(&["--policy=fifo"]);
    assert!(message.contains("`fifo`") && message.contains("predicted"), "{message}");
    place.write("wrong.yaml", "scheduler:\n  policy: ttl\n  ttl_ms: soon\n");
    let message = refused(&["--scheduler=wrong.yaml"]);
    assert!(message.contains("wrong.yaml: line 3: ttl_ms"), "{message}");
    let message = refused(&["--policy=none", "--swap-space=1MiB", "--port=0", "--vram=1"]);
    assert!(message.starts_with("--swap-space is for sessions that give way"), "{message}");
    place.write("right.toml", "[scheduler]\npolicy = \"ttl\"\nttl_ms = 100\n");
    let serving = serve(&place, &["--scheduler=right.toml"]);
    assert!(serving.ask("GET /ready", "", "").starts_with("HTTP/1.1 200"));
}

/// What `djinn run` takes is served, and what is left out is told.
#[test]
fn the_models_of_a_folder_are_served_by_their_names() {
    let place = place();
    let at = |name: &str| place.path().join("models").join(name);
    let gguf = super::checkpoints().join("../fixtures/gguf/families/gqa-bf16.gguf");
    std::fs::create_dir_all(at("a")).unwrap();
    std::fs::create_dir_all(at("empty")).unwrap();
    std::fs::create_dir_all(at(".hidden")).unwrap();
    for to in ["a.gguf", "a/weights.gguf", "c.GGUF"] {
        std::fs::copy(&gguf, at(to)).unwrap();
    }
    super::copy_checkpoint("tied-f32", &at("b"));
    place.write("models/notes.txt", "of mine");
    let serving = serve_models(&place, &["--models-dir=models"]);
    let models = serving.ask("GET /v1/models", "", "");
    for name in ["a", "b", "c"] {
        assert!(models.contains(&format!("\"id\":\"{name}\"")), "{name}: {models}");
    }
    for (place, why) in [
        ("models/a.gguf", "another model is called a"),
        ("models/empty", "neither config.json nor a .gguf file"),
        ("models/notes.txt", "it is neither a folder nor a .gguf file"),
    ] {
        let line = serving.opening.lines().find(|line| line.starts_with(&format!("{place} is left out: ")));
        assert!(line.is_some_and(|line| line.contains(why)), "{place}: {}", serving.opening);
    }
    assert!(!serving.opening.contains("hidden"), "{}", serving.opening);
}

/// Models with a shorter context than `--ctx` have all of their own, also the first.
#[test]
fn models_of_several_contexts_are_served() {
    let place = place();
    for name in ["gptj-f16", "qwen3-f16"] {
        super::copy_checkpoint(name, &place.path().join(name));
    }
    let serving = serve_models(&place, &["--ctx=512", "short=./gptj-f16", "long=./qwen3-f16"]);
    assert!(serving.opening.contains("with contexts of 96 to 512 tokens"), "{}", serving.opening);
    for model in ["short", "long"] {
        let body = format!(r#"{{"model":"{model}","prompt":[1,2,3],"max_tokens":1}}"#);
        let answer = serving.ask("POST /v1/completions", "", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// The address is taken before anything of the model is looked at.
#[test]
fn a_port_that_is_taken_is_told_at_once() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let port = format!("--port={}", address.port());
    let message = place.refused(&["serve", "./missing", "--device=cpu", &port]);
    assert!(
        message.starts_with(&format!("cannot listen at {address}, where another program does")),
        "{message}"
    );
    assert!(message.contains("--port"), "{message}");
    let message = place.refused(&["serve", "./missing", "--device=cpu", "--host=localhost", &port]);
    assert!(message.starts_with(&format!("cannot listen at {address}")), "{message}");
    drop(taken);
    assert!(place.refused(&["serve", "./missing", "--device=cpu", &port]).contains("./missing"));
    // An address for documentation, which no machine has.
    let message =
        place.refused(&["serve", "./missing", "--device=cpu", "--host=192.0.2.1", "--insecure-public"]);
    assert!(message.starts_with("cannot listen at 192.0.2.1:5556: "), "{message}");
}

#[test]
fn budgets_are_refused_by_their_flags() {
    let place = Place::new();
    let refused =
        |flag: &str| place.refused(&["serve", "synthetic:tiny", "-q", "--port=0", "--device=cpu", flag]);
    let message = refused("--vram=1");
    assert!(message.contains("raise --vram or lower --ctx"), "{message}");
    assert!(refused("--ctx=100000").starts_with("--ctx 100000 exceeds the model's context"));
    for (flag, expected) in [
        ("--swap-space=100TiB", "--swap-space of 100.0 TiB does not fit beside the model: this machine has "),
        ("--kv-cache=100TiB", "--kv-cache of 100.0 TiB does not fit beside the model: this machine has "),
        (
            "--hook-memory=512TiB",
            "--hook-memory of 512.0 TiB is too much: out of host memory: 512.0 TiB requested, ",
        ),
    ] {
        let message = refused(flag);
        assert!(message.starts_with(expected) && !message.contains("18446744073709551615"), "{message}");
    }
    for flag in ["--swap-space", "--kv-cache", "--hook-memory", "--vram", "--max-body"] {
        let args = ["serve", "synthetic:tiny", "--port=0", flag, "18446744073709551615"];
        let output = place.output(&args, "");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains("no machine has as much"), "{error}");
    }
    let args = ["debug", "synthetic:tiny", "Hi", "--device=cpu", "--hook-memory=512TiB"];
    assert!(place.refused(&args).starts_with("--hook-memory of 512.0 TiB is too much: out of host memory: "));
}

#[test]
fn keys_come_from_a_file_and_the_public_needs_one() {
    let place = place();
    let message = place.refused(&["serve", "./model", "--host", "0.0.0.0"]);
    assert!(message.contains("--api-key-file") && message.contains("--insecure-public"), "{message}");
    place.write("keys", "# ours\nsecret-one\n\n");
    let serving = serve(&place, &["--api-key-file=keys"]);
    assert!(serving.ask("GET /v1/models", "", "").starts_with("HTTP/1.1 401"));
    let answer = serving.ask("GET /v1/models", "authorization: Bearer secret-one\r\n", "");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"id\":\"model\""), "{answer}");
    place.write("none", "# nothing\n");
    assert!(place.refused(&["serve", "./model", "--api-key-file=none"]).contains("holds no API key"));
    assert!(place.refused(&["serve", "./model", "--api-key="]).contains("visible ASCII"));
    assert!(
        place
            .refused(&["serve", "./model", "--kv-cache=1KiB", "--device=cpu", "--port=0"])
            .contains("KV cache")
    );
}
