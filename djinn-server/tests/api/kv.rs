//! Keys and values of paused sessions over HTTP: read, written back, changed.

use super::breakpoints::{act, ask, path, paused, plain, refused, rows, see, session, text};
use super::client::Target;
use super::{completion, shared};
use djinn_models::TensorFile;
use djinn_models::safetensors::SafetensorsDir;
use djinn_srg::DType;
use serde_json::{Value, json};

const LAST: &str = "blocks.1.hook_out";

/// The second generated token pauses.
fn breakpoint() -> Option<Value> {
    Some(json!({ "hook": LAST, "tokens": "generated", "steps": { "from": 2 } }))
}

fn kv(target: &Target, id: &str, layer: u32, query: &str) -> Value {
    see(target, id, &format!("kv/{layer}{query}"))
}

fn flat(values: &Value) -> Vec<f32> {
    match values {
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        value => vec![value.as_f64().expect("a number") as f32],
    }
}

fn floats(bytes: &[u8], name: &str) -> Vec<f32> {
    let file = SafetensorsDir::from_bytes(bytes.to_vec()).expect("a file of tensors");
    let tensor = file.tensor(name).expect("it has the tensor");
    let count = tensor.shape.iter().product::<u64>();
    let mut bytes = vec![0; count as usize * 4];
    file.read(name, 0..count, DType::F32, &mut bytes).expect("it reads");
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect()
}

#[test]
fn keys_and_values_are_read_written_back_and_changed() {
    let target = shared();
    let prompt = "Keys and values of what was said";
    session(target, "kv", breakpoint());
    let answer = ask(target, "kv", completion(prompt, json!({})));
    let at = paused(target, "kv");
    let end = at["positions"]["from"].as_u64().unwrap();
    let all = kv(target, "kv", 0, "");
    assert_eq!(all["positions"], json!({ "from": 0, "to": end + 1 }), "the paused token's are there as well");
    let some = kv(target, "kv", 0, "?from=2&to=5");
    let shape: Vec<usize> = serde_json::from_value(some["shape"].clone()).unwrap();
    let width = shape[1] * shape[2];
    assert_eq!(shape[0], 3);
    for half in ["keys", "values"] {
        assert_eq!(flat(&some[half]), flat(&all[half])[2 * width..5 * width], "{half}");
    }
    let file = target.get(&path("kv", &format!("kv/0?format=safetensors&to={end}")));
    assert_eq!(floats(&file.bytes, "keys"), flat(&all["keys"])[..end as usize * width]);
    let before = rows(&see(target, "kv", "activations/logits"));
    // The whole file, and one row by row.
    let written = target.send("POST", &path("kv", "kv/0"), &file.bytes);
    assert_eq!((written.status, &written.json()["tokens"]), (200, &json!(end)), "{written:?}");
    act(
        target,
        "kv",
        "kv/0",
        &json!({ "op": "set", "part": "keys", "values": some["keys"], "positions": { "from": 2, "to": 5 } }),
    );
    assert_eq!(rows(&see(target, "kv", "activations/logits")), before, "nothing has changed");
    let forked = act(target, "kv", "fork", &json!({ "id": "kv-other" }));
    let other = forked["id"].as_str().unwrap();
    let scaled = json!({ "op": "scale", "part": "values", "factor": -4, "positions": { "to": 6 } });
    assert_eq!(act(target, other, "kv/1", &scaled)["tokens"], 6);
    let shifted = json!({ "op": "add", "part": "keys", "values": vec![0.25; width] });
    assert_eq!(act(target, other, "kv/0", &shifted)["tokens"], end);
    let changed = kv(target, other, 0, &format!("?to={end}"));
    let want: Vec<f32> = flat(&all["keys"])[..end as usize * width].iter().map(|x| x + 0.25).collect();
    assert!(flat(&changed["keys"]).iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-2));
    let clamped = json!({ "op": "clamp", "part": "values", "high": 0.0, "positions": { "from": 6 } });
    assert_eq!(act(target, other, "kv/0", &clamped)["tokens"], end - 6);
    let mut first = vec![0.0; width];
    first[0] = 2.0;
    let projected = json!({ "op": "project_out", "part": "keys", "values": first, "positions": { "to": 4 } });
    assert_eq!(act(target, other, "kv/0", &projected)["tokens"], 4);
    let changed = kv(target, other, 0, &format!("?to={end}"));
    assert!(flat(&changed["values"])[6 * width..].iter().all(|&x| x <= 0.0));
    let keys = flat(&changed["keys"]);
    assert!((0..4).all(|token| keys[token * width].abs() < 1e-5), "the first number is gone: {keys:?}");
    assert!(keys[4 * width..].iter().zip(&want[4 * width..]).all(|(a, b)| (a - b).abs() < 1e-2));
    assert_ne!(rows(&see(target, other, "activations/logits")), before);
    assert_eq!(rows(&see(target, "kv", "activations/logits")), before, "the parent is as it was");
    act(target, "kv", "resume", &json!({}));
    assert_eq!(text(&answer.join().unwrap()), plain(prompt, &json!({})));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let target = shared();
    session(target, "kv-refuses", breakpoint());
    let layer = path("kv-refuses", "kv/0");
    refused(&target.get(&layer), 409, None, Some("session_without_state"));
    let answer = ask(target, "kv-refuses", completion("Refuse keys", json!({})));
    let end = paused(target, "kv-refuses")["positions"]["from"].as_u64().unwrap();
    let width = flat(&kv(target, "kv-refuses", 0, "?to=1")["keys"]).len();
    for (query, param) in [
        ("kv/99", "layer"),
        ("kv/x", "layer"),
        ("kv/0?to=9999", "to"),
        ("kv/0?from=3&to=3", "to"),
        ("kv/0?from=x", "from"),
        ("kv/0?format=npz", "format"),
    ] {
        refused(&target.get(&path("kv-refuses", query)), 400, Some(param), None);
    }
    for (body, param) in [
        (json!({ "op": "erase", "part": "keys" }), "op"),
        (json!({ "op": "clamp", "part": "keys" }), "low"),
        (json!({ "op": "clamp", "part": "keys", "low": 1, "high": -1 }), "low"),
        (json!({ "op": "clamp", "part": "keys", "low": 1, "factor": 2 }), "factor"),
        (json!({ "op": "project_out", "part": "keys", "values": [1.0] }), "values"),
        (json!({ "op": "project_out", "part": "keys", "values": vec![0.0; width] }), "values"),
        (json!({ "op": "project_out", "part": "keys", "values": vec![1.0; 2 * width] }), "values"),
        (json!({ "op": "scale", "part": "queries", "factor": 2 }), "part"),
        (json!({ "op": "scale", "part": "keys" }), "factor"),
        (json!({ "op": "scale", "part": "keys", "factor": 2, "values": [1] }), "values"),
        (json!({ "op": "set", "part": "keys" }), "values"),
        (json!({ "op": "set", "part": "keys", "values": [1.0] }), "values"),
        (json!({ "op": "set", "part": "keys", "values": [[[1.0]]] }), "values"),
        (json!({ "op": "set", "part": "keys", "values": ["a"] }), "values"),
        (json!({ "op": "scale", "part": "keys", "factor": 2, "positions": { "to": end + 1 } }), "positions"),
        (json!({ "op": "scale", "part": "values", "factor": 3e38 }), "values"),
    ] {
        target.refused(&layer, &body, param);
    }
    let hidden = b"\x20\0\0\0\0\0\0\0{ not a header of safetensors  }";
    refused(&target.send("POST", &layer, hidden), 400, Some("body"), None);
    act(target, "kv-refuses", "resume", &json!({}));
    assert_eq!(text(&answer.join().unwrap()), plain("Refuse keys", &json!({})));
}

