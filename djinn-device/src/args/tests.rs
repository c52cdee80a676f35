//! Each check accepts what is right, and names what is wrong.

use super::*;
use crate::args::{Choose, Combine, CopyExpert, CpuSlots, EditRows, ExpertLinear, Group, Route};
use crate::{Buffer, RopeStyle, Space, checksum};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn buffer(id: u32, len: u64) -> Span {
    Buffer::from_raw(id, Space::Device, len).span()
}

fn offset(span: Span, by: u64) -> Span {
    Buffer::from_raw(span.buffer().id(), Space::Device, span.len() + by).slice(by, span.len())
}

#[track_caller]
fn refuses(check: impl FnOnce(), words: &str) {
    let panic = catch_unwind(AssertUnwindSafe(check)).expect_err("it was accepted");
    let message = panic.downcast_ref::<String>().expect("a formatted message");
    assert!(message.contains(words), "{message:?} does not say {words:?}");
}

fn linear() -> Linear {
    Linear {
        x: buffer(0, 3 * 5 * 4),
        weight: Weight::plain(buffer(1, 7 * 5 * 2), DType::BF16),
        bias: Some(Weight::plain(buffer(2, 7 * 4), DType::F32)),
        out: buffer(3, 3 * 9 * 4),
        k: 5,
        n: 7,
        out_width: 9,
        out_column: 2,
        rows: 3,
    }
}

#[test]
fn linear_is_checked() {
    let good = linear();
    good.check();
    refuses(|| Linear { rows: 2, ..good }.check(), "linear: x has 60 bytes instead of 40");
    refuses(|| Linear { rows: 0, ..good }.check(), "linear: x has an empty side: [0, 5]");
    refuses(|| Linear { x: offset(good.x, 8), ..good }.check(), "linear: x starts at byte 8");
    let weight = Weight { dtype: DType::U32, ..good.weight };
    refuses(|| Linear { weight, ..good }.check(), "linear: weight cannot be u32");
    refuses(|| Linear { out_column: 3, ..good }.check(), "linear: 7 columns from 3 do not fit 9");
    refuses(|| Linear { bias: Some(good.weight), ..good }.check(), "linear: bias has 70 bytes instead of 14");
    let shared = buffer(0, 3 * 9 * 4);
    refuses(|| Linear { out: shared, ..good }.check(), "overlaps x");
    let huge = Linear { rows: u32::MAX, k: u32::MAX, ..good };
    refuses(|| huge.check(), "linear: the size of x overflows");
}

#[test]
fn in_place_is_allowed_where_documented() {
    let x = buffer(0, 64);
    let weight = Weight::plain(buffer(1, 16), DType::F16);
    let norm = RmsNorm { x, weight, out: x, eps: 1e-5, width: 8, rows: 2, read_by: None };
    norm.check();
    let add = Add { a: x, b: x, out: x, len: 16 };
    add.check();
    let whole = Buffer::from_raw(0, Space::Device, 80);
    let (low, high) = (whole.slice(0, 64), whole.slice(16, 64));
    refuses(|| RmsNorm { x: low, out: high, ..norm }.check(), "rms_norm: the output");
    refuses(|| Add { a: low, out: high, ..add }.check(), "overlaps part of a");
    let bias = Weight::plain(buffer(2, 32), DType::F32);
    let norm = LayerNorm { x, weight, bias, out: x, eps: 1e-5, width: 8, rows: 2 };
    norm.check();
    refuses(|| LayerNorm { x: low, out: high, ..norm }.check(), "layer_norm: the output");
    refuses(|| LayerNorm { bias: weight, out: weight.span, ..norm }.check(), "layer_norm: out has 16 bytes");
    let short = Weight { span: buffer(2, 28), ..bias };
    refuses(|| LayerNorm { bias: short, ..norm }.check(), "layer_norm: bias has 28 bytes instead of 32");
    let gelu = Gelu { x, out: x, form: crate::GeluForm::Erf, len: 16 };
    gelu.check();
    refuses(|| Gelu { x: low, out: high, ..gelu }.check(), "gelu: the output");
    refuses(|| Gelu { len: 15, ..gelu }.check(), "gelu: x has 64 bytes instead of 60");
    let silu = SiluMul { x: buffer(0, 64), out: buffer(2, 32), width: 4, rows: 2, read_by: None };
    silu.check();
    refuses(|| SiluMul { out: x.slice(0, 32), x, ..silu }.check(), "silu_mul");
}

fn pages() -> KvPages {
    KvPages {
        pages: buffer(0, 3 * 1024),
        dtype: DType::F16,
        page_bytes: 1024,
        page_tokens: 4,
        offset: 512,
        kv_heads: 2,
        head_dim: 16,
        page_table: buffer(1, 2 * 2 * 4),
        table_width: 2,
    }
}

