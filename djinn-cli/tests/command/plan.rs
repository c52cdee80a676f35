//! `djinn plan`.

use super::Place;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn u(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

const PROFILE: &str = r#"{"name":"mine","flops":1e12,"memory":1e11,"link":1e10,"launch":1e-6}"#;

/// A place on a machine that was measured.
fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path().join("cache")).unwrap();
    place.write("cache/machine.json", PROFILE);
    place
}

#[test]
fn the_report_adds_up() {
    let place = place();
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
    let names: BTreeSet<&str> = segments.keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["check", "data", "reserved", "resident", "ring", "stack"]));
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
    assert_eq!((&plan["machine"]["name"], &plan["machine"]["chosen"]), (&"mine".into(), &"measured".into()));
    assert_eq!(u(&segments["reserved"]), 0, "the CPU device takes nothing for itself");
    // No pass is faster than its copies.
    let copies = u(&plan["streamed_bytes_per_pass"]) as f64 / plan["machine"]["link"].as_f64().unwrap();
    for key in ["ttft_ms", "tpot_ms"] {
        assert!(plan["predicted"][key].as_f64().unwrap() >= copies * 0.999e3, "{plan}");
    }
}

#[test]
fn what_packing_would_give_is_said_of_bf16_alone() {
    let place = place();
    let plan = place.json(&["plan", "synthetic:llama-3-8b", "--json"]);
    let [packed, plain] = ["lossless_weight_bytes", "weight_bytes"].map(|key| u(&plan[key]) as f64);
    assert!((0.75..0.77).contains(&(packed / plain)), "{plan}");
    assert!(
        place.ok(&["plan", "synthetic:llama-3-8b"]).contains("packed without loss: about 11.4 GiB (0.76")
    );
    assert_eq!(
        place.json(&["plan", "synthetic:llama-2-13b", "--json"])["lossless_weight_bytes"],
        Value::Null
    );
}

#[test]
fn everything_is_resident_where_the_card_holds_it() {
    let long = ["--prompt-len=2048", "--prefill-chunk=2048"];
    let args = [&["plan", "synthetic:llama-2-7b", "--json", "--gpu", "l4"], &long[..]].concat();
    let plan = Place::new().json(&args);
    assert_eq!(u(&plan["streamed_bytes_per_pass"]), 0);
    assert_eq!(u(&plan["vram_bytes"]), 23034 << 20, "the card's memory");
    assert_eq!(plan["bottleneck"], serde_json::json!({ "prefill": "compute", "decode": "memory" }));
    assert_eq!(plan["machine"]["chosen"], "named");
    // 13.5 GB of weights at 250 GB/s.
    let tpot = plan["predicted"]["tpot_ms"].as_f64().unwrap();
    assert!((50.0..70.0).contains(&tpot), "{tpot}");
}

#[test]
fn heads_that_a_card_does_not_compute_are_refused() {
    let place = place();
    let wide = ["plan", "synthetic:tiny-qwen3?head_dim=264"];
    assert_eq!(
        place.refused(&[&wide[..], &["--gpu=h200"]].concat()),
        "the model's heads have 264 elements, and h200 computes attention over at most 256; load it on the CPU"
    );
    place.ok(&wide);
    place.ok(&["plan", "synthetic:tiny-qwen3?head_dim=256", "--gpu=h200"]);
}

#[test]
fn long_prompts_take_several_passes() {
    let ttft = |prompt: &str| {
        let model = ["plan", "synthetic:llama-2-13b", "--vram=20GiB", "--ctx=4096"];
        let args = [&model[..], &["--json", "--gpu=h200", "--prompt-len", prompt]].concat();
        Place::new().json(&args)["predicted"]["ttft_ms"].as_f64().unwrap()
    };
    // Of five prefill chunks each: the link is the limit.
    for (prompt, passes) in [("2560", 1.0), ("3584", 2.0)] {
        let ratio = ttft(prompt) / ttft("512");
        assert!((passes - 0.1..passes + 0.1).contains(&ratio), "{prompt} tokens: {ratio}");
    }
}

#[test]
fn work_and_cache_settings_change_the_plan() {
    let place = place();
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
    // A byte for each element, and four for each of 32 heads.
    let int8 = data(&["--ctx=2048", "--kv-dtype=int8"]);
    assert_eq!(int8, 32 * 2 * (4096 + 32 * 4) * 2048 + 2048 / 16 * 4);
}

