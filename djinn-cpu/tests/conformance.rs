//! The devices of this crate against the suite that every device runs.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::conformance::{self, Tolerance};
use std::cell::Cell;

const CAP: u64 = 64 << 20;

/// Its operations, with each instruction set: `all_instruction_sets_conform`, a test of the kernels.
#[test]
fn cpu_with_caps() {
    let config = CpuConfig { vram: Some(CAP), ram: Some(CAP), threads: 3, math: Math::Fast };
    conformance::device(|| CpuDevice::new(config).unwrap());
}

#[test]
fn cpu_without_caps() {
    conformance::device(|| CpuDevice::new(CpuConfig::default()).unwrap());
}

#[test]
fn sim_under_several_seeds() {
    for seed in 0..8 {
        let config = SimConfig { seed, vram: Some(CAP), ..SimConfig::default() };
        conformance::device(|| SimDevice::new(config).unwrap());
    }
}

/// The reference, which the kernels' tests do not run, in the order of the simulator: another one for each check.
#[test]
fn reference_computes_in_any_order() {
    let seed = Cell::new(0);
    let make = || {
        seed.set(seed.get() + 1);
        let config = SimConfig { seed: seed.get(), math: Math::Reference, ..SimConfig::default() };
        SimDevice::new(config).unwrap()
    };
    conformance::ops(make, Tolerance::WIDENING);
}
