//! The suite for [`Device`]: memory, copies, streams, events.

use crate::{Buffer, Device, Error, Event, Space, Span, Stream, Usage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const SPACES: [Space; 2] = [Space::Device, Space::Host];

/// How long work of microseconds may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// A check and its name.
type Check<D> = (&'static str, fn(&Rig<D>));

/// Runs every check on a device of its own. The device must have 16 MiB in each space.
///
/// # Panics
/// If the device does not conform.
pub fn device<D: Device>(make: impl Fn() -> D) {
    each_device(&make, &mut |_, check| check());
}

/// Hands every check, with its name, to `run`.
pub(super) fn each_device<D: Device>(make: &dyn Fn() -> D, run: &mut dyn FnMut(&'static str, &dyn Fn())) {
    let checks: [Check<D>; 19] = named![
        describes_itself,
        accounts_to_the_byte,
        refuses_what_does_not_fit,
        restores_what_was_freed,
        copies_between_all_spaces,
        copies_spans_and_nothing_beside,
        fills,
        keeps_the_order_of_a_stream,
        treats_a_fresh_event_as_done,
        orders_streams_by_events,
        waits_for_the_recording_of_the_call,
        waits_for_a_recording_that_was_replaced,
        completes_events,
        frees_streams_and_events,
        timestamps_ascend,
        hands_a_ring_around,
        replays_captured_work,
        keeps_nothing_of_a_failed_capture,
        rejects_bad_handles,
    ];
    for (name, check) in checks {
        run(name, &|| {
            let device = make();
            let stream = device.stream().expect("a first stream");
            let rig = Rig { device, stream };
            check(&rig);
            rig.device.sync(rig.stream).expect("a check leaves the device sound");
        });
    }
}

/// A device and a stream of it.
struct Rig<D> {
    device: D,
    stream: Stream,
}

impl<D: Device> Rig<D> {
    fn alloc(&self, space: Space, len: u64) -> Buffer {
        self.device.alloc(space, len).expect("room for a small buffer")
    }

    fn stream(&self) -> Stream {
        self.device.stream().expect("another stream")
    }

    fn event(&self) -> Event {
        self.device.event().expect("another event")
    }

    fn copy(&self, stream: Stream, src: Span, dst: Span) {
        self.device.copy(stream, src, dst).expect("a copy is enqueued");
    }

    fn fill(&self, stream: Stream, dst: Span, byte: u8) {
        self.device.fill(stream, dst, byte).expect("a fill is enqueued");
    }

    fn record(&self, stream: Stream, event: Event) {
        self.device.record(stream, event).expect("a recording is enqueued");
    }

    fn wait(&self, stream: Stream, event: Event) {
        self.device.wait(stream, event).expect("a wait is enqueued");
    }

    fn sync(&self, stream: Stream) {
        self.device.sync(stream).expect("no failure");
    }

    /// A buffer with these bytes.
    fn upload(&self, space: Space, bytes: &[u8]) -> Buffer {
        let host = self.alloc(Space::Host, bytes.len() as u64);
        self.device.write_host(host.span(), |to| to.copy_from_slice(bytes));
        if space == Space::Host {
            return host;
        }
        let buffer = self.alloc(space, bytes.len() as u64);
        self.copy(self.stream, host.span(), buffer.span());
        self.sync(self.stream);
        self.device.free(host);
        buffer
    }

    /// The bytes of a span that no queued work uses.
    fn download(&self, span: Span) -> Vec<u8> {
        if span.buffer().space() == Space::Host {
            return self.device.read_host(span, <[u8]>::to_vec);
        }
        let host = self.alloc(Space::Host, span.len());
        self.copy(self.stream, span, host.span());
        self.sync(self.stream);
        let bytes = self.download(host.span());
        self.device.free(host);
        bytes
    }

    /// Keeps a stream busy for a while: fills and copies over 4 MiB.
    fn delay(&self, stream: Stream, scratch: Buffer) {
        let (a, b) = (scratch.slice(0, 2 << 20), scratch.slice(2 << 20, 2 << 20));
        for byte in 0..4 {
            self.fill(stream, a, byte);
            self.copy(stream, a, b);
        }
    }

    fn scratch(&self) -> Buffer {
        self.alloc(Space::Device, 4 << 20)
    }
}

/// Bytes that differ by place and by `salt`.
fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ salt).collect()
}

fn describes_itself<D: Device>(rig: &Rig<D>) {
    let name = rig.device.info().name;
    assert!(!name.trim().is_empty() && name.lines().count() == 1, "{name:?} does not fit into a sentence");
}

fn accounts_to_the_byte<D: Device>(rig: &Rig<D>) {
    for space in SPACES {
        let usage = || rig.device.usage(space);
        let before = usage();
        assert!(before.in_use <= before.peak && before.peak <= before.limit, "{before:?}");
        let sizes = [1, 255, 256, 257, 4097, 1 << 20];
        let buffers = sizes.map(|len| rig.alloc(space, len));
        for (i, (buffer, len)) in buffers.iter().zip(sizes).enumerate() {
            assert_eq!((buffer.space(), buffer.len()), (space, len));
            assert!(buffers[..i].iter().all(|other| other.id() != buffer.id()), "{buffers:?}");
        }
        let all = before.in_use + sizes.iter().sum::<u64>();
        assert_eq!(usage(), Usage { in_use: all, peak: before.peak.max(all), ..before });
        buffers.into_iter().for_each(|buffer| rig.device.free(buffer));
        assert_eq!(usage().in_use, before.in_use, "freed bytes are still counted");
        rig.device.free(rig.alloc(space, 1));
        assert_eq!(usage().peak, before.peak.max(all), "the peak does not fall");
    }
}

fn refuses_what_does_not_fit<D: Device>(rig: &Rig<D>) {
    for space in SPACES {
        let Usage { in_use, limit, .. } = rig.device.usage(space);
        let mut sizes = vec![1 << 60, u64::MAX - 1, u64::MAX];
        if limit < u64::MAX {
            sizes.push(limit - in_use + 1);
        }
        for len in sizes {
            match rig.device.alloc(space, len) {
                Err(Error::OutOfMemory { space: s, requested_bytes, in_use_bytes, limit_bytes }) => {
                    assert_eq!((s, requested_bytes), (space, len));
                    assert_eq!((in_use_bytes, limit_bytes), (in_use, limit));
                }
                other => panic!("{len} bytes in {space:?} of {limit}: {other:?}"),
            }
        }
        assert_eq!(rig.device.usage(space).in_use, in_use, "a refusal is free");
        rig.device.free(rig.alloc(space, 4096));
    }
}

fn restores_what_was_freed<D: Device>(rig: &Rig<D>) {
    for space in SPACES {
        let [buffer, other] = [4099, 777].map(|len| rig.alloc(space, len));
        let usage = rig.device.usage(space);
        rig.device.free(buffer);
        let between = rig.alloc(space, 4099);
        rig.device.restore(buffer).expect("room for a small buffer");
        assert_eq!(rig.device.usage(space).in_use, usage.in_use + between.len());
        for (salt, buffer) in [buffer, other, between].into_iter().enumerate() {
            let bytes = rig.upload(Space::Host, &pattern(buffer.len() as usize, salt as u8));
            rig.copy(rig.stream, bytes.span(), buffer.span());
        }
        rig.sync(rig.stream);
        for (salt, buffer) in [buffer, other, between].into_iter().enumerate() {
            let expected = pattern(buffer.len() as usize, salt as u8);
            assert!(rig.download(buffer.span()) == expected, "a buffer of its own in {space:?}");
        }
        let restored = catch_unwind(AssertUnwindSafe(|| rig.device.restore(buffer)));
        assert!(restored.is_err(), "a buffer that is allocated is restored");
        let Usage { in_use, limit, .. } = rig.device.usage(space);
        if limit < u64::MAX {
            rig.device.free(buffer);
            let all = rig.alloc(space, limit - in_use + 1);
            assert!(matches!(rig.device.restore(buffer), Err(Error::OutOfMemory { .. })), "no room");
            rig.device.free(all);
            rig.device.restore(buffer).expect("room again");
        }
    }
}

fn copies_between_all_spaces<D: Device>(rig: &Rig<D>) {
    for (from, to) in SPACES.into_iter().flat_map(|from| SPACES.map(|to| (from, to))) {
        for len in [1, 255, 4096, (1 << 20) + 3] {
            let bytes = pattern(len, len as u8);
            for copy in [D::copy, D::copy_promptly] {
                let (src, dst) = (rig.upload(from, &bytes), rig.alloc(to, len as u64));
                copy(&rig.device, rig.stream, src.span(), dst.span()).expect("a copy is enqueued");
                rig.sync(rig.stream);
                assert!(rig.download(dst.span()) == bytes, "{len} bytes from {from:?} to {to:?}");
                assert!(rig.download(src.span()) == bytes, "a copy of {len} bytes changed its source");
            }
        }
    }
}

fn copies_spans_and_nothing_beside<D: Device>(rig: &Rig<D>) {
    for (from, to) in SPACES.into_iter().flat_map(|from| SPACES.map(|to| (from, to))) {
        for copy in [D::copy, D::copy_promptly] {
            let (old, new) = (pattern(1000, 1), pattern(1000, 2));
            let (src, dst) = (rig.upload(from, &new), rig.upload(to, &old));
            let mut expected = old;
            for (at, to, len) in [(0, 1, 7), (13, 64, 255), (513, 400, 0), (501, 501, 499)] {
                let (from, into) = (src.slice(at, len), dst.slice(to, len));
                copy(&rig.device, rig.stream, from, into).expect("a copy is enqueued");
                let (at, to, len) = (at as usize, to as usize, len as usize);
                expected[to..to + len].copy_from_slice(&new[at..at + len]);
            }
            rig.sync(rig.stream);
            assert!(rig.download(dst.span()) == expected, "spans from {from:?} to {to:?}");
            assert_eq!(rig.download(dst.span().slice(64, 300).slice(1, 9)), expected[65..74]);
        }
    }
    let buffer = rig.upload(Space::Device, &pattern(512, 3));
    rig.copy(rig.stream, buffer.slice(0, 256), buffer.slice(256, 256));
    rig.sync(rig.stream);
    assert_eq!(rig.download(buffer.slice(256, 256)), pattern(256, 3), "within one buffer");
}

fn fills<D: Device>(rig: &Rig<D>) {
    for space in SPACES {
        let mut expected = pattern(1000, 5);
        let buffer = rig.upload(space, &expected);
        for (at, len, byte) in [(3, 10, 0xFF), (500, 500, 0), (510, 1, 7), (0, 0, 9)] {
            rig.fill(rig.stream, buffer.slice(at, len), byte);
            expected[at as usize..(at + len) as usize].fill(byte);
        }
        rig.sync(rig.stream);
        assert!(rig.download(buffer.span()) == expected, "in {space:?}");
    }
}

fn keeps_the_order_of_a_stream<D: Device>(rig: &Rig<D>) {
    let (a, b) = (rig.alloc(Space::Device, 4096), rig.alloc(Space::Host, 100 * 4096));
    for i in 0..100 {
        rig.fill(rig.stream, a.span(), i as u8);
        rig.copy(rig.stream, a.span(), b.slice(i * 4096, 4096));
    }
    rig.sync(rig.stream);
    let bytes = rig.download(b.span());
    assert!(bytes.chunks(4096).enumerate().all(|(i, chunk)| chunk.iter().all(|&b| b == i as u8)));
}

fn treats_a_fresh_event_as_done<D: Device>(rig: &Rig<D>) {
    let (event, other) = (rig.event(), rig.stream());
    assert_ne!(event, rig.event());
    assert_ne!(other, rig.stream);
    assert_eq!(rig.device.is_done(event), Ok(true));
    assert_eq!(rig.device.sync_event(event), Ok(()));
    assert_eq!(rig.device.timestamp(event), None);
    rig.wait(other, event);
    rig.sync(other);
}

/// A chain through three streams and back: each step needs the one before.
fn orders_streams_by_events<D: Device>(rig: &Rig<D>) {
    let streams = [rig.stream, rig.stream(), rig.stream()];
    let (scratch, event) = (rig.scratch(), rig.event());
    let buffers: Vec<Buffer> = (0..10).map(|_| rig.alloc(Space::Device, 64 << 10)).collect();
    rig.delay(streams[0], scratch);
    rig.fill(streams[0], buffers[0].span(), 42);
    rig.record(streams[0], event);
    for (i, pair) in buffers.windows(2).enumerate() {
        let stream = streams[(i + 1) % 3];
        rig.wait(stream, event);
        rig.copy(stream, pair[0].span(), pair[1].span());
        rig.record(stream, event);
    }
    assert_eq!(rig.device.sync_event(event), Ok(()));
    rig.wait(rig.stream, event);
    assert!(rig.download(buffers[9].span()).iter().all(|&b| b == 42));
}

/// The wait of the second stream must not be for the second recording, which waits for the second stream.
fn waits_for_the_recording_of_the_call<D: Device>(rig: &Rig<D>) {
    let (first, second) = (rig.stream, rig.stream());
    let (event, back) = (rig.event(), rig.event());
    let (scratch, a, b) = (rig.scratch(), rig.alloc(Space::Device, 4096), rig.alloc(Space::Device, 4096));
    rig.delay(first, scratch);
    rig.fill(first, a.span(), 1);
    rig.record(first, event);
    rig.wait(second, event);
    rig.copy(second, a.span(), b.span());
    rig.record(second, back);
    rig.wait(first, back);
    rig.fill(first, a.span(), 2);
    rig.record(first, event);
    await_done(&rig.device, event);
    assert!(rig.download(b.span()).iter().all(|&byte| byte == 1), "a wait saw a later recording");
    assert!(rig.download(a.span()).iter().all(|&byte| byte == 2));
}

/// Polls, so that a wait for ever is a failure. It ends the process, since the stuck device cannot drain.
fn await_done<D: Device>(device: &D, event: Event) {
    let start = Instant::now();
    while !device.is_done(event).expect("no failure") {
        if start.elapsed() > STUCK {
            eprintln!("{event:?} is not done after {STUCK:?}: a wait was for work enqueued after it");
            std::process::abort();
        }
        std::thread::yield_now();
    }
}

/// After a delay, `slow` fills the first buffer with 7 and records the event, for which `waiting` waits.
fn waits_for_a_slow_fill<D: Device>(rig: &Rig<D>, slow: Stream, waiting: Stream) -> (Event, Buffer, Buffer) {
    let (scratch, event) = (rig.scratch(), rig.event());
    let (a, b) = (rig.alloc(Space::Device, 4096), rig.alloc(Space::Device, 4096));
    rig.delay(slow, scratch);
    rig.fill(slow, a.span(), 7);
    rig.record(slow, event);
    rig.wait(waiting, event);
    (event, a, b)
}

/// The event is recorded anew on an idle stream while its first recording is still to come.
fn waits_for_a_recording_that_was_replaced<D: Device>(rig: &Rig<D>) {
    let (slow, waiting, idle) = (rig.stream, rig.stream(), rig.stream());
    let (event, a, b) = waits_for_a_slow_fill(rig, slow, waiting);
    rig.copy(waiting, a.span(), b.span());
    rig.record(idle, event);
    assert_eq!(rig.device.sync_event(event), Ok(()));
    rig.sync(waiting);
    rig.sync(slow);
    assert!(rig.download(b.span()).iter().all(|&byte| byte == 7), "a wait forgot its recording");
}

fn completes_events<D: Device>(rig: &Rig<D>) {
    let (event, scratch) = (rig.event(), rig.scratch());
    for _ in 0..3 {
        rig.delay(rig.stream, scratch);
        rig.record(rig.stream, event);
        await_done(&rig.device, event);
        assert!(rig.device.timestamp(event).is_some());
        rig.delay(rig.stream, scratch);
        rig.record(rig.stream, event);
        rig.sync(rig.stream);
        assert_eq!(rig.device.is_done(event), Ok(true));
        rig.delay(rig.stream, scratch);
        rig.record(rig.stream, event);
        assert_eq!(rig.device.sync_event(event), Ok(()));
        assert_eq!(rig.device.is_done(event), Ok(true));
    }
}

fn timestamps_ascend<D: Device>(rig: &Rig<D>) {
    let scratch = rig.scratch();
    let events: Vec<Event> = (0..6).map(|_| rig.event()).collect();
    for &event in &events {
        rig.delay(rig.stream, scratch);
        rig.record(rig.stream, event);
    }
    let other = rig.stream();
    let (follower, last) = (rig.event(), events[5]);
    rig.wait(other, last);
    rig.record(other, follower);
    rig.sync(other);
    rig.sync(rig.stream);
    let times: Vec<_> = events.iter().chain([&follower]).map(|&e| rig.device.timestamp(e)).collect();
    assert!(times.iter().all(Option::is_some), "{times:?}");
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0] < times[5], "{times:?}");
}

