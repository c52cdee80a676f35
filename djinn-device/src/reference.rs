//! The scalar reference: for each operation, plain loops that sum in f64. They define the results that every device is
//! compared with, and the bytes that an operation writes.

pub mod alibi;
pub(crate) mod choice;
mod routing;
#[cfg(test)]
mod tests;
mod vectors;

use crate::args::{
    Add, Attention, Checksum, EditRows, Embed, Gelu, HeadNorm, KvPages, KvWrite, LayerNorm, Linear, RmsNorm,
    Rope, RopeTable, SelectRows, SiluMul, Weight,
};
use crate::{DType, Encoding, GeluForm, Operation, RopeStyle, Span};
use choice::choose;
use djinn_srg::lossless_row;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use routing::{combine, copy_expert, expert_linear, group, route};
use std::borrow::Cow;
pub use vectors::{decode_vectors, encode_vectors};

/// Memory that operations read.
pub trait Contents {
    /// The bytes of a span.
    fn bytes(&self, span: Span) -> &[u8];
}

/// The result of an operation in some of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where.
    pub span: Span,
    /// The new bytes.
    pub bytes: Vec<u8>,
    /// Whether devices give exactly these bytes. Otherwise they are f32 up to rounding.
    pub exact: bool,
}

impl Written {
    fn exact(span: Span, bytes: Vec<u8>) -> Self {
        Written { span, bytes, exact: true }
    }

    fn words(span: Span, words: &[u32]) -> Self {
        Written::exact(span, words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// f32 up to rounding, from element `first` of `span` on.
    fn floats(span: Span, first: usize, floats: &[f32]) -> Self {
        let span = span.slice(first as u64 * 4, floats.len() as u64 * 4);
        Written { span, bytes: encode(floats, DType::F32), exact: false }
    }
}

macro_rules! dispatch {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        /// The results of an operation on the present memory.
        ///
        /// # Panics
        /// If an index that it reads is out of range.
        pub fn written(operation: &Operation, memory: &dyn Contents) -> Vec<Written> {
            match operation {
                $(Operation::$Args(args) => $op(args, Reader(memory)),)*
            }
        }
    };
}

crate::for_each_op!(dispatch);

/// Values in the bytes of f32, f16 or bf16, rounded to nearest, ties to even.
///
/// # Panics
/// If the type is another.
pub fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => bytes_of(values.iter().map(|x| x.to_le_bytes())),
        DType::F16 => bytes_of(halves::<f16>(values).iter().map(|x| x.to_le_bytes())),
        DType::BF16 => bytes_of(halves::<bf16>(values).iter().map(|x| x.to_le_bytes())),
        DType::Int8 | DType::U32 => panic!("{dtype} has no numbers of its own"),
    }
}

/// All numbers in 16 bits, rounded several at once.
fn halves<H: Copy + Default>(values: &[f32]) -> Vec<H>
where
    [H]: HalfFloatSliceExt,
{
    let mut rounded = vec![H::default(); values.len()];
    rounded.convert_from_f32_slice(values);
    rounded
}

/// The bytes of all elements. Checks encode hundreds of megabytes: byte by byte it would take most of their time.
fn bytes_of<const N: usize>(elements: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    elements.collect::<Vec<_>>().into_flattened()
}

/// Typed reads.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a dyn Contents);

impl<'a> Reader<'a> {
    fn words(self, span: Span) -> Vec<u32> {
        let (words, _) = self.0.bytes(span).as_chunks::<4>();
        words.iter().map(|&word| u32::from_le_bytes(word)).collect()
    }

    fn floats(self, span: Span) -> Vec<f32> {
        self.words(span).into_iter().map(f32::from_bits).collect()
    }

