//! The devices of this crate against the suite that every device runs.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::conformance::{self, Tolerance};
use std::cell::Cell;

const CAP: u64 = 64 << 20;

fn cpu(math: Math, threads: usize) -> CpuDevice {
    CpuDevice::new(CpuConfig { vram: Some(CAP), ram: Some(CAP), threads, math }).unwrap()
}

#[test]
fn cpu_reference() {
    conformance::run_all(|| cpu(Math::Reference, 1), Tolerance::WIDENING);
}

/// On two threads, each instruction set: `all_instruction_sets_conform`, a test of the kernels.
#[test]
fn cpu_fast_on_three_threads() {
    conformance::run_all(|| cpu(Math::Fast, 3), Tolerance::WIDENING);
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

/// The reference is checked above: what is added here is the order in which the simulator runs things, another one for
/// each check.
#[test]
fn sim_computes() {
    let seed = Cell::new(0);
    let make = || {
        seed.set(seed.get() + 1);
        let config = SimConfig { seed: seed.get(), math: Math::Fast, ..SimConfig::default() };
        SimDevice::new(config).unwrap()
    };
    conformance::ops(make, Tolerance::WIDENING);
}