fn attention() -> Attention {
    Attention {
        qkv: buffer(2, 3 * 8 * 16 * 4),
        kv: pages(),
        row_seq: buffer(3, 12),
        positions: buffer(4, 12),
        out: buffer(5, 3 * 4 * 16 * 4),
        heads: 4,
        scale: 0.25,
        window: None,
        alibi: false,
        rows: 3,
        short_runs: false,
        read_by: None,
    }
}

#[test]
fn caches_are_checked() {
    let good = attention();
    good.check();
    let kv = KvPages { offset: 520, ..good.kv };
    refuses(|| Attention { kv, ..good }.check(), "attention: a layer at byte 520 of a page");
    let kv = KvPages { offset: 1024, ..good.kv };
    refuses(|| Attention { kv, ..good }.check(), "attention: a page of 1024 bytes");
    let kv = KvPages { pages: buffer(0, 1500), ..good.kv };
    refuses(|| Attention { kv, ..good }.check(), "no whole number of pages");
    let kv = KvPages { table_width: 3, ..good.kv };
    refuses(|| Attention { kv, ..good }.check(), "no whole number of rows of 12");
    refuses(|| Attention { out: buffer(2, 768), ..good }.check(), "overlaps qkv");
    let odd = Attention { heads: 5, qkv: buffer(2, 3 * 9 * 64), out: buffer(5, 3 * 5 * 64), ..good };
    refuses(|| odd.check(), "5 query heads are no multiple of 2");
    Attention { window: Some(1), ..good }.check();
    refuses(|| Attention { window: Some(0), ..good }.check(), "attention: a window of 0 positions");
    let Attention { qkv, kv, row_seq, positions, heads, rows, .. } = good;
    let write = KvWrite { qkv, kv, row_seq, positions, heads, rows };
    write.check();
    refuses(|| KvWrite { row_seq: buffer(0, 12), ..write }.check(), "overlaps row_seq");
}

#[test]
fn the_others_are_checked() {
    let embed = Embed {
        tokens: buffer(0, 8),
        table: Weight::plain(buffer(1, 3 * 4 * 4), DType::F32),
        first_row: 5,
        table_rows: 3,
        width: 4,
        out: buffer(2, 2 * 4 * 4),
        rows: 2,
    };
    embed.check();
    refuses(|| Embed { first_row: u32::MAX - 1, ..embed }.check(), "embed: 3 rows from");
    refuses(|| Embed { table_rows: 4, ..embed }.check(), "embed: table has 48 bytes instead of 64");
    let table = RopeTable {
        positions: buffer(0, 8),
        inv_freq: buffer(1, 16),
        out: buffer(2, 64),
        half: 4,
        scale: 1.0,
        rows: 2,
    };
    table.check();
    refuses(|| RopeTable { half: 3, ..table }.check(), "rope_table: inv_freq");
    let rope = Rope {
        qkv: buffer(3, 2 * 4 * 8 * 4),
        table: buffer(2, 64),
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        rotary_dim: 8,
        style: RopeStyle::Half,
        rows: 2,
    };
    rope.check();
    refuses(|| Rope { rotary_dim: 3, table: buffer(2, 24), ..rope }.check(), "rope: 3 rotated elements");
    let select =
        SelectRows { x: buffer(0, 64), indices: buffer(1, 8), out: buffer(2, 32), width: 4, rows: 2 };
    select.check();
    refuses(|| SelectRows { x: buffer(0, 60), ..select }.check(), "select_rows: x has 60 bytes");
    let edit = EditRows {
        x: buffer(0, 96),
        indices: buffer(1, 8),
        direction: buffer(2, 16),
        add: buffer(3, 32),
        scale: 1.0,
        along: 0.0,
        low: -1.0,
        high: 1.0,
        column: 4,
        width: 4,
        x_width: 8,
        rows: 2,
        add_rows: 2,
    };
    edit.check();
    EditRows { add: buffer(3, 16), add_rows: 1, ..edit }.check();
    refuses(|| EditRows { add_rows: 3, ..edit }.check(), "edit_rows: 3 addends for 2 rows");
    refuses(|| EditRows { x: buffer(0, 100), ..edit }.check(), "edit_rows: x has 100 bytes");
    refuses(|| EditRows { column: 5, ..edit }.check(), "edit_rows: columns 5 to 9 of 8");
    refuses(|| EditRows { scale: 0.0, along: 1.0, ..edit }.check(), "edit_rows: what is set");
    refuses(|| EditRows { low: 2.0, ..edit }.check(), "edit_rows: bounds 2 and 1");
    let checksum = Checksum { src: buffer(0, 13), out: buffer(1, 8) };
    checksum.check();
    refuses(
        || Checksum { out: buffer(1, 16), ..checksum }.check(),
        "checksum: out has 16 bytes instead of 8",
    );
}