    fn elements(self, span: Span, dtype: DType) -> Elements<'a> {
        Elements { bytes: self.0.bytes(span).into(), dtype }
    }

    /// The elements of a matrix with this many columns. Those of blocks are decoded to f32.
    fn matrix(self, weight: Weight, columns: u32) -> Elements<'a> {
        match weight.encoding {
            Encoding::Lossless => {
                let (form, row) = lossless_row(weight.dtype, columns.into()).expect("checked sizes");
                let rows = self.0.bytes(weight.span).chunks_exact(row.bytes());
                let mut values = vec![0; rows.len() * row.columns() * 2];
                for (encoded, values) in rows.zip(values.chunks_exact_mut(row.columns() * 2)) {
                    row.decode(form, encoded, values);
                }
                Elements { bytes: values.into(), dtype: weight.dtype }
            }
            Encoding::Blocks(format) => {
                let bytes = [
                    weight.encoding.row_bytes(weight.dtype, columns.into()),
                    format.blocks_bytes(columns.into()),
                ];
                let [row, blocks] = bytes.map(|bytes| bytes.expect("checked sizes") as usize);
                let rows = self.0.bytes(weight.span).chunks_exact(row);
                let mut values = vec![0.0; rows.len() * columns as usize];
                for (row, values) in rows.zip(values.chunks_exact_mut(columns as usize)) {
                    format.decode(&row[..blocks], values);
                }
                Elements { bytes: encode(&values, DType::F32).into(), dtype: DType::F32 }
            }
            _ => self.elements(weight.span, weight.dtype),
        }
    }

    /// A key or value of one head, whose elements and scale lie apart.
    fn vector(self, (elements, scale): (Span, Option<Span>), dtype: DType, dim: usize) -> Vec<f32> {
        let elements = self.0.bytes(elements);
        match scale {
            Some(scale) => decode_vectors(&[elements, self.0.bytes(scale)].concat(), dtype, dim),
            None => decode_vectors(elements, dtype, dim),
        }
    }

    /// All elements of a weight.
    fn weight(self, weight: Weight) -> Vec<f64> {
        let count = weight.span.len() / weight.dtype.bytes();
        self.elements(weight.span, weight.dtype).range(0, count as usize)
    }
}

/// Elements of any type.
struct Elements<'a> {
    bytes: Cow<'a, [u8]>,
    dtype: DType,
}

impl Elements<'_> {
    fn range(&self, first: usize, count: usize) -> Vec<f64> {
        let size = self.dtype.bytes() as usize;
        let bytes = &self.bytes[first * size..(first + count) * size];
        let (halves, words) = (bytes.as_chunks::<2>().0, bytes.as_chunks::<4>().0);
        match self.dtype {
            DType::F32 => words.iter().map(|&x| f32::from_le_bytes(x).into()).collect(),
            DType::F16 => halves.iter().map(|&x| f16::from_le_bytes(x).into()).collect(),
            DType::BF16 => halves.iter().map(|&x| bf16::from_le_bytes(x).into()).collect(),
            other => panic!("{other} is no type of weights"),
        }
    }
}

fn embed(op: &Embed, memory: Reader<'_>) -> Vec<Written> {
    let (table, width) = (memory.matrix(op.table, op.width), op.width as usize);
    // Devices may round what blocks stand for.
    let exact = !matches!(op.table.encoding, Encoding::Blocks(_));
    let mut written = Vec::new();
    for (r, token) in memory.words(op.tokens).into_iter().enumerate() {
        let row = token.checked_sub(op.first_row).filter(|&row| row < op.table_rows);
        let Some(row) = row else { continue };
        let row: Vec<f32> = table.range(row as usize * width, width).into_iter().map(|x| x as f32).collect();
        written.push(Written { exact, ..Written::floats(op.out, r * width, &row) });
    }
    written
}

fn rope_table(op: &RopeTable, memory: Reader<'_>) -> Vec<Written> {
    let (inv_freq, mut out) = (memory.floats(op.inv_freq), Vec::new());
    for position in memory.words(op.positions) {
        let pairs: Vec<_> = inv_freq.iter().map(|&freq| RopeTable::pair(position, freq, op.scale)).collect();
        out.extend(pairs.iter().map(|(cos, _)| *cos).chain(pairs.iter().map(|(_, sin)| *sin)));
    }
    vec![Written::floats(op.out, 0, &out)]
}

