//! The machine of a plan: a named card, or this machine's CPU.

use crate::setup::encodings;
use crate::{Card, DeviceName, Needs, Result, Setup, kv_dtype, rates};
use djinn_device::DType;
use djinn_models::{Model, OpenOptions};
use djinn_srg::Encoding;
use djinn_vmu::Machine;
use serde::Serialize;
use std::time::Duration;

/// How long each rate is measured on a machine without saved rates.
const QUICK: Duration = Duration::from_millis(30);

/// The origin of a machine's rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// A card's, from the table.
    Named,
    /// This machine's, measured before.
    Measured,
    /// This machine's, measured just now.
    Quick,
}

/// A machine, and the origin of its rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// Its rates.
    #[serde(flatten)]
    pub machine: Machine,
    /// Their origin.
    pub chosen: Known,
    /// The card, if it is one.
    #[serde(skip)]
    pub card: Option<&'static Card>,
}

impl Target {
    /// A card.
    pub fn card(card: &'static Card) -> Self {
        Target { machine: card.machine(), chosen: Known::Named, card: Some(card) }
    }

    /// This machine's CPU, with saved rates.
    pub fn measured(machine: Machine) -> Self {
        Target { machine, chosen: Known::Measured, card: None }
    }

    /// Measures products with the model's encoded weights, unless they are known, or the machine is a card: its rates
    /// hold for all weights.
    ///
    /// # Errors
    /// As [`rates::measure`].
    pub fn measure_encoded(&mut self, model: &Model) -> Result<()> {
        let known = &mut self.machine.encoded;
        let mut missing: Vec<Encoding> = Vec::new();
        for encoding in encodings(model).filter(|_| self.card.is_none()) {
            let is_known = known.contains_key(encoding.name()) || missing.contains(&encoding);
            if encoding != Encoding::Plain && !is_known {
                missing.push(encoding);
            }
        }
        known.extend(rates::measure_encoded(missing, QUICK)?);
        Ok(())
    }

    /// This machine's CPU, measured for less than half a second.
    ///
    /// # Errors
    /// As [`rates::measure`].
    pub fn quick() -> Result<Self> {
        Ok(Target { machine: rates::measure(0, QUICK)?.machine, chosen: Known::Quick, card: None })
    }

    /// The kind of device that it is.
    pub fn device(&self) -> DeviceName {
        if self.card.is_some() { DeviceName::Cuda(0) } else { DeviceName::Cpu }
    }

    /// The default element type of the KV cache.
    pub fn kv_dtype(&self, model: &Model) -> DType {
        kv_dtype(self.device(), model)
    }

    /// How to open a model to plan it with `setup`: no weights are read.
    pub fn open_options(&self, setup: &Setup) -> OpenOptions {
        Setup { device: self.device(), ..*setup }.planning_options()
    }

    /// Device memory that the device reserves for such work.
    pub fn reserved_bytes(&self, needs: Needs) -> u64 {
        self.machine.reserved_bytes + self.card.map_or(0, |_| needs.card_bytes())
    }
}
