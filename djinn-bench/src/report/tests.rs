//! Results as they lie in files, rendered.

use super::*;
use crate::figures;

const EXP2: &str = include_str!("../../tests/fixtures/exp2.json");

fn rendered(name: &str, text: &str) -> Result<Option<String>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    render(&path)
}

#[test]
fn experiment_2_becomes_two_tables() {
    let text = rendered("exp2.json", EXP2).unwrap().unwrap();
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        line("| FULL "),
        "| FULL (Djinn) | yes | 1 | 5.700 | 105.2 | 103.30 | 103.40 | 5270 | 55.2 | 0.994 | 20000 | 19000 |"
    );
    assert_eq!(
        line("| three-slot "),
        "| three-slot (PyTorch, three slots) | yes | 1 | 8.880 | 187.0 | 163.00 | 163.10 | 8200 | 54.5 | 0.982 | 19500 | – |"
    );
    assert!(
        line("| deepspeed ")
            .starts_with("| deepspeed (DeepSpeed): No module named 'deepspeed' | yes | 0 | – |")
    );
    // 206.6 ms instead of 103.3, the same bytes.
    assert_eq!(
        line("| NO_PIPELINING | +"),
        "| NO_PIPELINING | +103.30 | 2.000 | +10.0 | +0.000 | equal | Copies run ahead. |"
    );
    assert!(text.contains("NVIDIA H200, driver 580.159, AMD EPYC, 16 threads, 128.0 GiB"), "{text}");
    assert!(text.contains("commit abc1234: `djinn-bench exp2 --device cuda`"), "{text}");
    assert!(text.contains("118.0 GiB of the card occupied"), "{text}");
    assert!(text.contains("difference norm 2.00e-4"), "{text}");
}

#[test]
fn figures_hold_every_series() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exp2.json");
    std::fs::write(&path, EXP2).unwrap();
    figures::exp2(&read(&path, "exp2").unwrap(), folder.path()).unwrap();
    let svg = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let bars = svg("token-time.svg");
    // DeepSpeed did not run. The link gave 55.5 GB/s: 5.7 GB take it 102.7 ms.
    for text in [
        "FULL",
        "NO_PIPELINING",
        "three-slot",
        "RESIDENT",
        "103.3 ms; the link takes 102.7 ms for 5.70 GB",
        "206.6 ms; the link takes 102.7 ms for 5.70 GB",
        "all resident",
        "ms per token (median)",
        "NVIDIA H200; commit abc1234",
    ] {
        assert!(bars.contains(text), "{text}: {bars}");
    }
    assert!(!bars.contains("deepspeed"));
    let fills = |colour: &str| bars.matches(&format!("fill=\"{colour}\"")).count();
    assert_eq!((fills("#0072B2"), fills("#E69F00")), (3, 1), "one bar each, peers in another colour");
    let lines = svg("memory.svg");
    for text in ["FULL", "three-slot", "20.0 GiB", "Device memory over time", "GiB", "seconds", "NVIDIA H200"]
    {
        assert!(lines.contains(text), "{text}");
    }
    assert!(lines.matches("<polyline").count() >= 2, "a line for each system with memory");
}

