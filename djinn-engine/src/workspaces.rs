//! Device memory that operations use while they run.

use djinn_srg::{Dim, Graph, Node, Op, Value};

/// Room for activations where a step need not fit at once.
const LEAST_ACTIVATIONS: u64 = 64 << 20;
/// Each kind of activations begins at a multiple of this.
const ALIGN: u64 = 256;

/// Device memory that operations use while they run, in bytes. A device has it beside a model's memory, and results do
/// not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspaces {
    /// For rows of encoded weights as 16-bit elements, on devices that decode a weight before they multiply many rows
    /// with it; 0 if none are encoded.
    pub decoded_bytes: u64,
    /// For activations rounded to 16 bits.
    pub activation_bytes: u64,
}

impl Workspaces {
    /// The least with which `graph` is computed well: room for one tile of a weight.
    pub fn least(graph: &Graph) -> Workspaces {
        let decoded_bytes = djinn_srg::decoded_bytes(graph);
        Workspaces { decoded_bytes, activation_bytes: LEAST_ACTIVATIONS }
    }

    /// The least for weights, and room for the activations of a product over `rows` rows: each is then rounded once, and
    /// multiplied with a tile of a weight at once.
    pub(crate) fn for_step(graph: &Graph, rows: u64) -> Workspaces {
        let least = Workspaces::least(graph);
        let columns = products(graph).map(|weight| weight.matrix()[1]).max().unwrap_or(0);
        let activation_bytes = least.activation_bytes.max(bytes(rows, columns));
        Workspaces { activation_bytes, ..least }
    }

    /// Room for every weight that steps of `rows` rows multiply with, as a whole, and for the activations of a gated
    /// MLP. One launch then computes each product, with the activation function or the addition that follows.
    pub(crate) fn whole(graph: &Graph, rows: u64) -> Workspaces {
        let for_step = Workspaces::for_step(graph, rows);
        let decoded = encoded(graph).map(|weight| {
            let [n, k] = weight.matrix();
            bytes(n, k)
        });
        let gated =
            graph.nodes.windows(2).filter(|pair| pair[0].op == Op::Linear && pair[1].op == Op::SiluMul);
        let activations = gated.map(|pair| {
            let [n, k] = graph.value(pair[0].weights[0]).matrix();
            // Those of the product, and what the next one reads.
            bytes(rows, k).saturating_add(ALIGN).saturating_add(bytes(rows, n / 2))
        });
        Workspaces {
            decoded_bytes: decoded.fold(for_step.decoded_bytes, u64::max),
            activation_bytes: activations.fold(for_step.activation_bytes, u64::max),
        }
    }

    /// Those that serve both.
    pub fn max(self, other: Workspaces) -> Workspaces {
        Workspaces {
            decoded_bytes: self.decoded_bytes.max(other.decoded_bytes),
            activation_bytes: self.activation_bytes.max(other.activation_bytes),
        }
    }

    /// All bytes.
    pub fn total(self) -> u64 {
        self.decoded_bytes.saturating_add(self.activation_bytes)
    }
}

/// The encoded weights of products over all rows of a step. Devices may decode them for each step.
pub(crate) fn encoded(graph: &Graph) -> impl Iterator<Item = &Value> {
    products(graph).filter(|weight| !weight.encodings.is_plain())
}

/// The weights of products over all rows of a step.
fn products(graph: &Graph) -> impl Iterator<Item = &Value> {
    let over_all = |node: &&Node| graph.value(node.outputs[0]).shape[0] != Dim::LogitRows;
    let products = graph.nodes.iter().filter(|node| node.op == Op::Linear).filter(over_all);
    products.map(|node| graph.value(node.weights[0]))
}

/// Bytes of 16-bit elements.
fn bytes(rows: u64, columns: u64) -> u64 {
    rows.saturating_mul(columns).saturating_mul(2)
}
