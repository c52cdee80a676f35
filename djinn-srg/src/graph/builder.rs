//! Builds a [`Graph`] node by node; every call checks the shapes of its operands.

mod experts;

pub use experts::Routing;

use super::{Graph, Hook, Node, NodeId};
use crate::{DType, Dim, GeluForm, Lifecycle, Op, RopeStyle, RowEncodings, Scores, Value, ValueId};
use std::collections::HashSet;

/// Why a graph cannot be built. Shapes come from checkpoints, so these are errors, not panics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// Two values, or two hooks, have the same name.
    DuplicateName(String),
    /// An operand's shape does not fit its operation.
    Shape {
        /// The node.
        node: String,
        /// What was expected and found.
        detail: String,
    },
    /// The weights' sizes overflow 64 bits.
    TooLarge(String),
}

impl std::fmt::Display for GraphError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GraphError::DuplicateName(name) => write!(f, "the name {name} is used twice"),
            GraphError::Shape { node, detail } => write!(f, "{node}: {detail}"),
            GraphError::TooLarge(name) => write!(f, "{name} is too large to address"),
        }
    }
}

impl std::error::Error for GraphError {}

type Result<T> = std::result::Result<T, GraphError>;

/// Attention geometry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
}

impl Heads {
    fn qkv(self) -> u64 {
        (self.heads as u64 + 2 * self.kv_heads as u64) * self.head_dim as u64
    }
}

/// Builds a [`Graph`]. Values and nodes are named by the caller; nodes execute in the order of the calls.
pub struct GraphBuilder {
    graph: Graph,
    names: HashSet<String>,
    hook_names: HashSet<String>,
    layer: Option<u32>,
}

impl GraphBuilder {
    /// A graph with its four step inputs and no operation.
    pub fn new(model: &str, vocab: u64, max_context: u64) -> Self {
        let graph = Graph {
            model: model.to_owned(),
            values: Vec::new(),
            nodes: Vec::new(),
            vocab,
            max_context,
            tokens: ValueId(0),
            positions: ValueId(1),
            row_seq: ValueId(2),
            logit_rows: ValueId(3),
            logits: ValueId(u32::MAX),
            hooks: Vec::new(),
        };
        let mut builder =
            GraphBuilder { graph, names: HashSet::new(), hook_names: HashSet::new(), layer: None };
        for (name, dim) in [
            ("tokens", Dim::Rows),
            ("positions", Dim::Rows),
            ("row_seq", Dim::Rows),
            ("logit_rows", Dim::LogitRows),
        ] {
            builder.value(name, vec![dim], Some(DType::U32), Lifecycle::Stack).expect("four distinct names");
        }
        builder
    }

    /// The decoder block that following values and nodes belong to.
    pub fn set_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// Step inputs `(tokens, positions)`.
    pub fn inputs(&self) -> (ValueId, ValueId) {
        (self.graph.tokens, self.graph.positions)
    }

    /// Names an activation, with its contents after the latest node. Its first name is the canonical one.
    ///
    /// # Errors
    /// A name that is in use, or a value that is not an activation.
    pub fn hook(&mut self, value: ValueId, name: String) -> Result<()> {
        match self.graph.value(value).shape.as_slice() {
            &[_, Dim::Fixed(width)] => self.hook_columns(value, (0, width), name),
            shape => Err(self.shape(&name, format!("a hook is an activation, not {shape:?}"))),
        }
    }

    /// As [`hook`](Self::hook), for some columns: the first, and their number.
    ///
    /// # Errors
    /// A name that is in use, or columns outside the value.
    pub fn hook_columns(&mut self, value: ValueId, columns: (u64, u64), name: String) -> Result<()> {
        let width = match *self.graph.value(value).shape.as_slice() {
            [Dim::Rows | Dim::LogitRows, Dim::Fixed(width)] => width,
            _ => 0,
        };
        let writes = |node: &Node| node.outputs.contains(&value);
        let last =
            self.graph.nodes.len().checked_sub(1).filter(|_| self.graph.nodes.iter().rev().any(writes));
        let (Some(last), true) = (last, columns.0.checked_add(columns.1).is_some_and(|end| end <= width))
        else {
            return Err(
                self.shape(&name, format!("a hook is columns of an activation, not {columns:?} of {width}"))
            );
        };
        if !self.hook_names.insert(name.clone()) {
            return Err(GraphError::DuplicateName(name));
        }
        self.graph.hooks.push(Hook { name, value, after: NodeId(last as u32), columns });
        Ok(())
    }

