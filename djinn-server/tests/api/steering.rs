//! Hook points over HTTP, and steering: vectors that are kept by name, and lasting edits, of those requests alone that ask
//! for them.

use super::breakpoints::{act, ask as ask_in, path, paused, rows, see, session};
use super::client::{Reply, Target};
use super::{Files, Running, completion, shared};
use djinn_server::{Keys, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

const STEERING: &str = "/v1/steering";
/// Of the model's activations, and its layers.
const WIDTH: usize = 48;
const LAYERS: usize = 2;

fn vector(seed: usize, size: f32) -> Vec<f32> {
    (0..WIDTH).map(|at| ((at * 37 + seed * 11) % 17) as f32 * size - 8.0 * size).collect()
}

/// A file of safetensors with tensors of f32.
fn safetensors(tensors: &[(&str, &[u64], &[f32])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] }),
        );
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// A file of GGUF with tensors of f32, as llama.cpp's control vectors are.
fn gguf(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("controlvector")].concat());
    let mut offset = 0u64;
    for (name, values) in tensors {
        file.extend(text(name));
        file.extend(1u32.to_le_bytes());
        file.extend((values.len() as u64).to_le_bytes());
        file.extend(0u32.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (values.len() as u64 * 4).next_multiple_of(32);
    }
    for (_, values) in tensors {
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file
}

fn keep(target: &Target, body: &Value) -> Value {
    let reply = target.post(STEERING, body);
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()
}

fn values(target: &Target, name: &str) -> Vec<(String, Vec<f32>)> {
    let reply = target.get(&format!("{STEERING}/{name}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    let directions = reply.json()["directions"].as_array().unwrap().clone();
    let values = |one: &Value| serde_json::from_value(one["values"].clone()).unwrap();
    directions.iter().map(|one| (one["hook"].as_str().unwrap().to_owned(), values(one))).collect()
}

fn refused(reply: &Reply, status: u16, param: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.error()["param"], param, "{reply:?}");
}

#[test]
fn hook_points_are_listed_with_their_aliases() {
    for model in ["tiny", "alias/of-it"] {
        let reply = shared().get(&format!("/v1/models/{model}/hooks"));
        assert_eq!(reply.status, 200, "{reply:?}");
        let body = reply.json();
        assert_eq!(body["object"], "list");
        let points = body["data"].as_array().unwrap();
        let known = |name: &str| {
            let is = |point: &&Value| {
                point["name"] == name
                    || point["aliases"].as_array().unwrap().iter().any(|alias| alias == name)
            };
            points.iter().find(is).unwrap_or_else(|| panic!("no {name}")).clone()
        };
        let end = known("blocks.1.hook_resid_post");
        assert_eq!(
            (&end["name"], &end["dtype"], &end["writable"]),
            (&json!("blocks.1.hook_out"), &json!("float32"), &json!(true))
        );
        assert_eq!(end["shape"], json!(["tokens", WIDTH]));
        assert_eq!(known("unembed.hook_out")["shape"], json!(["tokens", 128]));
    }
    let reply = shared().get("/v1/models/none/hooks");
    refused(&reply, 404, "model");
}

#[test]
fn vectors_are_kept_as_they_were_sent_in_each_form() {
    let target = shared();
    let (first, second) = (vector(1, 0.1), vector(2, 0.3));
    let both = vec![
        ("blocks.0.hook_out".to_owned(), first.clone()),
        ("blocks.1.hook_out".to_owned(), second.clone()),
    ];
    keep(target, &json!({ "model": "tiny", "name": "json", "layers": { "1": second, "0": first } }));
    assert_eq!(values(target, "json"), both);
    let body = gguf(&[("direction.1", &second), ("direction.0", &first)]);
    assert_eq!(target.send("POST", "/v1/steering?name=gguf&model=tiny", &body).status, 201);
    assert_eq!(values(target, "gguf"), both);
    // Names of hooks, and their aliases.
    let shape = [1, WIDTH as u64];
    let body = safetensors(&[
        ("blocks.0.hook_out", &shape[1..], &first),
        ("blocks.1.hook_resid_post", &shape, &second),
    ]);
    assert_eq!(target.send("POST", "/v1/steering?name=tensors&model=tiny", &body).status, 201);
    let kept = values(target, "tensors");
    assert_eq!(kept[0], both[0]);
    assert_eq!(kept[1], ("blocks.1.hook_resid_post".to_owned(), second.clone()));
    // The query says where a single tensor is added.
    let body = safetensors(&[("mean", &shape, &first)]);
    assert_eq!(target.send("POST", "/v1/steering?name=one&model=tiny&layer=1", &body).status, 201);
    assert_eq!(values(target, "one"), [("blocks.1.hook_out".to_owned(), first.clone())]);
    // What stood under a name is replaced, and can be forgotten.
    let again = json!({ "model": "tiny", "name": "one", "hook": "blocks.0.mlp.hook_out", "vector": second });
    assert_eq!(target.post(STEERING, &again).status, 200);
    assert_eq!(values(target, "one"), [("blocks.0.mlp.hook_out".to_owned(), second)]);
    let list = target.get(STEERING).json();
    assert!(
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "one" && one["directions"][0]["width"] == WIDTH)
    );
    assert_eq!(target.send("DELETE", "/v1/steering/one", b"").status, 200);
    refused(&target.get("/v1/steering/one"), 404, "name");
    refused(&target.send("DELETE", "/v1/steering/one", b""), 404, "name");
}

#[test]
fn what_is_no_vector_of_the_model_is_refused_by_name() {
    let target = shared();
    let right = vector(1, 1.0);
    for (body, param) in [
        (json!({ "name": "bad" }), "vector"),
        (json!({ "name": "bad", "vector": right }), "hook"),
        (json!({ "vector": right, "layer": 0 }), "name"),
        (json!({ "name": "a b", "vector": right, "layer": 0 }), "name"),
        (json!({ "name": "bad", "vector": right, "layer": LAYERS }), "layer"),
        (json!({ "name": "bad", "vector": right, "layer": 0, "hook": "blocks.0.hook_out" }), "layer"),
        (json!({ "name": "bad", "vector": right, "hook": "blocks.0.hook_outt" }), "hook"),
        (json!({ "name": "bad", "vector": &right[1..], "layer": 0 }), "vector"),
        (json!({ "name": "bad", "vector": [], "layer": 0 }), "vector"),
        (json!({ "name": "bad", "vector": vec![1e39; WIDTH], "layer": 0 }), "vector"),
        (json!({ "name": "bad", "vector": vec!["1"; WIDTH], "layer": 0 }), "vector"),
        (json!({ "name": "bad", "layers": {} }), "layers"),
        (json!({ "name": "bad", "layers": { "x": right } }), "layers.x"),
        (json!({ "name": "bad", "layers": { "7": right } }), "layers.7"),
        (json!({ "name": "bad", "layers": { "0": right, "00": right } }), "layers"),
        (json!({ "name": "bad", "layers": { "0": [1.0] } }), "layers.0"),
    ] {
        let mut body = body.clone();
        body["model"] = json!("tiny");
        target.refused(STEERING, &body, param);
    }
    let error = target.refused(
        STEERING,
        &json!({ "model": "tiny", "name": "bad", "vector": right, "hook": "blocks.0.hook_outt" }),
        "hook",
    );
    assert!(error["message"].as_str().unwrap().contains("`blocks.0.hook_out`"), "{error}");
    let mut nan = right.clone();
    nan[7] = f32::NAN;
    let shape = [WIDTH as u64];
    for (body, query, param) in [
        (safetensors(&[("direction.0", &shape, &nan)]), "", "direction.0"),
        (safetensors(&[("direction.9", &shape, &right)]), "", "direction.9"),
        (safetensors(&[("some", &shape, &right)]), "", "some"),
        (safetensors(&[("direction.0", &[2, 24], &right)]), "", "direction.0"),
        (safetensors(&[("a", &shape, &right), ("b", &shape, &right)]), "&layer=0", "hook"),
        (safetensors(&[]), "", "body"),
        (safetensors(&[("direction.0", &shape, &right)])[..200].to_vec(), "", "body"),
        (gguf(&[("direction.0", &right)])[..100].to_vec(), "", "body"),
        (gguf(&[("direction.0", &right[1..])]), "", "direction.0"),
    ] {
        let reply = target.send("POST", &format!("/v1/steering?name=bad&model=tiny{query}"), &body);
        refused(&reply, 400, param);
    }
    refused(&target.get("/v1/steering/bad"), 404, "name");
}

/// Vectors take a bounded number of bytes, are their key's own, and those of a folder are everyone's.
#[test]
fn vectors_are_bounded_and_their_keys_own() {
    let files = Arc::new(Files::new());
    let folder = files.path().join("steering");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("given.gguf"), gguf(&[("direction.1", &vector(3, 0.2))])).unwrap();
    std::fs::write(folder.join("note.txt"), "no vector").unwrap();
    let bytes = 4 * 3 * 4 * WIDTH as u64;
    let serving = Serving { steering_bytes: bytes, steering_dir: Some(folder.clone()), ..Serving::default() };
    let keys = Keys::new(["first", "second"]).unwrap();
    let server = Running::start(&files, Server::new().model("tiny", files.load(&serving)).keys(keys));
    let [first, second] = ["first", "second"].map(|key| server.target.with("x-api-key", key));
    let one = |name: &str| json!({ "name": name, "layer": 0, "vector": vector(1, 0.1) });
    keep(&first, &one("a"));
    keep(&first, &one("b"));
    let reply = first.post(STEERING, &one("c"));
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")), "{reply:?}");
    assert_eq!(first.post(STEERING, &one("b")).status, 200, "what is replaced takes nothing more");
    refused(&second.get("/v1/steering/a"), 404, "name");
    refused(&second.send("DELETE", "/v1/steering/a", b""), 404, "name");
    keep(&second, &one("c"));
    let names = |target: &Target| {
        let list = target.get(STEERING).json();
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&first), names(&second)),
        (vec!["a".into(), "b".into(), "given".into()], vec!["c".into(), "given".into()])
    );
    refused(&first.post(STEERING, &one("given")), 409, "name");
    refused(&first.send("DELETE", "/v1/steering/given", b""), 409, "name");
    assert_eq!(values(&second, "given"), [("blocks.1.hook_out".to_owned(), vector(3, 0.2))]);
    // A file that is no vector of the model keeps the server from starting.
    std::fs::write(folder.join("wrong.json"), json!({ "layer": 0, "vector": [1.0] }).to_string()).unwrap();
    let setup = djinn_host::Setup { device: djinn_host::DeviceName::Cpu, ..djinn_host::Setup::default() };
    let error = || {
        let started = djinn_server::ServedModel::open(files.path().to_str().unwrap(), &setup, &serving);
        started.unwrap_err().to_string()
    };
    let message = error();
    assert!(message.contains("wrong.json") && message.contains("48"), "{message}");
    std::fs::write(folder.join("wrong.json"), "{").unwrap();
    let message = error();
    assert!(message.contains("wrong.json: the file is no JSON: EOF"), "{message}");
}

