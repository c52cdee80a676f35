//! Addresses of servers, and servers that misbehave.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};

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
