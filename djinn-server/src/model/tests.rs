//! An engine that does not answer.

use super::*;
use djinn_host::DeviceName;
use std::sync::mpsc::channel;

#[test]
fn a_count_does_not_wait_for_an_engine_that_hangs() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../djinn-models/tests/checkpoints/tied-f32");
    let setup = Setup { device: DeviceName::Cpu, threads: Some(1), ..Setup::default() };
    let model = ServedModel::open(place, &setup, &Serving::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let count = || runtime.block_on(model.occupancy()).unwrap();
    let (counted, _) = count();
    let (go_on, may_go_on) = channel::<()>();
    model.client().unwrap().begin_count(move |_| {
        let _closed = may_go_on.recv();
    });
    // It hangs until the channel is closed.
    let (latest, age) = count();
    assert_eq!(latest, counted);
    assert!(age >= COUNTED_WITHIN, "{age:?}");
    drop(go_on);
    let (_, fresh) = count();
    assert!(fresh < age, "{fresh:?}");
}
