//! Steps that are enqueued before the tokens of those before them are known. What clients get is the same.

use super::*;
use djinn_device::{
    Buffer, Capture, Device, DeviceInfo, Event, Operation, Result, Space, Span, Stream, Usage, args,
    for_each_op,
};
use djinn_engine::{Constraint, Finish, Happening, Opening, Progress, Sampling, Turn};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a session sees of a turn: each token with the bits of its log-probability and what else might have come, and why
/// the turn ended.
type Seen = (Vec<(u32, u32, Vec<u32>)>, Option<Finish>);

/// A turn that may end at one token in nine. In some turns what was said is likelier, and one obeys a constraint.
fn turn(tokens: Vec<u32>, max_tokens: u64, seed: u64) -> Turn {
    // So much that what the step before chose is likely to come again.
    let likes = Sampling { temperature: 0.2, presence_penalty: -2.0, seed, ..Sampling::default() };
    let plain = Sampling { temperature: 1.5, seed, ..Sampling::default() };
    let sampling = if seed % 2 == 1 { likes } else { plain };
    let stop_tokens = (0..256).filter(|token| token % 9 == 4).collect();
    let constraint = || Box::new(constrained::constraint(usize::MAX, usize::MAX).0) as Box<dyn Constraint>;
    let logprobs = Some(seed as u8 % 3);
    let constraint = (seed == 3).then(constraint);
    Turn { tokens, max_tokens, sampling, stop_tokens, logprobs, constraint }
}

fn ahead(ahead: bool) -> Options {
    Options { ahead, ..options(40, 8) }
}

/// Sessions of three turns each. The next turn follows at once, while a step may compute a token too many; every
/// other one is rolled back before. What each session sees by turn, and the steps that were ahead.
fn run<D: Ops>(device: D, options: &Options) -> (Vec<Vec<Seen>>, u64) {
    let mut service = serve(device, "tiny-gqa", options, &settings("signal"));
    let mut seen: BTreeMap<_, Vec<Seen>> = BTreeMap::new();
    for at in 0..4 {
        let opening = Opening { turn: turn(prompt(at, 30 + 15 * at as usize), 12, at), ..Opening::default() };
        seen.insert(service.open(opening).expect("there is room"), vec![(Vec::new(), None)]);
    }
    let mut left = seen.len();
    let began = std::time::Instant::now();
    while left > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{left} sessions hang");
        for (id, happening) in service.advance().expect("the device is sound") {
            let Happening::Token { token, finish, logprobs, .. } = happening else { panic!("{happening:?}") };
            let turns = seen.get_mut(&id).expect("it was opened");
            let latest = turns.last_mut().expect("a turn");
            assert_eq!(latest.1, None, "{id} has a token after its turn");
            let logprobs = logprobs.expect("asked for");
            let others = logprobs.top.iter().map(|(token, _)| *token).collect();
            latest.0.push((token, logprobs.chosen.to_bits(), others));
            latest.1 = finish;
            let known = service.batcher().tokens(id).expect("it lives").len() as u64;
            match (finish, turns.len() as u64) {
                (None, _) => {}
                (Some(_), 3) => left -= 1,
                (Some(_), count) => {
                    if count == 1 {
                        service.rollback(id, known - 2).expect("it waits");
                    }
                    service.turn(id, turn(prompt(id.0 + count, 3), 8, count)).expect("it waits");
                    turns.push((Vec::new(), None));
                }
            }
        }
        service.state().audit();
    }
    let ahead = service.batcher().device_times().ahead;
    service.into_engine().expect("sound");
    (seen.into_values().collect(), ahead)
}

#[test]
fn a_step_ahead_changes_nothing_that_a_session_sees() {
    let (expected, none) = run(sim(SimConfig::default()), &ahead(false));
    assert_eq!(none, 0);
    let stopped = expected.iter().flatten().filter(|seen| seen.1 == Some(Finish::Stop)).count();
    assert!((3..12).contains(&stopped), "{stopped} of 12 turns end with a token that was not foreseen");
    // Under some seeds a step is over when the host looks for the first time.
    let mut some = 0;
    for seed in 0..12 {
        let (found, ahead) = run(sim(SimConfig { seed, ..SimConfig::default() }), &ahead(true));
        assert!(found == expected, "seed {seed}: {ahead} steps ahead");
        some += ahead;
    }
    assert!(some > 50, "{some} steps were ahead");
}