/// A producer and a consumer share two slots, kept apart by events alone: the weight streamer's shape.
fn hands_a_ring_around<D: Device>(rig: &Rig<D>) {
    const CHUNK: u64 = 32 << 10;
    const CHUNKS: u64 = 24;
    let bytes = pattern((CHUNK * CHUNKS) as usize, 9);
    let source = rig.upload(Space::Host, &bytes);
    let (ring, sink) = (rig.alloc(Space::Device, 2 * CHUNK), rig.alloc(Space::Host, CHUNK * CHUNKS));
    let (copies, compute) = (rig.stream(), rig.stream());
    let ready = [rig.event(), rig.event()];
    let done = [rig.event(), rig.event()];
    for i in 0..CHUNKS {
        let slot = (i % 2) as usize;
        let place = ring.slice((i % 2) * CHUNK, CHUNK);
        rig.wait(copies, done[slot]);
        rig.copy(copies, source.slice(i * CHUNK, CHUNK), place);
        rig.record(copies, ready[slot]);
        rig.wait(compute, ready[slot]);
        rig.copy(compute, place, sink.slice(i * CHUNK, CHUNK));
        rig.record(compute, done[slot]);
    }
    rig.sync(compute);
    assert!(rig.download(sink.span()) == bytes, "chunks were mixed up");
    rig.sync(copies);
}

