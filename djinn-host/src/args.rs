//! Flags that the commands share, and parsers of their values.

mod asked;

pub use asked::{CostPhase, PlanAsked, SrgAsked, WorkArgs, of_query, parameters, query};

use crate::{DeviceName, Result, Setup};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use djinn_device::DType;
use djinn_vmu::size;

/// The device.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// `cpu`, `cuda`, `cuda:N`, or `auto`.
    #[arg(
        help = "cpu, cuda[:N], or auto: the GPU if there is one",
        long,
        value_name = "DEVICE",
        default_value_t
    )]
    pub device: DeviceName,
    /// Threads that compute on the CPU [default: as many as the machine runs at once, one fewer beside a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

impl DeviceArgs {
    /// The setup `memory` on this device.
    pub fn with(&self, memory: &Setup) -> Setup {
        Setup { device: self.device, threads: self.threads, ..*memory }
    }

    /// A setup with this device, which must exist, and defaults.
    ///
    /// # Errors
    /// As [`DeviceName::find`].
    pub fn setup(&self) -> Result<Setup> {
        Ok(Setup { device: self.device.find()?, threads: self.threads, ..Setup::default() })
    }
}

/// Reads an element type of keys and values.
pub fn kv_type() -> impl TypedValueParser<Value = DType> {
    let known = ["f32", "f16", "bf16", "int8"].map(PossibleValue::new);
    let fp8 = ["fp8", "fp8_e4m3", "fp8_e5m2"].map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(known.into_iter().chain(fp8)).try_map(|name| match name.as_str() {
        "f32" => Ok(DType::F32),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        "int8" => Ok(DType::Int8),
        _ => Err("there is no fp8; int8 takes as many bytes for an element and rounds less"),
    })
}

/// Reads an element type of weights.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(["f32", "f16", "bf16"]).map(|name| match name.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        _ => DType::BF16,
    })
}

/// The largest size that flags take. No machine has as much, and sums of such sizes fit 64 bits.
const LARGEST: u64 = 1 << 60;

/// Reads a size, such as 20GiB: see [`size::parse`].
///
/// # Errors
/// What was expected; or a size that no machine has, which computations would cut short.
pub fn bytes(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes <= LARGEST => Ok(bytes),
        _ => Err(format!("no machine has as much; expected at most {}", size::human(LARGEST))),
    }
}

/// Reads a number from 0 to 1.
///
/// # Errors
/// What was expected.
pub fn share(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|f| (0.0..=1.0).contains(f));
    value.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_that_no_machine_has_are_refused() {
        assert_eq!((bytes("0"), bytes("1.5GiB"), bytes("1048576TiB")), (Ok(0), Ok(3 << 29), Ok(1 << 60)));
        for text in ["18446744073709551615", "1048577TiB"] {
            assert_eq!(bytes(text), Err("no machine has as much; expected at most 1.00 EiB".to_owned()));
        }
        assert!(bytes("much").unwrap_err().starts_with("expected a number of bytes"));
    }
}
