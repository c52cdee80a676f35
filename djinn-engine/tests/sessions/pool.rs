//! Models that share a device in turns: sessions of each get the tokens that they would get alone, whatever has to leave for
//! whom, and a model that fails leaves the others be.

mod memory;
mod random;

use super::*;
use djinn_cpu::{SimFault, SimFaults};
use djinn_engine::{
    Client, Error, Finish, Happening, Inbox, LoadError, Opening, Pool, PoolModel, Residence, Runtime,
    SessionId, Turn,
};
use djinn_scheduler::SessionEvent;
use djinn_vmu::{SourceError, WeightSource};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const MODELS: [&str; 3] = ["tiny-gqa", "tiny-gqa?seed=2", "tiny-gqa?seed=3"];

/// A model, what happened to it, and what is planted.
struct Known {
    family: &'static str,
    options: Options,
    model: djinn_models::Model,
    told: Mutex<Vec<Residence>>,
    read: AtomicU64,
    /// Loads that are refused.
    refusals: AtomicU64,
}

impl WeightSource for Known {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.model.source.read_rows(name, rows, out)
    }
}

struct Placed(Arc<Known>);

impl<D: Ops> PoolModel<D> for Placed {
    fn device_bytes(&self) -> u64 {
        self.0.device_bytes()
    }

    fn host_bytes(&self) -> u64 {
        let (options, graph) = (&self.0.options, &self.0.model.graph);
        options.host_bytes(graph, &options.plan(graph, 0).expect("a plan"))
    }

    fn load(
        &self,
        runtime: &Rc<Runtime<D>>,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Service<D>, LoadError> {
        let Known { options, model, refusals, .. } = &*self.0;
        if refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(LoadError::Refused("planted".to_owned()));
        }
        let engine = Engine::load_on(Rc::clone(runtime), model.graph.clone(), &*self.0, options, progress)?;
        let registry = Registry::default();
        let settings = settings("lru");
        Ok(Service::new(engine, |capacity| registry.scheduler(&settings, capacity, cost()))?)
    }

    fn source(&self) -> &dyn WeightSource {
        &*self.0
    }

    fn loading(&self, _: u64, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn residence_changed(&self, residence: Residence) {
        self.0.told.lock().expect("no panic").push(residence);
    }
}

impl Known {
    fn new(family: &'static str, host_pages: u32) -> Arc<Self> {
        Self::within(family, host_pages, Budget::default())
    }

    fn within(family: &'static str, host_pages: u32, budget: Budget) -> Arc<Self> {
        let model =
            open(&Location::Synthetic(family.into()), &OpenOptions::default()).expect("a known shape");
        let (told, read, refusals) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let budget = Budget { stream_check: false, ..budget };
        let options = Options { budget, ..options(24, host_pages) };
        Arc::new(Known { family, options, model, told, read, refusals })
    }

    fn device_bytes(&self) -> u64 {
        self.options.plan(&self.model.graph, 0).expect("a plan").segments.total()
    }

    fn told(&self) -> Vec<Residence> {
        self.told.lock().expect("no panic").clone()
    }

    fn returns(&self) -> usize {
        self.told().iter().filter(|at| **at == Residence::Host).count()
    }
}

/// Models on a simulator that holds some bytes.
struct Pooled {
    clients: Vec<Client>,
    thread: JoinHandle<djinn_engine::Result<()>>,
    faults: SimFaults,
}

impl Pooled {
    fn start(seed: u64, known: &[Arc<Known>], vram: u64, host_limit: u64) -> Self {
        Self::start_on(SimConfig { seed, vram: Some(vram), ..SimConfig::default() }, known, host_limit)
    }

    fn start_on(config: SimConfig, known: &[Arc<Known>], host_limit: u64) -> Self {
        let (clients, inboxes): (Vec<Client>, Vec<Inbox>) = known.iter().map(|_| Client::pair()).unzip();
        let (known, faults) = (known.to_vec(), SimFaults::default());
        let planted = faults.clone();
        let thread = std::thread::spawn(move || {
            let config = SimConfig { math: Math::Fast, ..config };
            let device = SimDevice::with_faults(config, planted).expect("a device");
            let runtime = Rc::new(Runtime::in_turns(device, host_limit)?);
            let mut pool = Pool::new(Rc::clone(&runtime));
            for (known, inbox) in known.into_iter().zip(inboxes) {
                pool.add(Box::new(Placed(known)), inbox, false);
            }
            let (_, control) = crossbeam_channel::bounded::<()>(0);
            let ran = pool.run(&control);
            drop(pool);
            if ran.is_ok() {
                let runtime = Rc::into_inner(runtime).expect("all have left");
                for space in [djinn_device::Space::Device, djinn_device::Space::Host] {
                    let usage = djinn_device::Device::usage(runtime.device(), space);
                    assert_eq!(usage.in_use, 0, "{space:?} memory is given back");
                    assert!(usage.peak <= usage.limit, "{usage:?}");
                }
            }
            ran.map(drop)
        });
        Pooled { clients, thread, faults }
    }

