//! Tests of the adversary: it finds what is wrong, leaves alone what is right, and repeats itself.

use super::*;
use crate::kernels::Reference;
use djinn_device::args::{Add, CopyExpert, SelectRows, Weight};
use djinn_device::{DType, Error, Ops};
use std::panic::{AssertUnwindSafe, catch_unwind};

const CHUNK: u64 = 64;
const CHUNKS: u64 = 6;

fn sim(config: SimConfig) -> SimDevice {
    SimDevice::with(config, SimFaults::default(), Box::new(Reference))
}

fn seeded(seed: u64) -> SimDevice {
    sim(SimConfig { seed, ..SimConfig::default() })
}

/// Streams `CHUNKS` chunks through a ring of two slots and back; true if they arrive.
fn ring_works(device: &SimDevice) -> Result<bool> {
    let (copies, compute) = (device.stream()?, device.stream()?);
    let source = device.alloc(Space::Host, CHUNK * CHUNKS)?;
    let (ring, sink) = (device.alloc(Space::Device, 2 * CHUNK)?, device.alloc(Space::Host, CHUNK * CHUNKS)?);
    let bytes: Vec<u8> = (0..CHUNK * CHUNKS).map(|i| (i / CHUNK) as u8 + 1).collect();
    device.write_host(source.span(), |to| to.copy_from_slice(&bytes));
    let events = [device.event()?, device.event()?, device.event()?, device.event()?];
    for i in 0..CHUNKS {
        let slot = (i % 2) as usize;
        let (ready, done) = (events[slot], events[2 + slot]);
        let place = ring.slice((i % 2) * CHUNK, CHUNK);
        device.wait(copies, done)?;
        device.copy(copies, source.slice(i * CHUNK, CHUNK), place)?;
        device.record(copies, ready)?;
        device.wait(compute, ready)?;
        device.copy(compute, place, sink.slice(i * CHUNK, CHUNK))?;
        device.record(compute, done)?;
    }
    device.sync(compute)?;
    device.sync(copies)?;
    Ok(device.read_host(sink.span(), |arrived| arrived == bytes))
}

#[test]
fn a_right_program_is_right_under_every_order() {
    for seed in 0..200 {
        assert_eq!(ring_works(&seeded(seed)), Ok(true), "seed {seed}");
    }
}

#[test]
fn every_dropped_wait_that_matters_is_caught() {
    let device = seeded(0);
    ring_works(&device).unwrap();
    assert_eq!(
        device.calls(),
        SimCalls { allocs: 3, copies: 2 * CHUNKS, waits: 2 * CHUNKS, ..SimCalls::default() }
    );
    for wait in 1..=2 * CHUNKS {
        let wrong = (0..50).filter(|&seed| {
            let config = SimConfig { seed, drop_wait_at: Some(wait), ..SimConfig::default() };
            !ring_works(&sim(config)).unwrap()
        });
        // The first two slots were never used, so that the waits for them have nothing to wait for.
        assert_eq!(wrong.count() > 0, wait != 1 && wait != 3, "wait {wait}");
    }
}

/// What a reader sees that does not wait for the writer of 1s over 2s.
fn racy_read(device: &SimDevice) -> Vec<u8> {
    let (writer, reader) = (device.stream().unwrap(), device.stream().unwrap());
    let [ones, shared, seen] = [(); 3].map(|()| device.alloc(Space::Host, 8).unwrap());
    device.write_host(ones.span(), |to| to.fill(1));
    device.write_host(shared.span(), |to| to.fill(2));
    device.copy(writer, ones.span(), shared.span()).unwrap();
    device.copy(reader, shared.span(), seen.span()).unwrap();
    device.sync(reader).unwrap();
    device.sync(writer).unwrap();
    device.read_host(seen.span(), <[u8]>::to_vec)
}

