//! Traces say what the device did: every chunk, every launch, in order and to the nanosecond.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::{Device, Ops};
use djinn_engine::{
    Budget, Engine, Entry, Error, Generate, Options, PassStats, Request, Service, Trace, Wanted,
};
use djinn_models::{Location, Model, OpenOptions, open};
use serde_json::Value;
use std::ops::ControlFlow;

const MODEL: &str = "tiny?layers=2&hidden=96&intermediate=160&heads=6&kv_heads=2&head_dim=16&vocab=700";
const PASSES: u64 = 4;

fn model() -> Model {
    open(&Location::Synthetic(MODEL.into()), &OpenOptions::default()).expect("a known shape")
}

fn options() -> Options {
    let budget = Budget {
        resident_fraction: Some(0.25),
        chunk: Some(70_000),
        ring: Some(170_000),
        ..Budget::default()
    };
    Options { budget, context: 64, prefill_rows: 8, ..Options::default() }
}

fn load<D: Ops>(device: D, options: &Options) -> Engine<D> {
    let model = model();
    Engine::load(device, model.graph, &*model.source, options, &mut |_, _| ControlFlow::Continue(()))
        .expect("it loads")
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

fn sim(seed: u64) -> SimDevice {
    let link_bytes_per_second = [1e8, 5e9, 1e12][seed as usize % 3];
    SimDevice::new(SimConfig { math: Math::Fast, seed, link_bytes_per_second, ..SimConfig::default() })
        .expect("a device")
}

/// A span, in nanoseconds.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    begin: i64,
    end: i64,
    args: Value,
}

impl Span {
    fn pass(&self) -> u64 {
        self.args["pass"].as_u64().expect("a pass")
    }
}

struct Timeline {
    events: Vec<Value>,
    clock_error: i64,
}

impl Timeline {
    /// Ends the engine's trace and reads what it writes.
    fn of<D: Ops>(engine: &mut Engine<D>) -> Self {
        let timeline = Timeline::read(engine.finish_trace());
        assert!(engine.finish_trace().is_none() && !engine.tracing());
        timeline
    }

    fn read(trace: Option<Trace>) -> Self {
        let (trace, mut bytes) = (trace.expect("it was started"), Vec::new());
        trace.write(&mut bytes).expect("memory takes it");
        let whole: Value = serde_json::from_slice(&bytes).expect("valid JSON");
        let events = whole["traceEvents"].as_array().expect("an array").clone();
        assert_eq!(whole["otherData"]["passes"], trace.passes());
        Timeline { events, clock_error: trace.clock_error().as_nanos() as i64 }
    }

    /// The spans of a track in order of time; they do not overlap.
    fn track(&self, name: &str) -> Vec<Span> {
        let names = |e: &&Value| e["ph"] == "M" && e["name"] == "thread_name" && e["args"]["name"] == name;
        let tid = &self.events.iter().find(names).expect("the track is named")["tid"];
        let nanos = |value: &Value| (value.as_f64().expect("a number") * 1e3).round() as i64;
        let spans = self.events.iter().filter(|e| e["ph"] == "X" && e["tid"] == *tid).map(|e| {
            let (begin, name) = (nanos(&e["ts"]), e["name"].as_str().expect("a name").to_owned());
            Span { name, begin, end: begin + nanos(&e["dur"]), args: e["args"].clone() }
        });
        let mut spans: Vec<Span> = spans.collect();
        spans.sort_by_key(|s| (s.begin, s.end));
        assert!(spans.iter().all(|s| 0 <= s.begin && s.begin <= s.end));
        for pair in spans.windows(2) {
            assert!(pair[0].end <= pair[1].begin, "{name}: {:?} overlaps {:?}", pair[0], pair[1]);
        }
        spans
    }
}

/// A prompt of five tokens, then one token at a time.
fn run<D: Ops>(engine: &mut Engine<D>) -> (Vec<PassStats>, Vec<Vec<f32>>) {
    let (mut pages, mut sequence) = (engine.free_pages(), djinn_engine::Sequence::default());
    let passes = (0..PASSES).map(|pass| {
        let tokens: &[u32] = if pass == 0 { &[1, 2, 3, 4, 5] } else { &[7] };
        let entry = Entry::new(&mut sequence, tokens, Wanted::Last);
        engine.step(&mut pages, &mut [entry]).expect("it runs")
    });
    let (logits, stats) = passes.unzip();
    (stats, logits)
}

