//! Addresses of servers, and servers that misbehave.

use super::*;
use djinn_models::stored::{ContentHash, ContentPiece, LocalModel, ManifestFile, ModelManifest, PiecePlace};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

/// A server that answers each connection by `answer`, which gets the request's first line and body. What it returns
/// can be received.
fn serve<T: Send + 'static>(
    answer: impl Fn(&str, BufReader<TcpStream>) -> T + Clone + Send + 'static,
) -> (Remote, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tells, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer, tells) =
                (BufReader::new(stream.unwrap()), answer.clone(), tells.clone());
            std::thread::spawn(move || {
                let mut lines = Vec::new();
                while lines.last().is_none_or(|line: &String| line.trim() != "") {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    lines.push(line);
                }
                let _ = tells.send(answer(&lines[0], stream));
            });
        }
    });
    (Remote::new(&url, None, None).unwrap(), told)
}

fn respond(stream: &mut BufReader<TcpStream>, status: &str, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.get_mut().write_all(text.as_bytes()).unwrap();
}

#[test]
fn an_answer_that_nobody_wants_ends_while_only_comments_come() {
    let (remote, closed) = serve(|_, mut stream| {
        let stream = stream.get_mut();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").unwrap();
        // Until the connection is closed, or for longer than anyone listens.
        (0..5000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            stream.write_all(b":\n\n").is_err()
        })
    });
    let answer = remote.generate(&serde_json::json!({}), &mut |_| ControlFlow::Break(())).unwrap();
    assert!(answer.is_cancelled());
    assert!(closed.recv().unwrap(), "the server computes on");
}

#[test]
fn a_piece_that_fails_ends_the_others() {
    const BYTES: u64 = 1 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    let pieces = [(ContentHash::of(b"refused"), 1), (ContentHash::of(b"slow"), BYTES)];
    let file = pieces.map(|(hash, bytes)| ContentPiece { hash, bytes, tensor: None });
    let file = ManifestFile { path: "m.gguf".to_owned(), pieces: file.to_vec() };
    let place = |bytes| PiecePlace { path: path.clone(), range: 0..bytes };
    let model = LocalModel {
        manifest: ModelManifest { files: vec![file] },
        places: pieces.into_iter().map(|(hash, bytes)| (hash, place(bytes))).collect(),
    };
    let refused = pieces[0].0.to_string();
    let lacking = pieces.map(|(hash, bytes)| serde_json::json!({"hash": hash, "bytes": bytes, "have": 0}));
    let told = serde_json::json!({
        "id": ContentHash::of(b"id"), "bytes": 1 + BYTES, "committed": false, "lacking": lacking,
    });
    let (remote, received) = serve(move |line, mut stream| {
        if line.starts_with("POST") {
            respond(&mut stream, "200 OK", &told.to_string());
        } else if line.contains(&refused) {
            respond(&mut stream, "403 Forbidden", "{}");
        }
        let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            bytes += read as u64;
            std::thread::sleep(Duration::from_millis(1));
        }
        bytes
    });
    let error = remote.push(&model, "m", 2, &|_, _| ()).unwrap_err();
    assert!(crate::one_line(&error).contains("status 403"), "{error:?}");
    let all: Vec<u64> = received.iter().take(3).collect();
    assert!(all.iter().all(|&bytes| bytes < BYTES), "{all:?}");
}

/// A model of one file without pieces.
fn model_of(file: &str) -> LocalModel {
    let file = ManifestFile { path: file.to_owned(), pieces: Vec::new() };
    LocalModel { manifest: ModelManifest { files: vec![file] }, places: std::collections::HashMap::new() }
}

/// A store of models by name, each with its manifest; `breaks`: whether it fails to make one called `mine`.
#[derive(Default)]
struct Store {
    models: BTreeMap<String, Value>,
    registered: Value,
    breaks: bool,
}