/// A turn that its receiver ends has the keys and values that it would have had, and the next one the same bits.
#[test]
fn an_answer_that_is_broken_off_leaves_nothing_of_the_step_ahead() {
    let run = |options: &Options, seed| {
        let device = sim(SimConfig { seed, ..SimConfig::default() });
        let mut service = Service::single(load(device, "tiny-gqa", options)).expect("it serves");
        let (mut session, mut request) = (None, Request { max_tokens: 20, ..Request::default() });
        let mut seen = Vec::new();
        for turn in 0..4 {
            request.prompt.extend(prompt(turn, 7));
            let mut left = 3;
            let generated = service.generate(&mut session, &request, &mut |progress| {
                left -= i32::from(matches!(progress, Progress::Token(_)));
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let generated = generated.expect("it runs");
            assert_eq!((generated.finish, generated.tokens.len()), (Finish::Cancelled, 3));
            let state = service.state().session(session.expect("it lives")).expect("it lives");
            seen.push((generated.tokens.clone(), state.context, state.in_step));
            request.prompt.extend(generated.tokens);
        }
        let ahead = service.batcher().device_times().ahead;
        let logits = service.logits(&request.prompt).expect("no step is under way");
        (seen, logits, ahead)
    };
    let one = |ahead| Options { sequences: 1, decode_rows: 0, ..self::ahead(ahead) };
    let (expected, logits, none) = run(&one(false), 0);
    assert_eq!(none, 0);
    for seed in 0..4 {
        let (found, same, some) = run(&one(true), seed);
        assert!((&found, &same) == (&expected, &logits) && some > 4, "{found:?} for {expected:?}");
    }
}

/// Also where tokens are penalised, or wait for what a constraint allows; that ends its own turn alone.
#[test]
fn all_ways_to_choose_go_ahead() {
    let plain = |at| Turn { tokens: prompt(at, 9), max_tokens: 12, ..Turn::default() };
    let penalised = Sampling { presence_penalty: 0.5, logit_bias: [(7, 2.0)].into(), ..Sampling::default() };
    let constrained = |complete, fail| {
        let (constraint, told) = constrained::constraint(complete, fail);
        (Turn { constraint: Some(Box::new(constraint)), logprobs: Some(3), ..plain(0) }, told)
    };
    let (whole, told) = constrained(5, usize::MAX);
    let (failing, _) = constrained(usize::MAX, 3);
    let turns = [plain(0), Turn { sampling: penalised, ..plain(0) }, whole, failing];
    for (first, tokens) in turns.into_iter().zip([12, 12, 5, 3]) {
        let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &ahead(true), &settings("signal"));
        let ids = [first, plain(1)]
            .map(|turn| service.open(Opening { turn, ..Opening::default() }).expect("there is room"));
        let mut seen = [0, 0];
        while service.idle_for().is_some() {
            for (id, happening) in service.advance().expect("the device is sound") {
                let came = matches!(happening, Happening::Token { .. });
                assert!(came || matches!(happening, Happening::Failed(_)) && tokens == 3, "{happening:?}");
                seen[usize::from(id == ids[1])] += u32::from(came);
            }
        }
        assert_eq!(seen, [tokens, 12]);
        let times = service.batcher().device_times();
        assert!(times.steps >= 12 && times.ahead > 0, "{times:?}");
        assert!(times.busy > Duration::ZERO && (0.0..1.0).contains(&times.idle_share()), "{times:?}");
    }
    assert_eq!(told.lock().expect("no panic").len(), 5);
}

/// A device without work does not idle: the time until a session's next turn is the client's.
#[test]
fn waits_between_turns_are_not_idle_time() {
    let mut service = serve(sim(SimConfig::default()), "tiny-gqa", &ahead(false), &settings("signal"));
    let one_step = |at| Turn { tokens: prompt(at, 9), max_tokens: 1, ..Turn::default() };
    let id = service.open(Opening { turn: one_step(0), ..Opening::default() }).expect("there is room");
    for at in 1..=3 {
        while service.idle_for().is_some() {
            service.advance().expect("the device is sound");
        }
        assert_eq!(service.batcher().device_times().steps, at);
        service.turn(id, one_step(at)).expect("it waits");
    }
    let times = service.batcher().device_times();
    assert!(times.busy > Duration::ZERO && times.idle == Duration::ZERO, "{times:?}");
}

/// What a faulty device does with the tokens of a step ahead.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It reads them on a stream that nothing orders.
    ReadsEarly,
    /// It does not read them.
    ReadsNothing,
    /// It says that steps are over which are not.
    EndsEarly,
}