fn ask(target: &Target, prompt: &str, more: Value) -> Value {
    target.ok("/v1/completions", &completion(prompt, more))
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn steered(source: &str, more: Value) -> Value {
    let mut vector = json!({ "source": source });
    more.as_object().unwrap().iter().for_each(|(name, value)| vector[name] = value.clone());
    json!({ "steering": { "vectors": [vector] }, "max_tokens": 10 })
}

/// A vector changes what asks for it, on the tokens that it names, and nothing else; the answer says on how many.
#[test]
fn a_vector_steers_those_requests_that_ask_for_it() {
    let target = shared();
    let strong: Vec<f32> = (0..WIDTH).map(|at| if at % 3 == 0 { 30.0 } else { -15.0 }).collect();
    keep(target, &json!({ "model": "tiny", "name": "strong", "layers": { "0": strong, "1": strong } }));
    keep(target, &json!({ "model": "tiny", "name": "zero", "layer": 1, "vector": vec![0.0; WIDTH] }));
    let prompt = "Steer this sentence, please, whoever reads it";
    let plain = ask(target, prompt, json!({ "max_tokens": 10 }));
    assert!(plain.get("djinn").is_none());
    let told = |answer: &Value| answer["djinn"]["steering"].clone();
    // A zero vector, and a scale of zero, change nothing.
    for more in [steered("zero", json!({})), steered("strong", json!({ "scale": 0 }))] {
        assert_eq!(text(&ask(target, prompt, more)), text(&plain));
    }
    let all = ask(target, prompt, steered("strong", json!({})));
    assert_ne!(text(&all), text(&plain));
    // Nothing is computed after the last token.
    assert_eq!(told(&all), json!([{ "name": "strong", "tokens": prompt.len() + 9 }]));
    // Prefixes that were computed with a vector are no one else's, and the other way round.
    assert_eq!(text(&ask(target, prompt, json!({ "max_tokens": 10 }))), text(&plain));
    assert_eq!(text(&ask(target, prompt, steered("strong", json!({})))), text(&all));
    let generation = json!({ "apply": { "prompt": false } });
    let later = ask(target, prompt, steered("strong", generation));
    assert_eq!(told(&later), json!([{ "name": "strong", "tokens": 9 }]));
    assert_eq!(text(&later)[..1], text(&plain)[..1], "the first token follows from the prompt");
    let one_layer = ask(target, prompt, steered("strong", json!({ "layers": [1], "scale": 2.0 })));
    assert_eq!(told(&one_layer)[0]["tokens"], prompt.len() + 9);
    // Other answers that are computed at the same time are as they were.
    let both: Vec<_> = [json!({ "max_tokens": 10, "cache_salt": "x" }), steered("strong", json!({}))]
        .into_iter()
        .map(|more| std::thread::spawn(move || text(&ask(shared(), prompt, more)).to_owned()))
        .collect();
    let both: Vec<String> = both.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(both, [text(&plain), text(&all)]);
    // All APIs have it, whole and as events.
    let mut chat = super::chat("Hi", json!({ "stream": true }));
    chat["steering"] = steered("strong", json!({}))["steering"].clone();
    let chunks = target.post("/v1/chat/completions", &chat).chunks();
    assert_eq!(chunks.last().unwrap()["djinn"]["steering"][0]["name"], "strong");
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk.get("djinn").is_none()));
    let message = json!({
        "model": "tiny", "max_tokens": 4, "messages": [{ "role": "user", "content": "Hi" }], "steering": chat["steering"],
    });
    assert_eq!(target.ok("/v1/messages", &message)["djinn"]["steering"][0]["name"], "strong");
    let response =
        json!({ "model": "tiny", "max_output_tokens": 4, "input": "Hi", "steering": chat["steering"] });
    assert_eq!(target.ok("/v1/responses", &response)["djinn"]["steering"][0]["name"], "strong");
    for (more, param) in [
        (steered("none", json!({})), "steering.vectors[0].source"),
        (steered("strong", json!({ "scale": 1e39 })), "steering.vectors[0].scale"),
        (steered("strong", json!({ "scale": 1e38 })), "steering.vectors[0].scale"),
        (steered("strong", json!({ "layers": [5] })), "steering.vectors[0].layers"),
        (steered("strong", json!({ "normalize": true })), "steering.vectors[0].normalize"),
        (steered("strong", json!({ "algorithm": "loreft" })), "steering.vectors[0].algorithm"),
        (steered("strong", json!({ "algorithm": "replace" })), "steering.vectors[0].algorithm"),
        (steered("strong", json!({ "apply": { "promt": true } })), "steering.vectors[0].apply.promt"),
        (steered("strong", json!({ "strength": 1 })), "steering.vectors[0].strength"),
        (json!({ "steering": { "vectors": [{}] } }), "steering.vectors[0].source"),
        (json!({ "steering": { "vector": [] } }), "steering.vector"),
        (json!({ "steering": [] }), "steering"),
    ] {
        target.refused("/v1/completions", &completion(prompt, more), param);
    }
}