#[test]
fn routes_and_groups_are_checked() {
    let route = Route {
        logits: buffer(0, 3 * 8 * 4),
        weights: buffer(1, 3 * 2 * 4),
        ids: buffer(2, 3 * 2 * 4),
        experts: 8,
        top_k: 2,
        renormalise: true,
        rows: 3,
    };
    route.check();
    refuses(|| Route { top_k: 9, ..route }.check(), "route: 9 of 8 experts at most");
    refuses(|| Route { top_k: 0, ..route }.check(), "route: 0 of 8 experts at most");
    refuses(|| Route { experts: 17, top_k: 17, ..route }.check(), "route: 17 of 16 experts at most");
    refuses(|| Route { experts: 1025, ..route }.check(), "route: 1025 experts are not within 1 to 1024");
    refuses(|| Route { ids: route.weights, ..route }.check(), "overlaps ids");
    refuses(|| Route { rows: 2, ..route }.check(), "route: logits has 96 bytes instead of 64");
    let group = Group {
        ids: buffer(0, 24),
        order: buffer(1, 24),
        starts: buffer(2, 36),
        experts: 8,
        slots: 6,
        cpu: CpuSlots::NONE,
        of_cpu: false,
    };
    group.check();
    let cpu = CpuSlots { top_k: 2, first: 1, begin: 0, end: 8 };
    Group { cpu, of_cpu: true, ..group }.check();
    let fours = CpuSlots { top_k: 4, ..cpu };
    refuses(|| Group { cpu: fours, ..group }.check(), "group: 6 slots are no multiple of 4 a row");
    refuses(|| Group { experts: 9, ..group }.check(), "group: starts has 36 bytes instead of 40");
    refuses(|| Group { order: group.ids, ..group }.check(), "overlaps ids");
    let combine = Combine {
        y: buffer(0, 3 * 2 * 5 * 4),
        weights: buffer(1, 24),
        out: buffer(2, 60),
        top_k: 2,
        width: 5,
        rows: 3,
        cpu: CpuSlots::NONE,
        ids: None,
        cpu_y: None,
    };
    combine.check();
    let with_cpu = Combine { cpu, ids: Some(buffer(3, 24)), cpu_y: Some(buffer(4, 120)), ..combine };
    with_cpu.check();
    refuses(|| Combine { ids: None, ..with_cpu }.check(), "combine: CpuSlots");
    refuses(|| Combine { cpu: CpuSlots::NONE, ..with_cpu }.check(), "combine: CpuSlots");
    refuses(|| Combine { cpu: fours, ..with_cpu }.check(), "combine: CpuSlots");
    refuses(
        || Combine { cpu_y: Some(buffer(4, 60)), ..with_cpu }.check(),
        "combine: cpu_y has 60 bytes instead of 120",
    );
    refuses(|| Combine { cpu_y: Some(combine.out), ..with_cpu }.check(), "combine: ");
    refuses(|| Combine { top_k: 1, ..combine }.check(), "combine: y has 120 bytes instead of 60");
}

#[test]
fn copies_of_experts_are_checked() {
    let good = CopyExpert {
        src: buffer(0, 77),
        dst: buffer(1, 100).buffer().slice(3, 77),
        starts: buffer(2, 36),
        moved: buffer(3, 12).buffer().slice(4, 4),
        expert: 7,
        experts: 8,
    };
    good.check();
    refuses(|| CopyExpert { expert: 8, ..good }.check(), "copy_expert: expert 8 of 8");
    refuses(|| CopyExpert { src: buffer(0, 76), ..good }.check(), "a copy of 76 bytes to 77");
    refuses(|| CopyExpert { experts: 9, ..good }.check(), "copy_expert: starts has 36 bytes instead of 40");
    refuses(|| CopyExpert { moved: buffer(3, 8), ..good }.check(), "moved is no word");
    refuses(|| CopyExpert { moved: good.dst.slice(1, 4), ..good }.check(), "overlaps moved");
    refuses(|| CopyExpert { src: good.dst, ..good }.check(), "overlaps src");
    let none = good.src.slice(0, 0);
    refuses(|| CopyExpert { src: none, dst: none, ..good }.check(), "a copy of 0 bytes to 0");
    let host = Buffer::from_raw(9, Space::Host, 77).span();
    CopyExpert { src: host, ..good }.check();
    refuses(|| CopyExpert { dst: host, ..good }.check(), "a copy to host memory");
}