/// A simulator with a fault.
struct Faulty {
    inner: SimDevice,
    stray: Stream,
    fault: Fault,
}

impl Faulty {
    fn new(seed: u64, fault: Fault) -> Self {
        let inner = sim(SimConfig { seed, ..SimConfig::default() });
        let stray = inner.stream().expect("a stream");
        Faulty { inner, stray, fault }
    }
}

impl Device for Faulty {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn alloc(&self, space: Space, len: u64) -> Result<Buffer> {
        self.inner.alloc(space, len)
    }
    fn free(&self, buffer: Buffer) {
        self.inner.free(buffer);
    }
    fn restore(&self, buffer: Buffer) -> Result<()> {
        self.inner.restore(buffer)
    }
    fn usage(&self, space: Space) -> Usage {
        self.inner.usage(space)
    }
    fn stream(&self) -> Result<Stream> {
        self.inner.stream()
    }
    fn free_stream(&self, stream: Stream) {
        self.inner.free_stream(stream);
    }
    fn event(&self) -> Result<Event> {
        self.inner.event()
    }
    fn free_event(&self, event: Event) {
        self.inner.free_event(event);
    }
    fn copy(&self, stream: Stream, src: Span, dst: Span) -> Result<()> {
        self.inner.copy(stream, src, dst)
    }
    fn fill(&self, stream: Stream, dst: Span, byte: u8) -> Result<()> {
        self.inner.fill(stream, dst, byte)
    }
    fn record(&self, stream: Stream, event: Event) -> Result<()> {
        self.inner.record(stream, event)
    }
    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.inner.wait(stream, event)
    }
    fn is_done(&self, event: Event) -> Result<bool> {
        if matches!(self.fault, Fault::EndsEarly) { Ok(true) } else { self.inner.is_done(event) }
    }
    fn sync(&self, stream: Stream) -> Result<()> {
        self.inner.sync(stream)
    }
    fn sync_event(&self, event: Event) -> Result<()> {
        if matches!(self.fault, Fault::EndsEarly) { Ok(()) } else { self.inner.sync_event(event) }
    }
    fn timestamp(&self, event: Event) -> Option<Duration> {
        self.inner.timestamp(event)
    }
    fn capture<E: From<djinn_device::Error>>(
        &self,
        streams: &[Stream],
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Capture, E> {
        self.inner.capture(streams, work)
    }
    fn replay(&self, capture: Capture) -> Result<()> {
        self.inner.replay(capture)
    }
    fn free_capture(&self, capture: Capture) {
        self.inner.free_capture(capture);
    }
    fn read_host<R>(&self, span: Span, read: impl FnOnce(&[u8]) -> R) -> R {
        self.inner.read_host(span, read)
    }
    fn write_host<R>(&self, span: Span, write: impl FnOnce(&mut [u8]) -> R) -> R {
        self.inner.write_host(span, write)
    }
}

macro_rules! faulty {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        impl Ops for Faulty {
            $(fn $op(&self, stream: Stream, args: &args::$Args) -> Result<()> {
                // Of the model's own selections, each row has many columns.
                let is_read = matches!(Operation::from(*args), Operation::SelectRows(select) if select.width == 1);
                match self.fault {
                    Fault::ReadsEarly if is_read => self.inner.$op(self.stray, args),
                    Fault::ReadsNothing if is_read => Ok(()),
                    _ => self.inner.$op(stream, args),
                }
            })*
        }
    };
}

for_each_op!(faulty);

/// Tokens that are read before they are there, or not at all, and a step whose end is not waited for, are noticed.
#[test]
fn a_device_that_breaks_the_order_of_steps_is_noticed() {
    let (expected, _) = run(sim(SimConfig::default()), &ahead(true));
    for fault in [Fault::ReadsEarly, Fault::ReadsNothing, Fault::EndsEarly] {
        let caught = (0..6).any(|seed| {
            let found = catch_unwind(AssertUnwindSafe(|| run(Faulty::new(seed, fault), &ahead(true))));
            found.map_or(true, |(found, _)| found != expected)
        });
        assert!(caught, "{fault:?} changes nothing");
    }
}