    /// A weight of one or two dimensions whose rows are plain.
    pub fn weight(&mut self, name: &str, shape: &[u64], dtype: DType) -> Result<ValueId> {
        self.encoded_weight(name, shape, dtype, RowEncodings::default())
    }

    /// A weight of one or two dimensions, with these `encodings` of its rows. A vector is plain.
    pub fn encoded_weight(
        &mut self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        encodings: RowEncodings,
    ) -> Result<ValueId> {
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        if elements.is_none_or(|n| n > u64::MAX >> 8) {
            return Err(GraphError::TooLarge(name.to_owned()));
        }
        let [rows, columns] = if let &[rows, columns] = shape { [rows, columns] } else { [0, 1] };
        for (run, encoding) in encodings.runs(0..encodings.rows()) {
            if run.end > rows || encoding.tile(dtype, run.end - run.start, columns).is_none() {
                return Err(
                    self.shape(name, format!("rows {run:?} of {rows} x {columns} are not {encoding}"))
                );
            }
        }
        let shape = shape.iter().map(|&d| Dim::Fixed(d)).collect();
        let id = self.value(name, shape, Some(dtype), Lifecycle::Text)?;
        self.graph.values[id.0 as usize].encodings = encodings;
        Ok(id)
    }

    /// The shape of a table, which must be one run of bytes.
    fn table(&self, name: &str, table: ValueId) -> Result<[u64; 2]> {
        let value = self.graph.value(table);
        let [rows, columns] = value.matrix();
        match value.encodings.runs(0..rows).count() {
            0 | 1 => Ok([rows, columns]),
            runs => Err(self.shape(name, format!("the rows of {} are in {runs} encodings", value.name))),
        }
    }

    /// `table[vocab, d]` gathered by token: `[rows, d]`.
    pub fn embed(&mut self, name: &str, table: ValueId) -> Result<ValueId> {
        let [_, d] = self.table(name, table)?;
        let tokens = self.graph.tokens;
        self.push(name, Op::Embed, vec![tokens], vec![table], Dim::Rows, d)
    }

    /// `table[positions, d]` gathered by the rows' positions (learned positions): `[rows, d]`. The table has a row for
    /// each position of the longest context.
    pub fn embed_positions(&mut self, name: &str, table: ValueId) -> Result<ValueId> {
        let [rows, d] = self.table(name, table)?;
        let context = self.graph.max_context;
        if rows < context {
            return Err(self.shape(name, format!("{rows} positions are fewer than the context of {context}")));
        }
        let positions = self.graph.positions;
        self.push(name, Op::Embed, vec![positions], vec![table], Dim::Rows, d)
    }

    /// Cosines and sines for the step's positions: `[rows, 2 * len(inv_freq)]`.
    pub fn rope_table(&mut self, name: &str, inv_freq: ValueId, scale: f32) -> Result<ValueId> {
        let [half, _] = self.graph.value(inv_freq).matrix();
        let positions = self.graph.positions;
        self.push(name, Op::RopeTable { scale }, vec![positions], vec![inv_freq], Dim::Rows, 2 * half)
    }

    /// RMSNorm of `x[rows, d]` by `weight[d]`.
    pub fn rms_norm(&mut self, name: &str, x: ValueId, weight: ValueId, eps: f32) -> Result<ValueId> {
        let (dim, d) = self.activation(name, x)?;
        self.expect(name, "norm weight", self.graph.value(weight).matrix(), [d, 1])?;
        self.push(name, Op::RmsNorm { eps }, vec![x], vec![weight], dim, d)
    }