#[test]
fn experts_are_checked() {
    let good = ExpertLinear {
        x: buffer(0, 3 * 5 * 4),
        weight: Weight::plain(buffer(1, 7 * 5 * 2), DType::BF16),
        order: buffer(2, 24),
        starts: buffer(3, 36),
        out: buffer(4, 6 * 9 * 4),
        k: 5,
        n: 7,
        out_width: 9,
        out_column: 2,
        expert: 7,
        slots_per_row: 2,
        slots: 6,
    };
    good.check();
    refuses(|| ExpertLinear { expert: 8, ..good }.check(), "expert_linear: expert 8 of starts with 36 bytes");
    refuses(|| ExpertLinear { slots_per_row: 4, ..good }.check(), "6 slots are no multiple of 4 a row");
    refuses(|| ExpertLinear { slots_per_row: 0, ..good }.check(), "6 slots are no multiple of 0 a row");
    refuses(
        || ExpertLinear { slots_per_row: 1, ..good }.check(),
        "expert_linear: x has 60 bytes instead of 120",
    );
    refuses(
        || ExpertLinear { out_column: 3, ..good }.check(),
        "expert_linear: 7 columns from 3 do not fit 9",
    );
    refuses(|| ExpertLinear { slots: 1 << 20, ..good }.check(), "1048576 slots are more than 524288");
    refuses(|| ExpertLinear { order: good.out.slice(0, 24), ..good }.check(), "overlaps order");
}

#[test]
fn experts_at_once_are_checked() {
    let tile = |expert, out_column, n| ExpertLinear {
        x: buffer(0, 3 * 5 * 4),
        weight: Weight::plain(buffer(100 + 10 * expert + out_column, u64::from(n) * 5 * 2), DType::BF16),
        order: buffer(2, 24),
        starts: buffer(3, 36),
        out: buffer(4, 6 * 9 * 4),
        k: 5,
        n,
        out_width: 9,
        out_column,
        expert,
        slots_per_row: 2,
        slots: 6,
    };
    let good = [tile(1, 0, 4), tile(1, 4, 5), tile(4, 0, 4), tile(7, 2, 7)];
    ExpertLinear::check_all(&good);
    ExpertLinear::check_all(&[]);
    let with = |at: usize, product: ExpertLinear| {
        let mut products = good;
        products[at] = product;
        move || ExpertLinear::check_all(&products)
    };
    refuses(with(1, tile(1, 3, 5)), "columns from 3 of expert 1 after 4 from 0 of expert 1");
    refuses(with(1, tile(1, 0, 4)), "columns from 0 of expert 1 after 4 from 0 of expert 1");
    refuses(with(2, tile(0, 0, 4)), "columns from 0 of expert 0 after 5 from 4 of expert 1");
    refuses(with(3, tile(7, 3, 7)), "expert_linear: 7 columns from 3 do not fit 9");
    refuses(with(2, ExpertLinear { order: buffer(5, 24), ..good[2] }), "is unlike");
    let elsewhere = buffer(6, 6 * 9 * 4);
    let of_output = Weight { span: elsewhere.slice(0, 70), ..good[3].weight };
    refuses(with(3, ExpertLinear { out: elsewhere, ..good[3] }), "is unlike");
    // Another product's weight within the output of all.
    let mut products = good.map(|product| ExpertLinear { out: elsewhere, ..product });
    ExpertLinear::check_all(&products);
    products[3].weight = of_output;
    refuses(|| ExpertLinear::check_all(&products), "overlaps weight");
}

#[test]
fn checksum_is_as_documented() {
    assert_eq!(Checksum::mix(0), 0);
    // The first output of SplitMix64 seeded with 0 is the finaliser of the golden gamma.
    assert_eq!(Checksum::mix(0x9e37_79b9_7f4a_7c15), 0xe220_a839_7b1d_cdaf);
    assert_eq!(checksum(&[]), 0);
    assert_eq!(checksum(&[1]), Checksum::mix(1));
    assert_eq!(
        checksum(&[1, 0, 0, 0, 7, 0, 1]),
        Checksum::mix(1).wrapping_add(Checksum::mix(0x1_0007 ^ Checksum::mix(1)))
    );
}

#[test]
fn choices_are_checked() {
    let (logits, draws, drawn) = (buffer(0, 240), buffer(1, 192), buffer(2, 528));
    let good =
        Choose { logits, draws, changes: buffer(3, 64), earlier: buffer(4, 8), drawn, vocab: 20, rows: 3 };
    good.check();
    refuses(|| Choose { vocab: 21, ..good }.check(), "choose: logits has 240 bytes instead of 252");
    refuses(|| Choose { draws: buffer(1, 64), ..good }.check(), "choose: draws has 64 bytes instead of 192");
    refuses(|| Choose { drawn: buffer(2, 96), ..good }.check(), "choose: drawn has 96 bytes instead of 528");
    refuses(
        || Choose { changes: buffer(3, 24), ..good }.check(),
        "choose: changes has 24 bytes instead of 16",
    );
    refuses(|| Choose { vocab: 1 << 23, ..good }.check(), "8388608 logits of a row are more than 4194304");
    refuses(|| Choose { earlier: good.drawn.slice(0, 48), ..good }.check(), "overlaps earlier");
}
