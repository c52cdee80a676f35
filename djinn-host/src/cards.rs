//! Known GPUs: data sheets, and the rates that Djinn reaches.

#[cfg(test)]
mod tests;

use crate::{Error, Result, nearest};
use djinn_vmu::Machine;

/// A GPU. Bandwidth and arithmetic are the data sheet's. Memory is what the driver reports, which is less if error
/// correction takes a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// For `--gpu`, e.g. `rtx-3060`.
    pub name: &'static str,
    /// Device memory.
    pub memory_mib: u64,
    /// Of device memory, GB/s.
    pub memory_gbps: f64,
    /// Dense matrix products of 16-bit numbers with sums in f32, TFLOP/s. GeForce cards do these at half the rate
    /// of sums in f16.
    pub tflops: f64,
    /// Generation of PCI Express.
    pub pcie: u32,
    /// Its lanes.
    pub lanes: u32,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
}

const fn card(
    name: &'static str,
    memory_mib: u64,
    memory_gbps: f64,
    tflops: f64,
    (pcie, lanes): (u32, u32),
    capability: (u32, u32),
) -> Card {
    Card { name, memory_mib, memory_gbps, tflops, pcie, lanes, capability }
}

/// The known cards. From the vendor's data sheets and architecture white papers.
pub const CARDS: &[Card] = &[
    card("rtx-3060", 12288, 360.0, 25.5, (4, 16), (8, 6)),
    card("rtx-3060-ti", 8192, 448.0, 32.4, (4, 16), (8, 6)),
    card("rtx-3070", 8192, 448.0, 40.6, (4, 16), (8, 6)),
    card("rtx-3070-ti", 8192, 608.0, 43.5, (4, 16), (8, 6)),
    card("rtx-3080", 10240, 760.0, 59.5, (4, 16), (8, 6)),
    card("rtx-3080-12", 12288, 912.0, 61.3, (4, 16), (8, 6)),
    card("rtx-3080-ti", 12288, 912.0, 68.2, (4, 16), (8, 6)),
    card("rtx-3090", 24576, 936.0, 71.0, (4, 16), (8, 6)),
    card("rtx-3090-ti", 24564, 1008.0, 80.0, (4, 16), (8, 6)),
    card("rtx-4060", 8188, 272.0, 30.2, (4, 8), (8, 9)),
    card("rtx-4060-ti", 8188, 288.0, 44.1, (4, 8), (8, 9)),
    card("rtx-4060-ti-16", 16380, 288.0, 44.1, (4, 8), (8, 9)),
    card("rtx-4070", 12282, 504.0, 58.3, (4, 16), (8, 9)),
    card("rtx-4070-super", 12282, 504.0, 71.0, (4, 16), (8, 9)),
    card("rtx-4070-ti", 12282, 504.0, 80.2, (4, 16), (8, 9)),
    card("rtx-4070-ti-super", 16376, 672.0, 88.2, (4, 16), (8, 9)),
    card("rtx-4080", 16376, 716.8, 97.5, (4, 16), (8, 9)),
    card("rtx-4080-super", 16376, 736.0, 104.4, (4, 16), (8, 9)),
    card("rtx-4090", 24564, 1008.0, 165.2, (4, 16), (8, 9)),
    card("rtx-5060", 8151, 448.0, 38.4, (5, 8), (12, 0)),
    card("rtx-5060-ti", 8151, 448.0, 47.4, (5, 8), (12, 0)),
    card("rtx-5060-ti-16", 16311, 448.0, 47.4, (5, 8), (12, 0)),
    card("rtx-5070", 12227, 672.0, 61.7, (5, 16), (12, 0)),
    card("rtx-5070-ti", 16303, 896.0, 87.9, (5, 16), (12, 0)),
    card("rtx-5080", 16303, 960.0, 112.6, (5, 16), (12, 0)),
    card("rtx-5090", 32607, 1792.0, 209.5, (5, 16), (12, 0)),
    card("rtx-6000-ada", 49140, 960.0, 364.2, (4, 16), (8, 9)),
    card("t4", 15360, 320.0, 65.0, (3, 16), (7, 5)),
    card("a10", 23028, 600.0, 125.0, (4, 16), (8, 6)),
    card("l4", 23034, 300.0, 121.0, (4, 16), (8, 9)),
    card("l40s", 46068, 864.0, 362.0, (4, 16), (8, 9)),
    card("a100-40", 40960, 1555.0, 312.0, (4, 16), (8, 0)),
    card("a100-80", 81920, 2039.0, 312.0, (4, 16), (8, 0)),
    card("a100-80-pcie", 81920, 1935.0, 312.0, (4, 16), (8, 0)),
    card("h100", 81559, 3350.0, 989.0, (5, 16), (9, 0)),
    card("h100-pcie", 81559, 2039.0, 756.0, (5, 16), (9, 0)),
    card("h200", 143771, 4800.0, 989.0, (5, 16), (9, 0)),
    card("b200", 183359, 7680.0, 2250.0, (5, 16), (10, 0)),
];