impl Store {
    fn answer(&mut self, line: &str, body: impl Read) -> (&'static str, Value) {
        let (method, path) = line.split_once(' ').unwrap();
        let path = path.split_once(' ').unwrap().0;
        match (method, path.strip_prefix("/v1/models/")) {
            ("DELETE", Some(name)) => match self.models.remove(name) {
                Some(_) => ("200 OK", json!({})),
                None => ("404 Not Found", json!({})),
            },
            ("GET", _) => {
                let names = self.models.keys().map(|name| json!({ "name": name }));
                ("200 OK", json!({ "models": names.collect::<Vec<_>>() }))
            }
            _ if path.ends_with("/commit") => {
                let name = self.registered["name"].as_str().unwrap().to_owned();
                if self.breaks && name == "mine" {
                    return ("500 Internal Server Error", json!({}));
                }
                self.models.insert(name, self.registered.clone());
                ("201 Created", json!({}))
            }
            _ => {
                let manifest = serde_json::Deserializer::from_reader(body).into_iter().next();
                self.registered = manifest.unwrap().unwrap();
                let there = self.models.get(self.registered["name"].as_str().unwrap());
                if there.is_some_and(|there| *there != self.registered) {
                    return (
                        "409 Conflict",
                        json!({ "error": { "code": "model_exists", "message": "taken" } }),
                    );
                }
                let committed = there.is_some();
                let id = ContentHash::of(b"id");
                ("200 OK", json!({ "id": id, "bytes": 0, "committed": committed, "lacking": [] }))
            }
        }
    }
}

#[test]
fn a_replacement_that_breaks_off_goes_on_and_touches_no_other_model() {
    let store = Arc::new(Mutex::new(Store::default()));
    let stored = Arc::clone(&store);
    let (remote, _answered) = serve(move |line, mut stream| {
        let (status, body) = stored.lock().unwrap().answer(line, &mut stream);
        respond(&mut stream, status, &body.to_string());
    });
    let names = || store.lock().unwrap().models.keys().cloned().collect::<Vec<_>>();
    let progress = |_, _| ();
    for name in ["mine", "mine.next"] {
        remote.push(&model_of("old"), name, 1, &progress).unwrap();
    }
    store.lock().unwrap().breaks = true;
    let error = remote.replace(&model_of("new"), "mine", 1, &progress).unwrap_err();
    let line = crate::one_line(&error);
    assert!(line.contains("run the same command again") && line.contains("status 500"), "{line}");
    let left = names();
    let [users, next] = &left[..] else { panic!("{left:?}") };
    assert!(
        users == "mine.next" && next.starts_with("mine.next-") && line.contains(next),
        "{left:?}: {line}"
    );
    store.lock().unwrap().breaks = false;
    // Twice: then there is nothing to replace.
    for _ in 0..2 {
        remote.replace(&model_of("new"), "mine", 1, &progress).unwrap();
        assert_eq!(names(), ["mine", "mine.next"]);
        assert_eq!(store.lock().unwrap().models["mine"]["files"][0]["path"], "new");
    }
    // The longest name that a store takes.
    assert_eq!(push::next_name(&model_of("new"), &"x".repeat(128)).len(), 128);
}

#[test]
fn a_key_that_no_header_holds_is_refused_and_none_is_shown() {
    for key in ["se\ncret", "secret\r", "\u{7f}"] {
        let error = Remote::new("http://localhost", Some(key), None).unwrap_err();
        let line = crate::one_line(&error);
        assert!(line.contains("key has control characters") && !line.contains("cret"), "{line}");
    }
    let remote = Remote::new("http://localhost", Some("secret"), None).unwrap();
    assert!(!format!("{remote:?}").contains("secret"), "{remote:?}");
}

#[test]
fn addresses_are_checked_before_anything_is_sent() {
    let remote = |url: &str| Remote::new(url, Some("secret"), None);
    for (url, kept) in [
        ("http://127.0.0.1:5556", "http://127.0.0.1:5556"),
        ("http://localhost/v1/", "http://localhost"),
        ("http://[::1]:80/djinn/v1", "http://[::1]:80/djinn"),
        ("http://user:word@example.org:65535", "http://user:word@example.org:65535"),
    ] {
        assert_eq!(remote(url).unwrap().url(), kept);
    }
    for url in [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:65536/v1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:",
        "http://127.0.0.1:-1",
        "http://127.0.0.1:+80",
        "http://127.0.0.1:x",
        "http://[::1]:99999",
        "http://[::1]x",
        "http://user@example.org:99999",
        "http://a b",
        "http://example.org?x=1",
        "http://example.org/#x",
        "http://",
        "http://:80",
        "127.0.0.1:1",
        "example.org",
        "ftp://example.org",
        "/v1",
        "",
    ] {
        let refused = remote(url);
        assert!(matches!(refused, Err(Error::NoAddress { .. })), "{url}: {refused:?}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_so() {
    let error = Remote::new("https://example.org", None, None).unwrap_err();
    let line = crate::one_line(&error);
    assert!(line.starts_with("https://example.org needs TLS, and this build speaks http only; "), "{line}");
    assert!(line.contains("--features hub") && line.ends_with("http://HOST:PORT"), "{line}");
}
