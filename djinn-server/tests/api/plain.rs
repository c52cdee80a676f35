//! Requests that are answered in one piece.

use super::sessions::until;
use super::{Files, Running, chat, completion, shared};
use djinn_host::{DeviceName, Setup, one_line};
use djinn_server::{ServedModel, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Answers are numbered prompt by prompt, and are those of each prompt alone.
#[test]
fn several_prompts_are_answered_in_one_request() {
    let prompts = ["The sky", "A much longer text, which", "x"];
    let ids: Vec<Vec<u8>> = prompts.iter().map(|prompt| prompt.bytes().collect()).collect();
    let more = json!({ "n": 2, "temperature": 1, "seed": 5, "max_tokens": 8, "echo": true });
    let alone: Vec<Value> = prompts
        .iter()
        .flat_map(|prompt| {
            let answer = shared().ok(TEXT, &completion(*prompt, more.clone()));
            answer["choices"].as_array().unwrap().clone()
        })
        .collect();
    let texts = |choices: &[Value]| choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>();
    for given in [json!(prompts), json!(ids)] {
        let together = shared().ok(TEXT, &completion(given.clone(), more.clone()));
        let choices = together["choices"].as_array().unwrap();
        assert_eq!(texts(choices), texts(&alone));
        assert!((0..6).eq(choices.iter().map(|choice| choice["index"].as_u64().unwrap())));
        let count: usize = prompts.iter().map(|prompt| prompt.len()).sum();
        assert_eq!(together["usage"]["prompt_tokens"], count);
        assert_eq!(together["usage"]["completion_tokens"], 6 * 8);
        let mut streamed = vec![String::new(); 6];
        let mut stream = more.clone();
        stream["stream"] = json!(true);
        for chunk in shared().post(TEXT, &completion(given, stream)).chunks() {
            let choice = &chunk["choices"][0];
            streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        }
        assert_eq!(json!(streamed), json!(texts(&alone)));
    }
    for (prompt, param) in [
        (json!(["a", ""]), "prompt"),
        (json!(["a", 5]), "prompt"),
        (json!(["a", [999]]), "prompt"),
        (json!(vec!["a"; 65]), "prompt"),
    ] {
        shared().refused(TEXT, &completion(prompt, json!({})), param);
    }
    shared().refused(TEXT, &completion(json!(vec!["a"; 64]), json!({ "n": 3 })), "n");
}

#[test]
fn models_are_listed_by_name() {
    let list = shared().get("/v1/models").json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["tiny", "alias/of-it"]);
    assert_eq!(list["object"], "list");
    let model = shared().get("/v1/models/tiny").json();
    assert_eq!((&model["object"], &model["max_model_len"]), (&json!("model"), &json!(512)));
    assert!(model["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(shared().get("/v1/models/alias/of-it").json()["id"], "alias/of-it");
    for name in ["none", "tiny/", "..%2f..%2fetc%2fpasswd"] {
        let reply = shared().get(&format!("/v1/models/{name}"));
        assert_eq!((reply.status, &reply.error()["code"]), (404, &json!("model_not_found")));
    }
}

#[test]
fn clients_may_leave_the_version_out_of_the_path() {
    let same = |path: &str, body: Value, at: &str| {
        let short = shared().ok(path.strip_prefix("/v1").unwrap(), &body);
        assert_eq!(short.pointer(at), shared().ok(path, &body).pointer(at));
        assert!(short.pointer(at).is_some());
    };
    same(CHAT, chat("Hi", json!({})), "/choices/0/message/content");
    same(TEXT, completion("Hi", json!({})), "/choices/0/text");
    assert_eq!(shared().get("/models").json(), shared().get("/v1/models").json());
    assert_eq!((shared().get("/chat").status, shared().get("/v1/chat/completions").status), (404, 405));
}

#[test]
fn a_chat_is_answered() {
    let answer = shared().ok(CHAT, &chat("Hi", json!({})));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["system_fingerprint"], concat!("b", env!("CARGO_PKG_VERSION")));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("tiny")));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!(text.len(), 12, "one byte for each token");
    let prompt = "[user:Hi]>".len();
    let usage = json!({
        "prompt_tokens": prompt, "completion_tokens": 12, "total_tokens": prompt + 12,
        "prompt_tokens_details": { "cached_tokens": 0 },
    });
    assert_eq!(answer["usage"], usage);
    // The same prompt as text and as tokens has the same answer.
    let bytes: Vec<u8> = "[user:Hi]>".bytes().collect();
    for prompt in [json!("[user:Hi]>"), json!(bytes), json!(["[user:Hi]>"]), json!([bytes])] {
        let answer = shared().ok(TEXT, &completion(prompt, json!({})));
        assert_eq!(answer["choices"][0]["text"], text);
        assert_eq!(answer["object"], "text_completion");
    }
}