#[test]
fn other_experiments_become_tables() {
    let around = |experiment: &str, body: &str| {
        format!(
            r#"{{"experiment": "{experiment}", "date": "d", "commit": "", "command": "c",
                "machine": {{"gpu": null, "driver": null, "cpu": "X", "threads": 2, "memory_bytes": null}}, {body}}}"#
        )
    };
    let link = r#""device": "cuda:0", "memcpy": false, "pinned": {"up_gbps": 27.04, "down_gbps": 26},
        "both": {"up_gbps": 25, "down_gbps": 25}, "staged": {"up_gbps": 9, "down_gbps": 8},
        "expected": {"gbps": 50.4, "link": "PCIe 5.0 x16"}, "warnings": ["the link is narrow"]"#;
    let text = rendered("a.json", &around("link", link)).unwrap().unwrap();
    assert!(
        text.contains("| pinned | 27.0 | 26.0 |") && text.contains("Warning: the link is narrow."),
        "{text}"
    );
    assert!(text.contains("commit unknown"), "{text}");

    let sweep = r#""model": "m", "device": "cuda:0", "prompt": 64, "tokens": 20, "modes": [{"name": "streaming",
        "vram_bytes": 21474836480, "streamed_bytes_per_pass": 5700000000, "failure": null, "batches":
        [{"batch": 8, "pass_ms": 105, "tokens_per_s": 76.2, "ratio": 7.87, "samples_ms": []}]},
        {"name": "streaming", "vram_bytes": 42949672960, "streamed_bytes_per_pass": 0, "failure": null, "batches":
        [{"batch": 1, "pass_ms": 5, "tokens_per_s": 200, "ratio": 1, "samples_ms": []}]},
        {"name": "resident", "vram_bytes": null, "streamed_bytes_per_pass": 0, "failure": "no room", "batches": []}]"#;
    let text = rendered("a.json", &around("sweep", sweep)).unwrap().unwrap();
    assert!(text.contains("| resident, 40.0 GiB | 1 |"), "a cap under which nothing streams: {text}");
    assert!(text.contains("| streaming, 20.0 GiB | 8 | 5.700 | 105.00 | 76.2 | 7.87 |"), "{text}");
    assert!(text.contains("| resident | no room |"), "{text}");

    let swap = r#""model": "m", "device": "cuda:0", "tokens": 2048, "session_bytes": 1073741824, "moving": 2,
        "transfers": [{"name": "park", "bytes": 1073741824, "gbps": 54.96, "first_byte_us": 12.4, "total_ms": 19.6,
        "samples_ms": []}, {"name": "park again, unchanged", "bytes": 0, "gbps": null, "first_byte_us": 9,
        "total_ms": 0.02, "samples_ms": []}], "modes": [{"name": "streamed", "vram_bytes": 6442450944,
        "streamed_bytes_per_pass": 6700000000, "failure": null, "runs": [{"swaps": false, "token_ms": 120,
        "samples_ms": [], "weights_gbps": 55.8, "in_gbps": null, "out_gbps": null}, {"swaps": true, "token_ms": 150,
        "samples_ms": [], "weights_gbps": 44.7, "in_gbps": 7.1, "out_gbps": 7.2}]}, {"name": "resident",
        "vram_bytes": null, "streamed_bytes_per_pass": 0, "failure": "no room", "runs": []}]"#;
    let text = rendered("a.json", &around("swap", swap)).unwrap().unwrap();
    for line in [
        "| park | 1.074 | 55.0 | 12 | 19.60 |",
        "| park again, unchanged | 0.000 | – | 9 | 0.02 |",
        "| streamed (6.700 GB per pass) | nothing | 120.00 | 1.00 | 55.8 | – | – |",
        "| streamed (6.700 GB per pass) | swaps both ways | 150.00 | 1.25 | 44.7 | 7.1 | 7.2 |",
        "| resident | no room | – | – | – | – | – |",
    ] {
        assert!(text.contains(line), "{line} is missing in {text}");
    }

    let plan = r#""predicted_for": "h200", "prompt": 512, "tokens": 21, "runs": 3, "cases": [{"model": "m",
        "vram_bytes": 21474836480, "streamed_bytes_per_pass": 5700000000, "bottleneck": "link",
        "predicted_tpot_ms": 98, "measured_tpot_ms": 100, "relative_error": -0.02, "samples_ms": [], "failure": null}]"#;
    let text = rendered("a.json", &around("plan", plan)).unwrap().unwrap();
    assert!(text.contains("| m | the link | 20.0 GiB | 5.700 | 98.00 | 100.00 | -2.0 % |"), "{text}");
}

#[test]
fn unknown_and_broken_results_are_told_apart() {
    assert_eq!(rendered("a.json", "{\"hello\": 1}").unwrap(), None);
    assert!(rendered("a.json", "{").is_err());
    let broken = rendered("a.json", "{\"experiment\": \"exp2\"}").unwrap_err();
    assert!(crate::one_line(broken.as_ref()).contains("missing field"), "{broken:#}");
}

/// A file of the folder `results`.
fn result(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../results").join(name)
}

#[test]
fn the_projects_own_results_render_as_they_are_committed() {
    let report = std::fs::read_to_string(result("README.md")).unwrap();
    for path in files(&result("")).unwrap() {
        let name = path.file_name().unwrap().to_string_lossy();
        let section = format!("## {name}\n\n{}", render(&path).unwrap().unwrap());
        assert!(report.contains(&section), "{name} renders otherwise: {section}");
    }
}

#[test]
fn the_projects_own_figures_are_drawn_as_they_are_committed() {
    let folder = tempfile::tempdir().unwrap();
    figures::exp1(&read(&result("exp1-h200.json"), "exp1").unwrap(), folder.path()).unwrap();
    figures::exp1(
        &read(&result("exp1-density-28-simulated.json"), "exp1").unwrap(),
        &folder.path().join("28"),
    )
    .unwrap();
    figures::exp2(&read(&result("exp2-h200.json"), "exp2").unwrap(), folder.path()).unwrap();
    figures::exp2_remote(&read(&result("exp2-remote-cpu.json"), "exp2-remote").unwrap(), folder.path())
        .unwrap();
    figures::timeline(&result("traces/smollm2-cpu.json"), folder.path()).unwrap();
    std::fs::rename(folder.path().join("28/density.svg"), folder.path().join("density.svg")).unwrap();
    for entry in std::fs::read_dir(result("figures")).unwrap() {
        let path = entry.unwrap().path();
        let drawn = std::fs::read_to_string(folder.path().join(path.file_name().unwrap()));
        let committed = std::fs::read_to_string(&path).unwrap();
        assert!(drawn.is_ok_and(|drawn| drawn == committed), "{} is drawn otherwise", path.display());
    }
}
