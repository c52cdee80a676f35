//! Pages that pass from one tenant to another.

use crate::{Budget, Engine, Opening, Options, Origin, Service, Turn};
use djinn_cpu::{Math, SimConfig, SimDevice};
use djinn_device::{Device, Space};
use djinn_models::{Location, OpenOptions, open};
use djinn_scheduler::{CostModel, Registry, Residency, SessionEvent, SessionId, Settings};
use std::ops::ControlFlow;
use std::time::Duration;

const PAGES: u32 = 12;
const SMALL: u64 = 5;

pub(crate) fn service() -> Service<SimDevice> {
    let device = SimDevice::new(SimConfig { math: Math::Fast, ..SimConfig::default() }).expect("a device");
    let model =
        open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
    let options = Options {
        budget: Budget::default(),
        context: 96,
        pages: Some(PAGES),
        host_pages: PAGES,
        prefill_rows: 40,
        page_tokens: 8,
        ..Options::default()
    };
    let engine = Engine::load(device, model.graph, &*model.source, &options.serving(4), &mut |_, _| {
        ControlFlow::Continue(())
    });
    let mut settings = Settings::from_yaml("scheduler: {ttl_ms: 0}").expect("valid settings");
    settings.policy = "lru".to_owned();
    settings.rules.queue_timeout = Duration::from_secs(3_600);
    settings.rules.lease = Duration::ZERO;
    let cost =
        CostModel { page_bytes: 4096, out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, prefill_tokens_per_s: 1e4 };
    let scheduler = |capacity| Registry::default().scheduler(&settings, capacity, cost);
    Service::new(engine.expect("it loads"), scheduler).expect("it serves")
}

fn settle(service: &mut Service<SimDevice>) {
    for _ in 0..1_000_000 {
        service.advance().expect("the device is sound");
        let busy = service.state().sessions().any(|session| session.is_ready());
        if !busy && service.idle_for() != Some(Duration::ZERO) {
            return;
        }
    }
    panic!("it does not come to rest");
}

pub(crate) fn turn(first: u32, tokens: u32, max_tokens: u64) -> Turn {
    Turn { tokens: (first..first + tokens).collect(), max_tokens, ..Turn::default() }
}

fn begin(service: &mut Service<SimDevice>, salt: &str, turn: Turn) -> SessionId {
    let opening = Opening { turn, origin: Origin::Salt(salt.into()), ..Opening::default() };
    let id = service.open(opening).expect("there is room to queue");
    settle(service);
    id
}

/// A session of a tenant that fills nearly all pages, and ends.
fn fill(service: &mut Service<SimDevice>, salt: &str) {
    let id = begin(service, salt, turn(100, 90, 4));
    service.event(id, SessionEvent::End).expect("it waits");
    settle(service);
}

/// All bytes of a session's pages.
fn pages(service: &Service<SimDevice>, id: SessionId) -> Vec<u8> {
    let (engine, session) = (service.engine(), service.state().session(id).expect("it is there"));
    let (data, device) = (&engine.parts.data, engine.device());
    let host = device.alloc(Space::Host, data.layout().page_bytes()).expect("host memory");
    let mut bytes = Vec::new();
    for &page in session.table().device() {
        device.copy(engine.runtime.compute, data.page(page), host.span()).expect("a copy");
        device.sync(engine.runtime.compute).expect("the device is sound");
        device.read_host(host.span(), |page| bytes.extend_from_slice(page));
    }
    device.free(host);
    bytes
}

/// The pages of small sessions of one tenant after a turn, and after a way to the host and back with another turn.
fn small_sessions(service: &mut Service<SimDevice>) -> Vec<Vec<u8>> {
    let ids: Vec<SessionId> = (0..SMALL).map(|at| begin(service, "last", turn(at as u32, 3, 1))).collect();
    let mut found: Vec<Vec<u8>> = ids.iter().map(|&id| pages(service, id)).collect();
    fill(service, "between");
    let away = service.state().sessions().filter(|session| session.residency() == Residency::Host);
    assert_eq!(away.count(), ids.len(), "they made room");
    for &id in &ids {
        service.turn(id, turn(50, 6, 1)).expect("it waits");
        settle(service);
        found.push(pages(service, id));
    }
    assert!(found.iter().all(|bytes| !bytes.is_empty()));
    found
}

#[test]
fn pages_hold_nothing_of_the_tenant_that_had_them_before() {
    let mut service_of_one = service();
    let alone = small_sessions(&mut service_of_one);
    let mut service_of_many = service();
    fill(&mut service_of_many, "first");
    fill(&mut service_of_many, "second");
    let after_others = small_sessions(&mut service_of_many);
    assert!(alone == after_others, "bytes of others are left");
}
