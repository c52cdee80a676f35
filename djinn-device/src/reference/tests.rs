//! The reference against results worked out by hand: every device is only compared with it.

use super::*;
use crate::args::{Combine, CopyExpert, CpuSlots, Group, Route};
use crate::{Buffer, Space};
use proptest::prelude::*;

const UNTOUCHED: f32 = -77.0;

/// Buffers by their ids.
#[derive(Default)]
struct Memory(Vec<Vec<u8>>);

impl Contents for Memory {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.buffer().id() as usize][span.offset() as usize..][..span.len() as usize]
    }
}

impl Memory {
    fn put(&mut self, bytes: Vec<u8>) -> Span {
        let buffer = Buffer::from_raw(self.0.len() as u32, Space::Device, bytes.len() as u64);
        self.0.push(bytes);
        buffer.span()
    }

    fn floats(&mut self, floats: &[f32]) -> Span {
        self.put(encode(floats, DType::F32))
    }

    fn words(&mut self, words: &[u32]) -> Span {
        self.put(bytemuck::cast_slice(words).to_vec())
    }

    fn weight(&mut self, values: &[f32], dtype: DType) -> Weight {
        Weight::plain(self.put(encode(values, dtype)), dtype)
    }

    /// Runs an operation; whether it says that all it writes is exact.
    fn run(&mut self, operation: impl Into<Operation>) -> bool {
        let operation = operation.into();
        operation.check();
        let written = written(&operation, self);
        for Written { span, bytes, .. } in &written {
            self.0[span.buffer().id() as usize][span.offset() as usize..][..bytes.len()]
                .copy_from_slice(bytes);
        }
        written.iter().all(|written| written.exact)
    }

    fn read(&self, span: Span) -> Vec<f32> {
        Reader(self).floats(span)
    }
}

fn near(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    assert!(
        got.iter().zip(want).all(|(&a, b)| (f64::from(a) - b).abs() < 1e-5),
        "{got:?} instead of {want:?}"
    );
}

#[test]
fn embed_takes_rows_of_its_tile_only() {
    let mut memory = Memory::default();
    let out = memory.floats(&[UNTOUCHED; 8]);
    let table = memory.weight(&[1.0, 2.0, 3.0, 4.0], DType::BF16);
    let tokens = memory.words(&[6, 4, 7, 5]);
    assert!(memory.run(Embed { tokens, table, first_row: 5, table_rows: 2, width: 2, out, rows: 4 }));
    assert_eq!(memory.read(out), [3.0, 4.0, UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED, 1.0, 2.0]);
}

#[test]
fn rope_table_has_cosines_then_sines() {
    let mut memory = Memory::default();
    let half_turn = std::f32::consts::PI / 3.0;
    let (positions, inv_freq) = (memory.words(&[0, 3]), memory.floats(&[half_turn, 0.5]));
    let out = memory.floats(&[UNTOUCHED; 8]);
    assert!(!memory.run(RopeTable { positions, inv_freq, out, half: 2, scale: 2.0, rows: 2 }));
    near(&memory.read(out), &[2.0, 2.0, 0.0, 0.0, -2.0, 2.0 * 0.070_737_2, 0.0, 2.0 * 0.997_495]);
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let mut memory = Memory::default();
    let weight = memory.weight(&[1.0, -2.0], DType::F16);
    let (x, out) = (memory.floats(&[1.0, 7.0]), memory.floats(&[UNTOUCHED; 2]));
    // Means of squares 25 and 12.5.
    memory.run(RmsNorm { x, weight, out: x, eps: 11.0, width: 2, rows: 1, read_by: None });
    near(&memory.read(x), &[1.0 / 6.0, -14.0 / 6.0]);
    let x = memory.floats(&[3.0, 4.0]);
    memory.run(RmsNorm { x, weight, out, eps: 23.5, width: 2, rows: 1, read_by: None });
    assert_eq!(memory.read(out), [0.5, -4.0 / 3.0]);
}

#[test]
fn layer_norm_divides_by_the_root_of_the_variance() {
    let mut memory = Memory::default();
    let (weight, bias) = (memory.weight(&[1.0, 2.0], DType::F16), memory.weight(&[0.5, -1.0], DType::BF16));
    // Means 5 and 0, variances 4 and 16.
    for (x, eps, want) in [([3.0, 7.0], 12.0, [0.0, 0.0]), ([-4.0, 4.0], 0.0, [-0.5, 1.0])] {
        let x = memory.floats(&x);
        memory.run(LayerNorm { x, weight, bias, out: x, eps, width: 2, rows: 1 });
        assert_eq!(memory.read(x), want);
    }
}