#[test]
fn a_race_shows_old_new_and_poison() {
    let seen: Vec<_> = (0..50).map(|seed| racy_read(&seeded(seed))).collect();
    for byte in [1, 2, POISON] {
        assert!(seen.iter().any(|bytes| bytes == &[byte; 8]), "no seed shows {byte}");
    }
    let clean = SimConfig { poison: false, ..SimConfig::default() };
    let seen = (0..50).map(|seed| racy_read(&sim(SimConfig { seed, ..clean })));
    assert!(seen.into_iter().all(|bytes| bytes != [POISON; 8]));
}

#[test]
fn a_copy_takes_its_source_as_it_is_at_the_end() {
    let torn = (0..50).any(|seed| {
        let device = seeded(seed);
        let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
        let [x, y, z] = [(); 3].map(|()| device.alloc(Space::Host, 8).unwrap());
        device.copy(a, x.span(), y.span()).unwrap();
        device.fill(b, x.span(), 5).unwrap();
        device.fill(b, y.span(), 6).unwrap();
        device.copy(b, x.span(), z.span()).unwrap();
        device.sync(a).unwrap();
        device.sync(b).unwrap();
        device.read_host(y.span(), |bytes| bytes == [5; 8])
    });
    assert!(torn, "no seed changes a source after its copy began");
}

#[test]
fn a_seed_repeats_itself() {
    let trace = |seed| {
        let device = seeded(seed);
        let event = device.event().unwrap();
        let mut trace = Vec::new();
        for round in 0..20 {
            let stream = device.stream().unwrap();
            device.record(stream, event).unwrap();
            trace.push((round, device.is_done(event).unwrap(), racy_read(&device)));
        }
        trace
    };
    for seed in 0..10 {
        assert_eq!(trace(seed), trace(seed));
    }
    assert!((1..10).any(|seed| trace(seed) != trace(0)));
}

#[test]
fn polling_ends_and_sometimes_has_to_go_on() {
    let polls = |seed| {
        let device = seeded(seed);
        let (stream, event) = (device.stream().unwrap(), device.event().unwrap());
        let buffer = device.alloc(Space::Host, 8).unwrap();
        (0..20).for_each(|byte| device.fill(stream, buffer.span(), byte).unwrap());
        device.record(stream, event).unwrap();
        (0..1000).find(|_| device.is_done(event).unwrap()).expect("polling ends")
    };
    let polls: Vec<u32> = (0..50).map(polls).collect();
    assert!(polls.iter().any(|&n| n > 2), "{polls:?}");
}

#[test]
fn fresh_memory_is_poisoned_unless_told_otherwise() {
    for (poison, byte) in [(true, POISON), (false, 0)] {
        let device = sim(SimConfig { poison, ..SimConfig::default() });
        let buffer = device.alloc(Space::Host, 100).unwrap();
        device.read_host(buffer.span(), |bytes| assert!(bytes.iter().all(|&b| b == byte)));
    }
    assert!(f32::from_le_bytes([POISON; 4]).is_nan());
    assert!(half::f16::from_le_bytes([POISON; 2]).is_nan());
    assert!(half::bf16::from_le_bytes([POISON; 2]).is_nan());
}

#[test]
fn the_planted_allocation_is_refused() {
    let device = sim(SimConfig { fail_alloc_at: Some(2), vram: Some(100), ..SimConfig::default() });
    device.alloc(Space::Device, 10).unwrap();
    let refused =
        Error::OutOfMemory { space: Space::Device, requested_bytes: 11, in_use_bytes: 10, limit_bytes: 100 };
    assert_eq!(device.alloc(Space::Device, 11), Err(refused));
    device.alloc(Space::Device, 12).unwrap();
    assert_eq!(device.usage(Space::Device).in_use, 22);
}