/// What steers a session counts for its requests that say nothing else; what a key steers by default for all of them.
#[test]
fn sessions_and_keys_are_steered_without_the_request_saying_so() {
    let files = Arc::new(Files::new());
    let server = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    let target = &server.target;
    let strong: Vec<f32> = (0..WIDTH).map(|at| if at % 3 == 0 { 30.0 } else { -15.0 }).collect();
    keep(target, &json!({ "name": "v", "layer": 0, "vector": strong }));
    let prompt = "A session that is steered from here on";
    let ten = || json!({ "max_tokens": 10 });
    let plain = text(&ask(target, prompt, ten())).to_owned();
    let strong = text(&ask(target, prompt, steered("v", json!({})))).to_owned();
    assert_ne!(plain, strong);
    let session = target.with("x-session-id", "s");
    assert_eq!(text(&ask(&session, prompt, ten())), plain);
    // A request's own steering holds for that request: the session's keys and values are not those of another one.
    assert_eq!(text(&ask(&session, prompt, steered("v", json!({})))), strong);
    assert_eq!(text(&ask(&session, prompt, ten())), plain);
    let all = json!({ "vectors": [{ "source": "v", "scale": 1.0 }] });
    assert_eq!(target.post("/v1/sessions", &json!({ "id": "t" })).status, 200);
    assert_eq!(target.ok("/v1/sessions/t/steering", &all)["vectors"][0]["algorithm"], "direct");
    let other = target.with("x-session-id", "t");
    assert_eq!(text(&ask(&other, prompt, ten())), strong);
    // It is kept between turns: what is computed is not computed again.
    let next = format!("{prompt}{strong} on");
    let answer = ask(&other, &next, ten());
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], prompt.len() + 9);
    assert_eq!(target.ok("/v1/sessions/t/steering", &json!({ "vectors": [] }))["vectors"], json!([]));
    target.refused(
        "/v1/sessions/t/steering",
        &json!({ "vectors": [{ "source": "w" }] }),
        "vectors[0].source",
    );
    let default = target.send("PUT", "/v1/steering/v/default", b"{\"scale\": 1.0}");
    assert_eq!((default.status, &default.json()["default"]["scale"]), (200, &json!(1.0)), "{default:?}");
    assert_eq!(text(&ask(target, prompt, ten())), strong);
    assert_eq!(text(&ask(target, prompt, json!({ "max_tokens": 10, "steering": { "vectors": [] } }))), plain);
    assert_eq!(target.send("DELETE", "/v1/steering/v/default", b"").status, 200);
    assert_eq!(text(&ask(target, prompt, ten())), plain);
    let wrong = target.send("PUT", "/v1/steering/v/default", b"{\"scale\": 1e39}");
    refused(&wrong, 400, "scale");
    refused(&target.send("PUT", "/v1/steering/w/default", b""), 404, "name");
}