#[test]
fn head_norm_takes_queries_and_keys_by_weights_of_their_own() {
    let mut memory = Memory::default();
    let (query, key) = (memory.weight(&[1.0, 2.0], DType::F32), memory.weight(&[10.0, 20.0], DType::F32));
    // Two rows of two query heads, a key and a value; means of squares 1, 4, 25 and the like.
    let qkv =
        memory.floats(&[1.0, -1.0, 2.0, 2.0, 5.0, -5.0, 8.0, 9.0, 3.0, 3.0, 1.0, 1.0, -1.0, 1.0, 7.0, 6.0]);
    memory.run(HeadNorm { qkv, query, key, eps: 0.0, heads: 2, kv_heads: 1, head_dim: 2, rows: 2 });
    let want = [1.0, -2.0, 1.0, 2.0, 10.0, -20.0, 8.0, 9.0, 1.0, 2.0, 1.0, 2.0, -10.0, 20.0, 7.0, 6.0];
    assert_eq!(memory.read(qkv), want);
}

#[test]
fn linear_writes_its_columns() {
    let mut memory = Memory::default();
    let (x, out) = (memory.floats(&[1.0, 2.0, 3.0, 4.0]), memory.floats(&[UNTOUCHED; 6]));
    let weight = memory.weight(&[10.0, 1.0, 0.5, -1.0], DType::F32);
    let bias = Some(memory.weight(&[100.0, 0.0], DType::F32));
    memory.run(Linear { x, weight, bias, out, k: 2, n: 2, out_width: 3, out_column: 1, rows: 2 });
    assert_eq!(memory.read(out), [UNTOUCHED, 112.0, -1.5, UNTOUCHED, 134.0, -2.5]);
}