/// Rows of `x`, divided by the root of their mean square and times the weight.
fn normalised(x: &[f32], weight: &[f64], eps: f32) -> Vec<f32> {
    let rows = x.chunks_exact(weight.len()).map(|row| {
        let mean = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter().zip(weight).map(move |(&x, weight)| (f64::from(x) * scale * weight) as f32)
    });
    rows.flatten().collect()
}

fn rms_norm(op: &RmsNorm, memory: Reader<'_>) -> Vec<Written> {
    let out = normalised(&memory.floats(op.x), &memory.weight(op.weight), op.eps);
    vec![Written::floats(op.out, 0, &out)]
}

fn layer_norm(op: &LayerNorm, memory: Reader<'_>) -> Vec<Written> {
    let (weight, bias, mut out) = (memory.weight(op.weight), memory.weight(op.bias), Vec::new());
    for row in memory.floats(op.x).chunks_exact(op.width as usize) {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
        let x: Vec<f64> = row.iter().map(|&x| f64::from(x) - mean).collect();
        let variance = x.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (variance + f64::from(op.eps)).sqrt();
        out.extend(
            x.iter().zip(&weight).zip(&bias).map(|((x, weight), bias)| (x * scale * weight + bias) as f32),
        );
    }
    vec![Written::floats(op.out, 0, &out)]
}

fn head_norm(op: &HeadNorm, memory: Reader<'_>) -> Vec<Written> {
    let [heads, kv_heads, dim] = [op.heads, op.kv_heads, op.head_dim].map(|n| n as usize);
    let (query, key) = (memory.weight(op.query), memory.weight(op.key));
    let (qkv, width) = (memory.floats(op.qkv), (heads + 2 * kv_heads) * dim);
    let rows = qkv.chunks_exact(width).enumerate().map(|(r, row)| {
        let (queries, rest) = row.split_at(heads * dim);
        let keys = normalised(&rest[..kv_heads * dim], &key, op.eps);
        Written::floats(op.qkv, r * width, &[normalised(queries, &query, op.eps), keys].concat())
    });
    rows.collect()
}

/// Columns that are summed side by side: one sum alone would wait for each of its additions. Each keeps its order.
const COLUMNS: usize = 16;

/// Each row of `x[_, k]` times all rows of `weight[n, k]`, plus `bias[n]`.
#[allow(
    clippy::needless_range_loop,
    reason = "incremental builds do not inline the iterators, nor vectorise them"
)]
fn products(x: &[f32], weight: &Elements<'_>, bias: Option<Vec<f64>>, k: usize, n: usize) -> Vec<Vec<f32>> {
    let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let mut out = vec![vec![0.0; n]; x.len() / k];
    // The weights of a tile's columns, for each element of a row. Sums of columns beyond the last are not used.
    let mut tile = vec![[0.0; COLUMNS]; k];
    for first in (0..n).step_by(COLUMNS) {
        let columns = COLUMNS.min(n - first);
        for c in 0..columns {
            let column = weight.range((first + c) * k, k);
            tile.iter_mut().zip(column).for_each(|(elements, element)| elements[c] = element);
        }
        for (x, out) in x.chunks_exact(k).zip(&mut out) {
            let mut sums = [0.0; COLUMNS];
            for (x, elements) in x.iter().zip(&tile) {
                for c in 0..COLUMNS {
                    sums[c] += x * elements[c];
                }
            }
            for (c, sum) in sums[..columns].iter().enumerate() {
                let bias = bias.as_ref().map_or(0.0, |bias| bias[first + c]);
                out[first + c] = (sum + bias) as f32;
            }
        }
    }
    out
}

fn linear(op: &Linear, memory: Reader<'_>) -> Vec<Written> {
    let (weight, bias) = (memory.matrix(op.weight, op.k), op.bias.map(|bias| memory.weight(bias)));
    let rows =
        products(&memory.floats(op.x), &weight, bias, op.k as usize, op.n as usize).into_iter().enumerate();
    let at = |r| r * op.out_width as usize + op.out_column as usize;
    rows.map(|(r, row)| Written::floats(op.out, at(r), &row)).collect()
}