/// A vector that is erased leaves nothing along it; with a scale of 0 it changes no bit.
#[test]
fn an_erased_direction_has_no_part() {
    let target = shared();
    let direction: Vec<f32> = (0..WIDTH).map(|at| (at % 5) as f32 - 1.5).collect();
    keep(target, &json!({ "model": "tiny", "name": "erased", "layers": { "0": direction } }));
    let along = |id: &str, algorithm: &str, scale: f32| {
        session(target, id, Some(json!({ "hook": "blocks.0.hook_out", "tokens": "generated" })));
        let mut body = completion("What is left of it", steered("erased", json!({ "scale": scale })));
        body["steering"]["vectors"][0]["algorithm"] = json!(algorithm);
        let answer = ask_in(target, id, body);
        paused(target, id);
        let row = rows(&see(target, id, "activations/blocks.0.hook_out")).remove(0);
        act(target, id, "resume", &json!({}));
        assert_eq!(answer.join().unwrap().status, 200);
        let norm = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>().sqrt();
        let dot: f32 = row.iter().zip(&direction).map(|(a, b)| a * b).sum();
        (dot / (norm(&row) * norm(&direction)), row)
    };
    let (plain, unchanged) = along("erase-0", "erase", 0.0);
    assert!(plain.abs() > 1e-3, "the activation has a part along it: {plain}");
    assert_eq!(unchanged, along("erase-plain", "direct", 0.0).1);
    for scale in [1.0, -3.0] {
        let (left, _) = along(&format!("erase-{scale}"), "erase", scale);
        assert!(left.abs() < 1e-5, "{left}");
    }
}