/// A ring of two slots between two streams, captured once: each replay carries the source's bytes of its time,
/// after all earlier and before all later work on either stream.
fn replays_captured_work<D: Device>(rig: &Rig<D>) {
    if !rig.device.info().captures {
        return;
    }
    const CHUNK: u64 = 64 << 10;
    let (source, sink) = (rig.alloc(Space::Host, 4 * CHUNK), rig.alloc(Space::Host, 4 * CHUNK));
    let (ring, seed) = (rig.alloc(Space::Device, 2 * CHUNK), rig.alloc(Space::Device, CHUNK));
    let (last, scratch) = (rig.alloc(Space::Device, CHUNK), rig.scratch());
    let (copies, compute) = (rig.stream(), rig.stream());
    let (outer, end) = (rig.event(), rig.event());
    let (ready, done) = ([rig.event(), rig.event()], [rig.event(), rig.event()]);
    rig.record(copies, outer);
    let work = || {
        // Dropped: the event was recorded before the capture.
        rig.device.wait(compute, outer)?;
        for i in 0..4 {
            let (slot, place) = ((i % 2) as usize, ring.slice((i % 2) * CHUNK, CHUNK));
            rig.device.wait(copies, done[slot])?;
            rig.device.copy(copies, source.slice(i * CHUNK, CHUNK), place)?;
            rig.device.record(copies, ready[slot])?;
            rig.device.wait(compute, ready[slot])?;
            rig.device.copy(compute, place, sink.slice(i * CHUNK, CHUNK))?;
            rig.device.record(compute, done[slot])?;
        }
        rig.device.copy(compute, seed.span(), last.span())?;
        rig.device.record(compute, end)
    };
    let capture = rig.device.capture(&[compute, copies], work).expect("work is captured");
    let mut latest = Duration::ZERO;
    for round in 1..5u8 {
        let bytes = pattern((4 * CHUNK) as usize, round);
        rig.device.write_host(source.span(), |to| to.copy_from_slice(&bytes));
        // Earlier work, on the stream that the captured copy is not on.
        rig.delay(copies, scratch);
        rig.fill(copies, seed.span(), round);
        rig.device.replay(capture).expect("work is enqueued");
        // Later work, likewise.
        rig.fill(copies, seed.span(), 0xEE);
        assert_eq!(rig.device.sync_event(end), Ok(()));
        let at = rig.device.timestamp(end).expect("the event was recorded by the replay");
        assert!(at > latest, "the event stands for an earlier replay");
        latest = at;
        rig.sync(copies);
        rig.sync(compute);
        assert!(rig.download(sink.span()) == bytes, "replay {round} carried other bytes");
        assert!(
            rig.download(last.span()).iter().all(|&byte| byte == round),
            "replay {round} ran out of order"
        );
    }
    rig.device.free_capture(capture);
}