#[test]
fn the_planted_copy_fails_for_good() {
    for seed in 0..20 {
        let poison = seed % 2 == 0;
        let device = sim(SimConfig { seed, poison, fail_copy_at: Some(2), ..SimConfig::default() });
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let event = device.event().unwrap();
        let [source, a, b, c] = [(); 4].map(|()| device.alloc(Space::Host, 32).unwrap());
        device.write_host(source.span(), |to| to.fill(1));
        [a, b, c].into_iter().for_each(|buffer| device.write_host(buffer.span(), |to| to.fill(9)));
        let failed = Err(Error::CopyFailed { bytes: 32, stream: stream.id() });
        let ok_or_failed = |result: Result<()>| assert!(result == Ok(()) || result == failed, "{result:?}");
        device.copy(stream, source.span(), a.span()).unwrap();
        ok_or_failed(device.copy(stream, source.span(), b.span()));
        ok_or_failed(device.copy(stream, source.span(), c.span()));
        ok_or_failed(device.record(stream, event));
        ok_or_failed(device.wait(other, event));
        assert_eq!(device.sync(stream), failed);
        for (buffer, byte) in [(a, 1), (b, POISON), (c, 9)] {
            device.read_host(buffer.span(), |bytes| assert_eq!(bytes, [byte; 32]));
        }
        assert_eq!(device.sync(other), failed);
        assert_eq!(device.sync_event(event), failed);
        assert_eq!(device.is_done(event).map(|_| ()), failed);
        assert_eq!(device.timestamp(event), None);
    }
}

#[test]
fn a_refused_copy_leaves_the_device_sound() {
    let device = sim(SimConfig { refuse_copy_at: Some(2), ..SimConfig::default() });
    let stream = device.stream().unwrap();
    let [source, a, b] = [(); 3].map(|()| device.alloc(Space::Host, 32).unwrap());
    for (buffer, byte) in [(source, 1), (a, 9), (b, 9)] {
        device.write_host(buffer.span(), |to| to.fill(byte));
    }
    device.copy(stream, source.span(), a.span()).unwrap();
    let refused = device.copy(stream, source.span(), b.span());
    assert!(matches!(refused, Err(Error::Resource { what: "a copy", .. })), "{refused:?}");
    device.sync(stream).unwrap();
    for (buffer, byte) in [(a, 1), (b, 9)] {
        device.read_host(buffer.span(), |bytes| assert_eq!(bytes, [byte; 32]));
    }
    device.copy(stream, source.span(), b.span()).unwrap();
    device.sync(stream).unwrap();
    device.read_host(b.span(), |bytes| assert_eq!(bytes, [1; 32]));
}

#[test]
fn ops_run_and_their_panics_lose_the_device() {
    let device = seeded(1);
    let stream = device.stream().unwrap();
    let [x, out] = [(); 2].map(|()| device.alloc(Space::Host, 64).unwrap());
    let indices = device.alloc(Space::Host, 16).unwrap();
    device.write_host(x.span(), |to| to.copy_from_slice(bytemuck::cast_slice::<f32, u8>(&[1.5; 16])));
    let add = Add { a: x.span(), b: x.span(), out: out.span(), len: 16 };
    device.add(stream, &add).unwrap();
    device.sync(stream).unwrap();
    device.read_host(out.span(), |bytes| assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&[3.0; 16])));
    // The indices are still poison.
    let select =
        SelectRows { x: x.span(), indices: indices.slice(0, 4), out: out.slice(0, 16), width: 4, rows: 1 };
    let _ = device.select_rows(stream, &select);
    let lost = device.sync(stream);
    let Err(Error::DeviceLost { reason }) = &lost else { panic!("{lost:?}") };
    assert!(reason.starts_with("work on stream 0 panicked: "), "{reason}");
    assert_eq!(device.add(stream, &add), lost);
}

