//! Who may ask.

use super::{Files, Running, completion, shared};
use djinn_server::{AccessRules, Keys, Server, Serving};
use serde_json::json;
use std::sync::{Arc, LazyLock};

fn guarded() -> &'static Running {
    static RUNNING: LazyLock<Running> = LazyLock::new(|| {
        let files = Arc::new(Files::new());
        let model = files.load(&Serving { sequences: 2, ..Serving::default() });
        let access = AccessRules {
            origins: vec!["https://good.example".to_owned()],
            ..AccessRules::at("127.0.0.1".parse().unwrap())
        };
        let keys = Keys::new(["secret-one", "secret-two"]).unwrap();
        Running::start(&files, Server::new().model("tiny", model).keys(keys).access(access))
    });
    &RUNNING
}

#[test]
fn a_key_is_needed_where_there_are_keys() {
    let target = &guarded().target;
    for wrong in [None, Some("Bearer wrong"), Some("Bearer secret-on"), Some("secret-one")] {
        let target = wrong.map_or(target.clone(), |key| target.with("authorization", key));
        let reply = target.post("/v1/completions", &completion("Hi", json!({})));
        assert_eq!((reply.status, &reply.error()["code"]), (401, &json!("invalid_api_key")));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        for path in ["/v1/models", "/metrics", "/version", "/none"] {
            assert_eq!(target.get(path).status, 401, "{path}");
        }
    }
    for (name, key) in [("authorization", "Bearer secret-two"), ("x-api-key", "secret-one")] {
        assert_eq!(target.with(name, key).get("/v1/models").status, 200);
        target.with(name, key).ok("/v1/completions", &completion("Hi", json!({})));
    }
    assert_eq!((target.get("/health").status, target.get("/ready").status), (200, 200));
    let of = |target: &super::client::Target| target.get("/ready").json();
    assert_eq!((&of(target)["not_ready"], of(target).get("models_not_ready")), (&json!(0), None));
    assert_eq!(of(&target.with("x-api-key", "secret-one"))["models_not_ready"], json!([]));
}

#[test]
fn pages_of_other_origins_and_names_of_other_hosts_are_refused() {
    let target = guarded().target.with("authorization", "Bearer secret-one");
    assert_eq!(target.with("host", "evil.example:5556").get("/v1/models").status, 403);
    assert_eq!(target.with("origin", "https://evil.example").get("/v1/models").status, 403);
    let reply = target.with("origin", "https://good.example").get("/v1/models");
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, Some("https://good.example"))
    );
    let preflight =
        guarded().target.with("origin", "https://good.example").send("OPTIONS", "/v1/models", b"");
    assert_eq!(preflight.status, 204);
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("authorization"));
    let asks = |names: &str| {
        let page = guarded().target.with("origin", "https://good.example");
        let reply = page.with("access-control-request-headers", names).send("OPTIONS", "/v1/models", b"");
        reply.header("access-control-allow-headers").unwrap().to_owned()
    };
    let usual = asks("");
    let names = "authorization,content-type, X-Stainless-Lang,anthropic-version";
    assert_eq!(asks(names), names);
    for wrong in ["a b", "x-a;x-b", "x-a,", &"x".repeat(2049)] {
        assert_eq!(asks(wrong), usual, "{wrong:.20}");
    }
    for reply in [&reply, &preflight] {
        let exposed = reply.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("x-request-id") && exposed.contains("retry-after"), "{exposed}");
    }
    assert_eq!(target.get("/v1/models").header("access-control-expose-headers"), None);
    assert_eq!(
        guarded().target.with("origin", "https://evil.example").send("OPTIONS", "/v1/models", b"").status,
        403
    );
}

#[test]
fn every_response_has_an_id() {
    assert!(shared().get("/health").header("x-request-id").unwrap().starts_with("req-"));
    assert_eq!(
        shared().with("x-request-id", "my-1.id_2").get("/none").header("x-request-id"),
        Some("my-1.id_2")
    );
    let long = "x".repeat(129);
    for bad in ["with space", "<script>", &long] {
        assert!(
            shared()
                .with("x-request-id", bad)
                .get("/health")
                .header("x-request-id")
                .unwrap()
                .starts_with("req-")
        );
    }
}