fn rope(op: &Rope, memory: Reader<'_>) -> Vec<Written> {
    let [heads, kv_heads, dim, rotary] =
        [op.heads, op.kv_heads, op.head_dim, op.rotary_dim].map(|n| n as usize);
    let (qkv, width, half) = (memory.floats(op.qkv), (heads + 2 * kv_heads) * dim, rotary / 2);
    let mut written = Vec::new();
    for (r, table) in memory.floats(op.table).chunks_exact(rotary).enumerate() {
        for head in 0..heads + kv_heads {
            let start = r * width + head * dim;
            let mut x = qkv[start..start + rotary].to_vec();
            for i in 0..half {
                let (first, second) = match op.style {
                    RopeStyle::Half => (i, half + i),
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (f64::from(x[first]), f64::from(x[second]));
                let (cos, sin) = (f64::from(table[i]), f64::from(table[half + i]));
                (x[first], x[second]) = ((a * cos - b * sin) as f32, (b * cos + a * sin) as f32);
            }
            written.push(Written::floats(op.qkv, start, &x));
        }
    }
    written
}

/// Where the keys (`part` 0) or values (1) of a head at a position of a sequence lie in the pages: elements, and their
/// scale if the type has one.
fn vector(
    kv: &KvPages,
    table: &[u32],
    [sequence, position]: [u32; 2],
    part: u32,
    head: u32,
) -> (Span, Option<Span>) {
    let (column, slot) = (position / kv.page_tokens, position % kv.page_tokens);
    assert!(column < kv.table_width, "position {position} lies past {} pages", kv.table_width);
    let page = u64::from(table[(sequence * kv.table_width + column) as usize]);
    let plane = page * kv.page_bytes + kv.offset + u64::from(part * kv.kv_heads + head) * kv.plane_bytes();
    let (bytes, scale_bytes) = (u64::from(kv.head_dim) * kv.dtype.bytes(), kv.dtype.scale_bytes());
    let scales = plane + u64::from(kv.page_tokens) * bytes;
    let scale =
        (scale_bytes > 0).then(|| kv.pages.slice(scales + u64::from(slot) * scale_bytes, scale_bytes));
    (kv.pages.slice(plane + u64::from(slot) * bytes, bytes), scale)
}

fn kv_write(op: &KvWrite, memory: Reader<'_>) -> Vec<Written> {
    let (qkv, dim, mut written) = (memory.floats(op.qkv), op.kv.head_dim as usize, Vec::new());
    let (table, row_seq) = (memory.words(op.kv.page_table), memory.words(op.row_seq));
    let rows = row_seq.into_iter().zip(memory.words(op.positions));
    for (row, (sequence, position)) in qkv.chunks_exact(qkv.len() / op.rows as usize).zip(rows) {
        for (i, x) in row[op.heads as usize * dim..].chunks_exact(dim).enumerate() {
            let (part, head) = (i as u32 / op.kv.kv_heads, i as u32 % op.kv.kv_heads);
            let (elements, scale) = vector(&op.kv, &table, [sequence, position], part, head);
            let mut bytes = encode_vectors(x, op.kv.dtype, dim);
            let scale_bytes = bytes.split_off(elements.len() as usize);
            written.push(Written::exact(elements, bytes));
            written.extend(scale.map(|scale| Written::exact(scale, scale_bytes)));
        }
    }
    written
}

fn attention(op: &Attention, memory: Reader<'_>) -> Vec<Written> {
    let (qkv, dim, group) = (memory.floats(op.qkv), op.kv.head_dim as usize, op.heads / op.kv.kv_heads);
    let (table, row_seq) = (memory.words(op.kv.page_table), memory.words(op.row_seq));
    let rows = row_seq.into_iter().zip(memory.words(op.positions));
    let mut out = Vec::new();
    for (row, (sequence, position)) in qkv.chunks_exact(qkv.len() / op.rows as usize).zip(rows) {
        let first = op.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for kv_head in 0..op.kv.kv_heads {
            let vectors = |part| {
                let at = |p| vector(&op.kv, &table, [sequence, p], part, kv_head);
                (first..=position).map(|p| memory.vector(at(p), op.kv.dtype, dim)).collect::<Vec<_>>()
            };
            let (keys, values) = (vectors(0), vectors(1));
            for head in (kv_head * group) as usize..((kv_head + 1) * group) as usize {
                let query = &row[head * dim..][..dim];
                let slope = if op.alibi { alibi::slope(head, op.heads as usize) } else { 0.0 };
                let mut weights = Vec::new();
                for (p, key) in (first..).zip(&keys) {
                    let product: f64 =
                        query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    weights.push((product + f64::from(alibi::bias(slope, p as usize))) * f64::from(op.scale));
                }
                let largest = weights.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; dim];
                for (weight, value) in weights.iter().zip(&values) {
                    sums.iter_mut().zip(value).for_each(|(sum, &value)| *sum += weight * f64::from(value));
                }
                out.extend(sums.iter().map(|sum| (sum / total) as f32));
            }
        }
    }
    vec![Written::floats(op.out, 0, &out)]
}