/// Whether the host's use of a buffer, after a copy between two was enqueued, panics under some seed, and
/// after a sync under none.
fn is_misuse(touch: fn(&SimDevice, src: Buffer, dst: Buffer)) -> bool {
    let panics = |seed, sync: bool| {
        let device = seeded(seed);
        let stream = device.stream().unwrap();
        let [src, dst] = [(); 2].map(|()| device.alloc(Space::Host, 8).unwrap());
        device.copy(stream, src.span(), dst.span()).unwrap();
        if sync {
            device.sync(stream).unwrap();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| touch(&device, src, dst)));
        let message = outcome.map_err(|panic| djinn_device::panic_line(&*panic));
        if let Err(message) = &message {
            assert!(message.starts_with("the host ") && message.contains("while stream 0 has"), "{message}");
        }
        message.is_err()
    };
    assert!((0..10).all(|seed| !panics(seed, true)), "a sync did not help");
    (0..10).any(|seed| panics(seed, false))
}

#[test]
fn touching_what_queued_work_uses_is_misuse() {
    assert!(is_misuse(|device, src, _| device.free(src)));
    assert!(is_misuse(|device, _, dst| device.free(dst)));
    assert!(is_misuse(|device, _, dst| device.read_host(dst.slice(7, 1), |_| ())));
    assert!(is_misuse(|device, _, dst| device.write_host(dst.slice(7, 1), |_| ())));
    assert!(is_misuse(|device, src, _| device.write_host(src.span(), |_| ())));
    assert!(!is_misuse(|device, src, _| device.read_host(src.span(), |_| ())), "both only read");
}

#[test]
fn freeing_a_capture_before_its_replay_is_done_is_misuse() {
    let panics = |seed, replay: bool, sync: bool| {
        let device = seeded(seed);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let buffer = device.alloc(Space::Device, 8).unwrap();
        let capture = device.capture(&streams, || device.fill(streams[0], buffer.span(), 1)).unwrap();
        if replay {
            device.replay(capture).unwrap();
        }
        if sync {
            // Each of its streams waits for the others.
            device.sync(streams[1]).unwrap();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| device.free_capture(capture)));
        let message = outcome.map_err(|panic| djinn_device::panic_line(&*panic));
        if let Err(message) = &message {
            assert!(message.contains("while a replay of it is queued"), "{message}");
        }
        message.is_err()
    };
    assert!((0..10).all(|seed| !panics(seed, false, false) && !panics(seed, true, true)));
    assert!((0..10).any(|seed| panics(seed, true, false)));
}

#[test]
fn what_a_kept_capture_needs_and_streams_with_queued_work_are_not_freed() {
    let device = seeded(0);
    let (stream, idle, event) = (device.stream().unwrap(), device.stream().unwrap(), device.event().unwrap());
    let buffer = device.alloc(Space::Device, 8).unwrap();
    let refuses = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    let capture = device.capture::<Error>(&[stream], || {
        assert!(refuses(&|| drop(device.alloc(Space::Host, 8))), "it allocates within a capture");
        assert!(refuses(&|| drop(device.is_done(event))), "it asks within a capture");
        device.fill(stream, buffer.span(), 1)?;
        device.record(stream, event)
    });
    let capture = capture.unwrap();
    assert!(refuses(&|| device.free_stream(stream)) && refuses(&|| device.free_event(event)));
    device.free_capture(capture);
    device.free_event(event);
    device.fill(stream, buffer.span(), 1).unwrap();
    assert!(refuses(&|| device.free_stream(stream)), "its work is queued");
    device.sync(stream).unwrap();
    device.free_stream(stream);
    device.free_stream(idle);
    assert_eq!(device.handles(), [0, 0]);
}

/// Virtual time of ten copies of 1 ms, each followed by 1 ms of work on it.
fn pipeline(seed: u64, overlap: bool) -> Duration {
    let device = sim(SimConfig {
        seed,
        link_bytes_per_second: 1e6,
        memory_bytes_per_second: 1e6,
        launch_overhead: Duration::ZERO,
        ..SimConfig::default()
    });
    let (copies, compute) = (device.stream().unwrap(), device.stream().unwrap());
    let (ready, done) = (device.event().unwrap(), device.event().unwrap());
    let source = device.alloc(Space::Host, 1000).unwrap();
    for _ in 0..10 {
        let target = device.alloc(Space::Device, 1000).unwrap();
        if !overlap {
            device.wait(copies, done).unwrap();
        }
        device.copy(copies, source.span(), target.span()).unwrap();
        device.record(copies, ready).unwrap();
        device.wait(compute, ready).unwrap();
        device.fill(compute, target.span(), 0).unwrap();
        device.record(compute, done).unwrap();
    }
    device.sync_event(done).unwrap();
    device.timestamp(done).unwrap()
}

