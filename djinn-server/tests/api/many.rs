//! Several models on one device, which holds one of them at a time.

use super::client::Target;
use super::failures::HOOK_BYTES;
use super::sessions::named;
use super::{Files, Running, completion};
use djinn_cpu::{SimConfig, SimDevice};
use djinn_host::{DeviceName, Setup};
use djinn_models::Location;
use djinn_server::{ServedModel, Server, Serving, SharedDevice};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const OTHERS: [(&str, &str); 2] = [("second", "synthetic:tiny-gqa"), ("third", "synthetic:tiny-gqa?seed=9")];

fn setup() -> Setup {
    Setup {
        device: DeviceName::Cpu,
        threads: Some(1),
        context: Some(64),
        prefill_rows: Some(16),
        ..Setup::default()
    }
}

fn serving() -> Serving {
    Serving {
        sequences: 2,
        host_kv_bytes: 1 << 20,
        kv_bytes: Some(4 << 20),
        hook_bytes: HOOK_BYTES,
        ..Serving::default()
    }
}

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A model of files and two others, on a device with that much memory.
fn start(files: &Arc<Files>, vram: u64) -> Running {
    let setup = setup();
    let places: Vec<String> = std::iter::once(files.path().display().to_string())
        .chain(OTHERS.map(|(_, place)| place.to_owned()))
        .collect();
    let models = places.iter().map(|place| setup.open(place).unwrap()).collect();
    let device = move || SimDevice::new(SimConfig { seed: 1, vram: Some(vram), ..SimConfig::default() });
    let served = SharedDevice::start_on(device, models, &setup, &serving(), &mut go_on).unwrap();
    let names = ["first", OTHERS[0].0, OTHERS[1].0];
    let named = names.into_iter().zip(served);
    Running::start(files, named.fold(Server::new(), |server, (name, model)| server.model(name, model)))
}

fn body(model: &str, prompt: &str) -> Value {
    completion(prompt, json!({ "model": model, "max_tokens": 6, "temperature": 0.8, "seed": 3 }))
}

fn text(target: &Target, model: &str, prompt: &str) -> String {
    let answer = target.ok("/v1/completions", &body(model, prompt));
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Of each model, whether it is loaded and where its weights are.
fn statuses(target: &Target) -> BTreeMap<String, (String, String)> {
    let models = target.get("/v1/models").json();
    let status = |model: &Value| {
        let told = |name: &str| model["status"][name].as_str().unwrap().to_owned();
        (model["id"].as_str().unwrap().to_owned(), (told("value"), told("weights")))
    };
    models["data"].as_array().unwrap().iter().map(status).collect()
}

#[test]
fn each_model_answers_as_if_it_was_alone_on_the_device() {
    let files = Arc::new(Files::new());
    let own = files.path().display().to_string();
    let places = [("first", own.as_str()), OTHERS[0], OTHERS[1]];
    let alone: Vec<String> = places
        .iter()
        .map(|(name, place)| {
            let model = ServedModel::open(place, &setup(), &serving()).unwrap();
            text(&Running::start(&files, Server::new().model(*name, model)).target, name, "The sky")
        })
        .collect();
    let running = start(&files, 6 << 20);
    let target = &running.target;
    let of = |value: &str, weights: &str| (value.to_owned(), weights.to_owned());
    assert_eq!(statuses(target)["first"], of("loaded", "device"));
    assert_eq!(statuses(target)["second"], of("unloaded", "source"));
    assert_eq!(target.get("/ready").status, 200, "models that are not loaded are no trouble");
    // The first turn of a session, whose second one comes after its model had to leave.
    let session = named(target, "mine");
    session.ok("/v1/completions", &body("first", "The sky is blue. The"));
    for _ in 0..2 {
        for ((name, _), alone) in places.iter().zip(&alone) {
            assert_eq!(text(target, name, "The sky"), *alone, "{name}");
            let loaded: Vec<_> =
                statuses(target).into_iter().filter(|(_, (value, _))| value == "loaded").collect();
            assert_eq!(loaded, [((*name).to_owned(), of("loaded", "device"))]);
        }
    }
    assert_eq!(statuses(target)["first"], of("unloaded", "host"));
    let again = session.ok("/v1/completions", &body("first", "The sky is blue. The sea"));
    assert_eq!(again["choices"][0]["text"], text(target, "first", "The sky is blue. The sea").as_str());
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 20, "its pages were in host memory");
    let metrics = target.get("/metrics");
    let loads = |name: &str| metrics.sample(&format!("djinn_model_loads_total{{model_name=\"{name}\"}}"));
    assert_eq!(["first", "second", "third"].map(loads), [3.0, 2.0, 2.0]);
    assert_eq!(metrics.sample("djinn_model_loaded{model_name=\"first\"}"), 1.0);
    let live = target.get("/v1/live").json();
    let totals = live["models"].as_array().unwrap().iter().map(|model| &model["segments"]["total"]);
    let on_device: Vec<bool> = totals.map(|total| total.as_u64().is_some_and(|bytes| bytes > 0)).collect();
    assert_eq!(on_device, [true, false, false], "one has bytes on the device");
    assert!(live["models"][0]["loads"]["latest_bytes"].as_u64().unwrap() > 0);
}

