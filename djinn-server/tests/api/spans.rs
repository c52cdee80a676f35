//! Spans of requests, as a collector gets them.

use super::{Files, Running, chat, completion};
use djinn_server::{Keys, Server, Serving, Telemetry};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const KEY: &str = "a-key-that-is-secret";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

/// A collector that takes everything.
struct Collector {
    address: SocketAddr,
    taken: Receiver<Vec<u8>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, (sender, taken)) = (listener.local_addr().unwrap(), channel());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || take(stream.unwrap(), &sender));
            }
        });
        Collector { address, taken }
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Seen> {
        self.taken.try_iter().flat_map(|body| spans(&body)).collect()
    }
}

/// Takes the batches of a connection.
fn take(stream: TcpStream, sender: &Sender<Vec<u8>>) {
    let (mut writer, mut reader) = (stream.try_clone().unwrap(), BufReader::new(stream));
    loop {
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            length = line.strip_prefix("content-length: ").map_or(length, |length| length.parse().unwrap());
            head.push(line);
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        assert!(head.iter().any(|line| line == "content-type: application/x-protobuf"), "{head:?}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        sender.send(body).unwrap();
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    }
}

/// A field's value in the wire format of Protocol Buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let fixed = |bytes: &mut &[u8], length: usize| {
            let (number, rest) = bytes.split_at(length);
            *bytes = rest;
            number.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(fixed(&mut bytes, 8)),
            5 => Field::Number(fixed(&mut bytes, 4)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(field)
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

/// The messages at a field.
fn messages(bytes: &[u8], at: u64) -> Vec<&[u8]> {
    let is_message = |(number, field)| match field {
        Field::Bytes(bytes) if number == at => Some(bytes),
        _ => None,
    };
    fields(bytes).into_iter().filter_map(is_message).collect()
}

fn number(bytes: &[u8], at: u64) -> u64 {
    let found = fields(bytes).into_iter().find_map(|(number, field)| match field {
        Field::Number(value) if number == at => Some(value),
        _ => None,
    });
    found.unwrap_or(0)
}

fn text(bytes: &[u8], at: u64) -> String {
    messages(bytes, at).first().map_or_else(String::new, |text| String::from_utf8(text.to_vec()).unwrap())
}

/// An attribute's value.
fn value(bytes: &[u8]) -> Value {
    match fields(bytes).into_iter().next() {
        Some((1, Field::Bytes(text))) => String::from_utf8(text.to_vec()).unwrap().into(),
        Some((3, Field::Number(number))) => (number as i64).into(),
        Some((4, Field::Number(bits))) => f64::from_bits(bits).into(),
        Some((5, Field::Bytes(array))) => messages(array, 1).into_iter().map(value).collect(),
        _ => Value::Null,
    }
}

fn attributes(bytes: &[u8], at: u64) -> BTreeMap<String, Value> {
    let attribute = |pair: &[u8]| (text(pair, 1), value(messages(pair, 2)[0]));
    messages(bytes, at).into_iter().map(attribute).collect()
}

/// A span as a collector has it.
#[derive(Debug)]
struct Seen {
    service: Value,
    trace: String,
    parent: String,
    name: String,
    kind: u64,
    takes: u64,
    failed: bool,
    attributes: BTreeMap<String, Value>,
}

impl Seen {
    fn get(&self, name: &str) -> &Value {
        self.attributes.get(name).unwrap_or(&Value::Null)
    }
}

fn spans(batch: &[u8]) -> Vec<Seen> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let id = |span: &[u8], at| messages(span, at).first().map_or_else(String::new, |id| hex(id));
    let mut found = Vec::new();
    for of_resource in messages(batch, 1) {
        let resource = attributes(messages(of_resource, 1)[0], 1);
        let scopes = messages(of_resource, 2);
        found.extend(scopes.iter().flat_map(|scope| messages(scope, 2)).map(|span| Seen {
            service: resource["service.name"].clone(),
            trace: id(span, 1),
            parent: id(span, 4),
            name: text(span, 5),
            kind: number(span, 6),
            takes: number(span, 8) - number(span, 7),
            failed: messages(span, 15).first().is_some_and(|status| number(status, 3) == 2),
            attributes: attributes(span, 9),
        }));
    }
    found
}

fn start(collector: SocketAddr) -> Running {
    let files = Arc::new(Files::new());
    let model = files.load(&Serving { sequences: 2, ..Serving::default() });
    let telemetry = Telemetry::to(&format!("http://{collector}/v1/traces")).unwrap();
    let server = Server::new().named(["tiny", "other"], model).keys(Keys::new([KEY]).unwrap());
    Running::start(&files, server.telemetry(telemetry))
}

/// Ends a server: all of its spans have come then.
fn end(server: Running) {
    server.stop.stop();
    server.join();
}

#[test]
fn a_generation_is_a_span_of_its_clients_trace() {
    let collector = Collector::start();
    let server = start(collector.address);
    let target = server.target.with("authorization", &format!("Bearer {KEY}"));
    let asked = target.with("traceparent", &format!("{PARENT}-01")).with("x-session-id", "mine");
    let secret = "a text that nobody else may read";
    let more = json!({ "model": "other", "stream": true, "stream_options": { "include_usage": true } });
    let reply = asked.with("x-request-id", "id-1").post("/v1/chat/completions", &chat(secret, more));
    let usage = reply.chunks().pop().unwrap()["usage"].clone();
    target.ok("/v1/completions", &completion("Hi", json!({ "n": 2, "max_tokens": 3 })));
    end(server);
    let batches: Vec<Vec<u8>> = collector.taken.try_iter().collect();
    for hidden in [secret, KEY] {
        let found =
            batches.iter().any(|batch| batch.windows(hidden.len()).any(|part| part == hidden.as_bytes()));
        assert!(!found, "{hidden:?} is in a span");
    }
    let found: Vec<Seen> = batches.iter().flat_map(|batch| spans(batch)).collect();
    let [chat, text] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(
        (chat.name.as_str(), chat.kind, &chat.service),
        ("POST /v1/chat/completions", 2, &json!("djinn"))
    );
    assert_eq!((chat.trace.as_str(), chat.parent.as_str()), (&PARENT[3..35], &PARENT[36..]));
    for (name, expected) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!(200)),
        ("http.response.header.x-request-id", json!(["id-1"])),
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("djinn")),
        ("gen_ai.request.model", json!("other")),
        ("gen_ai.response.model", json!("tiny")),
        ("gen_ai.conversation.id", json!("mine")),
        ("gen_ai.request.max_tokens", json!(12)),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", usage["completion_tokens"].clone()),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
    ] {
        assert_eq!(chat.get(name), &expected, "{name}");
    }
    let first = chat.get("gen_ai.response.time_to_first_chunk").as_f64().unwrap();
    assert!(first > 0.0 && first * 1e9 <= chat.takes as f64, "{first} s of {} ns", chat.takes);
    assert!(!chat.failed && !chat.attributes.contains_key("error.type"));
    assert!(text.parent.is_empty() && text.trace != chat.trace, "a trace of its own: {text:?}");
    assert_eq!(text.get("gen_ai.operation.name"), "text_completion");
    assert_eq!(
        (text.get("gen_ai.usage.output_tokens"), text.get("gen_ai.request.choice.count")),
        (&json!(6), &json!(2))
    );
}

