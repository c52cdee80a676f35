//! Sessions that leave an engine with their keys and values, and go on in another one.

use super::constrained::constraint;
use super::*;
use djinn_cpu::SimConfig;
use djinn_engine::debug::{Breakpoint, Debugger, KvEdit, KvHalf, KvOp, KvRange};
use djinn_engine::{
    Client, Error, ExportedSession, Happening, KvShape, OpenTurn, Opening, Result, Sampling, SessionImage,
    Turn, spawn,
};
use djinn_scheduler::{
    Error as SchedulerError, Refusal, Residency, SessionEvent, SessionId, Settings, Signal,
};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

const FAMILY: &str = "tiny-gqa";

/// A service on a thread of its own.
struct Served {
    client: Client,
    thread: JoinHandle<Result<()>>,
}

impl Served {
    fn start(seed: u64, pages: (u32, u32), settings: Settings) -> Self {
        Self::start_in(DType::F32, seed, pages, settings)
    }

    /// With keys and values in a type.
    fn start_in(kv_dtype: DType, seed: u64, (pages, host_pages): (u32, u32), settings: Settings) -> Self {
        let device = move || sim(SimConfig { seed, ..SimConfig::default() });
        Self::start_with(device, Options { kv_dtype, ..options(pages, host_pages) }, settings)
    }

    fn start_on<D: Ops + 'static>(
        device: impl FnOnce() -> D + Send + 'static,
        (pages, host_pages): (u32, u32),
        settings: Settings,
    ) -> Self {
        Self::start_with(device, options(pages, host_pages), settings)
    }

    fn start_with<D: Ops + 'static>(
        device: impl FnOnce() -> D + Send + 'static,
        options: Options,
        settings: Settings,
    ) -> Self {
        let make = move || Ok(serve(device(), FAMILY, &options, &settings));
        let (client, thread) = spawn(make).expect("it serves");
        Served { client, thread }
    }

    fn ask<T: Send + 'static>(&self, tell: impl FnOnce(&Client, Box<dyn FnOnce(T) + Send>)) -> T {
        let (answer, answered) = channel();
        tell(&self.client, Box::new(move |told| answer.send(told).expect("it is awaited")));
        answered.recv().expect("the service runs")
    }

    fn export(&self, id: SessionId) -> Result<ExportedSession> {
        self.ask(|client, answer| client.begin_export(id, answer))
    }

    /// A session, and all of its pages.
    fn read(&self, id: SessionId) -> (ExportedSession, Vec<u8>) {
        let session = self.export(id).expect("it waits");
        let (pages, mut bytes) = (session.image.pages(&session.shape), Vec::new());
        for page in 0..pages {
            let page = self.ask(|client, answer| client.begin_read(&session, page..page + 1, answer));
            bytes.extend(page.expect("it is there"));
        }
        assert_eq!(bytes.len() as u64, u64::from(pages) * session.shape.page_bytes);
        (session, bytes)
    }

    fn import(&self, shape: KvShape, image: SessionImage, bytes: &[u8]) -> Result<SessionId> {
        let id = self.ask(|client, answer| client.begin_import(shape, image, answer))?.id;
        for (at, page) in (0..).zip(bytes.chunks(shape.page_bytes as usize)) {
            self.ask(|client, answer| client.begin_write(id, at, page.to_vec(), answer))?;
        }
        self.ask(|client, answer| client.begin_finish(id, true, answer))?;
        Ok(id)
    }

    fn open(&self, tokens: Vec<u32>, max_tokens: u64) -> (SessionId, Receiver<Happening>) {
        let (sender, happenings) = channel();
        let turn = Turn { tokens, max_tokens, ..Turn::default() };
        let opening = Opening { turn, outlives_listener: true, ..Opening::default() };
        let listener = Box::new(move |happening| sender.send(happening).is_ok());
        let id = self.ask(|client, answer| client.begin_open(opening, listener, answer));
        (id.expect("it is admitted"), happenings)
    }

    /// A session's next turn, whose prompt is the whole conversation.
    fn go_on(&self, id: SessionId, tokens: Vec<u32>) -> Answer {
        let (sender, happenings) = channel();
        let listener = Box::new(move |happening| sender.send(happening).is_ok());
        let turn = Turn { tokens, max_tokens: 4, logprobs: Some(3), ..Turn::default() };
        self.ask(|client, answer| client.begin_prompt(id, turn, 0, listener, answer)).expect("it waits");
        tokens_of(&happenings)
    }

    fn report(&self, id: SessionId) -> djinn_scheduler::SessionReport {
        let told = self.ask(|client, answer| client.begin_report(vec![id], answer)).expect("it runs");
        told[0].clone().expect("it lives")
    }

    /// Serves a session that takes 12 pages.
    fn crowd(&self) {
        let (_, happenings) = self.open(prompt(77, 90), 3);
        tokens_of(&happenings);
    }

    /// Waits until a session's pages are there.
    fn comes_to(&self, id: SessionId, at: Residency) {
        for _ in 0..60_000 {
            if self.report(id).residency == at {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it stays: {:?}", self.report(id));
    }

    fn free(&self) -> u32 {
        self.ask(|client, answer| client.begin_count(answer)).device_free
    }

    fn end(self) {
        drop(self.client);
        self.thread.join().expect("no panic").expect("the device is sound");
    }
}

/// What a turn gave.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    /// Of the log-probabilities that were asked for.
    bits: Vec<u32>,
    /// Tokens of the prompt whose keys and values existed.
    reused: u64,
}

