//! `djinn list`, `rm` and `pull`, without a network.

use super::Place;

#[test]
fn an_empty_cache_is_listed() {
    let place = Place::new();
    assert_eq!(place.json(&["list", "--json"]), serde_json::json!({ "models": [] }));
    assert!(place.ok(&["list"]).contains("the cache is empty"));
    assert!(!place.path().join("cache").exists(), "listing created the cache");
}

#[test]
fn unknown_models_are_neither_pulled_nor_removed() {
    let place = Place::new();
    assert!(place.refused(&["rm", "smollm2"]).starts_with("smollm2 is not in the cache"));
    assert!(place.refused(&["pull", "nosuch"]).starts_with("nosuch is no model that Djinn knows by name"));
    assert!(place.refused(&["rm", "../x"]).contains("neither a path that exists nor a model's name"));
}