fn keeps_nothing_of_a_failed_capture<D: Device>(rig: &Rig<D>) {
    if !rig.device.info().captures {
        return;
    }
    let buffer = rig.alloc(Space::Device, 64);
    rig.fill(rig.stream, buffer.span(), 1);
    let refused = Error::Resource { what: "a test", reason: "as planned".to_owned() };
    let outcome = rig.device.capture(&[rig.stream], || {
        rig.fill(rig.stream, buffer.span(), 2);
        Err(refused.clone())
    });
    assert_eq!(outcome, Err(refused));
    assert!(rig.download(buffer.span()).iter().all(|&byte| byte == 1), "captured work ran");
}

/// A stream goes on waiting for an event that is freed meanwhile, and no later handle is taken for a freed one.
fn frees_streams_and_events<D: Device>(rig: &Rig<D>) {
    let (device, slow, waiting) = (&rig.device, rig.stream(), rig.stream());
    let (event, a, b) = waits_for_a_slow_fill(rig, slow, waiting);
    device.free_event(event);
    rig.copy(waiting, a.span(), b.span());
    rig.sync(waiting);
    assert!(rig.download(b.span()).iter().all(|&byte| byte == 7));
    rig.sync(slow);
    device.free_stream(slow);
    let (later, other) = (rig.event(), rig.stream());
    assert!(later != event && other != slow, "a handle is given again");
    rejects("freeing an event twice", &|| device.free_event(event));
    rejects("recording a freed event", &|| rig.record(other, event));
    rejects("waiting for a freed event", &|| rig.wait(other, event));
    rejects("freeing a stream twice", &|| device.free_stream(slow));
    rejects("work on a freed stream", &|| rig.fill(slow, a.span(), 0));
    rig.record(other, later);
    rig.sync(other);
}

