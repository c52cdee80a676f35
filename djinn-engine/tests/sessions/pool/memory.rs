//! Host memory that is full of copies of weights makes room for a model that is loaded or comes back.

use super::*;

const LARGE: &str = "tiny-gqa?hidden=256";
const SMALL: &str = "tiny-gqa?layers=40";

/// Models that take turns on a device, with `ram` bytes of host memory.
fn start(known: &[Arc<Known>], ram: u64) -> Pooled {
    let most = known.iter().map(|known| known.device_bytes()).max().expect("models");
    let config = SimConfig { seed: 1, vram: Some(most + (64 << 10)), ram: Some(ram), ..SimConfig::default() };
    Pooled::start_on(config, known, ram)
}

fn in_chunks(chunk: u64) -> Budget {
    Budget { chunk: Some(chunk), ..Budget::default() }
}

/// The chunk of the large model that is read again needs a buffer, for which there is no room beside copies of the small
/// one's weights.
#[test]
fn a_model_comes_back_with_its_sessions_where_copies_fill_host_memory() {
    for ram in [1424, 1584, 1984, 2304, 2624, 2784] {
        let known = [Known::within(LARGE, 0, in_chunks(4 << 20)), Known::new(SMALL, 0)];
        let pooled = start(&known, ram << 10);
        let (id, happenings) = open_on(&pooled.clients[0], prompt(1, 20), 3);
        let (id, first) = (id.expect("it is loaded"), tokens_of(&happenings));
        let (other, happenings) = open_on(&pooled.clients[1], prompt(1, 20), 3);
        other.expect("it is loaded");
        tokens_of(&happenings);
        let (_, happenings) =
            go_on(&pooled.clients[0], id, [prompt(1, 20), first.clone(), prompt(99, 3)].concat());
        let second = tokens_of(&happenings);
        let turns = [(prompt(1, 20), 3), (prompt(99, 3), 4)];
        assert_eq!([first, second], *alone(LARGE, &turns), "{ram} KiB");
        assert!(known[0].returns() > 0);
        pooled.end().expect("the device is sound");
    }
}

/// Besides its weights, a load needs the buffers of steps and those through which weights are read.
#[test]
fn a_new_model_is_loaded_where_copies_fill_host_memory() {
    let known = [Known::within(MODELS[0], 0, in_chunks(512 << 10)), Known::new(MODELS[1], 0)];
    let pooled = start(&known, 448 << 10);
    for (at, client) in pooled.clients.iter().enumerate() {
        let (id, happenings) = open_on(client, prompt(1, 20), 3);
        id.expect("it is loaded");
        assert_eq!(tokens_of(&happenings), alone(MODELS[at], &[(prompt(1, 20), 3)])[0]);
    }
    pooled.end().expect("the device is sound");
}

/// Copies of the chunks that stay on the device take no room of those that stream.
#[test]
fn a_model_that_streams_is_loaded_where_its_copies_would_fill_host_memory() {
    let whole = Known::new(SMALL, 0);
    let vram = Some(whole.device_bytes() * 3 / 4);
    let known = Known::within(SMALL, 0, Budget { vram, ..Budget::default() });
    let (options, graph) = (&known.options, &known.model.graph);
    let plan = options.plan(graph, 0).expect("a plan");
    assert!(plan.placement.streamed_bytes() > 0);
    let pooled = start(&[Arc::clone(&known)], options.host_bytes(graph, &plan));
    let (id, happenings) = open_on(&pooled.clients[0], prompt(1, 20), 3);
    id.expect("it is loaded");
    assert_eq!(tokens_of(&happenings), alone(SMALL, &[(prompt(1, 20), 3)])[0]);
    pooled.end().expect("the device is sound");
}
