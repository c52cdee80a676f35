//! `djinn serve`, from its start to its end.

use super::Place;
use super::text::place;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};

struct Serving {
    child: Child,
    lines: BufReader<ChildStderr>,
    address: String,
}

fn serve(place: &Place, more: &[&str]) -> Serving {
    let args = [&["serve", "./model", "--port=0", "--device=cpu", "--threads=1"], more].concat();
    let mut child = place.command(&args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before it served");
        if let Some((_, rest)) = line.split_once("at http://") {
            break rest.split_once('/').unwrap().0.to_owned();
        }
    };
    Serving { child, lines, address }
}

impl Serving {
    fn ask(&self, request: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
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
    let mut serving = serve(&place, &["--alias=mine", "--alias=also", "--drain=5"]);
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

#[test]
fn the_scheduler_is_chosen_by_name_or_file() {
    let place = place();
    let refused = |args: &[&str]| place.refused(&[&["serve", "./model", "--device=cpu"], args].concat());
    let message = refused(&["--policy=fifo"]);
    assert!(message.contains("`fifo`") && message.contains("predicted"), "{message}");
    place.write("wrong.yaml", "scheduler:\n  policy: ttl\n  ttl_ms: soon\n");
    let message = refused(&["--scheduler=wrong.yaml"]);
    assert!(message.contains("wrong.yaml: line 3: ttl_ms"), "{message}");
    place.write("right.toml", "[scheduler]\npolicy = \"ttl\"\nttl_ms = 100\n");
    let serving = serve(&place, &["--scheduler=right.toml"]);
    assert!(serving.ask("GET /ready", "", "").starts_with("HTTP/1.1 200"));
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
    assert!(place.refused(&["serve", "./model", "--kv-cache=1KiB", "--device=cpu"]).contains("KV cache"));
}