#[test]
fn requests_that_generate_nothing_have_short_spans_or_none() {
    let collector = Collector::start();
    let server = start(collector.address);
    let target = server.target.with("authorization", &format!("Bearer {KEY}"));
    assert_eq!(target.get("/ready").status, 200);
    assert_eq!(target.get("/metrics").status, 200);
    let unsampled = target.with("traceparent", &format!("{PARENT}-00"));
    assert_eq!(unsampled.get("/v1/models").status, 200);
    let long = format!("/none/{}", "x".repeat(2000));
    assert_eq!(target.with("traceparent", "00-nonsense").get(&long).status, 404);
    assert_eq!(server.target.get("/v1/sessions/mine").status, 401);
    end(server);
    let found = collector.spans();
    let [unknown, unasked] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((unknown.name.as_str(), unknown.get("http.response.status_code")), ("GET", &json!(404)));
    assert_eq!(unknown.get("url.path").as_str().map(str::len), Some(256));
    assert!(unknown.parent.is_empty() && !unknown.failed);
    assert_eq!(
        (unasked.name.as_str(), unasked.get("http.response.status_code")),
        ("GET /v1/sessions/{id}", &json!(401))
    );
    assert!(!unasked.attributes.keys().any(|name| name.starts_with("gen_ai.")), "{unasked:?}");
}

/// One that is not there, and one that never answers.
#[test]
fn a_collector_that_takes_nothing_holds_nothing_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for collector in [silent.local_addr().unwrap(), gone] {
        let server = start(collector);
        let target = server.target.with("authorization", &format!("Bearer {KEY}"));
        for _ in 0..3 {
            target.ok("/v1/completions", &completion("Hi", json!({})));
        }
        end(server);
    }
}

#[test]
fn an_endpoint_that_cannot_be_reached_by_http_is_refused() {
    for wrong in ["https://localhost:4318/v1/traces", "localhost:4318", "", "http://a b/"] {
        let error = Telemetry::to(wrong).unwrap_err().to_string();
        assert!(error.starts_with("spans cannot be sent: ") && !error.contains('\n'), "{wrong}: {error}");
    }
}
