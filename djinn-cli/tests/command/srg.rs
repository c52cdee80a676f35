//! `djinn srg` and `djinn doctor`.

use super::{Place, checkpoint};

#[test]
fn the_graph_is_shown_three_ways() {
    let place = Place::new();
    let table = place.ok(&["srg", "synthetic:llama-2-13b"]);
    assert!(table.contains("blocks 0 to 39, 40 alike:") && table.lines().count() < 30, "{table}");
    assert!(table.contains("blocks.0.attn.qkv") && !table.contains("blocks.1.attn.qkv"), "{table}");
    let tiny = place.ok(&["srg", "synthetic:tiny"]);
    assert!(tiny.contains(" 127304 parameters, "), "{tiny}");
    for table in [table, tiny, place.ok(&["srg", "synthetic:mixtral-8x7b"])] {
        // Every number ends where its column does.
        let head = table.lines().find(|line| line.starts_with("node ")).unwrap();
        let end = head.find("bound").unwrap();
        let rows = table.lines().filter(|line| line.ends_with("memory") || line.ends_with("compute"));
        for row in rows {
            assert!(
                row.as_bytes()[end - 1] == b' ' && row[end..].trim_start() == &row[end..],
                "{row}\n{table}"
            );
        }
    }
    let decode = place.json(&["srg", "synthetic:tiny", "--json"]);
    assert_eq!(decode["nodes"].as_array().unwrap().len(), decode["annotations"].as_array().unwrap().len());
    assert_eq!(decode["annotations"][0]["bound"], "memory");
    assert_eq!((&decode["work"]["rows"]["rows"], &decode["work"]["context"]), (&1.into(), &512.into()));
    let prefill = place.json(&["srg", "synthetic:tiny", "--json", "--phase=prefill", "--prompt-len=40"]);
    assert_eq!(prefill["work"]["rows"], serde_json::json!({ "rows": 40, "logit_rows": 1 }));
    let dot = place.ok(&["srg", &checkpoint("gqa-bf16"), "--dot"]);
    assert!(dot.starts_with("digraph srg {") && dot.trim_end().ends_with('}'), "{dot}");
    let graph = place.json(&["srg", &checkpoint("gqa-bf16"), "--json"]);
    let nodes = graph["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| dot.contains(node["name"].as_str().unwrap())), "{dot}");
    let blocks = nodes.iter().filter_map(|node| node["layer"].as_u64()).max().unwrap() + 1;
    assert_eq!(dot.matches("subgraph").count() as u64, blocks);
    assert!(dot.contains("style=dashed"), "{dot}");
}

/// A point has a line with all of its names, old and new and the checkpoint's.
#[test]
fn hooks_are_listed_with_all_of_their_names() {
    let place = Place::new();
    let table = place.ok(&["hooks", &checkpoint("gqa-bf16")]);
    let line = |name: &str| {
        let has = |line: &&str| line.split([',', ' ']).any(|word| word == name);
        table.lines().find(has).unwrap_or_else(|| panic!("no {name}: {table}"))
    };
    let residual = ["blocks.0.hook_out", "blocks.1.hook_resid_pre", "model.layers.0"].map(line);
    assert_eq!(residual, [residual[0]; 3]);
    assert!(line("unembed.hook_out").contains("logits are wanted"), "{table}");
    let hooks = place.json(&["hooks", &checkpoint("gqa-bf16"), "--json"]);
    let points = hooks["hooks"].as_array().unwrap();
    assert_eq!(points.len(), table.lines().count());
    let graph = place.json(&["srg", &checkpoint("gqa-bf16"), "--json"]);
    let (patterns, points): (Vec<_>, Vec<_>) = points.iter().partition(|point| point["writable"] == false);
    let names = points.iter().map(|point| 1 + point["aliases"].as_array().unwrap().len()).sum::<usize>();
    assert_eq!(names, graph["hooks"].as_array().unwrap().len());
    let widths = ["blocks.0.attn.hook_q", "blocks.0.attn.hook_k"].map(|name| {
        let point = points.iter().find(|point| point["aliases"].as_array().unwrap().contains(&name.into()));
        point.unwrap()["shape"][1].as_u64().unwrap()
    });
    assert!(widths[0] > widths[1], "queries have more heads than keys: {widths:?}");
    for (layer, pattern) in patterns.iter().enumerate() {
        let name = format!("blocks.{layer}.attn.hook_pattern");
        assert_eq!((&pattern["name"], &pattern["paused_only"]), (&name.as_str().into(), &true.into()));
        assert!(line(&name).contains("read-only") && line(&name).contains("on the host"), "{table}");
    }
    let blocks = points.iter().filter(|point| point["name"].as_str().unwrap().ends_with(".mlp.hook_out"));
    assert_eq!(patterns.len(), blocks.count(), "one for each block");
}

#[test]
fn the_doctor_measures_and_keeps_what_it_measured() {
    let place = Place::new();
    let report = place.json(&["doctor", "--json", "--save", "-q"]);
    for rate in ["flops", "memory", "link"] {
        assert!(report["machine"][rate].as_f64().unwrap() > 1e6, "{report}");
    }
    let findings = report["findings"].as_array().unwrap();
    let named = |name: &str| findings.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("{name}"));
    for name in ["processor", "memory", "locked memory", "huge pages", "arithmetic", "memory copy", "disk"] {
        assert!(!named(name)["value"].as_str().unwrap().is_empty());
    }
    assert!(named("cuda")["value"].as_str().unwrap().contains("this build has no CUDA support"));
    assert!(findings.iter().all(|f| f["ok"] == true || f["remedy"].is_string()), "{report}");
    let plan = place.json(&["plan", "synthetic:tiny", "--json"]);
    assert_eq!(plan["machine"]["chosen"], "measured");
    assert_eq!(plan["machine"]["name"], report["machine"]["name"]);
}