#[test]
fn people_get_a_table() {
    let text = place().ok(&["plan", "synthetic:llama-2-13b", "--vram", "20GiB", "--stream-check"]);
    let rates = "mine (link 10.0 GB/s, memory 100.0 GB/s, 1.0 TFLOP/s, as measured by djinn doctor)";
    for part in ["13.016 billion", "cap 20.0 GiB", "resident", "ring", "KV cache", "f32", "check", rates] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let tiny = place().ok(&["plan", "synthetic:tiny"]);
    assert!(tiny.starts_with("synthetic:tiny: 127304 parameters"), "{tiny}");
}

#[test]
fn a_measured_machine_is_preferred_and_checked() {
    let place = place();
    let plan = place.json(&["plan", "synthetic:tiny", "--json"]);
    assert_eq!((&plan["machine"]["name"], &plan["machine"]["chosen"]), (&"mine".into(), &"measured".into()));
    let named = place.json(&["plan", "synthetic:tiny", "--json", "--gpu", "h100"]);
    assert_eq!(named["machine"]["name"], "h100");
    for bad in ["{", "{}", &PROFILE.replace("1e10", "0"), &PROFILE.replace("mine", "mine\",\"x\":\"")] {
        place.write("cache/machine.json", bad);
        assert!(
            place.refused(&["plan", "synthetic:tiny"]).contains("measure again with `djinn doctor --save`")
        );
    }
}

#[test]
fn a_machine_that_was_never_measured_is_measured_at_once() {
    let place = Place::new();
    let plan = place.json(&["plan", "synthetic:tiny", "--json"]);
    assert_eq!((&plan["machine"]["chosen"], &plan["kv_dtype"]), (&"quick".into(), &"f32".into()));
    for rate in ["flops", "memory", "link"] {
        assert!(plan["machine"][rate].as_f64().unwrap() > 1e6, "{plan}");
    }
    assert!(!place.path().join("cache/machine.json").exists(), "only the doctor keeps what it measures");
}

