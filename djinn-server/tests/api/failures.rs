//! Engines whose device fails, as planted.

use super::client::Target;
use super::{Files, Running, completion};
use djinn_cpu::{SimConfig, SimDevice, SimFault, SimFaults};
use djinn_device::Error as DeviceError;
use djinn_host::{DeviceName, Setup};
use djinn_server::{ServedModel, Server, Serving};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const TEXT: &str = "/v1/completions";
/// How often a server is asked again that is about to recover.
const TRIES: u32 = 20_000;
/// Little: a simulated device writes to all new memory, and tests make hundreds of them.
pub(super) const HOOK_BYTES: u64 = 1 << 20;

/// A server over simulated devices that fail as planted.
struct Fragile {
    server: Running,
    faults: SimFaults,
    /// Devices that were asked for.
    devices: Arc<AtomicU64>,
    /// Devices that are not there when they are asked for next.
    missing: Arc<AtomicU64>,
    /// While it is locked, no device is made.
    gate: Arc<Mutex<()>>,
    /// Disconnects when the engine's thread has ended.
    thread: Receiver<()>,
}

/// What came of a stream.
#[derive(Debug)]
enum Outcome {
    /// It was not begun.
    Refused,
    /// It broke off with an error, after these choices.
    Broken(Vec<Value>),
    /// It ended well.
    Whole(Vec<Value>),
}

