//! A machine's sustained rates, and the roofline that turns costs into time.

use djinn_srg::cost::{self, Work};
use djinn_srg::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Rates of products with encoded weights where decoding makes them lower, by [`Encoding::name`](djinn_srg::Encoding::name).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub encoded: BTreeMap<String, ProductRates>,
}

/// Sustained rates of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductRates {
    /// With many rows, FLOP/s.
    pub flops: f64,
    /// With one row, bytes/s of weights as they are stored.
    pub memory: f64,
}

/// Seconds of arithmetic and of memory traffic, of one operation or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Arithmetic.
    pub compute: f64,
    /// Memory traffic.
    pub memory: f64,
}

impl Busy {
    /// The limit that is met.
    pub fn bound(&self) -> Bound {
        if self.compute > self.memory { Bound::Compute } else { Bound::Memory }
    }
}

impl std::iter::Sum for Busy {
    fn sum<I: Iterator<Item = Busy>>(all: I) -> Busy {
        all.fold(Busy::default(), |a, b| Busy { compute: a.compute + b.compute, memory: a.memory + b.memory })
    }
}

impl Machine {
    /// The arithmetic and the memory traffic of an operation.
    pub fn busy(&self, graph: &Graph, id: NodeId, work: &Work) -> Busy {
        let (cost, rates) = (cost::node(graph, id, work), self.rates(graph, id));
        let activations = (cost.data_bytes + cost.stack_bytes) / self.memory;
        Busy { compute: cost.flops / rates.flops, memory: cost.text_bytes / rates.memory + activations }
    }

    /// Seconds that an operation takes, by the roofline (Williams et al. 2009): the larger of arithmetic and memory
    /// time.
    pub fn seconds(&self, busy: &Busy) -> f64 {
        busy.compute.max(busy.memory) + self.launch
    }

    /// The rates of an operation: of a product, the means over the rows of its weight.
    fn rates(&self, graph: &Graph, id: NodeId) -> ProductRates {
        let (node, plain) = (graph.node(id), ProductRates { flops: self.flops, memory: self.memory });
        if self.encoded.is_empty() || !matches!(node.op, Op::Linear | Op::ExpertLinear { .. }) {
            return plain;
        }
        let weight = graph.value(node.weights[0]);
        let rows = weight.matrix()[0];
        let (mut flops, mut memory) = (0.0, 0.0);
        for (run, encoding) in weight.encodings.runs(0..rows) {
            let share = (run.end - run.start) as f64 / rows as f64;
            let own = self.encoded.get(encoding.name()).unwrap_or(&plain);
            flops += share / own.flops.min(plain.flops);
            memory += share / own.memory.min(plain.memory);
        }
        ProductRates { flops: 1.0 / flops, memory: 1.0 / memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::decoder;
    use djinn_srg::{BlockFormat, DType, Encoding, RowEncodings};

    fn h200() -> Machine {
        let (flops, memory, link, launch) = (770e12, 4000e9, 55.4e9, 1.2e-6);
        Machine { name: "h200".to_owned(), flops, memory, link, launch, ..Machine::default() }
    }

    /// A decoder, and its product `1.up`.
    fn product() -> (Graph, NodeId) {
        let graph = decoder(4, 4096, 11008, 32000, true);
        let product = graph.nodes.iter().position(|node| node.name == "1.up").unwrap();
        (graph, NodeId(product as u32))
    }

    #[test]
    fn decode_is_memory_bound_and_prefill_compute_bound() {
        let (graph, product) = product();
        let bound = |work| h200().busy(&graph, product, &work).bound();
        assert_eq!(bound(Work::decode(1, 512, DType::F16)), Bound::Memory);
        assert_eq!(bound(Work::prefill(2048, DType::F16)), Bound::Compute);
    }

    #[test]
    fn products_with_encoded_weights_have_rates_of_their_own() {
        let (mut graph, product) = product();
        let weight = graph.node(product).weights[0].0 as usize;
        let rows = graph.values[weight].matrix()[0];
        let works = [Work::decode(1, 512, DType::F16), Work::prefill(2048, DType::F16)];
        let busy = |machine: &Machine, graph: &Graph| works.map(|work| machine.busy(graph, product, &work));
        // Half of the rows in blocks, which are read at a third of the rate, and multiplied at half of it.
        let q4_k = Encoding::Blocks(BlockFormat::Q4_K);
        let mut encodings = RowEncodings::default();
        encodings.push(rows / 2, q4_k);
        graph.values[weight].encodings = encodings;
        let plain = busy(&h200(), &graph);
        let rates = ProductRates { flops: h200().flops / 2.0, memory: h200().memory / 3.0 };
        let machine = |name: &str, rates| Machine { encoded: [(name.to_owned(), rates)].into(), ..h200() };
        let [decode, prefill] = busy(&machine("Q4_K", rates), &graph);
        let text_seconds = graph.values[weight].text_bytes() as f64 / h200().memory;
        assert!((decode.memory - plain[0].memory - text_seconds).abs() < 1e-9 * text_seconds, "{decode:?}");
        assert!((prefill.compute / plain[1].compute - 1.5).abs() < 1e-9, "{prefill:?}");
        // Another encoding's rates do not matter, nor do faster ones than the machine's.
        assert_eq!(busy(&machine("Q8_0", rates), &graph), plain);
        let faster = ProductRates { flops: 2.0 * h200().flops, memory: 2.0 * h200().memory };
        assert_eq!(busy(&machine("Q4_K", faster), &graph), plain);
    }
}
