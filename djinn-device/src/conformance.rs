//! What every device must do, as functions for a backend's tests. They panic on a violation.
//!
//! ```
//! use djinn_cpu::{SimConfig, SimDevice};
//! use djinn_device::conformance;
//!
//! conformance::device(|| SimDevice::new(SimConfig::default()).unwrap());
//! ```

/// Functions with their names.
macro_rules! named {
    [$($check:path),* $(,)?] => { [$((stringify!($check), $check)),*] };
}

mod device;
mod ops;

pub use device::device;
pub use ops::{Tolerance, ops};

use crate::Ops;

/// [`device`] and [`ops`], the latter within `tolerance` of the reference.
///
/// # Panics
/// If the device does not conform.
pub fn run_all<D: Ops>(make: impl Fn() -> D, tolerance: Tolerance) {
    device(&make);
    ops(&make, tolerance);
}

/// As [`run_all`], but passes every check, with its name, to `run`, which calls it. So the caller can time it, or
/// continue after one that panics.
pub fn run_each<D: Ops>(
    make: impl Fn() -> D,
    tolerance: Tolerance,
    mut run: impl FnMut(&'static str, &dyn Fn()),
) {
    device::each_device(&make, &mut run);
    ops::each_op(&make, tolerance, &mut run);
}