#[test]
fn messages_come_in_every_form() {
    let same = |messages: Value, prompt: &str| {
        let body = json!({ "model": "tiny", "messages": messages });
        let tokens = shared().ok("/tokenize", &body)["tokens"].clone();
        let text: String =
            tokens.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u8 as char).collect();
        assert_eq!(text, prompt);
    };
    same(json!([{ "role": "developer", "content": "Be." }]), "[system:Be.]>");
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    same(json!([{ "role": "user", "content": parts }]), "[user:ab]>");
    same(
        json!([{ "role": "user", "content": "a", "name": "x" }, { "role": "assistant", "content": null }]),
        "[user:a][assistant:]>",
    );
    for (messages, param) in [
        (json!("text"), "messages"),
        (json!([]), "messages"),
        (json!(["text"]), "messages[0]"),
        (json!([{ "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "king", "content": "x" }]), "messages[0].role"),
        (json!([{ "role": "user", "content": "x" }, { "role": "user" }]), "messages[1].content"),
        (json!([{ "role": "user", "content": 5 }]), "messages[0].content"),
        (
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            "messages[0].content",
        ),
    ] {
        shared().refused(CHAT, &json!({ "model": "tiny", "messages": messages }), param);
    }
}

#[test]
fn answers_differ_by_seed_and_are_the_same_again() {
    let ask = |seed: u64| {
        let body = chat("Hi", json!({ "temperature": 1.5, "n": 3, "seed": seed, "max_tokens": 24 }));
        let answer = shared().ok(CHAT, &body);
        let choices = answer["choices"].as_array().unwrap().clone();
        let index = |at: usize| choices[at]["index"].as_u64().unwrap() as usize;
        assert!((0..3).all(|at| index(at) == at));
        assert_eq!(answer["usage"]["completion_tokens"], 72);
        choices
            .iter()
            .map(|choice| choice["message"]["content"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = ask(7);
    assert_eq!(first, ask(7));
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert_eq!(ask(8)[0], first[1], "each answer has the next seed");
    assert_eq!(ask(u64::MAX)[1], ask(0)[0], "all numbers of 64 bits are seeds");
}

#[test]
fn stop_strings_cut_the_text_and_are_no_part_of_it() {
    let whole = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 30 })));
    let whole = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop = &whole[10..13];
    let at = whole.find(stop).unwrap();
    for stops in [json!(stop), json!(["never to be met", stop])] {
        let answer = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 30, "stop": stops })));
        let choice = &answer["choices"][0];
        assert_eq!(
            (choice["text"].as_str().unwrap(), &choice["finish_reason"]),
            (&whole[..at], &json!("stop"))
        );
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 13);
    }
    // What may begin a stop string is sent once it turns out not to.
    let almost = format!("{}\u{1}", &whole[whole.len() - 2..]);
    let answer = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 30, "stop": almost })));
    assert_eq!(answer["choices"][0]["text"], whole);
    let token = u64::from(whole.as_bytes()[4]);
    let first = whole.bytes().position(|byte| u64::from(byte) == token).unwrap();
    let answer = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 30, "stop_token_ids": [token] })));
    assert_eq!(answer["choices"][0]["text"], whole[..first]);
    for stop in [json!(""), json!(5), json!(["a", "b", "c", "d", "e"]), json!([1]), json!("x".repeat(1025))] {
        shared().refused(TEXT, &completion("Hi", json!({ "stop": stop })), "stop");
    }
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let body = chat("Hi", json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 4 }));
    let answer = shared().ok(CHAT, &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 4);
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, answer["choices"][0]["message"]["content"]);
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &token["token"]), "greedy decoding takes the best");
        let logprobs: Vec<f64> = top.iter().map(|token| token["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0);
        assert_eq!(token["bytes"], json!(token["token"].as_str().unwrap().as_bytes()));
    }
    let answer = shared().ok(TEXT, &completion("Hi", json!({ "logprobs": 2, "max_tokens": 3 })));
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    // A token that is not among the best is told with them.
    for (asked, told) in [(0, 1), (1, 2)] {
        let more = json!({ "logprobs": asked, "max_tokens": 1, "logit_bias": { "65": 100 } });
        let logprobs = shared().ok(TEXT, &completion("Hi", more))["choices"][0]["logprobs"].clone();
        let top = logprobs["top_logprobs"][0].as_object().unwrap();
        assert_eq!((top.len(), &top["A"]), (told, &logprobs["token_logprobs"][0]), "{logprobs}");
    }
    shared().refused(CHAT, &chat("Hi", json!({ "top_logprobs": 3 })), "top_logprobs");
    shared().refused(TEXT, &completion("Hi", json!({ "logprobs": 1, "echo": true })), "logprobs");
}

