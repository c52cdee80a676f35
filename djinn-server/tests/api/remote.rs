//! Logits beside sessions that run, and what is refused of them.

use super::{completion, shared};
use serde_json::{Value, json};

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
    target.refused("/v1/generate", &json!({ "model": "tiny", "prompt": "x", "stop": [""] }), "stop");
    target.refused("/v1/generate", &json!({ "model": "tiny", "prompt_tokens": [] }), "prompt_tokens");
}

#[test]
fn a_conversation_is_cut_to_the_context_and_only_what_is_new_is_computed() {
    let target = shared();
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let events = |messages: &[Value]| -> Vec<Value> {
        let body = json!({
            "model": "tiny", "messages": messages, "session_id": "of-a-chat", "greedy": true, "ignore_eos": true,
            "max_tokens": 8,
        });
        let reply = target.post("/v1/generate", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let lines = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let mut messages = vec![message("system", "Be."), message("user", "Hi")];
    let first = events(&messages);
    assert_eq!(first[0]["forgotten"], 0);
    let text: String = first.iter().filter_map(|event| event["text"].as_str()).collect();
    messages.extend([message("assistant", &text), message("user", &"x".repeat(200))]);
    let second = events(&messages);
    assert!(second[1]["cached_tokens"].as_u64().unwrap() > 0, "{second:?}");
    messages.extend([message("assistant", "y"), message("user", &"z".repeat(300))]);
    assert_eq!(events(&messages)[0]["forgotten"], 2);
    for wrong in [json!([]), json!([message("assistant", "Hi")]), json!([message("user", &"x".repeat(600))])]
    {
        target.refused("/v1/generate", &json!({ "model": "tiny", "messages": wrong }), "messages");
    }
    let many = vec![message("user", ""); 513];
    target.refused("/v1/generate", &json!({ "model": "tiny", "messages": many }), "messages");
    let both = json!({ "model": "tiny", "messages": [message("user", "Hi")], "prompt": "Hi" });
    target.refused("/v1/generate", &both, "prompt");
}