    fn end(self) -> djinn_engine::Result<()> {
        drop(self.clients);
        self.thread.join().expect("no panic")
    }
}

fn open_on(
    client: &Client,
    tokens: Vec<u32>,
    max_tokens: u64,
) -> (djinn_engine::Result<SessionId>, Receiver<Happening>) {
    let (sender, happenings) = channel();
    let turn = Turn { tokens, max_tokens, ..Turn::default() };
    let opening = Opening { turn, outlives_listener: true, ..Opening::default() };
    let (answer, answered) = channel();
    let listener = Box::new(move |happening| sender.send(happening).is_ok());
    client.begin_open(opening, listener, move |opened| drop(answer.send(opened)));
    (answered.recv().expect("an answer"), happenings)
}

/// A turn of four more tokens after `tokens`; how many of them the session still had.
fn go_on(client: &Client, id: SessionId, tokens: Vec<u32>) -> (u64, Receiver<Happening>) {
    let (sender, happenings) = channel();
    let turn = Turn { tokens, max_tokens: 4, ..Turn::default() };
    let (answer, answered) = channel();
    let listener = Box::new(move |happening| sender.send(happening).is_ok());
    client.begin_prompt(id, turn, 0, listener, move |begun| drop(answer.send(begun)));
    (answered.recv().expect("an answer").expect("the session lives"), happenings)
}

fn tokens_of(happenings: &Receiver<Happening>) -> Vec<u32> {
    let mut tokens = Vec::new();
    for happening in happenings {
        match happening {
            Happening::Token { token, finish, .. } => {
                tokens.push(token);
                if let Some(finish) = finish {
                    assert_eq!(finish, Finish::Length);
                    return tokens;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the session is gone after {tokens:?}")
}

/// Two turns of a session on each of the models, by turns.
#[test]
fn sessions_go_on_after_their_model_left_for_another() {
    for (seed, host_pages, host_limit) in [(1, 24, u64::MAX), (2, 0, u64::MAX), (3, 24, 0)] {
        let known = MODELS.map(|family| Known::new(family, host_pages));
        // One model and a half.
        let pooled = Pooled::start(seed, &known, known[0].device_bytes() * 3 / 2, host_limit);
        let mut sessions = Vec::new();
        for (at, client) in pooled.clients.iter().enumerate() {
            let (id, happenings) = open_on(client, prompt(at as u64, 50), 5);
            sessions.push((id.expect("it is admitted"), tokens_of(&happenings)));
        }
        for (at, client) in pooled.clients.iter().enumerate().rev() {
            let (id, first) = &sessions[at];
            let all = [prompt(at as u64, 50), first.clone(), prompt(99, 3)].concat();
            let (kept, happenings) = go_on(client, *id, all);
            let second = tokens_of(&happenings);
            let turns = [(prompt(at as u64, 50), 5), (prompt(99, 3), 4)];
            assert_eq!([first.clone(), second], *alone(known[at].family, &turns), "model {at}, seed {seed}");
            // The last model is there; of the others, keys and values are in host memory, or given up.
            let is_kept = at == 2 || host_pages > 0;
            assert_eq!(kept > 0, is_kept, "model {at}, seed {seed}: {kept}");
        }
        for (at, known) in known.iter().enumerate() {
            assert!(known.returns() > 0 || at == 0, "{:?}", known.told());
            let weights = known.model.graph.text_bytes();
            let times = if host_limit > 0 || at == 2 { 1 } else { 2 };
            // A table of embeddings stays in host memory in any case.
            let read = known.read.load(Ordering::Relaxed);
            let expected = weights * (times - 1) + 1..=weights * times;
            assert!(expected.contains(&read), "model {at} of {weights} bytes is read: {read}");
        }
        pooled.end().expect("the device is sound");
    }
}

/// Clients of all models at once: each gets the tokens of its model alone, and none waits for ever.
#[test]
fn models_that_keep_each_other_out_take_turns() {
    let known = MODELS.map(|family| Known::new(family, 8));
    let pooled = Pooled::start(4, &known, known[0].device_bytes(), u64::MAX);
    std::thread::scope(|scope| {
        for (at, (client, known)) in pooled.clients.iter().zip(&known).enumerate() {
            for session in 0..2 {
                scope.spawn(move || {
                    for round in 0..3 {
                        let tokens = prompt((at * 10 + session) as u64, 20 + round);
                        let (id, happenings) = open_on(client, tokens.clone(), 6);
                        let id = id.expect("it is admitted");
                        let expected = alone(known.family, &[(tokens, 6)]);
                        assert_eq!(tokens_of(&happenings), expected[0], "model {at}");
                        client.abort(id);
                    }
                });
            }
        }
    });
    pooled.end().expect("the device is sound");
}

#[test]
fn a_model_that_is_not_loaded_says_why_and_leaves_others_be() {
    let known = [Known::new(MODELS[0], 0), Known::new(MODELS[1], 0)];
    known[1].refusals.store(1, Ordering::Relaxed);
    let pooled = Pooled::start(5, &known, known[0].device_bytes(), u64::MAX);
    let (id, happenings) = open_on(&pooled.clients[0], prompt(1, 9), 3);
    id.expect("it is admitted");
    for _ in 0..2 {
        // The first is refused as planted, the other since it comes at once.
        let (refused, _) = open_on(&pooled.clients[1], prompt(1, 9), 3);
        assert!(refused.expect_err("planted").to_string().contains("planted"));
    }
    assert_eq!(known[1].told().last(), Some(&Residence::Unloaded(Some("planted".to_owned()))));
    assert_eq!(tokens_of(&happenings), alone(MODELS[0], &[(prompt(1, 9), 3)])[0]);
    let (again, happenings) = open_on(&pooled.clients[0], prompt(2, 9), 3);
    again.expect("it is admitted");
    assert_eq!(tokens_of(&happenings), alone(MODELS[0], &[(prompt(2, 9), 3)])[0]);
    pooled.end().expect("the device is sound");
}

/// Allocations that fail when a model comes back make others leave, or are told; a device that fails ends all.
#[test]
fn faults_of_the_device_on_the_way_back_are_told() {
    let known = [Known::new(MODELS[0], 0), Known::new(MODELS[1], 0)];
    let pooled = Pooled::start(6, &known, known[0].device_bytes(), u64::MAX);
    let turn = |at: usize| {
        let (id, happenings) = open_on(&pooled.clients[at], prompt(at as u64, 9), 3);
        id.map(|_| assert_eq!(tokens_of(&happenings), alone(MODELS[at], &[(prompt(at as u64, 9), 3)])[0]))
    };
    turn(0).expect("it is loaded");
    turn(1).expect("it is loaded");
    turn(0).expect("it comes back");
    pooled.faults.plant(1, SimFault::Call);
    let (lost, happenings) = open_on(&pooled.clients[1], prompt(1, 9), 3);
    // It was asked while it was away: the session is lost with the device.
    assert!(lost.is_err() || happenings.recv().is_err());
    assert!(matches!(pooled.end(), Err(Error::Device(_) | Error::Stopped(_))));
}

/// A prompt of a session and the end of its turn, before either is answered. What is told about the two, and what
/// happens to the session.
fn begin_and_end(client: &Client, id: SessionId, tokens: Vec<u32>) -> (Receiver<u64>, Receiver<Happening>) {
    let (sender, happenings) = channel();
    let turn = Turn { tokens, max_tokens: 4, ..Turn::default() };
    let listener = Box::new(move |happening| sender.send(happening).is_ok());
    let (answer, answered) = channel();
    let begun =
        move |begun: djinn_engine::Result<u64>| answer.send(begun.expect("it waits")).expect("awaited");
    client.begin_prompt(id, turn, 0, listener, begun);
    client.begin_event(id, SessionEvent::EndTurn, |ended| ended.expect("the session lives"));
    (answered, happenings)
}

/// Another model waits meanwhile, so that the prompt waits as well.
#[test]
fn a_prompt_that_waits_for_another_model_is_ended() {
    let known = [Known::new(MODELS[0], 24), Known::new(MODELS[1], 24)];
    let pooled = Pooled::start(7, &known, known[0].device_bytes(), u64::MAX);
    let [first, second] = &*pooled.clients else { panic!("two models") };
    let (id, happenings) = open_on(first, prompt(1, 20), 3);
    let (id, tokens) = (id.expect("it is admitted"), tokens_of(&happenings));
    // An import keeps the first model on the device.
    let (answer, answered) = channel();
    first.begin_export(id, move |session| answer.send(session).expect("awaited"));
    let session = answered.recv().expect("it is answered").expect("it waits");
    let (answer, answered) = channel();
    first.begin_import(session.shape, (*session.image).clone(), move |begun| {
        answer.send(begun).expect("awaited")
    });
    let import = answered.recv().expect("it is answered").expect("there is room").id;
    let (sender, other_happenings) = channel();
    let turn = Turn { tokens: prompt(5, 10), max_tokens: 3, ..Turn::default() };
    let listener = Box::new(move |happening| sender.send(happening).is_ok());
    second.begin_open(Opening { turn, outlives_listener: true, ..Opening::default() }, listener, |_| ());
    // After this answer the thread looks at the second model's commands, then at the first one's.
    let (answer, answered) = channel();
    first.begin_shape(move |shape| answer.send(shape).expect("awaited"));
    answered.recv().expect("it is answered").expect("it is loaded");
    let (answered, happenings) = begin_and_end(first, id, [prompt(1, 20), tokens, prompt(99, 3)].concat());
    first.begin_finish(import, false, |ended| ended.expect("it is imported"));
    assert_eq!(tokens_of(&other_happenings).len(), 3);
    assert!(answered.recv().is_err() && happenings.recv().is_err(), "the turn never begins");
    pooled.end().expect("the device is sound");
}

/// The client of an import may be slow or gone; the pages are given up, and nothing else.
#[test]
fn an_import_that_goes_on_for_long_is_given_up_for_another_model() {
    let known = [Known::new(MODELS[0], 24), Known::new(MODELS[1], 24)];
    let pooled = Pooled::start(9, &known, known[0].device_bytes(), u64::MAX);
    let [first, second] = &*pooled.clients else { panic!("two models") };
    let (id, happenings) = open_on(first, prompt(1, 20), 3);
    let (id, tokens) = (id.expect("it is admitted"), tokens_of(&happenings));
    let (answer, answered) = channel();
    first.begin_export(id, move |session| answer.send(session).expect("awaited"));
    let session = answered.recv().expect("it is answered").expect("it waits");
    let import = || {
        let (answer, answered) = channel();
        let begun = move |begun| answer.send(begun).expect("awaited");
        first.begin_import(session.shape, (*session.image).clone(), begun);
        answered.recv().expect("it is answered").expect("there is room").id
    };
    let imports = [import(), import()];
    let (other, other_happenings) = open_on(second, prompt(5, 10), 3);
    other.expect("it is admitted");
    assert_eq!(tokens_of(&other_happenings), alone(MODELS[1], &[(prompt(5, 10), 3)])[0]);
    // The model is away, and does not come back to say so.
    let (answer, answered) = channel();
    let page = vec![0; session.shape.page_bytes as usize];
    first.begin_write(imports[0], 0, page, move |told| answer.send(told).expect("awaited"));
    assert!(matches!(answered.recv().expect("it is answered"), Err(Error::ImportLost { .. })));
    for (import, keeps) in imports.into_iter().zip([true, false]) {
        let (answer, answered) = channel();
        first.begin_finish(import, keeps, move |told| answer.send(told).expect("awaited"));
        assert_eq!(answered.recv().expect("it is answered").is_err(), keeps);
    }
    assert_eq!(known[0].told().last(), Some(&Residence::Host));
    let (_, happenings) = go_on(first, id, [prompt(1, 20), tokens, prompt(99, 3)].concat());
    let turns = [(prompt(1, 20), 3), (prompt(99, 3), 4)];
    assert_eq!(tokens_of(&happenings), alone(MODELS[0], &turns)[1]);
    pooled.end().expect("the device is sound");
}

/// Nothing else brings the model back.
#[test]
fn a_turn_that_is_ended_while_its_model_is_away_is_told() {
    let known = [Known::new(MODELS[0], 24), Known::new(MODELS[1], 24)];
    let pooled = Pooled::start(8, &known, known[0].device_bytes(), u64::MAX);
    let [first, second] = &*pooled.clients else { panic!("two models") };
    let (id, happenings) = open_on(first, prompt(1, 20), 3);
    let (id, tokens) = (id.expect("it is admitted"), tokens_of(&happenings));
    // The thread waits here while the first model is away.
    let ((token, is_here), (go_on, goes_on)) = (channel(), channel::<()>());
    let hold = Box::new(move |_| token.send(()).is_ok() && goes_on.recv().is_err());
    let turn = Turn { tokens: prompt(5, 10), max_tokens: 3, ..Turn::default() };
    second.begin_open(Opening { turn, outlives_listener: true, ..Opening::default() }, hold, |_| ());
    is_here.recv().expect("it computes");
    let (answered, happenings) = begin_and_end(first, id, [prompt(1, 20), tokens, prompt(99, 3)].concat());
    drop(go_on);
    assert_eq!((answered.recv(), happenings.recv()), (Ok(22), Ok(Happening::TurnEnded)));
    assert_eq!(known[0].told().last(), Some(&Residence::Host));
    pooled.end().expect("the device is sound");
}