#[test]
fn virtual_time_shows_overlap_whatever_the_order() {
    for seed in 0..50 {
        assert_eq!(pipeline(seed, true), Duration::from_millis(11));
        assert_eq!(pipeline(seed, false), Duration::from_millis(20));
    }
}

#[test]
fn copies_share_a_link_each_way_and_start_after_their_call() {
    for seed in 0..20 {
        let device = sim(SimConfig { seed, link_bytes_per_second: 1e6, ..SimConfig::default() });
        let streams = [(); 4].map(|()| device.stream().unwrap());
        let events = [(); 4].map(|()| device.event().unwrap());
        let host = [(); 4].map(|()| device.alloc(Space::Host, 1000).unwrap());
        let local = [(); 4].map(|()| device.alloc(Space::Device, 1000).unwrap());
        for i in 0..3 {
            let (src, dst) = if i < 2 { (host[i], local[i]) } else { (local[i], host[i]) };
            device.copy(streams[i], src.span(), dst.span()).unwrap();
            device.record(streams[i], events[i]).unwrap();
        }
        (0..3).for_each(|i| device.sync(streams[i]).unwrap());
        let ms = |i: usize| device.timestamp(events[i]).unwrap().as_millis();
        assert_eq!((ms(0).min(ms(1)), ms(0).max(ms(1)), ms(2)), (1, 2, 1));
        // The host has seen 2 ms pass, so an idle stream's copy starts no earlier.
        device.copy(streams[3], local[3].span(), host[3].span()).unwrap();
        device.record(streams[3], events[3]).unwrap();
        device.sync(streams[3]).unwrap();
        assert_eq!(ms(3), 3);
    }
}

/// Writes who is used, then copies each of two experts' bytes on another stream; what arrived of each, the flags, and
/// when the last copy ended.
fn copy_experts(device: &SimDevice, used: [bool; 2]) -> Result<([Vec<u8>; 2], Vec<u32>, Duration)> {
    const LEN: u64 = 1 << 20;
    let (copies, compute) = (device.stream()?, device.stream()?);
    let starts: [u32; 3] = [0, used[0].into(), u32::from(used[0]) + u32::from(used[1])];
    let told = device.alloc(Space::Host, 12)?;
    device.write_host(told.span(), |to| to.copy_from_slice(bytemuck::cast_slice(&starts)));
    let source = device.alloc(Space::Host, LEN)?;
    device.write_host(source.span(), |to| to.fill(9));
    let (starts, moved, flags) =
        (device.alloc(Space::Device, 12)?, device.alloc(Space::Device, 8)?, device.alloc(Space::Host, 8)?);
    let (ring, sink) = (device.alloc(Space::Device, 2 * LEN)?, device.alloc(Space::Host, 2 * LEN)?);
    let (chosen, ready) = (device.event()?, device.event()?);
    device.fill(compute, starts.span(), 0)?;
    device.fill(compute, ring.span(), 1)?;
    device.copy(compute, told.span(), starts.span())?;
    device.record(compute, chosen)?;
    device.wait(copies, chosen)?;
    for expert in 0..2 {
        let (dst, moved) = (ring.slice(u64::from(expert) * LEN, LEN), moved.slice(u64::from(expert) * 4, 4));
        let args = CopyExpert { src: source.span(), dst, starts: starts.span(), moved, expert, experts: 2 };
        device.copy_expert(copies, &args)?;
    }
    device.record(copies, ready)?;
    device.wait(compute, ready)?;
    device.copy(compute, ring.span(), sink.span())?;
    device.copy(compute, moved.span(), flags.span())?;
    device.sync(compute)?;
    device.sync(copies)?;
    let half = |at| device.read_host(sink.slice(at * LEN, LEN), <[u8]>::to_vec);
    let flags = device.read_host(flags.span(), bytemuck::pod_collect_to_vec);
    Ok(([half(0), half(1)], flags, device.timestamp(ready).unwrap()))
}

