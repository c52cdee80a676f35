//! Device names, and what `auto` finds.

use super::*;
use djinn_device::DType;

#[test]
fn names_are_read_and_written() {
    for (text, device) in
        [("auto", DeviceName::Auto), ("cpu", DeviceName::Cpu), ("cuda:3", DeviceName::Cuda(3))]
    {
        assert_eq!(text.parse(), Ok(device));
        assert_eq!(device.to_string(), text);
    }
    assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
    for text in ["", "CPU", "cpu:0", "auto:0", "cuda:", "cuda:-1", "cuda:x", "tpu"] {
        assert!(text.parse::<DeviceName>().is_err(), "{text}");
    }
}

#[test]
fn auto_is_a_device_that_is_there() {
    let found = DeviceName::Auto.find().unwrap();
    assert_ne!(found, DeviceName::Auto);
    assert_eq!(found.find().unwrap(), found);
    assert!(matches!(DeviceName::Cuda(999).find(), Err(Error::Gpu { .. })));
}

#[test]
fn a_gpu_takes_int8_for_keys_and_values_alone() {
    let cache = Setup { kv_dtype: Some(DType::Int8), ..Setup::default() };
    assert!(cache.check_target(false).is_ok() && cache.check_target(true).is_ok());
    let activations = Setup { activations: Some(Activations::Int8), ..Setup::default() };
    assert!(activations.check_target(false).is_ok());
    let refused = activations.check_target(true);
    assert!(matches!(refused, Err(Error::CpuOnly { flag: "activations" })), "{refused:?}");
}

/// A cap is taken at once only where weights may stream: on a card for others as well, a small model takes what it needs.
#[test]
fn a_card_s_free_memory_is_taken_only_if_weights_may_stream() {
    let location = djinn_models::Location::Synthetic("llama-3.1-8b".into());
    let model = djinn_models::open(&location, &djinn_models::OpenOptions::default()).unwrap();
    let setup = Setup { device: DeviceName::Cpu, ..Setup::default() };
    assert_eq!(DeviceName::Cpu.free_bytes(), None);
    let needs = |vram: Option<u64>| {
        let mut options = setup.options(&model, 4096);
        options.budget.vram = vram;
        Needs::of(&model, &options).vram
    };
    // 16 GB of weights.
    let [less, more] = [12, 24].map(|gib: u64| Some(gib << 30));
    assert_eq!([needs(None), needs(less), needs(more)], [None, less, None]);
}
