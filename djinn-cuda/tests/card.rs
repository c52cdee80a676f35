//! The CUDA device against the suite that every device runs, where there is a card.
#![cfg(feature = "device")]

use djinn_cuda::{CudaConfig, CudaDevice, Error, probe};
use djinn_device::args::{Linear, Weight};
use djinn_device::conformance::{self, Tolerance};
use djinn_device::{CpuOps, DType, Device, Error as DeviceError, HostLinear, Ops, Space};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The card's turn, if there is one to test; says so if not. Tests take turns: none may make a device while another's work
/// is captured.
fn card() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    match probe(0) {
        Ok(_) => Some(TURN.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(error) if std::env::var_os("DJINN_REQUIRE_CUDA").is_some_and(|value| value == "1") => {
            panic!("DJINN_REQUIRE_CUDA=1, but {error}")
        }
        Err(Error::NoDriver | Error::NoSuchDevice { .. }) => {
            println!("no CUDA driver: not run");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn capped() -> CudaConfig {
    CudaConfig { vram: Some(2 << 30), ram: Some(256 << 20), ..CudaConfig::default() }
}

#[test]
fn conforms_under_caps() {
    if let Some(_turn) = card() {
        conformance::run_all(|| CudaDevice::new(capped()).unwrap(), Tolerance::ROUNDING);
    }
}

#[test]
fn conforms_without_caps() {
    if let Some(_turn) = card() {
        conformance::device(|| CudaDevice::new(CudaConfig::default()).unwrap());
    }
}

/// A product that fails on the CPU is told, and nothing waits for ever, in a replay either.
#[test]
fn a_panic_on_the_cpu_loses_the_device() {
    struct Failing;

    impl CpuOps for Failing {
        fn silu_mul(&self, _: &[f32], _: &mut [f32]) {}

        fn linears(&self, _: Vec<HostLinear<'_>>) {
            panic!("planted\nfor a test");
        }

        fn name(&self) -> String {
            "failing".to_owned()
        }
    }

    let Some(_turn) = card() else { return };
    for captured in [false, true] {
        let device = CudaDevice::new(capped()).unwrap().with_cpu(Arc::new(Failing)).unwrap();
        let stream = device.stream().unwrap();
        let memory = device.alloc(Space::Host, 4096).unwrap();
        let weight = Weight::plain(memory.slice(1024, 64), DType::F32);
        let (x, out, bias) = (memory.slice(0, 16), memory.slice(2048, 16), None);
        let product = Linear { x, weight, bias, out, k: 4, n: 4, out_width: 4, out_column: 0, rows: 1 };
        product.check();
        let enqueue = || device.linear_on_cpu(stream, &[product]);
        if captured {
            let capture = device.capture::<DeviceError>(&[stream], enqueue).unwrap();
            device.replay(capture).unwrap();
        } else {
            enqueue().unwrap();
        }
        for outcome in [device.sync(stream), device.fill(stream, memory.slice(0, 16), 0)] {
            let Err(DeviceError::DeviceLost { reason }) = outcome else { panic!("{outcome:?}") };
            assert_eq!(reason, "a product on the CPU panicked: planted");
        }
    }
    // The card is as sound as before.
    let device = CudaDevice::new(capped()).unwrap();
    device.sync(device.stream().unwrap()).unwrap();
}

/// A conversion workspace of a few rows: products run in pieces.
#[test]
fn computes_in_pieces() {
    if let Some(_turn) = card() {
        let config = CudaConfig { activation_bytes: 1, ..capped() };
        conformance::ops(|| CudaDevice::new(config).unwrap(), Tolerance::ROUNDING);
    }
}

#[test]
fn the_cap_holds_and_is_refused_when_too_small() {
    if let Some(_turn) = card() {
        let device = CudaDevice::new(capped()).unwrap();
        let (limit, reserved) = (device.usage(Space::Device).limit, device.info().reserved_bytes);
        assert_eq!(limit + reserved, 2 << 30);
        let all = device.alloc(Space::Device, limit).unwrap();
        assert!(device.alloc(Space::Device, 1).is_err());
        device.free(all);
        drop(device);
        let refused = CudaDevice::new(CudaConfig { vram: Some(1 << 20), ..capped() });
        assert!(matches!(refused, Err(Error::CapTooSmall { vram_bytes, .. }) if vram_bytes == 1 << 20));
    }
}

/// What is set aside for captures limits their kernels. A refusal changes nothing, and freeing a capture makes room.
#[test]
fn captures_with_too_many_kernels_are_refused() {
    if let Some(_turn) = card() {
        let device = CudaDevice::new(capped()).unwrap();
        let (stream, buffer) = (device.stream().unwrap(), device.alloc(Space::Device, 512).unwrap());
        let capture = || {
            device.capture::<DeviceError>(&[stream], || {
                let copy = |_| device.copy_promptly(stream, buffer.slice(0, 256), buffer.slice(256, 256));
                (0..3000).try_for_each(copy)
            })
        };
        let first = capture().unwrap();
        let refused = capture().unwrap_err();
        assert!(matches!(refused, DeviceError::Resource { .. }), "{refused}");
        device.replay(first).unwrap();
        device.sync(stream).unwrap();
        device.free_capture(first);
        device.replay(capture().unwrap()).unwrap();
        device.sync(stream).unwrap();
    }
}

#[test]
fn a_device_moves_between_threads() {
    if let Some(_turn) = card() {
        let device = CudaDevice::new(capped()).unwrap();
        let stream = device.stream().unwrap();
        let buffer = device.alloc(Space::Host, 4096).unwrap();
        let device = std::thread::spawn(move || {
            device.fill(stream, buffer.span(), 7).unwrap();
            device.sync(stream).unwrap();
            device
        })
        .join()
        .unwrap();
        assert!(device.read_host(buffer.span(), |bytes| bytes.iter().all(|&b| b == 7)));
    }
}

#[test]
fn a_missing_card_is_one_clear_line() {
    let refused = CudaDevice::new(CudaConfig { ordinal: u32::MAX, ..CudaConfig::default() }).err().unwrap();
    assert!(matches!(
        refused,
        Error::NoDriver | Error::NoCublas | Error::DriverTooOld { .. } | Error::NoSuchDevice { .. }
    ));
    assert_eq!(refused.to_string().lines().count(), 1, "{refused}");
}