#[test]
fn rope_pairs_elements_by_style() {
    // One query, one key and one value head of four elements, all rotated by a quarter turn and by none.
    let row = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
    let rotated = |style| {
        let mut memory = Memory::default();
        let (table, qkv) = (memory.floats(&[0.0, 1.0, 1.0, 0.0]), memory.floats(&row));
        memory.run(Rope { qkv, table, heads: 1, kv_heads: 1, head_dim: 4, rotary_dim: 4, style, rows: 1 });
        let got = memory.read(qkv);
        assert_eq!(got[8..], row[8..]);
        got
    };
    assert_eq!(rotated(RopeStyle::Half)[..8], [-3.0, 2.0, 1.0, 4.0, -7.0, 6.0, 5.0, 8.0]);
    assert_eq!(rotated(RopeStyle::Interleaved)[..8], [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
}

/// Two layers, one head of two elements, pages of two tokens: eight elements of each layer.
fn pages(memory: &mut Memory, pages: Span, dtype: DType, table: &[u32]) -> KvPages {
    KvPages {
        pages,
        dtype,
        page_bytes: 16 * dtype.bytes(),
        page_tokens: 2,
        offset: 8 * dtype.bytes(),
        kv_heads: 1,
        head_dim: 2,
        page_table: memory.words(table),
        table_width: 2,
    }
}

#[test]
fn kv_write_rounds_into_the_layer_s_slots() {
    let mut memory = Memory::default();
    let cache = memory.put(encode(&[UNTOUCHED; 48], DType::BF16));
    // Sequence 1 at position 3: its second page, page 2, second slot. bf16 has steps of 1/128 above 1, so
    // that the values with /256 are ties; they go to even multiples.
    let qkv = memory.floats(&[9.0, 9.0, 1.25, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -0.1]);
    let kv = pages(&mut memory, cache, DType::BF16, &[0, 0, 1, 2]);
    let (row_seq, positions) = (memory.words(&[1]), memory.words(&[3]));
    assert!(memory.run(KvWrite { qkv, kv, row_seq, positions, heads: 1, rows: 1 }));
    let mut want = [UNTOUCHED; 48];
    (want[42], want[43], want[46], want[47]) = (1.25, 1.0, 1.0 + 4.0 / 256.0, -0.100_097_656);
    assert_eq!(memory.bytes(cache), encode(&want, DType::BF16));
}

/// Scales follow the two vectors of a plane.
#[test]
fn kv_write_of_int8_puts_scales_after_a_head_s_vectors() {
    let mut memory = Memory::default();
    let cache = memory.put(vec![0x55; 2 * 32 * 2]);
    let qkv = memory.floats(&[9.0, 9.0, 254.0, -3.0, 0.0, 63.5]);
    let table = memory.words(&[0, 1]);
    // A plane is two vectors of two bytes, and two scales: 12 bytes. The second layer begins after two planes.
    let kv = KvPages {
        page_bytes: 64,
        offset: 24,
        page_table: table,
        ..pages(&mut memory, cache, DType::Int8, &[0, 1])
    };
    assert_eq!(kv.plane_bytes(), 12);
    let (row_seq, positions) = (memory.words(&[0]), memory.words(&[3]));
    memory.run(KvWrite { qkv, kv, row_seq, positions, heads: 1, rows: 1 });
    let mut want = [0x55; 128];
    let mut put = |at: usize, bytes: &[u8]| want[64 + 24 + at..][..bytes.len()].copy_from_slice(bytes);
    put(2, &[127, (-2_i8).cast_unsigned()]);
    put(4 + 4, &2_f32.to_le_bytes());
    put(12 + 2, &[0, 127]);
    put(12 + 4 + 4, &0.5_f32.to_le_bytes());
    assert_eq!(memory.bytes(cache), want);
}

#[test]
fn kv_write_keeps_f32_as_it_is() {
    let mut memory = Memory::default();
    let (cache, qkv) = (memory.floats(&[UNTOUCHED; 32]), memory.floats(&[0.0, 0.0, 0.3, 0.7, 1.5, -2.5]));
    let kv = pages(&mut memory, cache, DType::F32, &[1, 0]);
    let (row_seq, positions) = (memory.words(&[0]), memory.words(&[0]));
    memory.run(KvWrite { qkv, kv, row_seq, positions, heads: 1, rows: 1 });
    let mut want = [UNTOUCHED; 32];
    (want[24], want[25], want[28], want[29]) = (0.3, 0.7, 1.5, -2.5);
    assert_eq!(memory.read(cache), want);
}

#[test]
fn attention_weighs_values_by_softmax_up_to_the_row() {
    let mut cache = [f32::NAN; 48];
    // Keys and values of positions 0 and 1 in page 1 of layer 1, of position 2 in page 0.
    cache[24..32].copy_from_slice(&[1.0, 0.0, 0.0, 1.0, 10.0, 1.0, 20.0, 2.0]);
    cache[8..10].copy_from_slice(&[5.0, 5.0]);
    cache[12..14].copy_from_slice(&[40.0, 4.0]);
    let scored = |window, alibi, heads: usize, query: &[f32], position| {
        let mut memory = Memory::default();
        let (cache, out) = (memory.floats(&cache), memory.floats(&vec![UNTOUCHED; heads * 2]));
        let qkv = memory.floats(&[query, &[f32::NAN; 4]].concat());
        let kv = pages(&mut memory, cache, DType::F32, &[1, 0]);
        let (row_seq, positions, heads) = (memory.words(&[0]), memory.words(&[position]), heads as u32);
        let (scale, rows, read_by) = (2.0, 1, None);
        memory.run(Attention {
            qkv,
            kv,
            row_seq,
            positions,
            out,
            heads,
            scale,
            window,
            alibi,
            rows,
            short_runs: true,
            read_by,
        });
        memory.read(out)
    };
    let run = |heads, query: &[f32], position| scored(None, false, heads, query, position);
    assert_eq!(run(1, &[3.0, 3.0], 0), [10.0, 1.0]);
    assert_eq!(run(1, &[3.0, 3.0], 1), [15.0, 1.5]);
    assert_eq!(run(1, &[0.0, 0.0], 2), [70.0 / 3.0, 7.0 / 3.0].map(|x: f64| x as f32));
    // Scores 0 and ln 3: weights 1/4 and 3/4. The second query head shares the key head.
    let log = 3_f32.ln() / 2.0;
    near(&run(2, &[0.0, log, 3.0, 3.0], 1), &[17.5, 1.75, 15.0, 1.5]);
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
    let run = |form, x: &[f32]| {
        let mut memory = Memory::default();
        let (x, out) = (memory.floats(x), memory.floats(&vec![UNTOUCHED; x.len()]));
        memory.run(Gelu { x, out, form, len: x.len() / 4 });
        memory.read(out)
    };
    // From x Φ(x), and from the formula with tanh, in Python.
    let x = [0.0, 1.0, -2.0, -100.0];
    assert_eq!(run(GeluForm::Erf, &x), [0.0, 0.841_344_8, -0.045_500_264, -0.0]);
    assert_eq!(run(GeluForm::Tanh, &x), [0.0, 0.841_192, -0.045_402_307, -0.0]);
}

#[test]
fn small_ones() {
    let mut memory = Memory::default();
    let (x, out) = (memory.floats(&[0.0, 3_f32.ln(), 5.0, 8.0]), memory.floats(&[UNTOUCHED; 2]));
    memory.run(SiluMul { x, out, width: 2, rows: 1, read_by: None });
    near(&memory.read(out), &[0.0, 6.0 * 3_f64.ln()]);
    let (a, b) = (memory.floats(&[1.0, 2.0]), memory.floats(&[0.5, 0.25]));
    assert!(memory.run(Add { a, b, out, len: 2 }));
    assert_eq!(memory.read(out), [1.5, 2.25]);
    memory.run(Add { a: out, b, out, len: 2 });
    assert_eq!(memory.read(out), [2.0, 2.5]);
    let (x, indices) = (memory.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), memory.words(&[2, 0]));
    let out = memory.floats(&[UNTOUCHED; 4]);
    assert!(memory.run(SelectRows { x, indices, out, width: 2, rows: 2 }));
    assert_eq!(memory.read(out), [5.0, 6.0, 1.0, 2.0]);
    edits_of_rows();
    let (src, out) = (memory.put(vec![1, 2, 3, 4, 5]), memory.put(vec![0; 8]));
    assert!(memory.run(Checksum { src, out }));
    assert_eq!(memory.bytes(out), crate::checksum(&[1, 2, 3, 4, 5]).to_le_bytes());
}

fn edits_of_rows() {
    let mut memory = Memory::default();
    // Three rows of four columns. The middle two are edited, in rows 2 and 0.
    let before = [1.0, 3.0, 4.0, 2.0, 5.0, 6.0, 7.0, 8.0, 9.0, -0.0, f32::NAN, 10.0];
    let x = memory.floats(&before);
    let (indices, direction) = (memory.words(&[2, 0]), memory.floats(&[0.6, 0.8]));
    let add = memory.floats(&[0.0, -0.0, 0.5, 0.0]);
    let edit = EditRows {
        x,
        indices,
        direction,
        add,
        scale: 1.0,
        along: 0.0,
        low: f32::NEG_INFINITY,
        high: f32::INFINITY,
        column: 1,
        width: 2,
        x_width: 4,
        rows: 2,
        add_rows: 2,
    };
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut want = before;
    want[1] = 3.5;
    assert!(memory.run(edit));
    assert_eq!(bits(&memory.read(x)), bits(&want), "zeros change no bit");
    // What is set was NaN, and -0 stays -0.
    (want[9], want[10], want[1], want[2]) = (0.0, -0.0, 0.5, 0.0);
    assert!(memory.run(EditRows { scale: 0.0, ..edit }));
    assert_eq!(bits(&memory.read(x)), bits(&want));
    let (indices, none) = (memory.words(&[1]), memory.floats(&[0.0; 2]));
    let one = EditRows { indices, add: none, rows: 1, add_rows: 1, ..edit };
    // (6, 7) has 9.2 along (0.6, 0.8).
    assert!(!memory.run(EditRows { along: -1.0, ..one }));
    near(&memory.read(x)[4..8], &[5.0, 6.0 - 5.52, 7.0 - 7.36, 8.0]);
    memory.run(EditRows { scale: 10.0, low: -1.0, high: 4.0, ..one });
    near(&memory.read(x)[4..8], &[5.0, 4.0, -1.0, 8.0]);
    let (indices, all) = (memory.words(&[2, 1]), memory.floats(&[2.0, 1.0]));
    memory.run(EditRows { indices, add: all, add_rows: 1, ..edit });
    near(&memory.read(x)[4..], &[5.0, 6.0, 0.0, 8.0, 9.0, 2.0, 1.0, 10.0]);
}

fn routed(logits: &[f32], top_k: u32, renormalise: bool) -> (Vec<f32>, Vec<u32>) {
    let (mut memory, experts) = (Memory::default(), 4);
    let rows = logits.len() / experts as usize;
    let blank = vec![0; rows * top_k as usize * 4];
    let (weights, ids) = (memory.put(blank.clone()), memory.put(blank));
    let logits = memory.floats(logits);
    memory.run(Route { logits, weights, ids, experts, top_k, renormalise, rows: rows as u32 });
    (memory.read(weights), Reader(&memory).words(ids))
}

#[test]
fn a_route_by_hand() {
    let logits = [0.0, 3_f32.ln(), 0.0, f32::NEG_INFINITY, f32::NAN, 1.0, 2.0, 2.0];
    let (weights, ids) = routed(&logits, 2, false);
    assert_eq!(ids, [1, 0, 2, 3]);
    near(&weights[..2], &[0.6, 0.2]);
    assert!(weights[2].is_nan() && weights[3].is_nan(), "{weights:?}");
    near(&routed(&logits, 2, true).0[..2], &[0.75, 0.25]);
    // Nothing to choose by: valid ids all the same.
    let (weights, ids) = routed(&[f32::NAN; 4], 3, true);
    assert_eq!(ids, [0, 1, 2]);
    assert!(weights.iter().all(|weight| weight.is_nan()));
}

/// Order and starts.
fn grouped(ids: &[u32], experts: u32) -> [Vec<u32>; 2] {
    grouped_beside_cpu(ids, experts, CpuSlots::NONE, false)
}

/// The same of the slots of the CPU, or of the others.
fn grouped_beside_cpu(ids: &[u32], experts: u32, cpu: CpuSlots, of_cpu: bool) -> [Vec<u32>; 2] {
    let mut memory = Memory::default();
    let (order, starts) = (memory.words(&vec![0; ids.len()]), memory.words(&vec![0; experts as usize + 1]));
    let (slots, ids) = (ids.len() as u32, memory.words(ids));
    assert!(memory.run(Group { ids, order, starts, experts, slots, cpu, of_cpu }));
    [order, starts].map(|span| Reader(&memory).words(span))
}

#[test]
fn groups_combine_and_copies_by_hand() {
    assert_eq!(grouped(&[1, 0, 2, 3, 1, 3], 5), [vec![1, 0, 4, 2, 3, 5], vec![0, 1, 3, 4, 6, 6]]);
    let mut memory = Memory::default();
    let (y, weights) = (memory.floats(&[1.0, 2.0, 10.0, 20.0]), memory.floats(&[0.5, 2.0]));
    let out = memory.floats(&[UNTOUCHED; 2]);
    let (cpu, ids, cpu_y) = (CpuSlots::NONE, None, None);
    let combine = Combine { y, weights, out, top_k: 2, width: 2, rows: 1, cpu, ids, cpu_y };
    memory.run(combine);
    assert_eq!(memory.read(out), [20.5, 41.0]);
    // The second choice is the CPU's, if it is expert 1 or 2.
    let cpu = CpuSlots { top_k: 2, first: 1, begin: 1, end: 3 };
    let of = |of_cpu| grouped_beside_cpu(&[1, 0, 2, 1, 0, 2], 3, cpu, of_cpu);
    assert_eq!(of(false), [vec![1, 4, 0, 2, 0, 0], vec![0, 2, 3, 4]]);
    assert_eq!(of(true), [vec![3, 5, 0, 0, 0, 0], vec![0, 0, 1, 2]]);
    let cpu_y = Some(memory.floats(&[f32::NAN, f32::NAN, 100.0, 200.0]));
    for (id, want) in [(2, [200.5, 401.0]), (0, [20.5, 41.0])] {
        let ids = Some(memory.words(&[1, id]));
        memory.run(Combine { cpu, ids, cpu_y, ..combine });
        assert_eq!(memory.read(out), want);
    }
    let (starts, src, moved) = (memory.words(&[0, 0, 2]), memory.put(vec![7, 8, 9]), memory.words(&[5]));
    for (expert, want) in [(0, [1, 2, 3]), (1, [7, 8, 9])] {
        let dst = memory.put(vec![1, 2, 3]);
        memory.run(CopyExpert { src, dst, starts, moved, expert, experts: 2 });
        assert_eq!((memory.bytes(dst), memory.bytes(moved)[0]), (&want[..], expert as u8));
    }
}

/// What a caller must rule out is a panic, not a write elsewhere.
#[test]
fn experts_out_of_range_panic() {
    let panics = |id| std::panic::catch_unwind(|| grouped(&[0, id], 3)).is_err();
    assert!(!panics(2) && panics(3));
}

proptest! {
    #[test]
    fn groups_partition_the_slots(experts in 1_u32..40, ids in prop::collection::vec(any::<u32>(), 1..400)) {
        let ids: Vec<u32> = ids.iter().map(|id| id % experts).collect();
        let [order, starts] = grouped(&ids, experts);
        prop_assert_eq!((starts[0], starts[experts as usize] as usize), (0, ids.len()));
        for (expert, start) in starts.windows(2).enumerate() {
            let slots = &order[start[0] as usize..start[1] as usize];
            prop_assert!(slots.is_sorted_by(|a, b| a < b), "{slots:?}");
            prop_assert!(slots.iter().all(|&slot| ids[slot as usize] as usize == expert));
        }
    }
}