/// Of a character in several tokens, each token tells its own bytes, and the text grows with the last.
#[test]
fn log_probabilities_of_a_split_character_have_its_bytes() {
    let files = Arc::new(Files::new());
    // The tokens below 32 are bytes that are no characters.
    let bytes = |token: usize| "😀".as_bytes().get(token).copied().unwrap_or(0xc0 + token as u8);
    let spelled = |byte: u8| match byte {
        0x80..=0xa0 => char::from_u32(0x122 + u32::from(byte) - 0x80).unwrap(),
        byte => char::from(byte),
    };
    let path = files.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| id.as_u64().unwrap() >= 32);
    vocab.extend((0..32).map(|token| (spelled(bytes(token)).to_string(), token.into())));
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let model = files.load(&Serving { sequences: 2, ..Serving::default() });
    let running = Running::start(&files, Server::new().named(["tiny"], model));
    // Each token is the likeliest one until it was chosen.
    let more = json!({
        "logit_bias": { "0": 100, "1": 80, "2": 60, "3": 40, "65": 20 }, "repetition_penalty": 10,
        "max_tokens": 5, "logprobs": 20,
    });
    let choice = running.target.ok(TEXT, &completion("Hi", more.clone()))["choices"][0].clone();
    assert_eq!(choice["text"], "😀A");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "A"]));
    assert_eq!(logprobs["text_offset"], json!([0, 0, 0, 0, 1]));
    for top in logprobs["top_logprobs"].as_array().unwrap() {
        assert!([20, 21].contains(&top.as_object().unwrap().len()), "{top}");
    }
    let mut more = more;
    (more["logprobs"], more["top_logprobs"]) = (json!(true), json!(20));
    let choice = running.target.ok(CHAT, &chat("Hi", more))["choices"][0].clone();
    assert_eq!(choice["message"]["content"], "😀A");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let told = |token: &Value| serde_json::from_value::<Vec<u8>>(token["bytes"].clone()).unwrap();
    assert_eq!(tokens.iter().flat_map(told).collect::<Vec<_>>(), "😀A".as_bytes());
    let top = tokens[0]["top_logprobs"].as_array().unwrap();
    let partial: Vec<&Value> = top.iter().filter(|token| token["token"] == "\u{fffd}").collect();
    assert!(!partial.is_empty() && partial.iter().all(|token| told(token).len() == 1), "{top:?}");
}