impl Fragile {
    fn start(setup: Setup, restart_after: Vec<Duration>) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").unwrap(), setup, restart_after, false)
    }

    fn start_at(listener: TcpListener, setup: Setup, restart_after: Vec<Duration>, renews: bool) -> Self {
        let setup = Setup { device: DeviceName::Cpu, context: Some(64), prefill_rows: Some(16), ..setup };
        let files = Arc::new(Files::new());
        let (faults, gate) = (SimFaults::default(), Arc::new(Mutex::new(())));
        let (devices, missing) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (alive, thread) = channel::<()>();
        let (planted, made, lacking, open) = (faults.clone(), devices.clone(), missing.clone(), gate.clone());
        let device = move || {
            let _ = &alive;
            let _open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let seed = made.fetch_add(1, Ordering::SeqCst);
            if lacking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err(DeviceError::DeviceLost { reason: "it is not there".to_owned() });
            }
            SimDevice::with_faults(SimConfig { seed, ..SimConfig::default() }, planted.clone())
        };
        let model = setup.open(files.path().to_str().unwrap()).unwrap();
        let serving = Serving { sequences: 2, restart_after, hook_bytes: HOOK_BYTES, ..Serving::default() };
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let model = ServedModel::start_on(device, model, &setup, &serving, go_on).unwrap();
        let bound = Server::new().model("tiny", model).at(listener).unwrap();
        let server = Running::start_at(&files, bound, renews);
        Fragile { server, faults, devices, missing, gate, thread }
    }

    fn ask(&self) -> Outcome {
        ask(&self.server.target)
    }

    /// The stream of a server that is sound.
    fn whole(&self) -> Vec<Value> {
        match self.ask() {
            Outcome::Whole(choices) => choices,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the server is ready and gives the stream of before.
    fn recovers(&self, expected: &[Value]) {
        for _ in 0..TRIES {
            if self.server.target.get("/ready").status == 200
                && let Outcome::Whole(choices) = self.ask()
            {
                assert_eq!(choices, expected);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the server does not recover");
    }

    fn devices(&self) -> u64 {
        self.devices.load(Ordering::SeqCst)
    }
}

fn body() -> Value {
    let more = json!({ "max_tokens": 8, "temperature": 0.8, "seed": 7, "logprobs": 2, "stream": true });
    completion("a device that fails", more)
}

/// Asks for the stream, and looks at what comes.
fn ask(target: &Target) -> Outcome {
    let reply = target.post(TEXT, &body());
    if reply.status == 503 {
        assert!(reply.header("retry-after").is_some());
        assert_eq!(reply.error()["type"], "server_error");
        return Outcome::Refused;
    }
    let mut events = reply.events();
    let last = events.pop().unwrap();
    let parse = |event: &String| serde_json::from_str::<Value>(event).unwrap()["choices"][0].clone();
    let choices = events.iter().map(parse).collect();
    if last == "[DONE]" {
        return Outcome::Whole(choices);
    }
    let error = serde_json::from_str::<Value>(&last).unwrap()["error"].clone();
    assert_eq!(error["type"], "server_error", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("planted") || message.contains("not there"), "{message}");
    Outcome::Broken(choices)
}

fn at_once() -> Vec<Duration> {
    vec![Duration::ZERO]
}

/// Loses the device at each call of a request in turn: the client gets what is right as far as it goes, and an error; and
/// then the server is as if nothing had been. Servers side by side share the calls.
fn fails_at_every_call(fault: SimFault, resident_fraction: f64) {
    const SERVERS: u64 = 6;
    let setup = Setup { resident_fraction: Some(resident_fraction), ..Setup::default() };
    let (empty, broken) = (AtomicU64::new(0), AtomicU64::new(0));
    let fail = |first: u64| {
        let server = Fragile::start(setup, at_once());
        let expected = server.whole();
        for call in (first..).step_by(SERVERS as usize) {
            assert!(call < 10_000, "a request ends");
            server.faults.plant(call, fault);
            let outcome = server.ask();
            let reached = server.faults.clear() == 0;
            match outcome {
                Outcome::Whole(choices) => assert_eq!(choices, expected, "call {call}"),
                Outcome::Broken(choices) => {
                    assert!(reached && expected.starts_with(&choices), "call {call}: {choices:?}");
                    let count = if choices.is_empty() { &empty } else { &broken };
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Outcome::Refused => assert!(reached, "call {call}"),
            }
            server.recovers(&expected);
            if !reached {
                break;
            }
        }
    };
    let fail = &fail;
    std::thread::scope(|scope| (1..=SERVERS).for_each(|first| drop(scope.spawn(move || fail(first)))));
    let (empty, broken) = (empty.into_inner(), broken.into_inner());
    assert!(empty > 40 && broken > 40, "{empty} streams broke off at once, {broken} later");
}

#[test]
fn a_device_that_fails_at_any_call_costs_the_requests_of_then() {
    fails_at_every_call(SimFault::Call, 1.0);
}

#[test]
fn work_that_fails_is_never_served() {
    // Half of the weights stream, so that copies fail as well as operations.
    fails_at_every_call(SimFault::Work, 0.5);
}

#[test]
fn an_engine_that_panics_is_one_that_failed() {
    let server = Fragile::start(Setup::default(), at_once());
    let expected = server.whole();
    for call in [1, 40, 90] {
        server.faults.plant(call, SimFault::Panic);
        assert!(!matches!(server.ask(), Outcome::Whole(_)));
        server.recovers(&expected);
    }
}

#[test]
fn answers_that_are_not_streamed_are_503_with_the_reason() {
    let server = Fragile::start(Setup::default(), at_once());
    let body = completion("a device that fails", json!({}));
    let expected = server.server.target.ok(TEXT, &body);
    for fault in [SimFault::Call, SimFault::Work, SimFault::Panic] {
        server.faults.plant(60, fault);
        let reply = server.server.target.post(TEXT, &body);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{reply:?}");
        assert!(reply.error()["message"].as_str().unwrap().contains("planted"), "{reply:?}");
        let ready = |_: &u32| server.server.target.get("/ready").status == 200;
        assert!((0..TRIES).find(ready).is_some());
        assert_eq!(server.server.target.ok(TEXT, &body)["choices"], expected["choices"]);
    }
}

#[test]
fn a_model_without_an_engine_is_not_ready_and_says_why() {
    let server = Fragile::start(Setup::default(), at_once());
    let target = &server.server.target;
    let expected = server.whole();
    let gate = server.gate.lock().unwrap();
    server.faults.plant(30, SimFault::Call);
    assert!(matches!(server.ask(), Outcome::Broken(_)));
    let reply = target.get("/ready");
    assert_eq!((reply.status, &reply.json()["models_not_ready"]), (503, &json!(["tiny"])));
    let refused = target.post(TEXT, &body());
    assert_eq!(refused.status, 503);
    assert!(refused.error()["message"].as_str().unwrap().contains("as planted"), "{refused:?}");
    assert_eq!(target.get("/health").status, 200);
    assert_eq!(target.metric("djinn_model_up{model_name=\"tiny\"}"), 0.0);
    drop(gate);
    server.recovers(&expected);
    assert_eq!(target.metric("djinn_model_up{model_name=\"tiny\"}"), 1.0);
}

#[test]
fn failures_while_it_starts_again_are_borne() {
    let server = Fragile::start(Setup::default(), at_once());
    let expected = server.whole();
    // Lost in the request; then at the first call of the next device, in the middle of loading, and by a panic there.
    for (call, fault) in
        [(50, SimFault::Call), (1, SimFault::Call), (30, SimFault::Work), (9, SimFault::Panic)]
    {
        server.faults.plant(call, fault);
    }
    assert!(!matches!(server.ask(), Outcome::Whole(_)));
    server.recovers(&expected);
    assert_eq!((server.devices(), server.faults.clear()), (5, 0));
    // A device that is gone for a while.
    server.missing.store(7, Ordering::SeqCst);
    server.faults.plant(50, SimFault::Call);
    assert!(!matches!(server.ask(), Outcome::Whole(_)));
    server.recovers(&expected);
    assert_eq!(server.devices(), 5 + 7 + 1);
}

#[test]
fn a_device_that_fails_without_requests_costs_the_next_one_at_most() {
    let server = Fragile::start(Setup::default(), at_once());
    let expected = server.whole();
    for fault in [SimFault::Call, SimFault::Work, SimFault::Panic] {
        server.faults.plant(1, fault);
        assert_eq!(server.server.target.get("/ready").status, 200);
        assert!(!matches!(server.ask(), Outcome::Whole(_)));
        server.recovers(&expected);
    }
}

#[test]
fn many_requests_are_lost_at_once_and_their_places_are_free_again() {
    let server = Fragile::start(Setup::default(), at_once());
    let expected = server.whole();
    server.faults.plant(200, SimFault::Work);
    let target = &server.server.target;
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| match ask(target) {
                Outcome::Whole(choices) => assert_eq!(choices, expected),
                Outcome::Broken(choices) => assert!(expected.starts_with(&choices)),
                Outcome::Refused => {}
            });
        }
    });
    server.recovers(&expected);
    let held = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];
    let held = held.map(|name| target.metric(&format!("djinn_{name}{{model_name=\"tiny\"}}")));
    assert_eq!(held, [0.0; 3]);
}