/// Many clients of all models at once: each gets its answer.
#[test]
fn models_that_keep_each_other_out_answer_all() {
    let files = Arc::new(Files::new());
    let running = start(&files, 6 << 20);
    let target = &running.target;
    let names = ["first", "second", "third"];
    let expected = names.map(|name| text(target, name, "A bird"));
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (name, expected) = (names[client % 3], &expected[client % 3]);
            scope.spawn(move || (0..3).for_each(|_| assert_eq!(text(target, name, "A bird"), *expected)));
        }
    });
}

#[test]
fn a_model_that_cannot_be_loaded_tells_why_and_leaves_others_be() {
    let (files, broken) = (Arc::new(Files::new()), Files::new());
    let setup = setup();
    let models = [&files.path(), &broken.path()].map(|path| setup.open(path.to_str().unwrap()).unwrap());
    // After it was opened.
    let weights = broken.path().join("model.safetensors");
    std::fs::OpenOptions::new().write(true).open(weights).unwrap().set_len(300).unwrap();
    let served = SharedDevice::start_all(models.into(), &setup, &serving(), &mut go_on).unwrap();
    let named = ["sound", "broken"].into_iter().zip(served);
    let server = named.fold(Server::new(), |server, (name, model)| server.model(name, model));
    let running = Running::start(&files, server);
    let target = &running.target;
    let expected = text(target, "sound", "A bird");
    for _ in 0..2 {
        let refused = target.post("/v1/completions", &body("broken", "A bird"));
        assert_eq!(refused.status, 503, "{refused:?}");
        let message = refused.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("weight"), "{message}");
        let status = target.get("/v1/models/broken").json()["status"].clone();
        assert_eq!((&status["value"], &status["failed"]), (&json!("unloaded"), &json!(true)), "{status}");
        assert_eq!(text(target, "sound", "A bird"), expected);
    }
}

#[test]
fn models_come_and_go_while_others_are_served() {
    let files = Arc::new(Files::new());
    let setup = setup();
    let first = setup.open(files.path().to_str().unwrap()).unwrap();
    let (device, served) = SharedDevice::start(vec![first], &setup, &serving(), &mut go_on).unwrap();
    let server = served.into_iter().fold(Server::new(), |server, model| server.model("first", model));
    let server = server.device(device);
    let location = Location::Synthetic("tiny-gqa".to_owned());
    for name in ["more", "gone"] {
        server.add(name, &location).unwrap();
    }
    assert!(server.add("more", &location).unwrap_err().to_string().contains("already"));
    assert!(server.remove("gone") && !server.remove("gone"));
    let running = Running::start(&files, server);
    let target = &running.target;
    assert_eq!(target.post("/v1/completions", &body("gone", "A bird")).status, 404);
    assert_eq!(statuses(target)["more"].0, "unloaded");
    for name in ["more", "first"] {
        assert!(!text(target, name, "A bird").is_empty());
        assert_eq!(statuses(target)[name].0, "loaded");
    }
}
