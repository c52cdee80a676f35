//! `/openapi.json` against the server that it describes. `scripts/check_openapi.sh` validates its form.

use super::{chat, completion, shared};
use djinn_server::fields::{ENDPOINTS, Support};
use serde_json::{Value, json};

fn document() -> Value {
    let reply = shared().get("/openapi.json");
    assert_eq!(reply.status, 200);
    reply.json()
}

#[test]
fn every_path_that_is_told_is_there_and_takes_the_methods_that_are_told() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    for (path, methods) in paths {
        let place = path.replace(['{', '}'], "x");
        for method in ["get", "post", "put", "delete"] {
            let reply = shared().send(&method.to_uppercase(), &place, b"{}");
            // Names that do not exist are another failure than paths that do not.
            let exists = reply.status != 405 && !reply.body.contains("there is no /");
            assert_eq!(exists, methods.get(method).is_some(), "{method} {path}: {reply:?}");
        }
    }
    // A path that the table lacks would be a route of its own.
    for path in
        ["/v1/chat/completions", "/v1/models/{name}", "/v1/responses/{id}", "/metrics", "/openapi.json"]
    {
        assert!(paths.contains_key(path), "{path}");
    }
}

#[test]
fn every_field_is_told_with_its_type() {
    let document = document();
    for endpoint in ENDPOINTS {
        let method = endpoint.method.to_ascii_lowercase();
        let body = &document["paths"][endpoint.path][method]["requestBody"];
        let properties = &body["content"]["application/json"]["schema"]["properties"];
        assert_eq!(properties.as_object().unwrap().len(), endpoint.fields.len(), "{}", endpoint.path);
        for field in endpoint.fields {
            assert!(properties[field.name]["description"].is_string(), "{} {}", endpoint.path, field.name);
        }
    }
    // Values of other types than those that are told are refused.
    let wrong = [json!({}), json!([{}]), json!("?"), json!(0.5), json!(true)];
    for (path, whole) in
        [("/v1/chat/completions", chat("Hi", json!({}))), ("/v1/completions", completion("Hi", json!({})))]
    {
        let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.path == path).unwrap();
        let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        for field in endpoint.fields.iter().filter(|field| matches!(field.support, Support::Supported { .. }))
        {
            let types = schema["properties"][field.name]["type"].as_array().unwrap();
            for value in &wrong {
                let kind = match value {
                    Value::Object(_) => "object",
                    Value::Array(_) => "array",
                    Value::String(_) => "string",
                    Value::Bool(_) => "boolean",
                    _ => "number",
                };
                if !types.contains(&json!(kind)) {
                    let mut body = whole.clone();
                    body["max_tokens"] = json!(1);
                    body[field.name] = value.clone();
                    let reply = shared().post(path, &body);
                    assert!([400, 404].contains(&reply.status), "{path} {}: {value}: {reply:?}", field.name);
                }
            }
        }
        for required in schema["required"].as_array().unwrap() {
            let mut body = whole.clone();
            body.as_object_mut().unwrap().remove(required.as_str().unwrap());
            shared().refused(path, &body, required.as_str().unwrap());
        }
    }
}