fn tokens_of(happenings: &Receiver<Happening>) -> Answer {
    let mut answer = Answer::default();
    loop {
        match happenings.recv().expect("the session lives") {
            Happening::Token { token, finish, logprobs, reused } => {
                answer.tokens.push(token);
                let top = logprobs.iter().flat_map(|logprobs| &logprobs.top);
                answer.bits.extend(top.map(|(_, logprob)| logprob.to_bits()));
                answer.reused += reused.unwrap_or(0);
                if finish.is_some() {
                    return answer;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A conversation of one turn, in a session that waits.
fn talk(served: &Served, tokens: &[u32]) -> (SessionId, Vec<u32>) {
    let (id, happenings) = served.open(tokens.to_vec(), 6);
    (id, [tokens, &tokens_of(&happenings).tokens].concat())
}

fn no_room() -> Settings {
    let mut settings = settings("none");
    settings.rules.queue_timeout = Duration::from_millis(20);
    settings
}

/// Its pages are on the device, on the host, or given up, when it leaves; and are given up later where it came to.
#[test]
fn a_session_goes_on_elsewhere_with_the_same_bits() {
    for (seed, policy, pages, at, kv_dtype) in [
        (1, "lru", (24, 0), Residency::Device, DType::F32),
        (2, "ttl", (24, 24), Residency::Host, DType::F32),
        (3, "lru", (12, 0), Residency::Gone, DType::F32),
        (4, "ttl", (24, 24), Residency::Host, DType::Int8),
    ] {
        let here = Served::start_in(kv_dtype, seed, pages, settings(policy));
        let there = Served::start_in(kv_dtype, 9, (24, 0), settings("lru"));
        // A chunk of 40, and tokens that are computed row by row.
        let (id, mut tokens) = talk(&here, &prompt(seed, 50));
        if at == Residency::Gone {
            here.crowd();
        }
        here.comes_to(id, at);
        let (session, bytes) = here.read(id);
        assert_eq!((&session.image.tokens, session.image.computed), (&tokens, 55), "{at:?}");
        let kept = if at == Residency::Gone { 0 } else { 55 };
        assert_eq!(session.image.context, kept);
        let import = || there.import(session.shape, (*session.image).clone(), &bytes).expect("it fits");
        let (goes_on, given_up) = (import(), import());
        tokens.extend(prompt(seed + 50, 7));
        let expected = here.go_on(id, tokens.clone());
        let turns = [(prompt(seed, 50), 6), (prompt(seed + 50, 7), 4)];
        let alone = alone_in(kv_dtype, sim(SimConfig::default()), FAMILY, &turns);
        assert_eq!(expected.tokens, alone[1], "{at:?}, {kv_dtype}");
        assert_eq!(
            there.go_on(goes_on, tokens.clone()),
            Answer { reused: kept, ..expected.clone() },
            "{at:?}"
        );
        // One that needs all pages takes them: what was imported is computed again, as it was computed first.
        there.crowd();
        assert_eq!(there.report(given_up).residency, Residency::Gone);
        let again = there.go_on(given_up, tokens);
        assert_eq!(again, Answer { reused: 0, ..expected }, "{at:?}, computed again");
        here.end();
        there.end();
    }
}

/// Begins a turn, and holds its session once it has some tokens and before it has all of them. The receiver is to be kept:
/// the turn ends with its client.
fn hold(served: &Served, turn: Turn) -> (SessionId, Receiver<Happening>) {
    let (sender, happenings) = channel();
    // The service waits with each token until it may go on.
    let (go, may_go) = channel::<()>();
    let listener = Box::new(move |happening| {
        let heard = sender.send(happening).is_ok();
        let _until_the_test_is_done_with_it = may_go.recv();
        heard
    });
    let opening = Opening { turn, outlives_listener: true, ..Opening::default() };
    let id =
        served.ask(|client, answer| client.begin_open(opening, listener, answer)).expect("it is admitted");
    assert!(matches!(happenings.recv(), Ok(Happening::Token { .. })));
    let (answer, answered) = channel();
    served.client.begin_export(id, move |told| answer.send(told).expect("it is awaited"));
    // Some tokens may have been told at once.
    let told = loop {
        go.send(()).expect("the service waits");
        if let Ok(told) = answered.recv_timeout(Duration::from_millis(10)) {
            break told;
        }
    };
    assert!(matches!(told, Err(Error::NotAtRest { session }) if session == id.0), "{told:?}");
    served.client.begin_event(id, SessionEvent::Pause, |paused| paused.expect("it computes"));
    drop(go);
    (id, happenings)
}

#[test]
fn only_a_session_at_rest_leaves() {
    // It computes beside its service, which looks at its clients meanwhile.
    let served = Served::start_on(cpu, (24, 0), settings("lru"));
    let turn = Turn { tokens: prompt(4, 20), max_tokens: 60, ..Turn::default() };
    let (id, _client) = hold(&served, turn);
    // The step that it is in ends before.
    let (session, bytes) = served.read(id);
    let SessionImage { tokens, context, .. } = &*session.image;
    assert_eq!((&tokens[..20], tokens.len() as u64), (&prompt(4, 20)[..], context + 1));
    served.client.event(id, SessionEvent::Abort).expect("it is paused");
    let image = SessionImage { turn: None, ..(*session.image).clone() };
    let imported = served.import(session.shape, image, &bytes).expect("it fits");
    let whole = alone(FAMILY, &[(prompt(4, 20), 60)]).remove(0);
    // The next prompt is what there is, and its last token is computed.
    assert_eq!(served.go_on(imported, tokens.clone()).tokens, whole[tokens.len() - 20..][..4]);
    assert!(matches!(served.export(SessionId(99)), Err(Error::NoSession { .. })));
    // Pages that were rolled back after the export are not those that were told.
    let (told, _) = served.read(imported);
    served.client.rollback(imported, 8).expect("it waits");
    let page = served.ask(|client, answer| client.begin_read(&told, 0..1, answer));
    assert!(matches!(page, Err(Error::ImageLost { .. })), "{page:?}");
    served.end();
}

/// Random numbers, penalties and what is left of the turn go along, also where the pages are given up and computed again.
#[test]
fn a_turn_goes_on_elsewhere() {
    let sampling = Sampling {
        temperature: 1.0,
        seed: 7,
        frequency_penalty: 0.5,
        presence_penalty: 0.3,
        repetition_penalty: 1.1,
        logit_bias: [(3, 1.5)].into(),
        ..Sampling::default()
    };
    let turn = Turn { tokens: prompt(9, 50), max_tokens: 40, sampling, ..Turn::default() };
    let (here, there) =
        (Served::start_on(cpu, (24, 0), settings("lru")), Served::start_on(cpu, (12, 0), settings("lru")));
    let whole = {
        let (sender, happenings) = channel();
        let listener = Box::new(move |happening| sender.send(happening).is_ok());
        let opening = Opening { turn: turn.clone(), ..Opening::default() };
        here.ask(|client, answer| client.begin_open(opening, listener, answer)).expect("it is admitted");
        tokens_of(&happenings).tokens
    };
    let (id, _client) = hold(&here, turn.clone());
    let (session, bytes) = here.read(id);
    let held = session.image.turn.as_ref().expect("it is held in its turn");
    assert_eq!(held.generated + held.tokens_left, 40);
    assert_eq!(session.image.tokens.len() as u64, 50 + held.generated);
    for gives_up in [false, true] {
        let image = (*session.image).clone();
        let imported = there.import(session.shape, image, &bytes).expect("it fits");
        if gives_up {
            there.crowd();
            assert_eq!(there.report(imported).residency, Residency::Gone);
        }
        there.client.event(imported, SessionEvent::Resume).expect("it is held");
        until_idle(&there, imported);
        let tokens: Vec<u32> = there.ask(|client, answer: Box<dyn FnOnce(Vec<u32>) + Send>| {
            client.begin_debug(move |debugger| answer(debugger.tokens(imported).expect("it lives").0));
        });
        assert_eq!(tokens[50..], whole);
        there.client.event(imported, SessionEvent::End).expect("it lives");
    }
    here.end();
    there.end();
}

fn until_idle(served: &Served, id: SessionId) {
    for _ in 0..60_000 {
        if !served.report(id).phase.is_ready() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it goes on: {:?}", served.report(id));
}

#[test]
fn a_turn_that_obeys_a_constraint_stays_until_it_ends() {
    let served = Served::start_on(cpu, (24, 0), settings("lru"));
    let turn = Turn {
        tokens: prompt(4, 20),
        max_tokens: 60,
        constraint: Some(Box::new(constraint(usize::MAX, usize::MAX).0)),
        ..Turn::default()
    };
    let (id, _client) = hold(&served, turn);
    let told = served.export(id);
    assert!(matches!(told, Err(Error::ConstrainedTurn { session }) if session == id.0), "{told:?}");
    served.client.event(id, SessionEvent::Resume).expect("it is held");
    until_idle(&served, id);
    assert_eq!(served.export(id).expect("its turn is over").image.turn, None);
    served.end();
}

#[test]
fn room_is_made_for_a_session_that_comes() {
    let here = Served::start(5, (24, 0), settings("lru"));
    let (id, mut tokens) = talk(&here, &prompt(5, 50));
    let (session, bytes) = here.read(id);
    let import = |served: &Served| served.import(session.shape, (*session.image).clone(), &bytes);
    // 7 pages of 12 are wanted, and 10 are held by one that waits.
    let evicts = Served::start(6, (12, 0), settings("lru"));
    let (held, mut others) = talk(&evicts, &prompt(6, 70));
    let imported = import(&evicts).expect("the other one is sent away");
    assert_eq!(evicts.report(held).residency, Residency::Gone);
    others.extend(prompt(61, 3));
    let turns = [(prompt(6, 70), 6), (prompt(61, 3), 4)];
    assert_eq!(evicts.go_on(held, others).tokens, alone_on(sim(SimConfig::default()), FAMILY, &turns)[1]);
    tokens.extend(prompt(51, 5));
    let expected = Answer { reused: 0, ..here.go_on(id, tokens.clone()) };
    assert_eq!(evicts.go_on(imported, tokens), expected, "the other one took its pages");
    // Under this policy no session is sent away.
    let full = Served::start(7, (12, 0), no_room());
    talk(&full, &prompt(6, 70));
    let refused = import(&full);
    let timed_out = |error: &Error| {
        matches!(error, Error::Scheduler(SchedulerError::Refused { why: Refusal::QueueTimeout { .. }, .. }))
    };
    assert!(refused.as_ref().is_err_and(timed_out), "{refused:?}");
    here.end();
    evicts.end();
    full.end();
}

/// What no session of the engine can be is refused; a session that does not come leaves nothing behind.
#[test]
fn images_that_do_not_fit_are_refused() {
    let served = Served::start(8, (24, 0), settings("lru"));
    let (id, _) = talk(&served, &prompt(8, 50));
    let (session, bytes) = served.read(id);
    let (shape, image, free) = (session.shape, &*session.image, served.free());
    assert_eq!(image.chunks, std::slice::from_ref(&(0..40)));
    let refuses = |what: &str, shape: KvShape, image: SessionImage| {
        let refused = served.import(shape, image, &bytes);
        assert!(
            matches!(&refused, Err(Error::Image { what: found, .. }) if *found == what),
            "{what}: {refused:?}"
        );
    };
    let with = |change: &dyn Fn(&mut SessionImage)| {
        let mut changed = image.clone();
        change(&mut changed);
        changed
    };
    refuses("shape", KvShape { chunk: 48, ..shape }, image.clone());
    refuses("shape", KvShape { page_bytes: 8, ..shape }, image.clone());
    refuses("shape", KvShape { dtype: DType::Int8, ..shape }, image.clone());
    refuses("tokens", shape, with(&|image| image.tokens.clear()));
    refuses("tokens", shape, with(&|image| image.tokens[3] = u32::MAX));
    refuses("tokens", shape, with(&|image| image.tokens.resize(CONTEXT as usize + 1, 1)));
    refuses("context", shape, with(&|image| image.context = 56));
    refuses("context", shape, with(&|image| image.computed = 57));
    // One that overlaps another, crosses a multiple of 40, is empty, is too long, or goes beyond what was computed.
    for chunks in [&[0..40, 39..50][..], &[0..20, 20..60], &[0..30, 30..30], &[0..1, 1..41], &[0..40, 40..56]]
    {
        refuses("chunks", shape, with(&|image| image.chunks = chunks.to_vec()));
    }
    // A turn without tokens, with more of them than there are, or without any left.
    let turn = OpenTurn { generated: 5, tokens_left: 3, ..OpenTurn::default() };
    for turn in [
        OpenTurn { generated: 56, ..turn.clone() },
        OpenTurn { generated: u64::MAX, ..turn.clone() },
        OpenTurn { tokens_left: 0, ..turn.clone() },
        OpenTurn { tokens_left: u64::MAX, ..turn.clone() },
        OpenTurn { sampling: Sampling { temperature: -1.0, ..Sampling::default() }, ..turn.clone() },
    ] {
        refuses("turn", shape, with(&|image| image.turn = Some(turn.clone())));
    }
    // The turn's first token was chosen after all of the prompt was computed, and each later one after the one before it.
    for computed in [0, 40, 54] {
        let (chunks, turn) = (Vec::new(), Some(OpenTurn { generated: 1, ..turn.clone() }));
        let image = SessionImage { context: 0, computed, chunks, turn, ..image.clone() };
        refuses("turn", shape, image);
    }
    let incoming = served.ask(|client, answer| client.begin_import(shape, image.clone(), answer));
    let incoming = incoming.expect("it fits").id;
    assert_eq!(served.free(), free - 7);
    let page = bytes[..shape.page_bytes as usize].to_vec();
    for (first, bytes) in
        [(7, page.clone()), (u32::MAX, page.clone()), (0, page[1..].to_vec()), (0, Vec::new())]
    {
        let refused = served.ask(|client, answer| client.begin_write(incoming, first, bytes, answer));
        assert!(refused.is_err(), "{first}");
    }
    served.ask(|client, answer| client.begin_finish(incoming, false, answer)).expect("it is there");
    assert_eq!(served.free(), free);
    assert!(served.ask(|client, answer| client.begin_finish(incoming, true, answer)).is_err());
    assert_eq!(served.client.signal(incoming, Signal::Idle).expect("it runs").kv_bytes, 0);
    served.end();
}

/// Changed keys and values are no part of an image. They may be changed while a session is read.
#[test]
fn a_session_with_a_changed_cache_does_not_leave() {
    let device = || sim(SimConfig::default());
    let served = Served::start_with(device, stopped::hooked(24, 0), settings("lru"));
    let (id, first) = talk(&served, &prompt(4, 20));
    let told = served.export(id).expect("it waits");
    let read = || served.ask(|client, answer| client.begin_read(&told, 0..1, answer));
    let mut page = read().expect("it is there");
    let stop = move |debugger: &mut dyn Debugger| {
        let hook = debugger.hook("blocks.1.hook_in").expect("a hook of the model");
        let (filter, ttl, at_ttl) = Default::default();
        let stop = Breakpoint {
            hook,
            filter,
            condition: None,
            pause: true,
            capture: false,
            hits: Some(1),
            ttl,
            at_ttl,
        };
        debugger.set_breakpoint(id, stop).expect("there is room")
    };
    served.ask(|client, answer| client.begin_debug(move |debugger| answer(stop(debugger))));
    let (sender, happenings) = channel();
    let turn = Turn { tokens: [first, prompt(5, 3)].concat(), max_tokens: 4, ..Turn::default() };
    let listener = Box::new(move |happening| sender.send(happening).is_ok());
    served.ask(|client, answer| client.begin_prompt(id, turn, 0, listener, answer)).expect("it waits");
    served.ask(|client, answer| client.begin_debug(move |debugger| debugger.on_pause(id, answer)));
    // A stop changes none of what was told.
    assert_eq!(read().expect("it is there"), std::mem::take(&mut page));
    let range = KvRange { layer: 0, positions: 3..9 };
    let edit = KvEdit { range, half: KvHalf::Values, op: KvOp::Scale(3.0) };
    let edited = served.ask(|client, answer| {
        client.begin_debug(move |debugger| debugger.edit_cache(id, edit, answer));
    });
    edited.expect("it is stopped");
    assert!(matches!(read(), Err(Error::ImageLost { .. })));
    served
        .ask(|client, answer| client.begin_debug(move |debugger| answer(debugger.resume_until(id, None))))
        .expect("it is stopped");
    while !matches!(happenings.recv(), Ok(Happening::Token { finish: Some(_), .. })) {}
    assert!(matches!(served.export(id), Err(Error::Hooked { .. })));
    served.end();
}