/// The shares of the data sheet's figures that Djinn's kernels sustain, as measured on an H200.
const ARITHMETIC: f64 = 770.0 / 989.0;
const MEMORY: f64 = 4000.0 / 4800.0;
/// The oldest compute capability that the kernels run on.
const OLDEST: (u32, u32) = (8, 0);
/// Context, code and workspaces of Djinn's own device, as it reports them on an H200.
const RESERVED_BYTES: u64 = 689_504_256;

impl Card {
    /// The card called `name`, in any spelling: `rtx-3060`, `RTX 3060`, `3060`.
    ///
    /// # Errors
    /// [`Error::UnknownCard`], with the nearest name, or [`Error::UnknownName`], with all.
    pub fn find(name: &str) -> Result<&'static Card> {
        let asked = plain(name);
        let called = |plainly: &str| CARDS.iter().find(|card| plain(card.name) == plainly);
        called(&asked).ok_or_else(|| {
            let names: Vec<String> = CARDS.iter().map(|card| plain(card.name)).collect();
            let near = nearest(&asked, names.iter().map(String::as_str)).and_then(called);
            match near {
                Some(near) => Error::UnknownCard { name: name.to_owned(), near: near.name },
                None => {
                    let known: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
                    Error::UnknownName { what: format!("there is no card {name}"), known: known.join(", ") }
                }
            }
        })
    }

    /// The card that a driver calls `name`, e.g. `NVIDIA A100-SXM4-80GB`; of several, the one with the longest name.
    /// `None` for unknown cards and for those of laptops, whose links differ.
    pub fn of_device(name: &str) -> Option<&'static Card> {
        let of_device = words(name);
        let fits = |card: &&Card| words(card.name).iter().all(|word| of_device.contains(word));
        let known = (!of_device.iter().any(|word| word == "laptop")).then_some(CARDS)?;
        known.iter().filter(fits).max_by_key(|card| words(card.name).len())
    }

    /// Device memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }

    /// Whether Djinn's kernels run on it.
    pub fn runs(&self) -> bool {
        self.capability >= OLDEST
    }

    /// The rates that Djinn sustains on the card: the shares of its figures that were measured on an H200, and the
    /// rate of copies from pinned memory on such a link.
    pub fn machine(&self) -> Machine {
        let lane_rate = match self.pcie {
            3 => 12.5e9 / 16.0,
            4 => 25e9 / 16.0,
            _ => 55.4e9 / 16.0,
        };
        Machine {
            name: self.name.to_owned(),
            flops: self.tflops * 1e12 * ARITHMETIC,
            memory: self.memory_gbps * 1e9 * MEMORY,
            link: lane_rate * f64::from(self.lanes),
            // From Hopper on, successive operations overlap, so one costs less.
            launch: if self.capability >= (9, 0) { 1.2e-6 } else { 2e-6 },
            reserved_bytes: RESERVED_BYTES,
            ..Machine::default()
        }
    }
}

/// The words of a name, sizes without their unit.
fn words(name: &str) -> Vec<String> {
    let name = name.to_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.map(|word| word.strip_suffix("gb").unwrap_or(word).to_owned()).collect()
}

/// A name without the parts that users may omit or write otherwise.
fn plain(name: &str) -> String {
    let name: String = name.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
    let name = ["nvidia", "geforce", "rtx"]
        .iter()
        .fold(&*name, |name, word| name.strip_prefix(word).unwrap_or(name));
    name.strip_suffix("gb").unwrap_or(name).to_owned()
}
