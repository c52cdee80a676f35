//! Medians, effective bandwidth, and rows of systems that failed.

use super::*;
use crate::exp2::systems::SYSTEMS;

fn sample(tpot_ms: f64, token: u32) -> Sample {
    Sample {
        ttft_ms: 10.0 * tpot_ms,
        tpot_ms,
        tpot_mean_ms: tpot_ms,
        total_ms: 100.0,
        streamed_bytes_per_pass: 2_000_000_000,
        tokens: vec![token],
        ..Sample::default()
    }
}

#[test]
fn medians_and_effective_bandwidth() {
    let samples = [sample(50.0, 1), sample(40.0, 1), sample(90.0, 1)];
    let medians = Medians::of(&samples).unwrap();
    assert_eq!((medians.tpot_ms, medians.ttft_ms), (50.0, 500.0));
    assert_eq!((medians.tpot_least_ms, medians.tpot_most_ms), (40.0, 90.0));
    assert_eq!(medians.effective_gbps, 40.0);
    assert_eq!(Medians::of(&[]), None);
}

#[test]
fn a_row_keeps_failures_and_compares_bits() {
    let mut rows: Vec<Row> = SYSTEMS[..3].iter().map(Row::new).collect();
    let points = |n: u64| (0..n).map(|i| Point { seconds: i as f64, bytes: i }).collect::<Vec<_>>();
    let given = |token| Ok(Samples { samples: vec![sample(40.0, token)], ..Samples::default() });
    rows[0].add(given(1), points(1000));
    rows[1].add(given(2), points(3));
    rows[2].add(Err("no card".into()), vec![]);
    assert_eq!((rows[0].memory.len(), rows[0].peak_bytes), (334, Some(999)));
    assert!(rows[0].measured() && !rows[2].measured());
    let link = serde_json::json!({"device": "test", "memcpy": false, "warnings": [], "expected": null,
        "pinned": {"up_gbps": 50.0, "down_gbps": 50.0}, "both": {"up_gbps": 50.0, "down_gbps": 50.0},
        "staged": {"up_gbps": 10.0, "down_gbps": 10.0}});
    let config = serde_json::json!({"model": "m", "vram_bytes": 1, "prompt": 1, "tokens": 2, "runs": 1,
        "ablation_runs": 1, "peer_runs": 1, "process_per_run": false, "device": "cpu"});
    let mut exp2: Exp2 =
        serde_json::from_value(serde_json::json!({"config": config, "link": link, "systems": rows})).unwrap();
    exp2.compare("FULL");
    assert_eq!(exp2.systems[0].link_share, Some(1.0));
    let same: Vec<_> = exp2.systems.iter().map(|row| row.same_as_full).collect();
    assert_eq!(same, [Some(true), Some(false), None]);
}