#[test]
fn biases_and_penalties_change_the_text() {
    let text = |more: Value| {
        let answer = shared().ok(TEXT, &completion("Hi", more));
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = text(json!({ "max_tokens": 24 }));
    assert_eq!(text(json!({ "max_tokens": 8, "logit_bias": { "65": 100 } })), "AAAAAAAA");
    let varied = text(json!({ "max_tokens": 24, "frequency_penalty": 2.0, "presence_penalty": 2.0 }));
    let letters = |text: &str| text.bytes().collect::<std::collections::BTreeSet<u8>>().len();
    assert!(letters(&varied) > letters(&plain), "{plain:?} {varied:?}");
    let penalised = text(json!({ "max_tokens": 24, "repetition_penalty": 2 }));
    assert_ne!(penalised, plain);
    assert_eq!(text(json!({ "max_tokens": 24, "repeat_penalty": 2 })), penalised);
    let both = json!({ "max_tokens": 24, "repetition_penalty": 2, "repeat_penalty": 1 });
    assert_eq!(text(both), penalised);
    shared().refused(TEXT, &completion("Hi", json!({ "logit_bias": { "128": 1 } })), "logit_bias");
    shared().refused(TEXT, &completion("Hi", json!({ "logit_bias": { "x": 1 } })), "logit_bias");
    shared().refused(TEXT, &completion("Hi", json!({ "logit_bias": [1] })), "logit_bias");
}

/// Ranges in words, and no names of Rust's types.
#[test]
fn what_a_field_takes_is_told_in_words() {
    for (more, param, words) in [
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", "give a number above 0 and at most 10"),
        (json!({ "temperature": 3 }), "temperature", "give 0 to 2"),
        (json!({ "temperature": "warm" }), "temperature", "expected a number"),
        (json!({ "max_tokens": 0 }), "max_tokens", "give 1 or more"),
        (json!({ "max_tokens": 1.5 }), "max_tokens", "expected a whole number from 0"),
        (json!({ "seed": "x" }), "seed", "expected a whole number"),
        (json!({ "seed": 1.5 }), "seed", "expected a whole number"),
        (json!({ "stop_token_ids": 5 }), "stop_token_ids", "expected a list"),
        (
            json!({ "stop_token_ids": [5, -1] }),
            "stop_token_ids",
            "expected a whole number from 0 to 4294967295",
        ),
        (json!({ "stop_token_ids": [99_999] }), "stop_token_ids", "the vocabulary of 128"),
        (json!({ "logit_bias": { "5": 101 } }), "logit_bias", "between -100 and 100"),
        (json!({ "logit_bias": [] }), "logit_bias", "expected an object"),
    ] {
        for (path, body) in [(TEXT, completion("Hi", more.clone())), (CHAT, chat("Hi", more.clone()))] {
            let message = shared().refused(path, &body, param)["message"].as_str().unwrap().to_owned();
            assert!(message.ends_with(words) || message.contains(words), "{more}: {message}");
            assert!(!["f32", "u64", "u32", "i64"].iter().any(|name| message.contains(name)), "{message}");
        }
    }
    for (more, param, words) in [
        (json!({ "temperature": -1 }), "temperature", "give 0 or more"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", "give a number above 0"),
    ] {
        let mut body = json!({ "model": "tiny", "prompt": "Hi" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = shared().refused("/v1/generate", &body, param);
        assert!(error["message"].as_str().unwrap().ends_with(words), "{error}");
    }
}

/// They would change the answer elsewhere. Values that change nothing are taken.
#[test]
fn fields_of_other_servers_that_change_answers_are_refused() {
    let both = |name: &str, value: Value| {
        let more = json!({ name: value });
        [(TEXT, completion("Hi", more.clone())), (CHAT, chat("Hi", more))]
    };
    for (name, value, neutral) in [
        ("allowed_token_ids", json!([65]), json!([])),
        ("bad_words", json!(["x"]), json!([])),
        ("use_beam_search", json!(true), json!(false)),
        ("length_penalty", json!(0.5), json!(1.0)),
        ("truncate_prompt_tokens", json!(1), json!(null)),
        ("include_stop_str_in_output", json!(true), json!(false)),
        ("mirostat", json!(2), json!(0)),
        ("typical_p", json!(0.5), json!(1)),
        ("typical_p", json!(0), json!(1.0)),
        ("prompt_logprobs", json!(1), json!(null)),
    ] {
        for (path, body) in both(name, value) {
            assert_eq!(shared().refused(path, &body, name)["code"], "unsupported_parameter");
        }
        for (path, body) in both(name, neutral) {
            shared().ok(path, &body);
        }
    }
    let body = chat("Hi", json!({ "return_token_ids": true }));
    shared().refused(CHAT, &body, "return_token_ids");
}

/// A model without a tokenizer answers with ids alone.
#[test]
fn an_answer_has_the_ids_of_its_tokens() {
    let files = Arc::new(Files::new());
    std::fs::remove_file(files.path().join("tokenizer.json")).unwrap();
    let mute = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    let more = json!({ "return_token_ids": true, "n": 2, "temperature": 1, "seed": 3 });
    let body = completion(json!([72, 105]), more);
    let spoken = shared().ok(TEXT, &body)["choices"].clone();
    let silent = mute.target.ok(TEXT, &body)["choices"].clone();
    for (at, (spoken, silent)) in
        spoken.as_array().unwrap().iter().zip(silent.as_array().unwrap()).enumerate()
    {
        // A token is a byte.
        assert_eq!(spoken["token_ids"], json!(spoken["text"].as_str().unwrap().as_bytes()));
        assert_eq!((&silent["token_ids"], &silent["text"]), (&spoken["token_ids"], &json!("")));
        for target in [shared(), &mute.target] {
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            let chunks = target.post(TEXT, &streamed).chunks();
            let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == at);
            let own: Vec<&Value> = own.collect();
            assert!(own.len() > 2, "{own:?}");
            let ids = own.iter().flat_map(|choice| choice["token_ids"].as_array().unwrap());
            assert_eq!(json!(ids.collect::<Vec<_>>()), spoken["token_ids"]);
        }
    }
    let plain = shared().ok(TEXT, &completion("Hi", json!({})));
    assert!(plain["choices"][0].get("token_ids").is_none());
}

/// The maximum of tokens is no demand: an answer ends where the context is full.
#[test]
fn an_answer_may_have_as_many_tokens_as_the_context_has_room_for() {
    let answer = shared().ok(TEXT, &completion("Hi", json!({ "max_tokens": 100_000 })));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Nothing is computed after the last token.
    assert_eq!(answer["usage"]["total_tokens"], 512 + 1);
    let error = shared().refused(TEXT, &completion("x".repeat(513), json!({ "max_tokens": 1 })), "prompt");
    assert_eq!(error["code"], "context_length_exceeded");
}

#[test]
fn a_context_is_rounded_up_to_whole_pages() {
    let files = Arc::new(Files::new());
    for (asked, has) in [(1, 16), (15, 16), (40, 48)] {
        let setup =
            Setup { device: DeviceName::Cpu, threads: Some(1), context: Some(asked), ..Setup::default() };
        let model = ServedModel::open(files.path().to_str().unwrap(), &setup, &Serving::default()).unwrap();
        assert_eq!(model.context(), has);
        let running = Running::start(&files, Server::new().model("tiny", model));
        let answer = running.target.ok(TEXT, &completion("Hi", json!({ "max_tokens": 100 })));
        assert_eq!(answer["usage"]["total_tokens"], has + 1, "{asked}");
    }
    let setup = Setup { device: DeviceName::Cpu, context: Some(513), ..Setup::default() };
    let error = ServedModel::open(files.path().to_str().unwrap(), &setup, &Serving::default()).unwrap_err();
    assert!(error.to_string().contains("513"), "{error}");
}

/// The command line names its flags in the errors of libraries, which it knows by their types.
#[test]
fn what_a_server_passes_on_can_be_told_in_flags() {
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), vram: Some(1), ..Setup::default() };
    let error = ServedModel::open("synthetic:tiny", &setup, &Serving::default()).unwrap_err();
    let line = one_line(error.unwrapped());
    assert!(line.contains("--vram") && !line.contains("`vram`"), "{line}");
}

#[test]
fn a_prompt_is_echoed() {
    let plain = shared().ok(TEXT, &completion("Hi", json!({})));
    let echoed = shared().ok(TEXT, &completion("Hi", json!({ "echo": true })));
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(&echoed), format!("Hi{}", text(&plain)));
    let stream = shared().post(TEXT, &completion("Hi", json!({ "echo": true, "stream": true }))).chunks();
    assert_eq!(stream.iter().map(text).collect::<String>(), text(&echoed));
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let reply = shared().ok("/tokenize", &json!({ "prompt": "Hello", "return_token_strs": true }));
    assert_eq!(reply["tokens"], json!([72, 101, 108, 108, 111]));
    assert_eq!((&reply["count"], &reply["max_model_len"]), (&json!(5), &json!(512)));
    assert_eq!(reply["token_strs"][0], "H");
    let pieces = shared().ok("/tokenize", &json!({ "content": "Hi", "with_pieces": true }));
    assert_eq!(pieces["tokens"], json!([{ "id": 72, "piece": "H" }, { "id": 105, "piece": "i" }]));
    let text = shared().ok("/detokenize", &json!({ "tokens": [72, 105] }));
    assert_eq!((&text["prompt"], &text["content"]), (&json!("Hi"), &json!("Hi")));
    shared().refused("/detokenize", &json!({ "tokens": [128] }), "tokens");
    shared().refused("/detokenize", &json!({ "tokens": [-1] }), "tokens");
    shared().refused("/detokenize", &json!({}), "tokens");
    shared().refused("/tokenize", &json!({}), "prompt");
}

