//! Logits beside sessions that run, and what is refused of them.

use super::{completion, shared};
use serde_json::json;

#[test]
fn logits_between_steps_change_no_session() {
    let target = shared();
    let asked = json!({ "model": "tiny", "tokens": [72, 105, 33] });
    let rows = target.ok("/v1/logits", &asked);
    let shape: Vec<usize> =
        rows["logits"].as_array().unwrap().iter().map(|row| row.as_array().unwrap().len()).collect();
    assert_eq!(shape, [128; 3]);
    let long = completion("Once upon a time", json!({ "max_tokens": 60 }));
    let alone = target.ok("/v1/completions", &long)["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| target.ok("/v1/completions", &long)["choices"][0]["text"].clone());
        for _ in 0..4 {
            assert_eq!(target.ok("/v1/logits", &asked), rows);
        }
        assert_eq!(running.join().unwrap(), alone);
    });
}

#[test]
fn what_has_no_logits_is_refused() {
    let target = shared();
    let context = target.get("/v1/models/tiny").json()["max_model_len"].as_u64().unwrap();
    for (tokens, format, param) in [
        (json!([]), json!("json"), "tokens"),
        (json!([128]), json!("json"), "tokens"),
        (json!("Hi"), json!("json"), "tokens"),
        (json!([1]), json!("xml"), "format"),
        (json!(vec![1; context as usize + 1]), json!("json"), "tokens"),
    ] {
        target.refused("/v1/logits", &json!({ "model": "tiny", "tokens": tokens, "format": format }), param);
    }
    target.refused("/v1/generate", &json!({ "model": "tiny" }), "prompt");
    target.refused("/v1/generate", &json!({ "model": "tiny", "prompt": "x", "stop": vec!["y"; 17] }), "stop");
    target.refused("/v1/generate", &json!({ "model": "tiny", "prompt_tokens": [] }), "prompt_tokens");
}