fn rejects(what: &str, call: &dyn Fn()) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "{what} goes unnoticed");
}

fn rejects_bad_handles<D: Device>(rig: &Rig<D>) {
    let device = &rig.device;
    let (live, freed) = (rig.alloc(Space::Device, 64), rig.alloc(Space::Host, 64));
    device.free(freed);
    rejects("freeing twice", &|| device.free(freed));
    rejects("reading a freed buffer", &|| device.read_host(freed.span(), |_| ()));
    rejects("writing a freed buffer", &|| device.write_host(freed.span(), |_| ()));
    rejects("reading device memory", &|| device.read_host(live.span(), |_| ()));
    rejects("writing device memory", &|| device.write_host(live.span(), |_| ()));
    rejects("copying a freed buffer", &|| rig.copy(rig.stream, freed.span(), live.span()));
    rejects("copying to a freed buffer", &|| rig.copy(rig.stream, live.span(), freed.span()));
    rejects("filling a freed buffer", &|| rig.fill(rig.stream, freed.span(), 0));
    rejects("a copy of two lengths", &|| rig.copy(rig.stream, live.slice(0, 8), live.slice(8, 9)));
    rejects("a copy onto itself", &|| rig.copy(rig.stream, live.slice(0, 8), live.slice(7, 8)));
    rejects("an allocation of nothing", &|| drop(device.alloc(Space::Device, 0)));
    let (stream, event) = (Stream::from_raw(1 << 30), Event::from_raw(1 << 30));
    rejects("a foreign stream", &|| rig.fill(stream, live.span(), 0));
    rejects("syncing a foreign stream", &|| rig.sync(stream));
    rejects("recording a foreign event", &|| rig.record(rig.stream, event));
    rejects("waiting for a foreign event", &|| rig.wait(rig.stream, event));
}
