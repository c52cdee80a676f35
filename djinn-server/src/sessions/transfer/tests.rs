//! Imports whose client leaves.

use super::*;
use djinn_cpu::{CpuConfig, CpuDevice};
use djinn_engine::{Engine, Options, Service, SessionImage, spawn};
use djinn_models::{Location, OpenOptions, open};
use std::ops::ControlFlow;
use tokio::time::timeout;

fn start() -> Client {
    let make = || {
        let model =
            open(&Location::Synthetic("tiny-gqa".into()), &OpenOptions::default()).expect("a known shape");
        let device = CpuDevice::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
        let options = Options { context: 64, ..Options::default() };
        let go_on = &mut |_, _| ControlFlow::Continue(());
        Service::single(Engine::load(device, model.graph, &*model.source, &options, go_on)?)
    };
    spawn(make).expect("it serves").0
}

#[tokio::test]
async fn a_session_that_begins_for_nobody_ends() {
    let client = start();
    let shape = ask(|answer| client.begin_shape(answer)).await.expect("it runs").expect("it is loaded");
    let image = SessionImage { tokens: vec![1, 2, 3], ..SessionImage::default() };
    for (leaves, left) in [(true, 0), (false, 1)] {
        let incoming = Incoming::begin(client.clone(), shape, image.clone()).await.expect("there is room");
        // The engine's thread waits, so that no answer comes before the client leaves.
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        client.begin_debug(move |_| {
            let _ = goes_on.recv();
        });
        let mut keep = Box::pin(incoming.keep());
        timeout(Duration::ZERO, &mut keep).await.expect_err("no answer comes");
        if leaves {
            drop((keep, go_on));
        } else {
            drop(go_on);
            keep.await.expect("it is kept");
        }
        let mut sessions = None;
        // The session is ended by a command of its own.
        for _ in 0..3 {
            let counted = ask(|answer| client.begin_count(answer)).await.expect("it runs");
            sessions = Some(counted.running + counted.waiting + counted.parked);
        }
        assert_eq!(sessions, Some(left));
    }
}