/// Everything that holds on every device; gives the timeline for what holds only on some.
fn check<D: Ops>(device: D, options: &Options) -> Timeline {
    let mut engine = load(device, options);
    assert!(!engine.tracing() && engine.finish_trace().is_none());
    engine.start_trace().expect("it starts");
    assert!(engine.tracing());
    let (stats, _) = run(&mut engine);
    let timeline = Timeline::of(&mut engine);
    let (placement, segments) = (&engine.plan().placement, engine.plan().segments);
    let (copies, compute) = (timeline.track("copy"), timeline.track("compute"));
    for (pass, stats) in (0..).zip(&stats) {
        let of = |spans: &[Span]| spans.iter().filter(|s| s.pass() == pass).cloned().collect::<Vec<_>>();
        let (copies, compute) = (of(&copies), of(&compute));
        let chunks: Vec<u64> = copies.iter().map(|c| c.args["chunk"].as_u64().expect("a number")).collect();
        let streamed: Vec<u64> = placement.streamed().map(|c| c.0 as u64).collect();
        assert_eq!(chunks, streamed, "each streamed chunk once, in order, in pass {pass}");
        let copied: i64 = copies.iter().map(|c| c.end - c.begin).sum();
        assert_eq!(copied as u128, stats.copy.as_nanos());
        let bytes: u64 = copies.iter().map(|c| c.args["bytes"].as_u64().expect("a number")).sum();
        assert_eq!(bytes, stats.streamed_bytes);

        let named = |what: &str| compute.iter().filter(|s| s.name.starts_with(what)).count();
        assert_eq!(named("wait for chunk "), stats.stalls as usize);
        let straddling = placement.streamed().filter(|&c| placement.straddles(c)).count();
        assert_eq!(named("join chunk "), straddling);
        let checked = if segments.check > 0 { streamed.len() - straddling } else { 0 };
        assert_eq!(named("check chunk "), checked);
        let launches: Vec<&Span> = compute.iter().filter(|s| !s.args["op"].is_null()).collect();
        let graph = engine.graph();
        let expected = graph.nodes.iter().enumerate().flat_map(|(index, node)| {
            let tiles = placement.tiles.iter().filter(|t| t.tile.node.0 as usize == index).count();
            std::iter::repeat_n(node, tiles.max(1))
        });
        let expected: Vec<_> = expected.map(|node| (node.name.as_str(), node.op.name())).collect();
        let found = launches.iter().map(|l| (l.name.as_str(), l.args["op"].as_str().expect("a name")));
        assert!(found.eq(expected), "the launches of pass {pass}");
        assert!(launches.iter().all(|l| l.args["rows"].as_u64() > Some(0)));
        for launch in launches {
            let node = graph.nodes.iter().find(|n| n.name == launch.name).expect("a node");
            assert_eq!(launch.args["layer"].as_u64(), node.layer.map(u64::from));
        }
        // The ready chunk comes before the launch that reads it.
        for (copy, &chunk) in copies.iter().zip(&streamed) {
            let tile = &placement.tiles[placement.chunks[chunk as usize].tiles.start].tile;
            let name = &graph.node(tile.node).name;
            let first = compute.iter().find(|s| s.name == *name && s.args["tile_rows"][0] == tile.rows.start);
            assert!(copy.end <= first.expect("it is launched").begin, "{copy:?}");
        }
    }
    let passes: Vec<u64> = compute.iter().map(Span::pass).collect();
    assert!(passes.is_sorted() && passes.last() == Some(&(PASSES - 1)), "passes follow one another");
    let held = timeline.events.iter().filter(|e| e["ph"] == "C");
    let held: Vec<u64> = held.map(|e| e["args"]["bytes"].as_u64().expect("never negative")).collect();
    assert_eq!(held.len(), 2 * copies.len());
    assert!(held.iter().all(|&bytes| bytes <= placement.ring.capacity()) && held.last() == Some(&0));
    timeline
}