/// Copies of a small vector are refused before they are made, however many answers and uses there are.
#[test]
fn what_steers_fits_the_memory_for_hooks() {
    let files = Arc::new(Files::new());
    let serving = Serving { hook_bytes: 256 << 10, ..Serving::default() };
    let server = Running::start(&files, Server::new().model("tiny", files.load(&serving)));
    let target = &server.target;
    keep(target, &json!({ "name": "small", "model": "tiny", "layer": 0, "vector": vector(1, 0.01) }));
    let steered = |uses: usize, answers: usize| {
        let vectors = vec![json!({ "source": "small" }); uses];
        let more = json!({ "steering": { "vectors": vectors }, "n": answers, "max_tokens": 1 });
        target.post("/v1/completions", &completion("Hi", more))
    };
    let reply = steered(64, 16);
    assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("hook_memory")), "{reply:?}");
    // The first 43 uses are more than there is, for all answers together.
    assert!(reply.error()["message"].as_str().unwrap().contains(&(8 * WIDTH * 43 * 16).to_string()));
    assert_eq!((steered(64, 2).status, steered(4, 16).status), (200, 200));
    // Every other column makes 24 changes.
    let columns: Vec<usize> = (0..WIDTH).step_by(2).collect();
    let edit = json!({ "hook": END, "op": "set", "values": vec![1.0; 24], "columns": columns });
    let edited = |uses: usize, answers: usize| {
        let more =
            json!({ "steering": { "edits": vec![edit.clone(); uses] }, "n": answers, "max_tokens": 1 });
        target.post("/v1/completions", &completion("Hi", more))
    };
    let reply = edited(20, 16);
    assert_eq!((reply.status, &reply.error()["code"]), (429, &json!("hook_memory")), "{reply:?}");
    assert_eq!(edited(1, 16).status, 200);
    // What sessions keep has a bound as well, though none of them is open in the engine.
    let steer = |id: usize, uses: usize| {
        target.post("/v1/sessions", &json!({ "id": format!("keeps-{id}") }));
        let edit = json!({ "hook": END, "op": "set", "values": vec![1.0; WIDTH] });
        target.post(&path(&format!("keeps-{id}"), "steering"), &json!({ "edits": vec![edit; uses] })).status
    };
    let most = (256 << 10) / (8 * WIDTH + 48);
    assert_eq!(steer(0, most + 1), 429);
    let third = most / 3;
    assert_eq!([steer(0, third), steer(1, third), steer(1, third)], [200; 3]);
    assert_eq!((steer(2, third), steer(2, 0)), (429, 200));
    assert_eq!(target.send("DELETE", "/v1/sessions/keeps-0", b"").status, 200);
    assert_eq!(steer(2, third), 200);
}

