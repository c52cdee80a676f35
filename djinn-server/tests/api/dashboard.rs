//! What the files of `deploy` ask Prometheus for is on `/metrics`.

use super::shared;
use super::store::Pushing;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn deployed(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words of a text, as PromQL has them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// The texts that every object below has under this name.
fn texts<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| texts(one, name, found)),
        Value::Object(fields) => {
            for (key, field) in fields {
                match field.as_str() {
                    Some(text) if key == name => found.push(text),
                    _ => texts(field, name, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn dashboard_and_alerts_name_metrics_that_there_are() {
    let [plain, with_store] = [shared(), Pushing::new().target()].map(|server| server.get("/metrics").body);
    let page = plain + &with_store;
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let metrics: BTreeSet<&str> = samples.clone().filter_map(|line| words(line).next()).collect();
    let labels: BTreeSet<&str> = samples.flat_map(words).collect();

    let dashboard: Value = serde_json::from_str(&deployed("grafana/dashboards/djinn.json")).unwrap();
    let (mut expressions, mut legends) = (Vec::new(), Vec::new());
    texts(&dashboard, "expr", &mut expressions);
    texts(&dashboard, "query", &mut expressions);
    texts(&dashboard, "legendFormat", &mut legends);
    let alerts = deployed("alerts.yml");
    let rules: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(expressions.len() > 20 && rules.len() > 3, "the search misses some");
    for expression in expressions.iter().chain(&rules) {
        for name in words(expression).filter(|word| word.starts_with("djinn_")) {
            assert!(metrics.contains(name), "{name} of {expression} is not on /metrics");
        }
    }
    for legend in legends {
        for part in legend.split("{{").skip(1) {
            let label = part.split("}}").next().unwrap();
            assert!(labels.contains(label), "{label} of {legend} is no label on /metrics");
        }
    }
}