/// Streaming, and each of the ways in which it may differ.
fn variants() -> impl Iterator<Item = Options> + Clone {
    let flags = [(false, false, false), (true, false, false), (false, true, false), (false, false, true)];
    flags.into_iter().map(|(blocking_copies, straddle, stream_check)| {
        let base = options();
        Options { budget: Budget { blocking_copies, straddle, stream_check, ..base.budget }, ..base }
    })
}

#[test]
fn a_simulated_device_is_told_to_the_nanosecond() {
    let (mut waits, mut joins, mut checks) = (0, 0, 0);
    for (seed, options) in (0..24).zip(variants().cycle()) {
        let compute = check(sim(seed), &options).track("compute");
        let named = |what: &str| compute.iter().filter(|s| s.name.starts_with(what)).count();
        (waits, joins) = (waits + named("wait for"), joins + named("join"));
        checks += named("check");
    }
    assert!(waits > 20 && joins > 20 && checks > 20, "{waits} waits, {joins} joins, {checks} checks");
}

#[test]
fn the_cpu_runs_every_pass_between_its_upload_and_its_wait() {
    for options in variants() {
        let timeline = check(cpu(), &options);
        let (host, compute) = (timeline.track("host"), timeline.track("compute"));
        let names: Vec<&str> = host.iter().map(|s| s.name.as_str()).collect();
        let pass = ["upload", "enqueue", "wait"];
        let expected: Vec<&str> = ["load"].into_iter().chain(pass.repeat(PASSES as usize)).collect();
        assert_eq!(names, expected);
        let error = timeline.clock_error;
        for span in compute {
            let of = |name| host.iter().find(|h| h.name == name && h.pass() == span.pass());
            let (upload, wait) = (of("upload").expect("one"), of("wait").expect("one"));
            assert!(upload.begin - error <= span.begin && span.end <= wait.end + error, "{span:?}");
        }
    }
}

#[test]
fn tracing_changes_no_bit_and_makes_its_events_once() {
    let events = |engine: &Engine<SimDevice>| engine.device().event().expect("one more").id();
    for seed in 0..6 {
        // A capture makes events of the device's own.
        let mut plain = load(sim(seed), &Options { replay: false, ..options() });
        let before = events(&plain);
        let (_, expected) = run(&mut plain);
        assert_eq!(events(&plain), before + 1, "no events are made where none are wanted");
        let mut traced = load(sim(seed), &options());
        traced.start_trace().expect("it starts");
        assert!(run(&mut traced).1 == expected);
        let after = events(&traced);
        assert!(run(&mut traced).1 == expected);
        assert_eq!(events(&traced), after + 1, "every pass uses the same events");
    }
}

#[test]
fn a_generation_tells_its_sampling_and_a_failed_one_what_came_before() {
    let request = Request { prompt: vec![1, 2, 3], max_tokens: 20, ..Request::default() };
    let generate = |device: SimDevice| {
        let mut engine = load(device, &options());
        engine.start_trace().expect("it starts");
        let mut service = Service::single(engine).expect("it serves");
        let result = service.generate(&mut None, &request, &mut |_| ControlFlow::Continue(()));
        (result.map(|g| g.tokens.len()), Timeline::read(service.finish_trace()))
    };
    let (tokens, timeline) = generate(sim(0));
    let samples = |timeline: &Timeline| timeline.track("host").iter().filter(|s| s.name == "sample").count();
    assert_eq!((tokens.expect("it runs"), samples(&timeline)), (20, 20));

    let loading = load(sim(0), &options()).unload().calls().copies;
    let config = SimConfig { fail_copy_at: Some(loading + 150), math: Math::Fast, ..SimConfig::default() };
    let (tokens, timeline) = generate(SimDevice::new(config).expect("a device"));
    assert!(matches!(tokens, Err(Error::Device(_))), "{tokens:?}");
    let passes = timeline.track("compute").iter().map(Span::pass).max().expect("some ran") + 1;
    assert!((2..20).contains(&passes), "{passes} passes");
    assert_eq!(samples(&timeline) as u64, passes);
}
