//! A machine's sustained rates, and the roofline that turns costs into time.

use djinn_srg::cost::Cost;
use serde::{Deserialize, Serialize};

/// The machine limit that an operation meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Arithmetic.
    Compute,
    /// Device memory.
    Memory,
}

/// A machine's sustained rates, not its peak figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Matrix products on 16-bit inputs, FLOP/s.
    pub flops: f64,
    /// Device memory, read, bytes/s.
    pub memory: f64,
    /// Pinned host memory to device, bytes/s.
    pub link: f64,
    /// Fixed cost of one operation, seconds.
    pub launch: f64,
    /// Device memory that code and workspaces take, bytes.
    #[serde(default)]
    pub reserved_bytes: u64,
}

impl Machine {
    /// Seconds that an operation takes, by the roofline (Williams et al. 2009): the larger of arithmetic and memory
    /// time.
    pub fn seconds(&self, cost: &Cost) -> f64 {
        (cost.flops / self.flops).max(cost.bytes() / self.memory) + self.launch
    }

    /// The limit that an operation meets.
    pub fn bound(&self, cost: &Cost) -> Bound {
        if cost.flops / self.flops > cost.bytes() / self.memory { Bound::Compute } else { Bound::Memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::decoder;
    use djinn_srg::cost::{Work, node};
    use djinn_srg::{DType, NodeId};

    #[test]
    fn decode_is_memory_bound_and_prefill_compute_bound() {
        let (name, reserved_bytes) = ("h200".to_owned(), 0);
        let (flops, memory, link, launch) = (770e12, 4000e9, 55.4e9, 1.2e-6);
        let h200 = Machine { name, flops, memory, link, launch, reserved_bytes };
        let graph = decoder(4, 4096, 11008, 32000, true);
        let product = NodeId(graph.nodes.iter().position(|n| n.name == "1.up").unwrap() as u32);
        let bound = |work| h200.bound(&node(&graph, product, &work));
        assert_eq!(bound(Work::decode(1, 512, DType::F16)), Bound::Memory);
        assert_eq!(bound(Work::prefill(2048, DType::F16)), Bound::Compute);
    }
}
