//! Loads that fail.

use super::*;
use djinn_cpu::{SimConfig, SimDevice, SimFault, SimFaults};
use djinn_device::{Device, Space};
use djinn_models::{Location, OpenOptions, open};

#[test]
fn a_model_that_fails_after_its_weights_are_loaded_leaves_its_runtime() {
    let model =
        open(&Location::Synthetic("tiny".to_owned()), &OpenOptions::default()).expect("a known shape");
    let faults = SimFaults::default();
    let device = SimDevice::with_faults(SimConfig::default(), faults.clone()).expect("a device");
    let runtime = Rc::new(Runtime::new(device).expect("a stream"));
    // The last report of progress comes before the first step.
    let mut progress = |done, total| {
        if done == total {
            faults.plant(40, SimFault::Call);
        }
        ControlFlow::Continue(())
    };
    let options = Options { context: 64, ..Options::default() };
    let loaded = load_into(Rc::clone(&runtime), &model, &options, &mut progress);
    assert!(loaded.is_err() && faults.clear() == 0, "a step fails");
    for space in [Space::Device, Space::Host] {
        assert_eq!(runtime.device().usage(space).in_use, 0, "{space:?} memory is given back");
    }
}
