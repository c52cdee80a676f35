//! The scalar reference: one loop nest for each operation, accumulating in f64. It defines the results that
//! every device is compared with.

pub(crate) mod routing;

use super::attention::alibi;
use super::data::{
    Add, Argmax, Attention, CopyPages, Embed, Gelu, HeadNorm, KvWrite, LayerNorm, Linear, Part, RmsNorm,
    Rope, RopeTable, SelectRows, SiluMul, first_seen,
};
use super::element::{Element, ElementsMut};
use crate::RopeStyle;

pub(crate) fn embed(op: Embed<'_>) {
    for (r, &token) in op.tokens.iter().enumerate() {
        let Some(row) = op.row_of(token) else { continue };
        for i in 0..op.width {
            op.out[r * op.width + i] = op.table.get(row * op.width + i);
        }
    }
}

pub(crate) fn rope_table(op: RopeTable<'_>) {
    let half = op.inv_freq.len();
    for (r, &position) in op.positions.iter().enumerate() {
        for (i, &inv_freq) in op.inv_freq.iter().enumerate() {
            let (cos, sin) = RopeTable::pair(position, inv_freq, op.scale);
            op.out[r * 2 * half + i] = cos;
            op.out[r * 2 * half + half + i] = sin;
        }
    }
}

pub(crate) fn rms_norm(op: RmsNorm<'_>) {
    for r in 0..op.out.len() / op.width {
        let row = r * op.width..(r + 1) * op.width;
        let x: Vec<f64> = op.x.unwrap_or(op.out)[row.clone()].iter().map(|&x| f64::from(x)).collect();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / op.width as f64;
        let scale = 1.0 / (mean + f64::from(op.eps)).sqrt();
        for (i, out) in op.out[row].iter_mut().enumerate() {
            *out = (x[i] * scale * f64::from(op.weight.get(i))) as f32;
        }
    }
}

pub(crate) fn layer_norm(op: LayerNorm<'_>) {
    for r in 0..op.out.len() / op.width {
        let row = r * op.width..(r + 1) * op.width;
        let mut x: Vec<f64> = op.x.unwrap_or(op.out)[row.clone()].iter().map(|&x| f64::from(x)).collect();
        let mean = x.iter().sum::<f64>() / op.width as f64;
        x.iter_mut().for_each(|x| *x -= mean);
        let variance = x.iter().map(|x| x * x).sum::<f64>() / op.width as f64;
        let scale = 1.0 / (variance + f64::from(op.eps)).sqrt();
        for (i, out) in op.out[row].iter_mut().enumerate() {
            *out = (x[i] * scale * f64::from(op.weight.get(i)) + f64::from(op.bias.get(i))) as f32;
        }
    }
}

pub(crate) fn head_norm(op: HeadNorm<'_>) {
    let HeadNorm { qkv, query, key, eps, heads, kv_heads, head_dim: width } = op;
    for row in qkv.chunks_exact_mut((heads + 2 * kv_heads) * width) {
        let (queries, rest) = row.split_at_mut(heads * width);
        rms_norm(RmsNorm { x: None, weight: query, eps, width, out: queries });
        rms_norm(RmsNorm { x: None, weight: key, eps, width, out: &mut rest[..kv_heads * width] });
    }
}

pub(crate) fn linear(op: Linear<'_>) {
    for (r, x) in op.x.chunks_exact(op.k).enumerate() {
        for j in 0..op.n {
            let mut sum = 0.0;
            for (i, &x) in x.iter().enumerate() {
                sum += f64::from(x) * f64::from(op.weight.get(j * op.k + i));
            }
            let bias = op.bias.map_or(0.0, |bias| f64::from(bias.get(j)));
            op.out[r * op.out_width + op.out_column + j] = (sum + bias) as f32;
        }
    }
}

pub(crate) fn rope(op: Rope<'_>) {
    let (half, width) = (op.rotary_dim / 2, (op.heads + 2 * op.kv_heads) * op.head_dim);
    for (r, table) in op.table.chunks_exact(op.rotary_dim).enumerate() {
        for head in 0..op.heads + op.kv_heads {
            let start = r * width + head * op.head_dim;
            for i in 0..half {
                let (first, second) = match op.style {
                    RopeStyle::Half => (start + i, start + half + i),
                    RopeStyle::Interleaved => (start + 2 * i, start + 2 * i + 1),
                };
                let (a, b) = (f64::from(op.qkv[first]), f64::from(op.qkv[second]));
                let (cos, sin) = (f64::from(table[i]), f64::from(table[half + i]));
                op.qkv[first] = (a * cos - b * sin) as f32;
                op.qkv[second] = (b * cos + a * sin) as f32;
            }
        }
    }
}

