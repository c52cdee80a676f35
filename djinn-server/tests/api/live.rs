//! The page at `/`, what is watched at `/v1/live`, and traces of a server that serves.

use super::client::Target;
use super::sessions::{named, serving, start, until};
use super::{Files, Running, completion};
use djinn_server::{Keys, Server, Serving};
use serde_json::{Value, json};
use std::sync::Arc;

const LIVE: &str = "/v1/live";

fn live(target: &Target) -> Value {
    let reply = target.get(LIVE);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn model(target: &Target) -> Value {
    live(target)["models"][0].clone()
}

/// The session of a name in a model's list.
fn session<'a>(model: &'a Value, id: &str) -> &'a Value {
    let all = model["sessions"].as_array().unwrap();
    all.iter().find(|session| session["id"] == id).unwrap_or_else(|| panic!("no {id} in {model}"))
}

#[test]
fn the_page_is_whole_and_may_do_nothing_else() {
    let running = start(&serving("signal"));
    let [one, other] = [0, 1].map(|_| running.target.get("/"));
    assert_eq!((one.status, one.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let nonce = |page: &str| page.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let policy = one.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    assert!(policy.contains(&format!("script-src 'nonce-{}'", nonce(&one.body))), "{policy}");
    assert_ne!(nonce(&one.body), nonce(&other.body));
    // All is in the page; the name of XML's vocabulary for images is no address that is fetched.
    let body = one.body.replace("http://www.w3.org/2000/svg", "");
    for foreign in
        ["http://", "https://", "//cdn", "@import", "src=", "unsafe", "innerHTML", "eval(", "@NONCE@"]
    {
        assert!(!body.contains(foreign), "{foreign}");
    }
    // A policy of this kind lets no style stand in an element.
    assert!(!body.contains(" style=\""));
    assert_eq!(running.target.with("host", "evil.example").get("/").status, 403);
}

#[test]
fn what_is_watched_is_what_is_counted() {
    let running = start(&serving("signal"));
    let target = &running.target;
    for text in ["The sky is", "The sea is"] {
        named(target, "mine").ok("/v1/completions", &completion(text, json!({})));
    }
    target.ok("/v1/sessions/mine/signal", &json!({ "phase": "io_wait", "tool": "bash" }));
    // The turn's end may still be on its way when its answer has come.
    let told = until(|| model(target), |told| told["queue"]["parked"] == 1);
    let metrics = target.get("/metrics");
    let of = |name: &str| metrics.sample(&format!("djinn_{name}{{model_name=\"tiny\"}}"));
    for (place, name) in [
        ("/queue/running", "num_requests_running"),
        ("/queue/waiting", "num_requests_waiting"),
        ("/queue/parked", "num_sessions_parked"),
        ("/named_sessions", "num_sessions"),
        ("/tokens/prompt", "prompt_tokens_total"),
        ("/tokens/cached", "prefix_cache_hits_total"),
        ("/tokens/generated", "generation_tokens_total"),
        ("/latency/first_token/count", "time_to_first_token_seconds_count"),
        ("/latency/first_token/sum_s", "time_to_first_token_seconds_sum"),
        ("/latency/between_tokens/count", "inter_token_latency_seconds_count"),
        ("/latency/whole/count", "e2e_request_latency_seconds_count"),
    ] {
        assert_eq!(told.pointer(place).unwrap().as_f64(), Some(of(name)), "{place}");
    }
    assert_eq!(told["tokens"]["generated"], 24);
    let pages = &told["pages"];
    let number = |name: &str| pages[name].as_f64().unwrap();
    let used = 1.0 - number("device_free") / number("device");
    assert!((used - of("kv_cache_usage_perc")).abs() < 1e-9 && used > 0.0, "{pages}");
    let mine = session(&told, "mine");
    assert_eq!(
        (&mine["state"], &mine["phase"], &mine["tool"]),
        (&json!("waiting"), &json!("io_wait"), &json!("bash"))
    );
    assert_eq!(mine["device_pages"].as_f64().unwrap(), number("device") - number("device_free"));
    let cells = pages["cells"].as_array().unwrap();
    assert!(cells.contains(&json!(0)) && cells.iter().all(|cell| *cell == 0 || *cell == -1), "{pages}");
    // 24 tokens in two turns: a token comes after each pass but those of a prompt's earlier chunks.
    let steps = &told["steps"];
    assert!(steps["count"].as_u64().unwrap() >= 24 && steps["busy_ms"].as_f64().unwrap() > 0.0, "{steps}");
    let segments = &told["segments"];
    let part = |name: &str| segments[name].as_u64().unwrap();
    assert_eq!(["resident", "ring", "data", "stack", "other"].map(part).iter().sum::<u64>(), part("total"));
    assert!(part("data") as f64 >= number("device") * number("bytes"));
    let share: f64 =
        told["weights"]["resident"].as_array().unwrap().iter().map(|part| part.as_f64().unwrap()).sum();
    assert!((share - 64.0).abs() < 1e-3, "all weights are resident: {share}");
}

#[test]
fn views_come_again_and_again_until_the_server_ends() {
    let running = start(&serving("signal"));
    let mut watched = running.target.begin("GET", "/v1/live?every_ms=100", b"");
    for _ in 0..3 {
        let event = watched.part().unwrap();
        let view: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((&view["object"], &view["models"][0]["id"]), (&json!("live"), &json!("tiny")));
    }
    for (query, status) in
        [("every_ms=99", 400), ("every_ms=x", 400), ("model=none", 404), ("model=tiny", 200)]
    {
        assert_eq!(running.target.get(&format!("{LIVE}?{query}")).status, status, "{query}");
    }
    // One who watches does not hold up the end.
    running.stop.stop();
    while watched.part().is_some() {}
    running.join();
}

#[test]
fn a_key_sees_its_own_sessions() {
    let files = Arc::new(Files::new());
    let keys = Keys::new(["alpha", "beta"]).unwrap();
    let running =
        Running::start(&files, Server::new().model("tiny", files.load(&Serving::default())).keys(keys));
    assert_eq!(running.target.get("/").status, 200, "the page asks for a key itself");
    assert_eq!(running.target.get(LIVE).status, 401);
    let [alpha, beta] = ["alpha", "beta"].map(|key| running.target.with("x-api-key", key));
    named(&alpha, "secret").ok("/v1/completions", &completion("The sky is", json!({})));
    let own = model(&alpha);
    assert_eq!(
        (session(&own, "secret")["id"].as_str(), &own["sessions_not_listed"]),
        (Some("secret"), &json!(0))
    );
    let others = beta.get(LIVE);
    assert!(!others.body.contains("secret"));
    let others = &others.json()["models"][0];
    assert_eq!((&others["sessions"], &others["sessions_not_listed"]), (&json!([]), &json!(1)));
    assert!(others["pages"]["cells"].as_array().unwrap().contains(&json!(-2)), "{others}");
}

#[test]
fn a_trace_begins_and_ends_while_requests_are_served() {
    let running = start(&serving("signal"));
    let target = &running.target;
    let act = |action: &str| target.send("POST", &format!("/v1/trace/{action}"), b"");
    assert_eq!(act("stop").status, 409);
    let before = target.ok("/v1/completions", &completion("The sky is", json!({})));
    assert_eq!(act("start").status, 200);
    assert_eq!(model(target)["trace"]["running"], true);
    let traced = target.ok("/v1/completions", &completion("The sky is", json!({ "cache_salt": "other" })));
    assert_eq!(before["choices"], traced["choices"]);
    let file = act("stop");
    assert_eq!(file.status, 200);
    let file = file.json();
    assert!(file["otherData"]["passes"].as_u64().unwrap() >= 12, "{}", file["otherData"]);
    assert!(file["traceEvents"].as_array().unwrap().len() > 100);
    assert_eq!((&model(target)["trace"], act("stop").status), (&Value::Null, 409));
    assert_eq!(target.send("POST", "/v1/trace/start?seconds=0", b"").status, 400);
}