fn silu_mul(op: &SiluMul, memory: Reader<'_>) -> Vec<Written> {
    let mut out = Vec::new();
    for row in memory.floats(op.x).chunks_exact(2 * op.width as usize) {
        let (gates, up) = row.split_at(op.width as usize);
        out.extend(gates.iter().zip(up).map(|(&gate, &up)| {
            let gate = f64::from(gate);
            (gate / (1.0 + (-gate).exp()) * f64::from(up)) as f32
        }));
    }
    vec![Written::floats(op.out, 0, &out)]
}

fn gelu(op: &Gelu, memory: Reader<'_>) -> Vec<Written> {
    let of = |x: f32| {
        let x = f64::from(x);
        let both = match op.form {
            GeluForm::Erf => 1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2),
            // 1 + tanh(y), written so that nothing cancels.
            GeluForm::Tanh => {
                let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                2.0 / (1.0 + (-2.0 * y).exp())
            }
        };
        (0.5 * x * both) as f32
    };
    let out: Vec<f32> = memory.floats(op.x).into_iter().map(of).collect();
    vec![Written::floats(op.out, 0, &out)]
}

/// The error function, to 1e-15: the series of Abramowitz & Stegun 7.1.6, whose terms all have one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn add(op: &Add, memory: Reader<'_>) -> Vec<Written> {
    let (a, b) = (memory.floats(op.a), memory.floats(op.b));
    let sums: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
    vec![Written { exact: true, ..Written::floats(op.out, 0, &sums) }]
}

fn select_rows(op: &SelectRows, memory: Reader<'_>) -> Vec<Written> {
    let (x, row) = (memory.0.bytes(op.x), op.width as usize * 4);
    let rows = memory.words(op.indices).into_iter().flat_map(|index| &x[index as usize * row..][..row]);
    vec![Written::exact(op.out, rows.copied().collect())]
}

fn edit_rows(op: &EditRows, memory: Reader<'_>) -> Vec<Written> {
    let (x, add) = (memory.floats(op.x), memory.floats(op.add));
    let direction = if op.along == 0.0 { vec![] } else { memory.floats(op.direction) };
    let (width, x_width) = (op.width as usize, op.x_width as usize);
    let row = |(index, add): (u32, &[f32])| {
        let first = index as usize * x_width + op.column as usize;
        let y = &x[first..first + width];
        let dot: f64 = y.iter().zip(&direction).map(|(&y, &d)| f64::from(y) * f64::from(d)).sum();
        let element = |at: usize| {
            let direction = direction.get(at).copied().unwrap_or(0.0);
            op.element(y[at], dot as f32, direction, add[at])
        };
        let edited: Vec<f32> = (0..width).map(element).collect();
        let written = Written::floats(op.x, first, &edited);
        // Sums along a direction depend on their order.
        Written { exact: op.along == 0.0, ..written }
    };
    memory.words(op.indices).into_iter().zip(add.chunks_exact(width).cycle()).map(row).collect()
}

fn checksum(op: &Checksum, memory: Reader<'_>) -> Vec<Written> {
    vec![Written::exact(op.out, crate::checksum(memory.0.bytes(op.src)).to_le_bytes().to_vec())]
}
