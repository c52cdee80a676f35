//! The table of fields against what clients send, and against its page.

use djinn_server::fields::{ENDPOINTS, Support, document};
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn every_field_that_clients_send_is_in_the_table() {
    let sent: Value = serde_json::from_str(include_str!("../data/client-fields.json")).unwrap();
    for (path, names) in sent.as_object().unwrap().iter().filter(|(path, _)| path.starts_with('/')) {
        let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.path == path).unwrap();
        let names = names.as_array().unwrap();
        assert!(names.len() > 15, "{path}");
        for name in names {
            let name = name.as_str().unwrap();
            assert!(endpoint.fields.iter().any(|field| field.name == name), "{path} misses {name}");
        }
    }
}

#[test]
fn a_field_has_one_row_and_its_neutral_values_are_json() {
    for endpoint in ENDPOINTS {
        let names: BTreeSet<&str> = endpoint.fields.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), endpoint.fields.len(), "{} has a field twice", endpoint.path);
        for field in endpoint.fields {
            if let Support::Refused { neutral, .. } = field.support {
                assert!(
                    neutral.iter().all(|text| serde_json::from_str::<Value>(text).is_ok()),
                    "{}",
                    field.name
                );
            }
        }
    }
}

#[test]
fn the_page_is_the_table() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/server-fields.md")).unwrap();
    assert_eq!(
        page,
        document(),
        "make it anew: cargo run -p djinn-server --example fields > docs/server-fields.md"
    );
}
