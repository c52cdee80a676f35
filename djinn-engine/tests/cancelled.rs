//! Work that its caller ends leaves nothing behind, and can be taken up again.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::Ops;
use djinn_engine::{Budget, Engine, Error, Finish, Generate, Options, Progress, Request, Service};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;

fn load<D: Ops>(
    device: D,
    on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Engine<D>, Error> {
    let model =
        open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
    let budget = Budget { resident_fraction: Some(0.5), chunk: Some(64 << 10), ..Budget::default() };
    let options = Options { budget, context: 256, prefill_rows: 40, ..Options::default() };
    Engine::load(device, model.graph, &*model.source, &options, on_progress)
}

fn loaded<D: Ops>(device: D) -> Service<D> {
    let engine = load(device, &mut |_, _| ControlFlow::Continue(())).expect("it loads");
    Service::single(engine).expect("it serves")
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

/// A simulator that computes longer runs otherwise than short ones, as GPUs do.
fn sim() -> SimDevice {
    let config = SimConfig { math: Math::Fast, batch_invariant_rows: 4, ..SimConfig::default() };
    SimDevice::new(config).expect("a device")
}

#[test]
fn loading_ends_where_its_caller_wants() {
    let mut told = Vec::new();
    let mut keep = |done, total| {
        told.push((done, total));
        ControlFlow::Continue(())
    };
    load(cpu(), &mut keep).expect("it loads");
    assert!(told.is_sorted() && told.len() > 5, "{told:?}");
    assert!(
        told.iter().all(|(_, total)| *total == told[0].1) && told[told.len() - 1].0 == told[0].1,
        "{told:?}"
    );
    let at = told[told.len() / 2].0;
    let mut most = 0;
    let mut end = |done, _| {
        most = done;
        if done >= at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let error = load(cpu(), &mut end).map(drop).expect_err("it is ended");
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!((at..told[0].1).contains(&most), "nothing is read after the end: {most}");
}

#[test]
fn a_prompt_that_was_left_is_taken_up_where_it_was_left() {
    fn check<D: Ops>(device: impl Fn() -> D) {
        let request =
            Request { prompt: (0..170).map(|i| i * 37 % 256).collect(), max_tokens: 6, ..Request::default() };
        let mut told = Vec::new();
        let mut keep = |progress| {
            told.push(progress);
            ControlFlow::Continue(())
        };
        let whole = loaded(device()).generate(&mut None, &request, &mut keep).expect("it runs");
        let pieces = [0, 40, 80, 120, 160].map(|done| Progress::Prefill { done, total: 170 });
        assert_eq!(told[..5], pieces);
        assert_eq!(told[5..], whole.tokens.iter().map(|&token| Progress::Token(token)).collect::<Vec<_>>());

        let mut service = loaded(device());
        let free = |service: &Service<D>| (service.state().device_free(), service.state().host_free());
        let all = free(&service);
        for (last, piece) in pieces.into_iter().enumerate() {
            let mut session = None;
            let left = service.generate(&mut session, &request, &mut |progress| {
                if progress == piece { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let left = left.expect("it runs");
            assert_eq!((left.tokens, left.finish), (vec![], Finish::Cancelled));
            assert_eq!(left.stats.prompt_tokens, 40 * last);
            let taken_up = service
                .generate(&mut session, &request, &mut |_| ControlFlow::Continue(()))
                .expect("it runs");
            assert_eq!(taken_up.tokens, whole.tokens, "left after {last} pieces");
            assert_eq!(taken_up.stats.reused_tokens, 40 * last);
            service.close(session).expect("it runs");
            assert_eq!(free(&service), all);
        }
    }
    check(cpu);
    check(sim);
}
