//! `djinn plan`.

use super::Place;
use serde_json::Value;

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

#[test]
fn the_report_adds_up() {
    let place = Place::new();
    let cap = 20u64 << 30;
    let plan = place.json(&["plan", "synthetic:llama-2-13b", "--vram", "20GiB", "--json"]);
    assert_eq!(plan["model"], "synthetic:llama-2-13b");
    assert_eq!(u(&plan["vram_bytes"]), cap);
    assert_eq!(u(&plan["weight_bytes"]), 26_031_728_896);
    assert!(u(&plan["streamed_bytes_per_pass"]) < 6_300_000_000, "{plan}");
    let segments = plan["segments"].as_object().unwrap();
    let total: u64 = segments.values().map(u).sum();
    assert_eq!(total, u(&plan["device_bytes"]));
    assert!(total <= cap && total > cap - (64 << 20), "{plan}");
    assert_eq!(
        segments.keys().collect::<Vec<_>>(),
        ["check", "data", "reserved", "resident", "ring", "stack"]
    );
    assert_eq!(u(&segments["resident"]), u(&plan["resident_bytes"]));
    // All weights lie on one side or the other; chunks are padded a little.
    let weights = u(&plan["resident_bytes"]) + u(&plan["host_weight_bytes"]);
    assert!(weights >= u(&plan["weight_bytes"]) && weights < u(&plan["weight_bytes"]) + (1 << 20));
    assert_eq!(u(&plan["host_kv_bytes"]), 0, "no session is parked");
    assert_eq!(u(&plan["host_bytes"]), u(&plan["host_weight_bytes"]));
    let chunks = &plan["chunks"];
    assert_eq!(u(&chunks["count"]), u(&chunks["resident"]) + u(&chunks["streamed"]));
    assert_eq!(u(&plan["ring"]["slots"]), u(&chunks["streamed"]));
    assert_eq!(u(&plan["ring"]["bytes"]), u(&segments["ring"]));
    assert!(u(&chunks["largest_bytes"]) <= u(&plan["ring"]["bytes"]));
    assert_eq!(plan["bottleneck"]["decode"], "link");
    assert_eq!((&plan["machine"]["name"], &plan["machine"]["chosen"]), (&"h200".into(), &"default".into()));
    // No pass is faster than its copies.
    let copies = u(&plan["streamed_bytes_per_pass"]) as f64 / plan["machine"]["link"].as_f64().unwrap();
    for key in ["ttft_ms", "tpot_ms"] {
        assert!(plan["predicted"][key].as_f64().unwrap() >= copies * 0.999e3, "{plan}");
    }
}

#[test]
fn everything_is_resident_without_a_cap() {
    let long = ["--prompt-len=2048", "--prefill-chunk=2048"];
    let args = [&["plan", "synthetic:llama-2-7b", "--json", "--gpu", "l4"], &long[..]].concat();
    let plan = Place::new().json(&args);
    assert_eq!(u(&plan["streamed_bytes_per_pass"]), 0);
    assert_eq!(plan["vram_bytes"], Value::Null);
    assert_eq!(plan["bottleneck"], serde_json::json!({ "prefill": "compute", "decode": "memory" }));
    assert_eq!(plan["machine"]["chosen"], "named");
    // 13.5 GB of weights at 255 GB/s.
    let tpot = plan["predicted"]["tpot_ms"].as_f64().unwrap();
    assert!((50.0..70.0).contains(&tpot), "{tpot}");
}

#[test]
fn long_prompts_take_several_passes() {
    let ttft = |prompt: &str| {
        let model = ["plan", "synthetic:llama-2-13b", "--vram=20GiB", "--ctx=4096"];
        let args = [&model[..], &["--json", "--prompt-len", prompt]].concat();
        Place::new().json(&args)["predicted"]["ttft_ms"].as_f64().unwrap()
    };
    let ratio = ttft("2048") / ttft("512");
    assert!((3.9..4.5).contains(&ratio), "{ratio}");
}

#[test]
fn work_and_cache_settings_change_the_plan() {
    let place = Place::new();
    let data = |more: &[&str]| {
        let args: Vec<&str> =
            ["plan", "synthetic:llama-2-7b", "--json"].iter().chain(more).copied().collect();
        u(&place.json(&args)["segments"]["data"])
    };
    // 32 blocks of keys and values, 4096 wide; and a table of page numbers.
    let f32 = data(&["--ctx=2048"]);
    assert_eq!(f32, 32 * 2 * 4096 * 4 * 2048 + 2048 / 16 * 4);
    let f16 = data(&["--ctx=2048", "--kv-dtype=f16"]);
    assert_eq!(f16, 32 * 2 * 4096 * 2 * 2048 + 2048 / 16 * 4);
    assert_eq!(data(&["--ctx=2048", "--gpu=h200"]), f16, "a GPU's cache is f16");
    assert_eq!(data(&["--ctx=2048", "--batch=3"]), 3 * f32);
}

#[test]
fn people_get_a_table() {
    let text = Place::new().ok(&["plan", "synthetic:llama-2-13b", "--vram", "20GiB", "--stream-check"]);
    for part in
        ["13.016 billion", "cap 20.0 GiB", "resident", "ring", "KV cache", "check", "h200, the default"]
    {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn a_measured_machine_is_preferred_and_checked() {
    let place = Place::new();
    let cache = place.path().join("cache");
    std::fs::create_dir(&cache).unwrap();
    let profile = r#"{"name":"mine","flops":1e12,"memory":1e11,"link":1e10,"launch":1e-6}"#;
    std::fs::write(cache.join("machine.json"), profile).unwrap();
    let plan = place.json(&["plan", "synthetic:tiny", "--json"]);
    assert_eq!((&plan["machine"]["name"], &plan["machine"]["chosen"]), (&"mine".into(), &"measured".into()));
    let named = place.json(&["plan", "synthetic:tiny", "--json", "--gpu", "h100"]);
    assert_eq!(named["machine"]["name"], "h100");
    for bad in ["{", "{}", &profile.replace("1e10", "0"), &profile.replace("mine", "mine\",\"x\":\"")] {
        std::fs::write(cache.join("machine.json"), bad).unwrap();
        assert!(
            place.refused(&["plan", "synthetic:tiny"]).contains("measure again with `djinn doctor --save`")
        );
    }
}
