//! `djinn push`: what is sent, what goes on after a crash, and what is refused.

use super::Place;
use super::serve::{Serving, serve, serve_models};
use super::text::place;
use serde_json::Value;
use std::fs;

const STORE: &str = "--store=store";

fn push(place: &Place, serving: &Serving, model: &str, more: &[&str]) -> Value {
    let to = format!("--to=http://{}", serving.address);
    place.json(&[&["push", model, &to, "--json", "--quiet"], more].concat())
}

/// A folder like `./model`, in which the last tensor has another byte.
fn fine_tune(place: &Place, name: &str) {
    let (from, to) = (place.path().join("model"), place.path().join(name));
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let file = to.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

fn text(serving: &Serving, model: &str) -> String {
    let body =
        format!(r#"{{"model":"{model}","prompt":"Once","max_tokens":9,"temperature":0,"ignore_eos":true}}"#);
    let answer = serving.ask("POST /v1/completions", "", &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split("\"text\":").nth(1).unwrap().split('}').next().unwrap().to_owned()
}

#[test]
fn only_what_the_server_lacks_is_sent() {
    let place = place();
    fine_tune(&place, "tuned");
    let serving = serve(&place, &[STORE]);
    let first = push(&place, &serving, "./model", &["--name=mine"]);
    assert_eq!((&first["sent_bytes"], &first["sent_pieces"]), (&first["bytes"], &first["pieces"]));
    assert_eq!(text(&serving, "mine"), text(&serving, "model"));
    let again = push(&place, &serving, "./model", &["--name=mine"]);
    assert_eq!((&again["sent_bytes"], &again["bytes"]), (&Value::from(0), &first["bytes"]));
    // One tensor of those that it is made of.
    let tuned = push(&place, &serving, "./tuned", &[]);
    let (sent, all) = (tuned["sent_bytes"].as_u64().unwrap(), tuned["bytes"].as_u64().unwrap());
    assert!(tuned["sent_pieces"] == 1 && sent > 0 && sent * 10 < all, "{tuned}");
    assert!(!text(&serving, "tuned").is_empty());
    let (to, server) =
        (format!("--to=http://{}", serving.address), format!("--server=http://{}", serving.address));
    assert!(place.ok(&["plan", "tuned", "--gpu=h200", &server]).starts_with("tuned: "));
    // A name that is taken, and taking it over.
    let error = place.refused(&["push", "./tuned", "--name=mine", &to, "-q"]);
    assert!(error.contains("a model called mine is there"), "{error}");
    push(&place, &serving, "./tuned", &["--name=mine", "--replace"]);
    assert_eq!(text(&serving, "mine"), text(&serving, "tuned"));
    for (args, why) in [
        (&["push", "synthetic:tiny", &to][..], "a server opens it by this name"),
        (&["push", "./model", "--to=ftp://x"], "is no address"),
        (&["push", "./model", &to, "--name=a b"], "a model's name is"),
    ] {
        let error = place.refused(args);
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
    }
}

/// Nothing is loaded, and nothing fetched, until a client has sent a model and asks it for something.
#[test]
fn a_store_is_served_without_a_model() {
    let place = place();
    let serving = serve_models(&place, &[STORE, "--ctx=128"]);
    let list = |serving: &Serving| serving.ask("GET /v1/models", "", "");
    assert!(list(&serving).contains(r#""data":[]}"#), "{}", list(&serving));
    assert!(serving.ask("GET /ready", "", "").starts_with("HTTP/1.1 200"));
    assert!(serving.ask("GET /v1/live", "", "").contains(r#""models":[]"#));
    let body = r#"{"prompt":"Once","max_tokens":5}"#;
    assert!(serving.ask("POST /v1/completions", "", body).contains("`model` is missing"));
    let template = "additional_chat_templates/tool_use.jinja";
    fs::create_dir(place.path().join("model/additional_chat_templates")).unwrap();
    fs::write(place.path().join("model").join(template), "{{ tools }}").unwrap();
    push(&place, &serving, "./model", &["--name=mine"]);
    assert!(
        place.path().join("store/models/mine").join(template).is_file(),
        "a file in a folder is sent, too"
    );
    assert!(list(&serving).contains(r#""value":"unloaded""#), "{}", list(&serving));
    let told = text(&serving, "mine");
    assert!(list(&serving).contains(r#""value":"loaded""#), "{}", list(&serving));
    drop(serving);
    // It is served after a start, too.
    assert_eq!(text(&serve_models(&place, &[STORE, "--ctx=128"]), "mine"), told);
    let error = place.refused(&["serve", "--alias=x", STORE, "--port=0"]);
    assert!(error.contains("--alias names a model, and none is given"), "{error}");
}

/// A model that does not fit the store does not cost it the one that is to be replaced.
#[test]
fn a_model_is_replaced_by_a_complete_one_only() {
    let place = place();
    fine_tune(&place, "tuned");
    let serving = serve(&place, &[STORE]);
    let bytes = push(&place, &serving, "./model", &["--name=mine"])["bytes"].as_u64().unwrap();
    drop(serving);
    let serving = serve(&place, &[STORE, &format!("--store-quota={bytes}")]);
    let before = text(&serving, "mine");
    let to = format!("--to=http://{}", serving.address);
    let error = place.refused(&["push", "./tuned", "--name=mine", "--replace", &to, "-q"]);
    assert!(error.contains("the store is full"), "{error}");
    assert_eq!(text(&serving, "mine"), before);
    drop(serving);
    // It has another name until then, which no other model has.
    let serving = serve(&place, &[STORE]);
    push(&place, &serving, "./model", &["--name=mine.next"]);
    push(&place, &serving, "./tuned", &["--name=mine", "--replace"]);
    let models = serving.ask("GET /v1/models", "", "");
    assert!(models.contains(r#""id":"mine""#) && models.contains(r#""id":"mine.next""#), "{models}");
    assert!(!models.contains("mine.next-"), "{models}");
    // The server's own model is not the store's.
    let to = format!("--to=http://{}", serving.address);
    let error = place.refused(&["push", "./tuned", "--name=model", "--replace", &to, "-q"]);
    assert!(error.contains("a model called model is there"), "{error}");
}

#[test]
fn a_push_goes_on_after_either_side_was_killed() {
    let place = place();
    let serving = serve(&place, &[STORE, "--push-key=secret", "--api-key=other"]);
    let refused = |key: &str| {
        let to = format!("--to=http://{}", serving.address);
        place.refused(&["push", "./model", "--name=mine", &to, "--quiet", "--api-key", key])
    };
    assert!(refused("other").contains("this key may not send models"));
    assert!(refused("none").contains("wants another key"));

    // What a client had sent when it was killed: a manifest, and half of a piece.
    let model = djinn_models::stored::LocalModel::of(
        &djinn_models::Location::Directory(place.path().join("model")),
        1,
        &mut |_, _| (),
    )
    .unwrap();
    let body = serde_json::json!({ "name": "mine", "files": model.manifest.files }).to_string();
    let key = "authorization: Bearer secret\r\n";
    assert!(serving.ask("POST /v1/store/manifests", key, &body).starts_with("HTTP/1.1 200"));
    let (hash, at) = model.places.iter().max_by_key(|(_, at)| at.range.end - at.range.start).unwrap();
    let half = (at.range.end - at.range.start) / 2;
    let bytes = fs::read(&at.path).unwrap()[at.range.start as usize..][..half as usize].to_vec();
    let partial = place.path().join("store/partial").join(hash.to_string());
    {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(&serving.address).unwrap();
        let head = format!(
            "PUT /v1/store/blobs/{hash} HTTP/1.1\r\nhost: localhost\r\n{key}content-length: {}\r\n\r\n",
            at.range.end - at.range.start
        );
        stream.write_all(&[head.as_bytes(), &bytes].concat()).unwrap();
        let arrived = || fs::metadata(&partial).is_ok_and(|file| file.len() == half);
        while !arrived() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The server is killed while it waits for the rest.
        drop(serving);
    }
    let serving = serve(&place, &[STORE, "--push-key=secret"]);
    let list = |serving: &Serving| serving.ask("GET /v1/models", key, "");
    assert!(!list(&serving).contains("\"mine\""), "nothing half is visible");
    let told = push(&place, &serving, "./model", &["--name=mine", "--api-key=secret"]);
    assert_eq!(told["sent_bytes"].as_u64().unwrap(), told["bytes"].as_u64().unwrap() - half, "{told}");
    assert!(list(&serving).contains("\"mine\""));
    drop(serving);
    assert!(list(&serve(&place, &[STORE, "--push-key=secret"])).contains("\"mine\""));
}