    /// LayerNorm of `x[rows, d]` by `weight[d]` and `bias[d]`.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: ValueId,
        eps: f32,
    ) -> Result<ValueId> {
        let (dim, d) = self.activation(name, x)?;
        self.expect(name, "norm weight", self.graph.value(weight).matrix(), [d, 1])?;
        self.expect(name, "norm bias", self.graph.value(bias).matrix(), [d, 1])?;
        self.push(name, Op::LayerNorm { eps }, vec![x], vec![weight, bias], dim, d)
    }

    /// `x[rows, k] · weight[n, k]ᵀ + bias[n]`: `[rows, n]`.
    pub fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId> {
        let (dim, k) = self.activation(name, x)?;
        let [n, columns] = self.graph.value(weight).matrix();
        self.expect(name, "weight columns", columns, k)?;
        if let Some(bias) = bias {
            self.expect(name, "bias", self.graph.value(bias).matrix(), [n, 1])?;
        }
        let weights = [Some(weight), bias].into_iter().flatten().collect();
        self.push(name, Op::Linear, vec![x], weights, dim, n)
    }

    /// RMSNorm of each query head by `query[head_dim]` and of each key head by `key[head_dim]`, in place.
    pub fn head_norm(
        &mut self,
        name: &str,
        qkv: ValueId,
        [query, key]: [ValueId; 2],
        heads: Heads,
        eps: f32,
    ) -> Result<()> {
        self.check_heads(name, qkv, heads)?;
        let Heads { heads, kv_heads, head_dim } = heads;
        for weight in [query, key] {
            self.expect(name, "norm weight", self.graph.value(weight).matrix(), [head_dim.into(), 1])?;
        }
        let op = Op::HeadNorm { heads, kv_heads, head_dim, eps };
        self.push_into(name, op, vec![qkv], vec![query, key], vec![qkv]);
        Ok(())
    }

    /// Rotates `qkv` in place by `table`.
    pub fn rope(
        &mut self,
        name: &str,
        qkv: ValueId,
        table: ValueId,
        heads: Heads,
        style: RopeStyle,
    ) -> Result<()> {
        let (_, rotary) = self.activation(name, table)?;
        self.check_heads(name, qkv, heads)?;
        let Heads { heads, kv_heads, head_dim } = heads;
        if rotary > head_dim as u64 || rotary == 0 {
            return Err(self.shape(name, format!("rotary size {rotary} does not fit heads of {head_dim}")));
        }
        let op = Op::Rope { heads, kv_heads, head_dim, rotary_dim: rotary as u32, style };
        self.push_into(name, op, vec![qkv, table], vec![], vec![qkv]);
        Ok(())
    }

    /// Appends keys and values of `qkv` to a new KV cache, `name.kv`, then attends: `[rows, heads * head_dim]`.
    pub fn attention(&mut self, name: &str, qkv: ValueId, heads: Heads, scores: Scores) -> Result<ValueId> {
        self.check_heads(name, qkv, heads)?;
        let Heads { heads, kv_heads, head_dim } = heads;
        let Scores { scale, window, alibi } = scores;
        if window == Some(0) {
            return Err(self.shape(name, "a window of no position".to_owned()));
        }
        let (row_seq, positions) = (self.graph.row_seq, self.graph.positions);
        let shape = vec![Dim::Fixed(2), Dim::Fixed(kv_heads.into()), Dim::Fixed(head_dim.into())];
        let kv = self.value(&format!("{name}.kv"), shape, None, Lifecycle::Data)?;
        let write = Op::KvWrite { heads, kv_heads, head_dim };
        self.push_into(&format!("{name}.kv_write"), write, vec![qkv, row_seq, positions], vec![], vec![kv]);
        let op = Op::Attention { heads, kv_heads, head_dim, scale, window, alibi };
        let width = heads as u64 * head_dim as u64;
        self.push(name, op, vec![qkv, kv, row_seq, positions], vec![], Dim::Rows, width)
    }

    /// `silu(gate) * up` of `gate_up[rows, 2 f]`: `[rows, f]`.
    pub fn silu_mul(&mut self, name: &str, gate_up: ValueId) -> Result<ValueId> {
        let (dim, width) = self.activation(name, gate_up)?;
        if !width.is_multiple_of(2) {
            return Err(self.shape(name, format!("gate and up share {width} columns")));
        }
        self.push(name, Op::SiluMul, vec![gate_up], vec![], dim, width / 2)
    }

    /// GELU of each element of `x[rows, f]`: `[rows, f]`.
    pub fn gelu(&mut self, name: &str, x: ValueId, form: GeluForm) -> Result<ValueId> {
        let (dim, width) = self.activation(name, x)?;
        self.push(name, Op::Gelu { form }, vec![x], vec![], dim, width)
    }

    /// `a + b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        let (dim, width) = self.activation(name, a)?;
        let other = self.activation(name, b)?;
        self.expect(name, "addends", other, (dim, width))?;
        self.push(name, Op::Add, vec![a, b], vec![], dim, width)
    }

    /// The rows of `x[rows, d]` with wanted logits: `[logit_rows, d]`.
    pub fn select_rows(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let (_, d) = self.activation(name, x)?;
        let logit_rows = self.graph.logit_rows;
        self.push(name, Op::SelectRows, vec![x, logit_rows], vec![], Dim::LogitRows, d)
    }

    /// The finished graph, whose output is `logits[logit_rows, vocab]`.
    pub fn finish(mut self, logits: ValueId) -> Result<Graph> {
        let found = self.activation("logits", logits)?;
        self.expect("logits", "shape", found, (Dim::LogitRows, self.graph.vocab))?;
        self.graph.logits = logits;
        Ok(self.graph)
    }

    fn value(
        &mut self,
        name: &str,
        shape: Vec<Dim>,
        dtype: Option<DType>,
        lifecycle: Lifecycle,
    ) -> Result<ValueId> {
        if !self.names.insert(name.to_owned()) {
            return Err(GraphError::DuplicateName(name.to_owned()));
        }
        let id = ValueId(self.graph.values.len() as u32);
        let (layer, encodings) = (self.layer, RowEncodings::default());
        self.graph.values.push(Value { name: name.to_owned(), shape, dtype, encodings, lifecycle, layer });
        Ok(id)
    }

    fn push(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<ValueId>,
        weights: Vec<ValueId>,
        dim: Dim,
        width: u64,
    ) -> Result<ValueId> {
        let output = self.value(
            &format!("{name}.out"),
            vec![dim, Dim::Fixed(width)],
            Some(DType::F32),
            Lifecycle::Stack,
        )?;
        self.push_into(name, op, inputs, weights, vec![output]);
        Ok(output)
    }

    fn push_into(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<ValueId>,
        weights: Vec<ValueId>,
        outputs: Vec<ValueId>,
    ) {
        let (name, layer) = (name.to_owned(), self.layer);
        self.graph.nodes.push(Node { name, op, inputs, weights, outputs, layer });
    }

    /// The row dimension and width of an activation.
    fn activation(&self, node: &str, id: ValueId) -> Result<(Dim, u64)> {
        let value = self.graph.value(id);
        match (value.lifecycle, value.dtype, value.shape.as_slice()) {
            (Lifecycle::Stack, Some(DType::F32), &[dim, Dim::Fixed(width)]) => Ok((dim, width)),
            _ => Err(self.shape(node, format!("{} is no activation", value.name))),
        }
    }

    fn check_heads(&self, node: &str, qkv: ValueId, of: Heads) -> Result<()> {
        let (_, width) = self.activation(node, qkv)?;
        let Heads { heads, kv_heads, .. } = of;
        self.expect(node, "qkv columns", width, of.qkv())?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(self.shape(node, format!("{heads} heads do not share {kv_heads} key/value heads")));
        }
        Ok(())
    }

    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        node: &str,
        what: &str,
        found: T,
        want: T,
    ) -> Result<()> {
        if found == want {
            return Ok(());
        }
        Err(self.shape(node, format!("{what}: expected {want:?}, found {found:?}")))
    }

    fn shape(&self, node: &str, detail: String) -> GraphError {
        GraphError::Shape { node: node.to_owned(), detail }
    }
}