#[test]
fn a_server_that_ends_waits_for_a_stuck_engine_for_seconds_only() {
    // The engine waits for its next attempt.
    let server = Fragile::start(Setup::default(), vec![Duration::from_secs(24 * 3600)]);
    server.faults.plant(50, SimFault::Call);
    assert!(!matches!(server.ask(), Outcome::Whole(_)));
    let Fragile { server, thread, .. } = server;
    server.stop.stop();
    server.join();
    assert_eq!(thread.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
    // A device is being made, and comes when the server is gone.
    let server = Fragile::start(Setup::default(), at_once());
    let open = Arc::clone(&server.gate);
    let gate = open.lock().unwrap();
    server.faults.plant(50, SimFault::Call);
    assert!(!matches!(server.ask(), Outcome::Whole(_)));
    let Fragile { server, thread, .. } = server;
    server.stop.stop();
    server.join();
    drop(gate);
    assert_eq!(thread.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
}

/// No device can be had any more: the server tells its clients, and leaves its address to the next one, where who came
/// between the two is answered.
#[test]
fn a_server_that_lost_its_device_for_good_leaves_its_address_to_the_next() {
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Fragile::start_at(own, Setup::default(), at_once(), true);
    let expected = server.whole();
    // A device that fails and can be made anew costs the request alone.
    server.faults.plant(50, SimFault::Call);
    assert!(!matches!(server.ask(), Outcome::Whole(_)));
    server.recovers(&expected);
    server.missing.store(u64::MAX, Ordering::SeqCst);
    server.faults.plant(50, SimFault::Call);
    match server.ask() {
        Outcome::Broken(choices) => assert!(expected.starts_with(&choices), "{choices:?}"),
        other => panic!("{other:?}"),
    }
    let Fragile { server, thread, .. } = server;
    let target = server.target.clone();
    let listener = server.join().expect("somebody else is to go on");
    assert_eq!(thread.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
    std::thread::scope(|scope| {
        let between = scope.spawn(|| ask(&target));
        let next = Fragile::start_at(listener, Setup::default(), at_once(), true);
        let Outcome::Whole(choices) = between.join().unwrap() else { panic!("it was asked in between") };
        assert_eq!(choices, expected);
        // One that is told to stop leaves nothing, whatever it is told after that.
        next.server.stop.stop();
        next.server.stop.renew();
        let Fragile { server, .. } = next;
        assert!(server.join().is_none());
    });
}

#[test]
fn a_stop_while_models_leave_their_device_ends_a_renewal() {
    /// Tells when the device is being left, and waits.
    struct Leaving {
        begun: Sender<()>,
        end: Receiver<()>,
    }

    impl Drop for Leaving {
        fn drop(&mut self) {
            let _ = self.begun.send(());
            let _ = self.end.recv();
        }
    }

    let files = Arc::new(Files::new());
    let ((begun, begins), (ends, end)) = (channel(), channel());
    let leaving = Leaving { begun, end };
    let device = move || {
        let _ = &leaving;
        SimDevice::new(SimConfig::default())
    };
    let setup = Setup { device: DeviceName::Cpu, ..Setup::default() };
    let model = setup.open(files.path().to_str().unwrap()).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let model = ServedModel::start_on(device, model, &setup, &Serving::default(), go_on).unwrap();
    let server =
        Running::start_at(&files, Server::new().model("tiny", model).bind("127.0.0.1:0").unwrap(), true);
    server.stop.renew();
    begins.recv_timeout(Duration::from_secs(60)).unwrap();
    server.stop.stop();
    ends.send(()).unwrap();
    assert!(server.join().is_none(), "no other server takes over");
}

#[test]
fn an_engine_that_panics_while_it_is_loaded_first_is_an_error() {
    let files = Files::new();
    let setup = Setup { device: DeviceName::Cpu, ..Setup::default() };
    let faults = SimFaults::default();
    faults.plant(20, SimFault::Panic);
    let device = move || SimDevice::with_faults(SimConfig::default(), faults.clone());
    let model = setup.open(files.path().to_str().unwrap()).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let started = ServedModel::start_on(device, model, &setup, &Serving::default(), go_on);
    assert!(started.unwrap_err().to_string().contains("planted"));
}

/// Streams that run end as if nothing were, those that come are told to wait, and then everything is as before.
#[test]
fn a_model_is_loaded_again_under_load() {
    let server = Fragile::start(Setup::default(), at_once());
    let expected = server.whole();
    let (target, devices) = (&server.server.target, &server.devices);
    let (whole, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    for device in 2..6 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while devices.load(Ordering::SeqCst) < device || target.get("/ready").status != 200 {
                        match ask(target) {
                            Outcome::Whole(choices) => {
                                assert_eq!(choices, expected);
                                whole.fetch_add(1, Ordering::SeqCst);
                            }
                            Outcome::Refused => drop(refused.fetch_add(1, Ordering::SeqCst)),
                            Outcome::Broken(choices) => panic!("a stream was broken off: {choices:?}"),
                        }
                    }
                });
            }
            server.server.reload.reload();
        });
        server.recovers(&expected);
        assert_eq!(server.devices(), device);
    }
    assert!(whole.into_inner() > 0 && refused.into_inner() > 0);
}