#[test]
fn a_pattern_is_read_and_not_written() {
    let target = shared();
    session(target, "pattern", breakpoint());
    let answer = ask(target, "pattern", completion("What do you look at", json!({})));
    let end = paused(target, "pattern")["positions"]["to"].as_u64().unwrap() as usize;
    let name = "activations/blocks.1.attn.hook_pattern";
    let read = see(target, "pattern", name);
    let heads = read["shape"][0].as_u64().unwrap() as usize;
    assert_eq!(read["shape"], json!([heads, 1, end]));
    let weights = flat(&read["values"]);
    for row in weights.chunks_exact(end) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5 && row.iter().all(|&weight| weight >= 0.0));
    }
    let file = target.get(&path("pattern", &format!("{name}?format=safetensors")));
    assert_eq!(floats(&file.bytes, "values"), weights);
    // A query of zeros looks at all keys alike, without positions in the scores.
    let query = json!({ "op": "scale", "factor": 0.0 });
    act(target, "pattern", "activations/blocks.1.attn.hook_q", &query);
    let even = flat(&see(target, "pattern", name)["values"]);
    assert!(even.iter().all(|weight| (weight * end as f32 - 1.0).abs() < 1e-4));
    target.refused(&path("pattern", name), &query, "hook");
    refused(&target.get(&path("pattern", "activations/blocks.9.attn.hook_pattern")), 400, Some("hook"), None);
    let listed = target.get("/v1/models/tiny/hooks").json();
    let point = |point: &&Value| point["name"] == "blocks.1.attn.hook_pattern";
    let point = listed["data"].as_array().unwrap().iter().find(point).expect("it is listed").clone();
    assert_eq!((&point["writable"], &point["shape"]), (&json!(false), &json!([heads, "tokens", "keys"])));
    assert_eq!((&point["paused_only"], &point["computed_on"]), (&json!(true), &json!("host")));
    act(target, "pattern", "resume", &json!({}));
    assert_eq!(answer.join().unwrap().status, 200);
}