#[test]
fn the_server_tells_how_it_is() {
    assert_eq!(shared().get("/health").json()["status"], "ok");
    assert_eq!(shared().get("/ready").json()["ready"], true);
    assert_eq!(shared().get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
    shared().ok(TEXT, &completion("metrics", json!({})));
    let page = shared().get("/metrics");
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in page.body.lines() {
        let is_sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            name.starts_with("djinn_") && value.parse::<f64>().is_ok()
        };
        assert!(
            line.starts_with("# HELP djinn_") || line.starts_with("# TYPE djinn_") || is_sample(line),
            "{line}"
        );
    }
    assert!(shared().metric("djinn_generation_tokens_total{model_name=\"tiny\"}") >= 12.0);
    assert_eq!(shared().metric("djinn_model_up{model_name=\"tiny\"}"), 1.0);
    let buckets =
        page.body.lines().filter(|line| line.starts_with("djinn_time_to_first_token_seconds_bucket"));
    let counts: Vec<f64> = buckets.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert!(counts.is_sorted() && *counts.last().unwrap() >= 1.0);
}

#[test]
fn the_way_of_events_to_the_socket_is_counted() {
    let files = Arc::new(Files::new());
    let server = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    server.target.ok(TEXT, &completion("metrics", json!({})));
    assert_eq!(
        server.target.metric("djinn_http_write_seconds_count"),
        0.0,
        "answers as a whole are no events"
    );
    let chunks = server.target.post(TEXT, &completion("metrics", json!({ "stream": true }))).chunks();
    // A write is counted after it, so that the client may have read it before.
    let page =
        until(|| server.target.get("/metrics"), |page| page.sample("djinn_http_write_seconds_count") > 0.0);
    let written = page.sample("djinn_http_write_seconds_count");
    assert!(written <= chunks.len() as f64, "{written} writes of {} events", chunks.len());
    assert_eq!(page.sample("djinn_http_write_seconds_bucket{le=\"+Inf\"}"), written);
}
