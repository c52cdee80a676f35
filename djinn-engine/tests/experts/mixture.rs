//! A small decoder with a mixture of experts in each block, and its weights.

use djinn_srg::{DType, Graph, GraphBuilder, GraphError, Heads, RopeStyle, Routing, Scores, ValueId};
use djinn_vmu::{SourceError, WeightSource};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{LazyLock, Mutex};

pub(crate) const LAYERS: u32 = 3;
pub(crate) const EXPERTS: u32 = 8;
pub(crate) const TOP_K: u32 = 2;
pub(crate) const VOCAB: u64 = 300;
const WIDTH: u64 = 48;
/// So that a first product has two tiles.
const FFN: u64 = 200;
const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 12;
const DTYPE: DType = DType::F32;

/// Three blocks, GQA, the best two of eight experts.
pub(crate) fn graph() -> Graph {
    let mut b = GraphBuilder::new("mixture", VOCAB, 256);
    let logits = build(&mut b).expect("shapes fit");
    b.finish(logits).expect("shapes fit")
}

fn build(b: &mut GraphBuilder) -> Result<ValueId, GraphError> {
    let table = b.weight("embed.weight", &[VOCAB, WIDTH], DTYPE)?;
    let inv_freq = b.weight("rope.inv_freq", &[u64::from(HEAD_DIM) / 2], DType::F32)?;
    let rope = b.rope_table("rope", inv_freq, 1.0)?;
    let mut x = b.embed("embed", table)?;
    for layer in 0..LAYERS {
        b.set_layer(Some(layer));
        let name = |part: &str| format!("blocks.{layer}.{part}");
        let normed = norm(b, &name("ln1"), x)?;
        let qkv = u64::from((HEADS + 2 * KV_HEADS) * HEAD_DIM);
        let qkv = linear(b, &name("attn.qkv"), normed, [qkv, WIDTH])?;
        let heads = Heads { heads: HEADS, kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        b.rope(&name("attn.rope"), qkv, rope, heads, RopeStyle::Half)?;
        let attended = b.attention(&name("attn"), qkv, heads, Scores::scaled(0.3))?;
        let out = linear(b, &name("attn.out"), attended, [WIDTH, u64::from(HEADS * HEAD_DIM)])?;
        x = b.add(&name("attn.add"), x, out)?;
        let normed = norm(b, &name("ln2"), x)?;
        let chosen = linear(b, &name("mlp.router"), normed, [EXPERTS.into(), WIDTH])?;
        let routing = b.route(&name("mlp.route"), chosen, TOP_K, layer != 1)?;
        let gate_up = experts(b, layer, "gate_up", normed, &routing, [2 * FFN, WIDTH])?;
        let mid = b.silu_mul(&name("mlp.act"), gate_up)?;
        let down = experts(b, layer, "down", mid, &routing, [WIDTH, FFN])?;
        let mixed = b.combine(&name("mlp.combine"), down, &routing)?;
        x = b.add(&name("mlp.add"), x, mixed)?;
    }
    b.set_layer(None);
    let last = b.select_rows("select", x)?;
    let normed = norm(b, "ln_final", last)?;
    linear(b, "unembed", normed, [VOCAB, WIDTH])
}

/// Blocks that are not alike: the first and the last attend, with caches of two shapes; the other has experts' products
/// alone.
pub(crate) fn uneven() -> Graph {
    let mut b = GraphBuilder::new("uneven", VOCAB, 256);
    let logits = build_uneven(&mut b).expect("shapes fit");
    b.finish(logits).expect("shapes fit")
}

fn build_uneven(b: &mut GraphBuilder) -> Result<ValueId, GraphError> {
    let table = b.weight("embed.weight", &[VOCAB, WIDTH], DTYPE)?;
    let mut x = b.embed("embed", table)?;
    let heads = |heads, kv_heads| Heads { heads, kv_heads, head_dim: WIDTH as u32 / heads };
    for (layer, heads) in [(0, Some(heads(4, 2))), (1, None), (2, Some(heads(2, 1)))] {
        b.set_layer(Some(layer));
        let name = |part: &str| format!("blocks.{layer}.{part}");
        let normed = norm(b, &name("ln1"), x)?;
        let y = if let Some(heads) = heads {
            let qkv = u64::from((heads.heads + 2 * heads.kv_heads) * heads.head_dim);
            let qkv = linear(b, &name("attn.qkv"), normed, [qkv, WIDTH])?;
            b.attention(&name("attn"), qkv, heads, Scores::scaled(0.3))?
        } else {
            let gate_up = linear(b, &name("mlp.gate_up"), normed, [2 * WIDTH, WIDTH])?;
            b.silu_mul(&name("mlp.act"), gate_up)?
        };
        x = b.add(&name("add"), x, y)?;
    }
    b.set_layer(None);
    let last = b.select_rows("select", x)?;
    linear(b, "unembed", last, [VOCAB, WIDTH])
}

fn norm(b: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    let weight = b.weight(&format!("{name}.weight"), &[WIDTH], DTYPE)?;
    b.rms_norm(name, x, weight, 1e-5)
}

fn linear(b: &mut GraphBuilder, name: &str, x: ValueId, shape: [u64; 2]) -> Result<ValueId, GraphError> {
    let weight = b.weight(&format!("{name}.weight"), &shape, DTYPE)?;
    b.linear(name, x, weight, None)
}

fn experts(
    b: &mut GraphBuilder,
    layer: u32,
    part: &str,
    x: ValueId,
    routing: &Routing,
    shape: [u64; 2],
) -> Result<ValueId, GraphError> {
    let mut out = None;
    for expert in 0..EXPERTS {
        let name = format!("blocks.{layer}.mlp.experts.{expert}.{part}");
        let weight = b.weight(&format!("{name}.weight"), &shape, DTYPE)?;
        out = Some(b.expert_linear(&name, x, routing, expert, weight, out)?);
    }
    Ok(out.expect("there are experts"))
}

/// Random weights that follow from their names; norms are near one.
pub(crate) struct Random;

impl Random {
    /// Rows of a weight of `columns` columns, in f32.
    pub(crate) fn rows(name: &str, rows: Range<u64>, columns: u64) -> impl Iterator<Item = f32> + use<> {
        let seed = name.bytes().fold(7, |a: u64, b| (a ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let (middle, spread) = match name {
            _ if name.contains("ln") => (1.0, 0.2),
            "embed.weight" => (0.0, 1.0),
            _ => (0.0, 2.5 / (columns as f32).sqrt()),
        };
        let frequency = name == "rope.inv_freq";
        (rows.start * columns..rows.end * columns).map(move |at| {
            if frequency {
                return 10_000_f32.powf(-(at as f32) / 6.0);
            }
            let mixed = (seed ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
            middle + spread * ((mixed >> 40) as f32 / (1 << 23) as f32 - 1.0)
        })
    }
}

/// Bytes of weights, by name and columns.
type Weights = HashMap<(String, u64), Vec<u8>>;

/// The bytes made so far: the model is loaded thousands of times.
static MADE: LazyLock<Mutex<Weights>> = LazyLock::new(Mutex::default);

impl WeightSource for Random {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let row_bytes = out.len() as u64 / (rows.end - rows.start);
        let columns = row_bytes / 4;
        let mut made = MADE.lock().expect("nothing panics while it makes weights");
        let made = made.entry((name.to_owned(), columns)).or_default();
        let missing = made.len() as u64 / row_bytes..rows.end;
        made.extend(Self::rows(name, missing, columns).flat_map(f32::to_le_bytes));
        out.copy_from_slice(&made[(rows.start * row_bytes) as usize..(rows.end * row_bytes) as usize]);
        Ok(())
    }
}
