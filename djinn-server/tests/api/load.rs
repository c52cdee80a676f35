//! Many clients at once.

use super::{Files, Running, completion};
use djinn_server::{Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TEXT: &str = "/v1/completions";
const CLIENTS: usize = 50;

fn body(client: usize) -> Value {
    let prompt = format!("client {client} says {}", "x".repeat(client * 5));
    let more = json!({ "stream": true, "max_tokens": 10 + client / 2, "temperature": 0.8, "seed": client });
    completion(prompt, more)
}

/// Each stream is the one of the same request alone; clients that leave and slow readers change nothing for others, and
/// nothing is left of them.
#[test]
fn streams_side_by_side_are_those_of_requests_alone() {
    let files = Arc::new(Files::new());
    // Four contexts: sessions queue, and give their pages up for others.
    let model = files.load(&Serving { sequences: 8, kv_bytes: Some(4 * 512 * 256), ..Serving::default() });
    let server = Running::start(&files, Server::new().model("tiny", model));
    let text = |chunks: &[Value]| -> String {
        chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect()
    };
    let alone: Vec<String> =
        (0..CLIENTS).map(|at| text(&server.target.post(TEXT, &body(at)).chunks())).collect();
    std::thread::scope(|scope| {
        for (at, alone) in alone.iter().enumerate() {
            let target = &server.target;
            scope.spawn(move || {
                let mut pending = target.begin("POST", TEXT, body(at).to_string().as_bytes());
                match at % 5 {
                    // Leaves.
                    0 => drop((pending.part(), pending)),
                    // Reads slowly.
                    1 => {
                        std::thread::sleep(Duration::from_millis(300));
                        assert_eq!(text(&pending.finish().chunks()), *alone);
                    }
                    _ => assert_eq!(text(&pending.finish().chunks()), *alone, "client {at}"),
                }
            });
        }
    });
    let held = || {
        ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
            .map(|name| server.target.metric(&format!("djinn_{name}{{model_name=\"tiny\"}}")))
    };
    let began = Instant::now();
    while held() != [0.0; 3] {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} is left", held());
        std::thread::sleep(Duration::from_millis(5));
    }
}