/// What makes the logits no numbers is the request's fault, and the model goes on.
#[test]
fn edits_that_overflow_are_the_requests_fault() {
    let target = shared();
    let edit = json!({ "hook": "blocks.1.hook_out", "op": "add", "values": vec![3e38; WIDTH] });
    let more = edited(json!([edit, edit]), json!({ "temperature": 0 }));
    let reply = target.post("/v1/completions", &completion("Hi", more));
    assert_eq!((reply.status, &reply.error()["type"]), (400, &json!("invalid_request_error")), "{reply:?}");
    assert_eq!(target.post("/v1/completions", &completion("Hi", json!({}))).status, 200);
}

const END: &str = "blocks.0.hook_out";
const HEAD: usize = 16;

fn zero_head(layer: usize, head: usize) -> Value {
    let (hook, columns) = (format!("blocks.{layer}.attn.hook_z"), [head * HEAD, (head + 1) * HEAD]);
    json!({ "hook": hook, "op": "scale", "factor": 0, "columns": { "from": columns[0], "to": columns[1] } })
}

fn edited(edits: Value, mut more: Value) -> Value {
    more["steering"] = json!({ "edits": edits });
    more
}

/// The model with zeros for what the output projection makes of one head.
fn without(layer: usize, head: usize) -> Files {
    let files = Files::new();
    let place = files.path().join("model.safetensors");
    let mut bytes = std::fs::read(&place).unwrap();
    let data = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let tensor = &header[format!("model.layers.{layer}.self_attn.o_proj.weight")];
    assert_eq!((&tensor["dtype"], &tensor["shape"]), (&json!("F32"), &json!([WIDTH, WIDTH])));
    let from = data + tensor["data_offsets"][0].as_u64().unwrap() as usize;
    for row in 0..WIDTH {
        let column = from + 4 * (row * WIDTH + head * HEAD);
        bytes[column..column + 4 * HEAD].fill(0);
    }
    std::fs::write(place, bytes).unwrap();
    files
}

/// A head that an edit ablates in a prompt and its answers leaves the answers of a model without its weights: whole and
/// sampled, to several prompts, in a session, its fork, and in every API.
#[test]
fn an_ablated_head_is_one_without_weights() {
    let target = shared();
    let files = Arc::new(without(0, 2));
    let server = Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())));
    let prompts = ["A head less in every token of this prompt", "and of this one"];
    let said = |answer: &Value| -> Vec<(String, Value)> {
        let one = |choice: &Value| {
            (choice["text"].as_str().unwrap().to_owned(), choice["logprobs"]["token_logprobs"].clone())
        };
        answer["choices"].as_array().unwrap().iter().map(one).collect()
    };
    for more in [
        json!({ "logprobs": 1, "max_tokens": 20 }),
        json!({ "logprobs": 1, "n": 3, "temperature": 1.5, "seed": 7 }),
    ] {
        let asked = |more: &Value| completion(json!(prompts), more.clone());
        let ablated = edited(json!([zero_head(0, 2)]), more.clone());
        let expected = said(&server.target.ok("/v1/completions", &asked(&more)));
        let plain = said(&target.ok("/v1/completions", &asked(&more)));
        assert_ne!(plain, expected);
        // Twice: prefixes are found again.
        for _ in 0..2 {
            assert_eq!(said(&target.ok("/v1/completions", &asked(&ablated))), expected);
        }
        // They are found by no one else.
        assert_eq!(said(&target.ok("/v1/completions", &asked(&more))), plain);
    }
    let prompt = prompts[0];
    let less = |more: Value| text(&server.target.ok("/v1/completions", &completion(prompt, more))).to_owned();
    let expected = less(json!({}));
    session(target, "ablated", None);
    let edits = json!({ "edits": [zero_head(0, 2)] });
    let shown = act(target, "ablated", "steering", &edits);
    let apply = json!({ "prompt": true, "generation": true });
    let edit = json!({ "hook": "blocks.0.attn.hook_z", "op": "scale", "apply": apply });
    assert_eq!((&shown["vectors"], &shown["edits"]), (&json!([]), &json!([edit])));
    let own = target.with("x-session-id", "ablated");
    let answer = ask(&own, prompt, json!({}));
    assert_eq!(text(&answer), expected);
    assert_eq!(answer["djinn"]["steering"], json!([{ "name": "edits[0]", "tokens": prompt.len() + 11 }]));
    let next = format!("{prompt}{expected} on");
    let continued =
        text(&server.target.ok("/v1/completions", &completion(next.as_str(), json!({})))).to_owned();
    act(target, "ablated", "fork", &json!({ "id": "ablated-too" }));
    for id in ["ablated", "ablated-too"] {
        assert_eq!(text(&ask(&target.with("x-session-id", id), &next, json!({}))), continued);
    }
    // Another head of the same hook is another steering, also for what the session has computed.
    let other = edited(json!([zero_head(0, 0)]), json!({}));
    let elsewhere = text(&ask(target, prompt, other.clone())).to_owned();
    assert_eq!(text(&ask(&own, prompt, other)), elsewhere);
    assert_eq!(text(&ask(&own, prompt, json!({}))), expected);
    // It ends with the next token.
    assert_eq!(act(target, "ablated", "steering", &json!({}))["edits"], json!([]));
    assert!(ask(&own, &next, json!({})).get("djinn").is_none());
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (api, mut body) in [
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 5, "temperature": 0 })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 5, "temperature": 0 })),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 5, "temperature": 0 })),
    ] {
        body["model"] = json!("tiny");
        let content = |answer: &Value| {
            ["choices", "content", "output"]
                .map(|name| answer[name].to_string())
                .concat()
                .replace(answer["output"][0]["id"].as_str().unwrap_or("no id"), "")
        };
        let expected = content(&server.target.ok(api, &body));
        body["steering"] = edits.clone();
        let answer = target.ok(api, &body);
        assert_eq!(answer["djinn"]["steering"][0]["name"], "edits[0]", "{api}");
        assert_eq!(content(&answer), expected, "{api}");
    }
}

