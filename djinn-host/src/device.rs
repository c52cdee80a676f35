//! Devices by name.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A device, as people name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// `auto`: the first GPU if the build and the machine have one, else the CPU.
    #[default]
    Auto,
    /// `cpu`.
    Cpu,
    /// `cuda` or `cuda:N`: the Nth GPU, counted from 0.
    Cuda(u32),
}

impl DeviceName {
    /// The device that is meant on this machine: never [`Auto`](DeviceName::Auto).
    ///
    /// # Errors
    /// [`Error::Gpu`] if a GPU is named that is not there. The CPU always is.
    pub fn find(self) -> Result<DeviceName> {
        match self {
            DeviceName::Cpu => Ok(DeviceName::Cpu),
            DeviceName::Auto => Ok(DeviceName::Cuda(0).find().unwrap_or(DeviceName::Cpu)),
            DeviceName::Cuda(ordinal) => match djinn_cuda::probe(ordinal) {
                Ok(_) => Ok(self),
                Err(source) => Err(Error::Gpu { device: self, source }),
            },
        }
    }
}

impl FromStr for DeviceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let number = match text.split_once(':') {
            None if text == "auto" => return Ok(DeviceName::Auto),
            None if text == "cpu" => return Ok(DeviceName::Cpu),
            None if text == "cuda" => Some(0),
            Some(("cuda", number)) => number.parse().ok(),
            _ => None,
        };
        number.map(DeviceName::Cuda).ok_or("expected auto, cpu, cuda or cuda:N")
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Auto => f.write_str("auto"),
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
