//! The devices of this crate against the suite that every device runs.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::Device;
use djinn_device::conformance::{self, Tolerance};
use std::cell::Cell;

const CAP: u64 = 64 << 20;

#[test]
fn cpu_with_caps() {
    let config = CpuConfig { vram: Some(CAP), ram: Some(CAP), threads: 3, ..CpuConfig::default() };
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

/// The reference in the order of the simulator: another one for each check.
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

#[test]
fn names_say_what_computes() {
    let name = |math, threads| {
        let config = CpuConfig { math, threads, ..CpuConfig::default() };
        CpuDevice::new(config).unwrap().info().name
    };
    assert_eq!(name(Math::Reference, 4), "cpu (scalar reference, 1 thread)");
    assert!(name(Math::Fast, 1).starts_with("cpu (1 thread, "));
    assert!(name(Math::Fast, 2).starts_with("cpu (2 threads, "));
    let all = std::thread::available_parallelism().unwrap().get();
    assert!(name(Math::Fast, 0).starts_with(&format!("cpu ({all} thread")));
    for math in [Math::Fast, Math::Int8] {
        for set in math.instruction_sets() {
            let config = CpuConfig { math, instructions: Some(set), ..CpuConfig::default() };
            let name = CpuDevice::new(config).unwrap().info().name;
            assert!(name.contains(set), "{name} is {set}");
        }
    }
}

#[test]
#[should_panic(expected = "not abacus")]
fn unknown_instruction_sets_panic() {
    let _ = CpuDevice::new(CpuConfig { instructions: Some("abacus"), ..CpuConfig::default() });
}

/// Checks whose errors are held to a tenth of what devices may make: sums of some hundred terms of either sign.
const STRICT: [&str; 7] = [
    "linear::matches_the_reference",
    "attention::matches_the_reference",
    "attention::windows_match_the_reference",
    "attention::biases_match_the_reference",
    "rows::normalises",
    "rows::activates",
    "rows::has_two_forms_of_gelu",
];

#[test]
fn all_instruction_sets_conform() {
    std::thread::scope(|scope| {
        for set in Math::Fast.instruction_sets() {
            scope.spawn(move || conforms(set));
        }
    });
}

fn conforms(set: &'static str) {
    let config = CpuConfig { threads: 3, instructions: Some(set), ..CpuConfig::default() };
    let strict = Tolerance { f32: 1e-6, f16: 1e-6, bf16: 1e-6, blocks: 1e-6 };
    for (tolerance, is_strict) in [(strict, true), (Tolerance::WIDENING, false)] {
        conformance::run_each(
            || CpuDevice::new(config).unwrap(),
            tolerance,
            |name, check| {
                if STRICT.contains(&name) == is_strict {
                    println!("{set} {name}");
                    check();
                }
            },
        );
    }
}