#[test]
fn copies_of_experts_move_what_is_used_and_are_charged_for_it() {
    let link_bytes_per_second = (1 << 20) as f64;
    for seed in 0..60 {
        let used = [seed % 2 == 0, seed % 3 == 0];
        let device = sim(SimConfig { seed, link_bytes_per_second, ..SimConfig::default() });
        let (got, flags, end) = copy_experts(&device, used).unwrap();
        assert_eq!(flags, used.map(u32::from));
        for (got, used) in got.into_iter().zip(used) {
            assert!(got == vec![if used { 9 } else { 1 }; 1 << 20], "seed {seed}");
        }
        let seconds = used.iter().filter(|used| **used).count() as f64;
        assert!((end.as_secs_f64() - seconds).abs() < 0.01, "{end:?} for {seconds} copies of a second");
    }
}

#[test]
fn copies_of_experts_fail_and_race_as_copies_do() {
    let dropped = |wait, used: [bool; 2]| {
        let wrong = (0..60).filter(|&seed| {
            let config = SimConfig { seed, drop_wait_at: Some(wait), ..SimConfig::default() };
            let right = used.map(|used| vec![if used { 9 } else { 1 }; 1 << 20]);
            copy_experts(&sim(config), used).unwrap().0 != right
        });
        wrong.count()
    };
    assert!(dropped(1, [true, false]) > 0, "a copy before the choice is noticed");
    assert!(dropped(2, [true, true]) > 0, "a use before the copy is noticed");
    assert_eq!(dropped(2, [false, false]), 0, "nothing is written where nothing is used");
    for (fail, used, fails) in [(2, [true, false], true), (2, [false, true], false), (3, [false, true], true)]
    {
        let config = SimConfig { fail_copy_at: Some(fail), ..SimConfig::default() };
        let failed = matches!(copy_experts(&sim(config), used), Err(Error::CopyFailed { bytes, .. }) if bytes == 1 << 20);
        assert_eq!(failed, fails, "copy {fail} of {used:?}");
    }
}

/// Products of experts at once are those that the caller may give together, or refused before any is enqueued.
#[test]
fn experts_at_once_do_not_depend_on_one_another() {
    let device = seeded(0);
    let stream = device.stream().unwrap();
    let [x, weight, order, starts, out] =
        [32, 32, 8, 12, 32].map(|bytes| device.alloc(Space::Device, bytes).unwrap().span());
    for span in [x, weight, order, starts] {
        device.fill(stream, span, 0).unwrap();
    }
    let product = |expert, weight| ExpertLinear {
        x,
        weight: Weight::plain(weight, DType::F32),
        order,
        starts,
        out,
        k: 4,
        n: 2,
        out_width: 4,
        out_column: 2 * expert,
        expert,
        slots_per_row: 1,
        slots: 2,
    };
    let good = [product(0, weight), product(1, weight)];
    device.expert_linears(stream, &good).unwrap();
    device.sync(stream).unwrap();
    assert_eq!(device.experts_at_once(), [good]);
    for wrong in [[good[1], good[0]], [good[0], good[0]], [good[0], product(1, out)]] {
        let refused = catch_unwind(AssertUnwindSafe(|| device.expert_linears(stream, &wrong)));
        assert!(refused.is_err(), "{wrong:?}");
    }
    assert_eq!(device.experts_at_once().len(), 1);
}