/// A session outlives its engine: its next request has what it would have had, and computes all of it again.
#[test]
fn a_named_session_goes_on_after_its_engine_was_lost() {
    let server = Fragile::start(Setup::default(), at_once());
    let plain = &server.server.target;
    let named = plain.with("x-session-id", "agent");
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let first = named.ok(TEXT, &completion("a session that", json!({})));
    let next = format!("a session that{}", first["choices"][0]["text"].as_str().unwrap());
    let next = completion(next, json!({}));
    let expected = plain.ok(TEXT, &next)["choices"].clone();
    for fault in [SimFault::Call, SimFault::Panic] {
        server.faults.plant(1, fault);
        assert_eq!(named.post(TEXT, &next).status, 503);
        let answer = (0..TRIES).map(|_| named.post(TEXT, &next)).find(|reply| reply.status == 200);
        let answer = answer.expect("the engine comes back").json();
        assert_eq!((&answer["choices"], cached(&answer)), (&expected, json!(0)));
        let again = named.ok(TEXT, &next);
        assert_eq!((&again["choices"], cached(&again)), (&expected, json!(25)));
    }
    let list = plain.get("/v1/sessions").json();
    assert_eq!((&list["data"][0]["id"], &list["data"][0]["state"]), (&json!("agent"), &json!("waiting")));
}

/// A process that ends next must not take down a driver that the engine's thread still uses.
#[test]
fn a_server_that_has_ended_has_left_its_device() {
    /// Takes a while to go, as a device does that frees pinned memory.
    struct Leaving(Arc<AtomicBool>);
    impl Drop for Leaving {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(200));
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (files, gone) = (Files::new(), Arc::new(AtomicBool::new(false)));
    let leaving = Leaving(Arc::clone(&gone));
    let device = move || {
        let _ = &leaving;
        SimDevice::new(SimConfig::default())
    };
    let setup = Setup { device: DeviceName::Cpu, context: Some(64), ..Setup::default() };
    let model = setup.open(files.path().to_str().unwrap()).unwrap();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let model = ServedModel::start_on(device, model, &setup, &Serving::default(), go_on).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let bound = Server::new().model("tiny", model).at(listener).unwrap();
    bound.stop().stop();
    bound.run().unwrap();
    assert!(gone.load(Ordering::SeqCst), "the device is still there");
}