/// Edits come after vectors at a hook, in their order, and before changes of a pause; `apply` chooses their tokens; those of
/// nothing change no bit.
#[test]
fn edits_last_in_their_order() {
    let target = shared();
    let (prompt, hook) = ("In which order", "blocks.1.attn.hook_z");
    let plain = ask(target, prompt, json!({ "logprobs": 1 }));
    let nothing = json!([
        { "hook": END, "op": "scale", "factor": 1 },
        { "hook": hook, "op": "add", "values": [0, 0], "columns": [3, 9] },
        { "hook": "logits", "op": "scale", "factor": 0, "apply": { "prompt": false, "generation": false } },
    ]);
    let same = ask(target, prompt, edited(nothing, json!({ "logprobs": 1 })));
    assert_eq!(same["choices"], plain["choices"]);
    keep(target, &json!({ "model": "tiny", "name": "ones", "hook": hook, "vector": vec![1.0; WIDTH] }));
    for tokens in ["prompt", "generated"] {
        let id = format!("order-{tokens}");
        session(target, &id, Some(json!({ "hook": END, "tokens": tokens })));
        let edits = json!([
            { "hook": hook, "op": "scale", "factor": 0, "columns": { "to": 8 } },
            { "hook": "blocks.1.attn.hook_z", "op": "add", "values": [1, 2, 3], "strength": 2, "columns": [1, 4, 5] },
            { "hook": hook, "op": "clamp", "high": 5, "columns": [5] },
            { "hook": hook, "op": "set", "values": [9], "columns": [6], "apply": { "prompt": false } },
            { "hook": hook, "op": "project_out", "values": [0, 1], "columns": [8, 9] },
        ]);
        let mut body = completion(prompt, edited(edits, json!({})));
        body["steering"]["vectors"] = json!([{ "source": "ones" }]);
        let answer = ask_in(target, &id, body);
        paused(target, &id);
        let read = |id: &str| rows(&see(target, id, &format!("activations/{hook}")));
        let six = if tokens == "prompt" { 0.0 } else { 9.0 };
        for row in read(&id) {
            assert_eq!(row[..8], [0.0, 2.0, 0.0, 0.0, 4.0, 5.0, six, 0.0]);
            assert!(row[8] != 0.0 && row[9] == 0.0, "{row:?}");
        }
        act(target, &id, &format!("activations/{hook}"), &json!({ "op": "add", "values": vec![1; WIDTH] }));
        assert_eq!(read(&id)[0][..6], [1.0, 3.0, 1.0, 1.0, 5.0, 6.0]);
        act(target, &id, "resume", &json!({}));
        let told = answer.join().unwrap().json()["djinn"]["steering"].clone();
        let all = prompt.len() + 11;
        for (name, tokens) in [("edits[0]", all), ("edits[3]", 11), ("edits[4]", all), ("ones", all)] {
            assert!(told.as_array().unwrap().contains(&json!({ "name": name, "tokens": tokens })), "{told}");
        }
    }
    // The last token of a prompt and generated ones have logits.
    let always = |apply: Value| {
        let edit =
            json!([{ "hook": "logits", "op": "set", "values": [99], "columns": [65], "apply": apply }]);
        ask(target, prompt, edited(edit, json!({})))
    };
    let [all, later, first] =
        [json!({}), json!({ "prompt": false }), json!({ "generation": false })].map(always);
    assert_eq!((text(&all), &all["djinn"]["steering"][0]["tokens"]), ("AAAAAAAAAAAA", &json!(12)));
    assert_eq!((&text(&later)[..1], &text(&later)[1..]), (&text(&plain)[..1], "AAAAAAAAAAA"));
    assert_eq!((text(&first).find('A'), &first["djinn"]["steering"][0]["tokens"]), (Some(0), &json!(1)));
    assert!(!text(&first).contains("AAAA"), "{}", text(&first));
}

