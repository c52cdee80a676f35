//! The reference against results worked out by hand: every other path is only compared with it.

use super::*;
use crate::kernels::data::KvLayout;
use crate::kernels::element::Elements;
use half::{bf16, f16};

const UNTOUCHED: f32 = -77.0;

/// Two layers, one head of two elements, pages of two tokens: eight elements of each layer.
fn layout(page_table: &[u32]) -> KvLayout<'_> {
    KvLayout {
        page_elements: 16,
        page_tokens: 2,
        layer: 1,
        kv_heads: 1,
        head_dim: 2,
        page_table,
        table_width: 2,
    }
}

#[test]
fn embed_takes_rows_of_its_tile_only() {
    let mut out = [UNTOUCHED; 8];
    let table = [1.0, 2.0, 3.0, 4.0].map(bf16::from_f32);
    let table = Elements::BF16(&table);
    embed(Embed { tokens: &[6, 4, 7, 5], table, first_row: 5, table_rows: 2, width: 2, out: &mut out });
    assert_eq!(out, [3.0, 4.0, UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, 1.0, 2.0]);
}

#[test]
fn rope_table_has_cosines_then_sines() {
    let mut out = [UNTOUCHED; 8];
    let half_turn = std::f32::consts::PI / 3.0;
    rope_table(RopeTable { positions: &[0, 3], inv_freq: &[half_turn, 0.5], scale: 2.0, out: &mut out });
    let want = [2.0, 2.0, 0.0, 0.0, -2.0, 2.0 * 0.070_737_2, 0.0, 2.0 * 0.997_495];
    assert!(out.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let weight = [1.0, -2.0].map(f16::from_f32);
    let mut out = [1.0, 7.0];
    // Means of squares 25 and 12.5.
    rms_norm(RmsNorm { x: None, weight: Elements::F16(&weight), eps: 11.0, width: 2, out: &mut out });
    let want = [1.0 / 6.0, -14.0 / 6.0];
    assert!(out.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
    rms_norm(RmsNorm {
        x: Some(&[3.0, 4.0]),
        weight: Elements::F16(&weight),
        eps: 23.5,
        width: 2,
        out: &mut out,
    });
    assert_eq!(out, [0.5, -4.0 / 3.0]);
}

#[test]
fn linear_writes_its_columns() {
    let mut out = [UNTOUCHED; 6];
    linear(Linear {
        x: &[1.0, 2.0, 3.0, 4.0],
        weight: Elements::F32(&[10.0, 1.0, 0.5, -1.0]),
        bias: Some(Elements::F32(&[100.0, 0.0])),
        k: 2,
        n: 2,
        out_width: 3,
        out_column: 1,
        out: &mut out,
    });
    assert_eq!(out, [UNTOUCHED, 112.0, -1.5, UNTOUCHED, 134.0, -2.5]);
}

#[test]
fn rope_pairs_elements_by_style() {
    // One query, one key and one value head of four elements, all rotated by a quarter turn and by none.
    let table = [0.0, 1.0, 1.0, 0.0];
    let row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
    let rotated = |style| {
        let mut qkv = row;
        rope(Rope { qkv: &mut qkv, table: &table, heads: 1, kv_heads: 1, head_dim: 4, rotary_dim: 4, style });
        assert_eq!(qkv[8..], row[8..]);
        qkv
    };
    assert_eq!(rotated(RopeStyle::Half)[..8], [-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]);
    assert_eq!(rotated(RopeStyle::Interleaved)[..8], [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
}

#[test]
fn kv_write_rounds_into_the_layer_s_slots() {
    let mut pages = [bf16::from_f32(UNTOUCHED); 48];
    // Sequence 1 at position 3: its second page, page 2, second slot. bf16 has steps of 1/128 above 1, so
    // that the values with /256 are ties; they go to even multiples.
    kv_write(KvWrite {
        qkv: &[9.0, 9.0, 1.25, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.1],
        pages: ElementsMut::BF16(&mut pages),
        layout: layout(&[0, 0, 1, 2]),
        row_seq: &[1],
        positions: &[3],
        heads: 1,
    });
    for (i, x) in pages.iter().enumerate() {
        let want = match i {
            42 => 1.25,
            43 => 1.0,
            46 => 1.0 + 4.0 / 256.0,
            47 => -0.100_097_656,
            _ => UNTOUCHED,
        };
        assert_eq!(x.to_f32(), bf16::from_f32(want).to_f32(), "element {i}");
    }
}

#[test]
fn kv_write_keeps_f32_as_it_is() {
    let mut pages = [UNTOUCHED; 32];
    kv_write(KvWrite {
        qkv: &[0.0, 0.0, 0.3, 0.7, 1.5, -2.5],
        pages: ElementsMut::F32(&mut pages),
        layout: layout(&[1, 0]),
        row_seq: &[0],
        positions: &[0],
        heads: 1,
    });
    assert_eq!(pages[24..26], [0.3, 0.7]);
    assert_eq!(pages[28..30], [1.5, -2.5]);
    assert!(pages.iter().filter(|&&x| x != UNTOUCHED).count() == 4);
}

#[test]
fn attention_weighs_values_by_softmax_up_to_the_row() {
    let mut pages = [f32::NAN; 48];
    // Keys and values of positions 0 and 1 in page 1 of layer 1, of position 2 in page 0.
    pages[24..32].copy_from_slice(&[1.0, 0.0, 0.0, 1.0, 10.0, 1.0, 20.0, 2.0]);
    pages[8..10].copy_from_slice(&[5.0, 5.0]);
    pages[12..14].copy_from_slice(&[40.0, 4.0]);
    let scored = |window, alibi, heads: usize, query: &[f32], position| {
        let mut out = vec![UNTOUCHED; heads * 2];
        let mut qkv = query.to_vec();
        qkv.extend([f32::NAN; 4]);
        attention(Attention {
            qkv: &qkv,
            pages: Elements::F32(&pages),
            layout: layout(&[1, 0]),
            row_seq: &[0],
            positions: &[position],
            heads,
            scale: 2.0,
            window,
            alibi,
            out: &mut out,
        });
        out
    };
    let run = |heads, query: &[f32], position| scored(None, false, heads, query, position);
    assert_eq!(run(1, &[3.0, 3.0], 0), [10.0, 1.0]);
    assert_eq!(run(1, &[3.0, 3.0], 1), [15.0, 1.5]);
    assert_eq!(run(1, &[0.0, 0.0], 2), [70.0 / 3.0, 7.0 / 3.0].map(|x: f64| x as f32));
    // Scores 0 and ln 3: weights 1/4 and 3/4. The second query head shares the key head.
    let log = 3_f32.ln() / 2.0;
    let got = run(2, &[0.0, log, 3.0, 3.0], 1);
    assert!(got.iter().zip([17.5, 1.75, 15.0, 1.5]).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?}");
    // The last position alone, the last two, and all.
    assert_eq!(scored(Some(1), false, 1, &[3.0, 3.0], 2), [40.0, 4.0]);
    assert_eq!(scored(Some(2), false, 1, &[0.0, 0.0], 2), [30.0, 3.0]);
    assert_eq!(scored(Some(3), false, 1, &[0.0, 0.0], 2), run(1, &[0.0, 0.0], 2));
    // One head's slope is 1/256: scores 0 and 2/256, at most.
    let odds = (2.0_f64 / 256.0).exp();
    let got = scored(None, true, 1, &[0.0, 0.0], 1);
    let want = [(10.0 + 20.0 * odds) / (1.0 + odds), (1.0 + 2.0 * odds) / (1.0 + odds)];
    assert!(got.iter().zip(want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{got:?}");
}

#[test]
fn layer_norm_divides_by_the_root_of_the_variance() {
    let (weight, bias) = ([1.0, 2.0].map(f16::from_f32), [0.5, -1.0].map(bf16::from_f32));
    let (weight, bias) = (Elements::F16(&weight), Elements::BF16(&bias));
    let mut out = [3.0, 7.0];
    // Means 5 and 0, variances 4 and 16.
    layer_norm(LayerNorm { x: None, weight, bias, eps: 12.0, width: 2, out: &mut out });
    assert_eq!(out, [0.0, 0.0]);
    layer_norm(LayerNorm { x: Some(&[-4.0, 4.0]), weight, bias, eps: 0.0, width: 2, out: &mut out });
    assert_eq!(out, [-0.5, 1.0]);
}

/// From Python's `math.erf`.
const ERF: [(f64, f64); 17] = [
    (0.0, 0.0),
    (1e-8, 1.128_379_167_095_512_6e-8),
    (0.001, 0.001_128_378_790_969_236_5),
    (0.1, 0.112_462_916_018_284_9),
    (0.25, 0.276_326_390_168_236_9),
    (0.5, 0.520_499_877_813_046_5),
    (0.75, 0.711_155_633_653_515_1),
    (1.0, 0.842_700_792_949_714_9),
    (1.25, 0.922_900_128_256_458_2),
    (1.5, 0.966_105_146_475_310_8),
    (2.0, 0.995_322_265_018_952_7),
    (2.5, 0.999_593_047_982_555),
    (3.0, 0.999_977_909_503_001_4),
    (3.5, 0.999_999_256_901_627_6),
    (4.0, 0.999_999_984_582_742_1),
    (5.0, 0.999_999_999_998_462_6),
    (7.0, 1.0),
];

#[test]
fn the_error_function_is_that_of_other_libraries() {
    for (x, want) in ERF {
        assert!((erf(x) - want).abs() < 1e-15, "erf({x}) is {}", erf(x));
        assert_eq!(erf(-x), -erf(x));
    }
}

#[test]
fn gelu_has_two_forms() {
    let run = |form| {
        let mut out = [UNTOUCHED; 4];
        gelu(Gelu { x: Some(&[0.0, 1.0, -2.0, -100.0]), form, out: &mut out });
        out
    };
    // From x Φ(x), and from the formula with tanh, in Python.
    assert_eq!(run(crate::Gelu::Erf), [0.0, 0.841_344_8, -0.045_500_264, -0.0]);
    assert_eq!(run(crate::Gelu::Tanh), [0.0, 0.841_192, -0.045_402_307, -0.0]);
    let mut out = [1.0];
    gelu(Gelu { x: None, form: crate::Gelu::Erf, out: &mut out });
    assert_eq!(out, [0.841_344_8]);
}

#[test]
fn small_ones() {
    let mut out = [UNTOUCHED; 2];
    silu_mul(SiluMul { x: &[0.0, 3_f32.ln(), 5.0, 8.0], width: 2, out: &mut out });
    assert_eq!(out[0], 0.0);
    assert!((out[1] - 6.0 * 3_f32.ln()).abs() < 1e-5);
    add(Add { a: Some(&[1.0, 2.0]), b: None, out: &mut out });
    assert_eq!(out[0], 1.0);
    add(Add { a: Some(&[1.0, 2.0]), b: Some(&[0.5, 0.25]), out: &mut out });
    assert_eq!(out, [1.5, 2.25]);
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut out = [UNTOUCHED; 4];
    select_rows(SelectRows { x: &x, indices: &[2, 0], width: 2, out: &mut out });
    assert_eq!(out, [5.0, 6.0, 1.0, 2.0]);
}

#[test]
fn checksum_is_as_documented() {
    assert_eq!(mix(0), 0);
    // The first output of SplitMix64 seeded with 0 is the finaliser of the golden gamma.
    assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    assert_eq!(checksum(&[]), 0);
    assert_eq!(checksum(&[1]), mix(1));
    assert_eq!(checksum(&[1, 0, 0, 0, 7, 0, 1]), mix(1).wrapping_add(mix(0x1_0007 ^ mix(1))));
}

#[test]
fn argmax_is_the_first_greatest_number() {
    let mut out = [7; 3];
    let x = [1.0, 3.0, 3.0, f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::NAN, f32::NAN, f32::NAN];
    argmax(Argmax { x: &x, width: 3, out: &mut out });
    assert_eq!(out, [1, 1, 0]);
}

#[test]
fn pages_go_where_the_lists_say() {
    let src: Vec<u8> = (0..8).collect();
    let copy = |src_pages, dst_pages| {
        let mut dst = vec![99; 8];
        copy_pages(CopyPages { src: &src, dst: &mut dst, src_pages, dst_pages, page_bytes: 2, count: 2 });
        dst
    };
    assert_eq!(copy(Some(&[3, 1]), None), [6, 7, 2, 3, 99, 99, 99, 99]);
    assert_eq!(copy(None, Some(&[2, 0])), [2, 3, 99, 99, 0, 1, 99, 99]);
    assert_eq!(copy(Some(&[1, 1]), Some(&[3, 2])), [99, 99, 99, 99, 2, 3, 2, 3]);
    assert_eq!(copy(None, None), [0, 1, 2, 3, 99, 99, 99, 99]);
}