pub(crate) fn kv_write(mut op: KvWrite<'_>) {
    let layout = op.layout;
    let width = (op.heads + 2 * layout.kv_heads) * layout.head_dim;
    let mut write = |to: usize, x: f32| match &mut op.pages {
        ElementsMut::F32(pages) => pages[to] = Element::narrow(x),
        ElementsMut::F16(pages) => pages[to] = Element::narrow(x),
        ElementsMut::BF16(pages) => pages[to] = Element::narrow(x),
    };
    for (r, (&sequence, &position)) in op.row_seq.iter().zip(op.positions).enumerate() {
        for head in 0..layout.kv_heads {
            for (part, first) in [(Part::Keys, op.heads), (Part::Values, op.heads + layout.kv_heads)] {
                let from = r * width + (first + head) * layout.head_dim;
                let to = layout.offset(sequence as usize, position as usize, part, head);
                for i in 0..layout.head_dim {
                    write(to + i, op.qkv[from + i]);
                }
            }
        }
    }
}

pub(crate) fn attention(op: Attention<'_>) {
    let (layout, dim) = (op.layout, op.layout.head_dim);
    let (width, group) = ((op.heads + 2 * layout.kv_heads) * dim, op.heads / layout.kv_heads);
    for (r, (&sequence, &position)) in op.row_seq.iter().zip(op.positions).enumerate() {
        for head in 0..op.heads {
            let query = &op.qkv[r * width + head * dim..][..dim];
            let at = |position, part| layout.offset(sequence as usize, position, part, head / group);
            let slope = if op.alibi { alibi::slope(head, op.heads) } else { 0.0 };
            let first = first_seen(op.window, position as usize);
            let mut weights = Vec::new();
            for p in first..=position as usize {
                let key = at(p, Part::Keys);
                let products =
                    query.iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(op.pages.get(key + i)));
                let bias = f64::from(alibi::bias(slope, p));
                weights.push((products.sum::<f64>() + bias) * f64::from(op.scale));
            }
            let largest = weights.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            weights.iter_mut().for_each(|w| *w = (*w - largest).exp());
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; dim];
            for (p, weight) in (first..).zip(&weights) {
                let value = at(p, Part::Values);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum += weight * f64::from(op.pages.get(value + i));
                }
            }
            for (out, sum) in op.out[(r * op.heads + head) * dim..].iter_mut().zip(sums) {
                *out = (sum / total) as f32;
            }
        }
    }
}

pub(crate) fn silu_mul(op: SiluMul<'_>) {
    for (x, out) in op.x.chunks_exact(2 * op.width).zip(op.out.chunks_exact_mut(op.width)) {
        for i in 0..op.width {
            let gate = f64::from(x[i]);
            out[i] = (gate / (1.0 + (-gate).exp()) * f64::from(x[op.width + i])) as f32;
        }
    }
}

pub(crate) fn gelu(op: Gelu<'_>) {
    for i in 0..op.out.len() {
        let x = f64::from(op.x.unwrap_or(op.out)[i]);
        let both = match op.form {
            crate::Gelu::Erf => 1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2),
            // 1 + tanh(y), written so that nothing cancels.
            crate::Gelu::Tanh => {
                let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                2.0 / (1.0 + (-2.0 * y).exp())
            }
        };
        op.out[i] = (0.5 * x * both) as f32;
    }
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

pub(crate) fn add(op: Add<'_>) {
    for i in 0..op.out.len() {
        let (a, b) = (op.a.unwrap_or(op.out)[i], op.b.unwrap_or(op.out)[i]);
        op.out[i] = a + b;
    }
}

pub(crate) fn select_rows(op: SelectRows<'_>) {
    for (&index, out) in op.indices.iter().zip(op.out.chunks_exact_mut(op.width)) {
        out.copy_from_slice(&op.x[index as usize * op.width..][..op.width]);
    }
}

pub(crate) fn argmax(op: Argmax<'_>) {
    for (x, out) in op.x.chunks_exact(op.width).zip(op.out) {
        let mut best = None;
        for (i, &x) in x.iter().enumerate() {
            if !x.is_nan() && best.is_none_or(|(greatest, _)| x > greatest) {
                best = Some((x, i as u32));
            }
        }
        *out = best.map_or(0, |(_, i)| i);
    }
}

pub(crate) fn copy_pages(op: CopyPages<'_>) {
    for i in 0..op.count {
        let (from, to) = op.ends(i);
        op.dst[to..][..op.page_bytes].copy_from_slice(&op.src[from..][..op.page_bytes]);
    }
}

/// See [`crate::args::Checksum`].
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0_u64;
    for (index, chunk) in bytes.chunks(4).enumerate() {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = sum.wrapping_add(mix(u64::from(u32::from_le_bytes(word)) ^ mix(index as u64)));
    }
    sum
}

/// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014; Stafford's variant 13 of the constants).
#[inline(always)]
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