#[test]
fn encoded_weights_have_rates_of_their_own_on_the_cpu() {
    let place = place();
    let q4_k = "synthetic:tiny?hidden=256&intermediate=512&encoding=q4_k";
    let plan = |model, more: &[&str]| place.json(&[&["plan", model, "--json"], more].concat());
    let encoded = |model, more: &[&str]| plan(model, more)["machine"]["encoded"].clone();
    assert_eq!(encoded("synthetic:tiny", &[]), Value::Null);
    assert_eq!(encoded(q4_k, &["--encoding=plain"]), Value::Null);
    assert_eq!(encoded(q4_k, &["--gpu=h200"]), Value::Null);
    for (model, more, name) in
        [(q4_k, &[][..], "Q4_K"), ("synthetic:tiny", &["--encoding=lossless"], "lossless")]
    {
        let encoded = encoded(model, more);
        assert_eq!(encoded.as_object().unwrap().len(), 1, "{encoded}");
        for rate in ["flops", "memory"] {
            assert!(encoded[name][rate].as_f64().unwrap() > 1e6, "{encoded}");
        }
        assert!(place.ok(&[&["plan", model], more].concat()).contains(&format!(", {name} ")));
    }
    // Known rates are not measured, and are those of the prediction.
    let tpot = |rate: &str| {
        let known = format!(r#","encoded":{{"Q4_K":{{"flops":1e12,"memory":{rate}}}}}}}"#);
        place.write("cache/machine.json", &PROFILE.replace('}', &known));
        plan(q4_k, &[])["predicted"]["tpot_ms"].as_f64().unwrap()
    };
    let (slow, slower) = (tpot("1e6"), tpot("1e5"));
    assert!((slower / slow - 10.0).abs() < 0.1, "{slow} and {slower} ms");
    place
        .write("cache/machine.json", &PROFILE.replace('}', r#","encoded":{"Q4_K":{"flops":0,"memory":1}}}"#));
    assert!(place.refused(&["plan", q4_k]).contains("measure again with `djinn doctor --save`"));
}

#[test]
fn a_plan_is_of_one_machine() {
    let place = place();
    let plan = |more: &[&str]| {
        place.json(&[&["plan", "synthetic:llama-2-13b", "--vram", "20G", "--json"], more].concat())
    };
    let (cpu, card) = (plan(&[]), plan(&["--gpu", "RTX 4090"]));
    assert_eq!((&cpu["kv_dtype"], &cpu["segments"]["reserved"]), (&"f32".into(), &0.into()));
    assert_eq!((&card["kv_dtype"], &card["machine"]["name"]), (&"f16".into(), &"rtx-4090".into()));
    assert!(u(&card["segments"]["reserved"]) > 500 << 20, "{card}");
    // What the flags say of the machine wins, and changes nothing else.
    let flags = ["--link-gbps=1", "--hbm-gbps=50", "--tflops=0.25"];
    for (of, more) in [(&cpu, &flags[..]), (&card, &[&["--gpu=rtx-4090"], &flags[..]].concat())] {
        let plan = plan(more);
        let rates = ["link", "memory", "flops"].map(|rate| plan["machine"][rate].as_f64().unwrap());
        assert_eq!(rates, [1e9, 50e9, 0.25e12]);
        assert_eq!(plan["segments"], of["segments"]);
    }
}

/// The bytes of the rows of a plan's table, and their sum as it is printed.
fn rows(text: &str) -> (Vec<u64>, u64) {
    let rows = text.lines().filter(|line| line.starts_with("  "));
    let bytes = rows.filter_map(|row| row.split_whitespace().nth(1)?.parse().ok()).collect();
    let total = text.split(" bytes)").next().unwrap().rsplit('(').next().unwrap();
    (bytes, total.parse().unwrap())
}

#[test]
fn the_rows_of_the_table_sum_to_the_total() {
    let place = place();
    for more in [
        &["--vram=20GiB", "--stream-check"][..],
        &["--gpu=rtx-3090"],
        &["--gpu=h200", "--vram=16G", "--kv-dtype=f32", "--batch=4"],
    ] {
        for model in ["synthetic:llama-2-13b", "synthetic:mixtral-8x7b?layers=4"] {
            let text = place.ok(&[&["plan", model], more].concat());
            let (rows, total) = rows(&text);
            assert!(rows.len() >= 4 && rows.iter().sum::<u64>() == total, "{rows:?}: {text}");
        }
    }
    let card = place.ok(&["plan", "synthetic:llama-2-13b", "--gpu=rtx-3090"]);
    assert!(card.contains("  reserved ") && card.contains("rtx-3090 has 24.0 GiB"), "{card}");
}

#[test]
fn a_card_that_the_kernels_do_not_run_on_is_named() {
    let place = place();
    let last = |gpu: &str| place.ok(&["plan", "synthetic:tiny", gpu]).lines().last().unwrap().to_owned();
    assert!(last("--gpu=t4").contains("t4 has 7.5 and does not run them"));
    assert!(!last("--gpu=a10").contains("does not run"));
}

#[test]
fn the_sample_of_the_readme_is_what_the_command_prints() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let sample = readme.split("$ djinn plan ").nth(1).unwrap().split("\n```").next().unwrap();
    let (args, shown) = sample.split_once('\n').unwrap();
    let args: Vec<&str> = ["plan"].into_iter().chain(args.split_whitespace()).collect();
    assert_eq!(Place::new().ok(&args).trim_end(), shown, "of {args:?}");
}

#[test]
fn flags_without_effect_on_a_plan_are_not_offered() {
    let help = Place::new().ok(&["plan", "--help"]);
    for flag in ["--stream-check", "--device", "--threads", "--trace"] {
        assert!(!help.contains(flag), "{flag} is offered: {help}");
    }
    assert!(help.contains("--link-gbps"));
    // Nor are defaults of other commands told.
    let help = |command: &str| {
        let help = Place::new().ok(&[command, "--help"]);
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (command, [context, vram]) in [
        ("plan", ["what the request needs]", "for a card of --gpu its memory, else none]"]),
        ("run", ["what the request needs; in a chat at most 4096]", "on a GPU what is free, else none]"]),
        ("serve", ["4096, or the model's own if that is less]", "on a GPU what is free, else none]"]),
        ("logits", ["what the request needs]", "on a GPU what is free, else none]"]),
    ] {
        let help = help(command);
        for expected in
            [format!("pages of 16 [default: {context}"), format!("e.g. 20GiB or 20G [default: {vram}")]
        {
            assert!(help.contains(&expected), "{command}: {expected}: {help}");
        }
    }
}
