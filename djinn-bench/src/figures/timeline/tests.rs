//! Traces become bars, overlaps, and a figure with its names.

use super::*;

const TRACE: &str = r#"{"otherData": {"model": "tiny", "device": "a test card"}, "traceEvents": [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "copy"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 8, "args": {"name": "compute"}},
    {"ph": "X", "name": "layer 0", "pid": 1, "tid": 8, "ts": 3000, "dur": 1000},
    {"ph": "X", "name": "chunk 1", "pid": 1, "tid": 7, "ts": 1000, "dur": 2000},
    {"ph": "X", "name": "elsewhere", "pid": 1, "tid": 9, "ts": 0, "dur": 9000},
    {"ph": "i", "name": "mark", "pid": 1, "tid": 7, "ts": 5}
]}"#;

#[test]
fn complete_events_of_known_tracks_are_bars() {
    let trace: ChromeTrace = serde_json::from_str(TRACE).unwrap();
    let found = bars(&trace.events);
    assert_eq!(found[0], Bar { track: 0, name: "chunk 1".into(), start: 1.0, end: 3.0 });
    assert_eq!((found.len(), found[1].track), (2, 1));
}

#[test]
fn overlaps_count_once_and_long_traces_show_their_middle() {
    let bar = |start: f64, end: f64| Bar { track: 0, name: String::new(), start, end };
    assert_eq!(covered([bar(0.0, 4.0), bar(1.0, 2.0), bar(3.0, 6.0), bar(8.0, 9.0)].iter()), 7.0);
    let mut long: Vec<Bar> = (0..2000).map(|i| bar(i as f64, i as f64 + 1.0)).collect();
    long.push(Bar { track: 2, name: "load".into(), start: 0.0, end: 200.0 });
    long.push(Bar { track: 2, name: "step".into(), start: 200.0, end: 600.0 });
    let shown = middle(long);
    assert_eq!((shown.len(), shown[0].start), (MOST_BARS + 1, 250.0));
    let step = shown.iter().find(|bar| bar.track == 2).unwrap();
    assert_eq!((step.start, step.end), (250.0, 600.0), "cut to the stretch");
}

#[test]
fn waiting_is_no_work() {
    let bar = |track, name: &str, start: f64, end: f64| Bar { track, name: name.into(), start, end };
    let bars =
        [bar(1, "blk.0.q", 0.0, 281.0), bar(1, "wait for chunk 7", 281.0, 573.0), bar(2, "wait", 0.0, 573.0)];
    assert_eq!(shares(&bars, 1, 573.0), "compute: worked 49.0 %, waited 51.0 %");
    assert_eq!(shares(&bars, 2, 573.0), "host: worked 0.0 %, waited 100.0 %");
    assert_eq!(shares(&bars, 0, 573.0), "copy: worked 0.0 %, waited 0.0 %");
}

#[test]
fn the_figure_names_model_machine_tracks_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    std::fs::write(&path, TRACE).unwrap();
    timeline(&path, folder.path()).unwrap();
    let svg = std::fs::read_to_string(folder.path().join("timeline.svg")).unwrap();
    for text in [
        "tiny",
        "a test card",
        "ms",
        "copy: worked 66.7 %, waited 0.0 %",
        "compute: worked 33.3 %, waited 0.0 %",
        "host: worked 0.0 %, waited 0.0 %",
        "chunk 1",
        "layer 0",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    std::fs::write(&path, "{\"traceEvents\": []}").unwrap();
    assert!(timeline(&path, folder.path()).unwrap_err().to_string().contains("no events"));
    std::fs::write(&path, "hello").unwrap();
    assert!(timeline(&path, folder.path()).unwrap_err().to_string().contains("no Chrome trace"));
}
