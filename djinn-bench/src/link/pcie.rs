//! What a PCIe link should give, and why one gives less.

#[cfg(test)]
mod tests;

use super::BothWays;
use crate::gpu::Pcie;
use djinn_host::Card;
use serde::{Deserialize, Serialize};

/// 1e9 bytes/s of one lane by generation, after line coding (PCI-SIG's rates: 2.5, 5, 8, 16, 32, 64 GT/s).
const LANE_GBPS: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];

/// Share of that which large pinned copies reach: headers and flow control take the rest.
const REACHED: f64 = 0.80;

/// What pinned copies should give at least, and by what reckoning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Expected {
    pub(crate) gbps: f64,
    pub(crate) link: String,
}

/// The least that large pinned copies give over `width` lanes of `generation`, in 1e9 bytes/s.
fn least(generation: u32, width: u32) -> Option<f64> {
    let lane = LANE_GBPS.get(generation.checked_sub(1)? as usize)?;
    (width > 0).then_some(REACHED * lane * width as f64)
}

/// What the link should give, and what is wrong with it.
pub(super) fn judge(measured: BothWays, pcie: Option<Pcie>, card: &str) -> (Option<Expected>, Vec<String>) {
    let (generation, width, source) = match pcie {
        Some(pcie) => (pcie.max_generation, pcie.max_width, "as the card and its slot can"),
        None => match Card::of_device(card) {
            Some(known) => (known.pcie, known.lanes, "as such cards have"),
            None => return (None, vec![format!("what the link of {card} should give is not known")]),
        },
    };
    let Some(gbps) = least(generation, width) else { return (None, vec![]) };
    let link = format!("PCIe {generation}.0 x{width}, {source}");
    let mut warnings = Vec::new();
    for (direction, rate) in [("host to device", measured.up_gbps), ("device to host", measured.down_gbps)] {
        if rate < gbps {
            let why = pcie.map_or_else(untold, |pcie| reason(pcie, rate));
            warnings.push(format!(
                "{direction} gives {rate:.1} GB/s where {link} gives {gbps:.1} at least: {why}"
            ));
        }
    }
    (Some(Expected { gbps, link }), warnings)
}

fn untold() -> String {
    "the card does not tell its link's state; look at the slot and at what else uses it".to_owned()
}

fn reason(pcie: Pcie, rate: f64) -> String {
    let Pcie { generation, max_generation, width, max_width } = pcie;
    let mut reasons = Vec::new();
    if width < max_width {
        reasons.push(format!(
            "the link trained at {width} of {max_width} lanes; reseat the card or use another slot"
        ));
    }
    if generation < max_generation {
        reasons.push(format!(
            "the link runs at generation {generation} of {max_generation}; look for a power limit, a riser or a setting of the firmware"
        ));
    }
    // What is left after a narrower link may have another cause.
    if reasons.is_empty() || least(generation, width).is_some_and(|least| rate < least) {
        let so = if reasons.is_empty() {
            "the link runs at full width and speed"
        } else {
            "more than that is missing"
        };
        reasons.push(format!(
            "{so}: look for other traffic on it, host memory on another NUMA node, or an IOMMU that translates"
        ));
    }
    reasons.join("; ")
}