#[test]
fn edits_that_cannot_last_are_refused_by_name() {
    let target = shared();
    session(target, "unedited", None);
    let wide = vec![1.0; WIDTH];
    let gaps: Vec<usize> = (0..WIDTH).step_by(2).collect();
    let gapped = json!({ "hook": END, "op": "scale", "factor": 2, "columns": gaps });
    for (edit, field) in [
        (json!({ "op": "scale", "factor": 0 }), ".hook"),
        (json!({ "hook": "blocks.0.hook_outt", "op": "scale", "factor": 0 }), ".hook"),
        (json!({ "hook": "blocks.0.attn.hook_pattern", "op": "scale", "factor": 0 }), ".hook"),
        (json!({ "hook": END }), ".op"),
        (json!({ "hook": END, "op": "paint" }), ".op"),
        (json!({ "hook": END, "op": "scale" }), ".factor"),
        (json!({ "hook": END, "op": "scale", "factor": 1e39 }), ".factor"),
        (json!({ "hook": END, "op": "scale", "factor": 1, "values": wide }), ".values"),
        (json!({ "hook": END, "op": "set" }), ".values"),
        (json!({ "hook": END, "op": "set", "values": &wide[1..] }), ".values"),
        (json!({ "hook": END, "op": "set", "values": [wide, wide] }), ".values"),
        (json!({ "hook": END, "op": "set", "values": vec![1e39; WIDTH] }), ".values"),
        (json!({ "hook": END, "op": "add", "values": vec![1e30; WIDTH], "strength": 1e30 }), ".strength"),
        (json!({ "hook": END, "op": "set", "values": [1, 2, 3], "columns": [4, 5] }), ".values"),
        (json!({ "hook": END, "op": "scale", "factor": 1, "columns": [WIDTH] }), ".columns"),
        (json!({ "hook": END, "op": "scale", "factor": 1, "columns": { "form": 3 } }), ".columns.form"),
        (json!({ "hook": END, "op": "clamp", "low": 2, "high": 1 }), ".low"),
        (json!({ "hook": END, "op": "project_out", "values": vec![0.0; WIDTH] }), ".values"),
        (json!({ "hook": END, "op": "project_out", "values": [1, 1], "columns": [1, 3] }), ".columns"),
        (json!({ "hook": END, "op": "scale", "factor": 1, "positions": [1] }), ".positions"),
        (json!({ "hook": END, "op": "scale", "factor": 1, "apply": { "promt": true } }), ".apply.promt"),
        (json!(3), ""),
    ] {
        let good = zero_head(0, 0);
        let more = edited(json!([good, edit]), json!({}));
        let error =
            target.refused("/v1/completions", &completion("No", more), &format!("steering.edits[1]{field}"));
        assert!(!error["message"].as_str().unwrap().contains('\n'), "{error}");
        target.refused(
            &path("unedited", "steering"),
            &json!({ "edits": [edit] }),
            &format!("edits[0]{field}"),
        );
    }
    let many = edited(json!(vec![gapped; 1024 / 24 + 1]), json!({}));
    target.refused("/v1/completions", &completion("No", many), "steering.edits");
    let none =
        json!({ "hook": END, "op": "scale", "factor": 2, "apply": { "prompt": false, "generation": false } });
    let many = edited(json!(vec![none; 1025]), json!({}));
    target.refused("/v1/completions", &completion("No", many), "steering.edits");
    target.refused("/v1/completions", &completion("No", edited(json!({}), json!({}))), "steering.edits");
    target.refused(&path("unedited", "steering"), &json!({ "edit": [] }), "edit");
}
