//! Plans keep their budget to the byte, and what is refused names the least that would do.

use super::*;
use crate::size::human;
use crate::text::Section;
use djinn_device::args::CpuSlots;
use djinn_srg::{DType, GraphBuilder, Heads, KvPlan, RopeStyle, Scores, ValueId};
use proptest::prelude::*;

/// A Llama-shaped decoder, its output projection tied to the embedding or not.
pub(crate) fn decoder(layers: u32, d: u64, ffn: u64, vocab: u64, tied: bool) -> Graph {
    mixture(layers, d, ffn, vocab, tied, [0, 0])
}

type Built<T> = Result<T, djinn_srg::GraphError>;

/// As [`decoder`], with `top_k` of some experts in each block, if any.
pub(crate) fn mixture(
    layers: u32,
    d: u64,
    ffn: u64,
    vocab: u64,
    tied: bool,
    [experts, top_k]: [u32; 2],
) -> Graph {
    let count = (d / 8) as u32;
    let heads = Heads { heads: count, kv_heads: count, head_dim: 8 };
    let mut b = GraphBuilder::new("test", vocab, 4096);
    let build = |b: &mut GraphBuilder| -> Built<ValueId> {
        let table = b.weight("embed", &[vocab, d], DType::BF16)?;
        let head = if tied { table } else { b.weight("unembed", &[vocab, d], DType::BF16)? };
        let inv_freq = b.weight("inv_freq", &[4], DType::F32)?;
        let rope = b.rope_table("rope", inv_freq, 1.0)?;
        let mut x = b.embed("x", table)?;
        for i in 0..layers {
            b.set_layer(Some(i));
            let name = |part: &str| format!("{i}.{part}");
            let norm = b.weight(&name("ln"), &[d], DType::BF16)?;
            let normed = b.rms_norm(&name("norm"), x, norm, 1e-5)?;
            let w = b.weight(&name("qkv.w"), &[3 * d, d], DType::BF16)?;
            let bias = b.weight(&name("qkv.b"), &[3 * d], DType::BF16)?;
            let qkv = b.linear(&name("qkv"), normed, w, Some(bias))?;
            b.rope(&name("rope"), qkv, rope, heads, RopeStyle::Half)?;
            let attended = b.attention(&name("attn"), qkv, heads, Scores::scaled(0.3))?;
            let w = b.weight(&name("out.w"), &[d, d], DType::BF16)?;
            let out = b.linear(&name("out"), attended, w, None)?;
            x = b.add(&name("add1"), x, out)?;
            if experts > 0 {
                let y = mix(b, &name, x, [d, ffn], [experts, top_k])?;
                x = b.add(&name("add2"), x, y)?;
                continue;
            }
            let w = b.weight(&name("up.w"), &[2 * ffn, d], DType::BF16)?;
            let up = b.linear(&name("up"), x, w, None)?;
            let mid = b.silu_mul(&name("act"), up)?;
            let w = b.weight(&name("down.w"), &[d, ffn], DType::BF16)?;
            let down = b.linear(&name("down"), mid, w, None)?;
            x = b.add(&name("add2"), x, down)?;
        }
        b.set_layer(None);
        let last = b.select_rows("select", x)?;
        b.linear("logits", last, head, None)
    };
    let logits = build(&mut b).expect("shapes fit");
    b.finish(logits).expect("shapes fit")
}

fn mix(
    b: &mut GraphBuilder,
    name: &dyn Fn(&str) -> String,
    x: ValueId,
    [d, ffn]: [u64; 2],
    [experts, top_k]: [u32; 2],
) -> Built<ValueId> {
    let router = b.weight(&name("router.w"), &[experts.into(), d], DType::BF16)?;
    let logits = b.linear(&name("router"), x, router, None)?;
    let routing = b.route(&name("route"), logits, top_k, true)?;
    let product = |b: &mut GraphBuilder, part: &str, x, shape: [u64; 2]| -> Built<ValueId> {
        let mut out = None;
        for expert in 0..experts {
            let w = b.weight(&name(&format!("{part}{expert}.w")), &shape, DType::BF16)?;
            out = Some(b.expert_linear(&name(&format!("{part}{expert}")), x, &routing, expert, w, out)?);
        }
        Ok(out.expect("there are experts"))
    };
    let up = product(b, "up", x, [2 * ffn, d])?;
    let mid = b.silu_mul(&name("act"), up)?;
    let y = product(b, "down", mid, [d, ffn])?;
    b.combine(&name("combine"), y, &routing)
}

pub(crate) fn demand(graph: &Graph, rows: u64, context: u32) -> Demand {
    let kv = KvLayout {
        token_bytes: KvPlan::new(graph).token_bytes(DType::F16),
        dtype: DType::F16,
        page_tokens: 16,
        pages: context.div_ceil(16),
        sequences: 1,
        table_width: context.div_ceil(16),
        host_pages: 0,
        check: false,
    };
    Demand { rows: Rows { rows, logit_rows: 1 }, kv, reserved_bytes: 0 }
}

proptest! {
    #[test]
    fn the_budget_is_never_exceeded_and_nothing_is_lost(
        layers in 1u32..6, d8 in 1u64..8, ffn in 1u64..200, vocab in 1u64..4000, tied: bool,
        spare in 0u64..2_000_000, fraction in prop::option::of(0.0f64..=1.0), check: bool, straddle: bool,
        experts in 0u32..9,
    ) {
        let graph = mixture(layers, 8 * d8, ffn, vocab, tied, [experts, experts.div_ceil(4)]);
        let demand = demand(&graph, 32, 100);
        let free = Budget { stream_check: check, straddle, ..Budget::default() };
        let whole = MemoryPlan::new(&graph, &free, &demand).unwrap();
        prop_assert_eq!((whole.segments.ring, whole.segments.bounce), (0, 0));
        prop_assert_eq!(whole.placement.streamed_bytes(), 0);
        let vram = whole.segments.fixed() + spare;
        let budget = Budget { vram: Some(vram), resident_fraction: fraction, ..free };
        match MemoryPlan::new(&graph, &budget, &demand) {
            Ok(plan) => {
                prop_assert!(plan.segments.total() <= vram);
                let total = plan.placement.resident_bytes() + plan.placement.streamed_bytes();
                prop_assert_eq!(total, whole.segments.resident);
                prop_assert_eq!(plan.segments.resident, plan.placement.resident_bytes());
                let streamed = plan.placement.streamed().count();
                prop_assert_eq!(streamed, plan.placement.ring.slots().len());
                prop_assert!(plan.placement.ring.capacity() <= plan.segments.ring);
                let largest = plan.placement.chunks.iter().map(|c| c.bytes).max().unwrap_or(0);
                let moved = || plan.placement.streamed().map(|c| &plan.placement.chunks[c.0 as usize]);
                let sections: u64 = moved().map(|c| c.sections.len() as u64).sum();
                let conditional = moved().any(|c| c.router().is_some());
                prop_assert_eq!(plan.segments.flags, if conditional { FLAG_BYTES * sections } else { 0 });
                prop_assert_eq!(plan.segments.check, if check { CHECK_BYTES * sections } else { 0 });
                prop_assert!(plan.placement.expected_streamed_bytes(1) <= plan.placement.streamed_bytes());
                prop_assert_eq!(plan.placement.expected_streamed_bytes(1 << 20), plan.placement.streamed_bytes());
                prop_assert_eq!(plan.segments.bounce, if straddle && streamed > 0 { largest } else { 0 });
                if let Some(f) = fraction {
                    prop_assert!(plan.segments.resident as f64 <= f * total as f64 + 1.0 || f == 1.0);
                }
            }
            Err(Error::BudgetTooSmall { vram_bytes, least_bytes, .. }) => {
                prop_assert_eq!(vram_bytes, vram);
                let least = Budget { vram: Some(least_bytes), ..budget };
                let found = MemoryPlan::new(&graph, &least, &demand);
                prop_assert!(found.is_ok(), "{least_bytes} does not do: {}", found.unwrap_err());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}

proptest! {
    #[test]
    fn a_chunk_holds_what_is_used_together(
        layers in 1u32..5, d8 in 1u64..8, ffn in 1u64..200, vocab in 1u64..4000, tied: bool, experts in 0u32..9,
        chunk in 0u64..300_000,
    ) {
        let graph = mixture(layers, 8 * d8, ffn, vocab, tied, [experts, experts.div_ceil(4)]);
        let (tiles, chunks) = pack(&graph, tiles(&graph, tile_bytes(&graph)), |_| chunk);
        let mut next = 0;
        for (index, c) in chunks.iter().enumerate() {
            prop_assert!(c.tiles.start == next && c.tiles.end > next, "{c:?} comes after tile {next}");
            next = c.tiles.end;
            let own = &tiles[c.tiles.clone()];
            prop_assert!(c.bytes <= chunk || own.len() == 1);
            prop_assert!(own.iter().all(|placed| placed.chunk.0 as usize == index));
            let router = |placed: &PlacedTile| placed.tile.condition.map(|condition| condition.group);
            prop_assert!(own.iter().all(|placed| router(placed) == c.router()));
            // Sections are neighbours, and differ from one another in when they are used; each tile lies in one.
            let mut end = 0;
            for section in &c.sections {
                prop_assert!(section.offset == end && section.bytes > 0, "{c:?} after {end}");
                end += section.bytes;
            }
            prop_assert_eq!(end, c.bytes);
            prop_assert!(c.sections.windows(2).all(|pair| pair[0].condition != pair[1].condition));
            for placed in own {
                let first = placed.offsets[0];
                let last = placed.offsets.last().unwrap() + placed.tile.parts.last().unwrap().bytes;
                let within = |s: &&Section| s.offset <= first && last <= s.offset + s.bytes;
                let section = c.sections.iter().find(within).expect("a section has it");
                prop_assert_eq!(section.condition, placed.tile.condition);
            }
            let layer = |placed: &PlacedTile| graph.node(placed.tile.node).layer;
            prop_assert!(own.iter().all(|placed| layer(placed) == layer(&own[0])));
            let expert = graph.node(own[0].tile.node).op.name() == "expert_linear";
            prop_assert_eq!(c.router().is_some(), expert);
            // Nothing but these rules ends a chunk.
            if let Some(after) = tiles.get(c.tiles.end) {
                let more: u64 = after.tile.parts.iter().map(|p| p.bytes.next_multiple_of(256)).sum();
                let alike = router(after) == c.router() && layer(after) == layer(&own[0]);
                prop_assert!(!alike || c.bytes + more > chunk);
            }
        }
        prop_assert_eq!(next, tiles.len());
        let of_layer = |layer: u32| -> Vec<(u64, Vec<Option<u32>>)> {
            let layer_of = |c: &Chunk| graph.node(tiles[c.tiles.start].tile.node).layer;
            let own = chunks.iter().filter(|c| layer_of(c) == Some(layer));
            let experts = |c: &Chunk| c.sections.iter().map(|s| s.condition.map(|of| of.expert)).collect();
            own.map(|c| (c.bytes, experts(c))).collect()
        };
        prop_assert!((1..layers).all(|layer| of_layer(layer) == of_layer(0)), "blocks alike are packed alike");
    }
}

#[test]
fn what_every_pass_uses_is_resident_before_experts() {
    let graph = mixture(4, 64, 96, 500, true, [8, 2]);
    let plan = |fraction| {
        let budget = Budget { resident_fraction: Some(fraction), ..Budget::default() };
        MemoryPlan::new(&graph, &budget, &demand(&graph, 8, 64)).unwrap().placement
    };
    let expert = |p: &Placement, c: crate::ChunkId| p.chunks[c.0 as usize].router().is_some();
    let half = plan(0.5);
    assert!(half.streamed().count() > 8 && half.streamed().all(|c| expert(&half, c)));
    assert_eq!(half.expected_streamed_bytes(1), (half.streamed_bytes() as f64 / 4.0).round() as u64);
    let all = plan(0.0);
    let experts: u64 = all.chunks.iter().filter(|c| c.router().is_some()).map(|c| c.bytes).sum();
    let (dense, most) = (all.streamed_bytes() - experts, all.streamed_bytes());
    assert!(dense > 0);
    assert_eq!(all.expected_streamed_bytes(1), dense + experts / 4);
    assert_eq!(all.expected_streamed_bytes(2), dense + experts * 7 / 16);
    assert_eq!(all.expected_streamed_bytes(500), most);
}

/// A share leaves the last choices of each row to the CPU, if they fall on experts with no resident part.
#[test]
fn the_cpu_gets_its_share_of_a_rows_choices() {
    let graph = mixture(4, 64, 96, 500, true, [8, 4]);
    let plan = |fraction, cpu_share| {
        let budget = Budget { resident_fraction: Some(fraction), cpu_share, ..Budget::default() };
        MemoryPlan::new(&graph, &budget, &demand(&graph, 8, 64)).unwrap().placement
    };
    for (share, first) in [(0.0, 4), (0.1, 4), (0.3, 3), (0.5, 2), (1.0, 0)] {
        for fraction in [0.0, 0.3, 0.6] {
            let placement = plan(fraction, share);
            assert_eq!(placement.cpu_routers.is_empty(), first == 4, "share {share} of {fraction}");
            for router in &placement.cpu_routers {
                let CpuSlots { top_k, first: of_cpu, begin, end } = router.slots;
                assert_eq!((top_k, of_cpu, router.bytes.len() as u32), (4, first, end - begin));
                for tiles in [&router.up, &router.down] {
                    let tiles: Vec<_> = tiles.iter().map(|&tile| &placement.tiles[tile]).collect();
                    let experts: Vec<u32> =
                        tiles.iter().map(|of| of.tile.condition.unwrap().expert).collect();
                    assert!(experts.is_sorted() && experts.contains(&begin) && experts.contains(&(end - 1)));
                    assert!(tiles.iter().all(|of| placement.slots[of.chunk.0 as usize].is_some()));
                }
            }
            // The two read what the row needs of what is not resident.
            let sections =
                placement.streamed().flat_map(|chunk| &placement.chunks[chunk.0 as usize].sections);
            let needed: f64 =
                sections.map(|of| of.bytes as f64 * of.condition.map_or(1.0, |of| of.probability(1))).sum();
            let read = placement.expected_streamed_bytes(1) + placement.expected_cpu_bytes(1);
            assert!((read as f64 - needed).abs() < 2.0, "{read} of {needed}");
            assert_eq!(placement.expected_cpu_bytes(Placement::CPU_ROWS + 1), 0);
        }
    }
    // With room for two of four layers' experts, those stay together.
    let all = plan(0.0, 0.5);
    let of_layer: u64 = all.cpu_routers[0].bytes.iter().sum();
    let dense =
        all.chunks.iter().filter(|chunk| chunk.router().is_none()).map(|chunk| chunk.bytes).sum::<u64>();
    let total: u64 = all.chunks.iter().map(|chunk| chunk.bytes).sum();
    let half = plan((dense + 2 * of_layer) as f64 / total as f64, 0.5);
    let whole: Vec<u32> =
        half.cpu_routers.iter().map(|router| router.slots.end - router.slots.begin).collect();
    assert_eq!(whole, [8, 8]);
}

#[test]
fn untied_tables_stay_on_the_host_and_tied_ones_do_not() {
    let (tied, untied) = (decoder(1, 16, 32, 500, true), decoder(1, 16, 32, 500, false));
    let plan = |g: &Graph| MemoryPlan::new(g, &Budget::default(), &demand(g, 8, 16)).unwrap();
    assert_eq!(plan(&tied).host_bytes, 0);
    assert_eq!(plan(&untied).host_bytes, 500 * 16 * 2);
    assert_eq!(plan(&tied).segments.resident, plan(&untied).segments.resident);
}

#[test]
fn pages_of_parked_sequences_count_as_host_memory() {
    let graph = decoder(1, 16, 32, 500, false);
    let mut demand = demand(&graph, 8, 64);
    let weights = MemoryPlan::new(&graph, &Budget::default(), &demand).unwrap();
    demand.kv.host_pages = 7;
    let plan = MemoryPlan::new(&graph, &Budget::default(), &demand).unwrap();
    assert_eq!(plan.host_bytes, weights.host_bytes + 7 * demand.kv.page_bytes());
    assert_eq!(plan.host_weight_bytes(), weights.host_bytes);
    assert_eq!(plan.segments, weights.segments, "the device holds nothing for them");
    let ram = |bytes| Budget { ram: Some(bytes), ..Budget::default() };
    assert!(MemoryPlan::new(&graph, &ram(plan.host_bytes), &demand).is_ok());
    let error = MemoryPlan::new(&graph, &ram(plan.host_bytes - 1), &demand).unwrap_err();
    let told =
        format!("{} of weights and {} of KV pages", human(weights.host_bytes), human(plan.kv.host_bytes()));
    assert!(error.to_string().contains(&told), "{error}");
    demand.kv.check = true;
    let checked = MemoryPlan::new(&graph, &Budget::default(), &demand).unwrap();
    assert_eq!(checked.host_bytes, plan.host_bytes + 16 * (7 + demand.kv.pages as u64));
    assert_eq!(checked.segments.data, plan.segments.data + 16 * demand.kv.pages as u64);
    demand.kv.host_pages = u32::MAX;
    demand.kv.page_tokens = u32::MAX;
    assert!(MemoryPlan::new(&graph, &ram(1 << 40), &demand).is_err(), "sizes that overflow are refused");
}

#[test]
fn impossible_sizes_are_refused_with_the_least_that_would_do() {
    let graph = decoder(2, 32, 64, 3000, true);
    let demand = demand(&graph, 8, 64);
    let plan = |budget: Budget| MemoryPlan::new(&graph, &budget, &demand);
    let largest = 65536;
    let error = plan(Budget { chunk: Some(10), ..Budget::default() }).unwrap_err();
    let Error::ChunkTooSmall { least_bytes, .. } = error else { panic!("{error}") };
    assert!(least_bytes <= largest);
    assert!(plan(Budget { chunk: Some(least_bytes), ..Budget::default() }).is_ok());
    let streaming = Budget { resident_fraction: Some(0.0), ..Budget::default() };
    let error = plan(Budget { ring: Some(1), ..streaming }).unwrap_err();
    let Error::RingTooSmall { least_bytes, .. } = error else { panic!("{error}") };
    assert!(plan(Budget { ring: Some(least_bytes), ..streaming }).is_ok());
    assert!(matches!(
        plan(Budget { resident_fraction: Some(f64::NAN), ..streaming }),
        Err(Error::Fraction("resident_fraction", _))
    ));
    for cpu_share in [f64::NAN, -0.1, 1.1] {
        let refused = plan(Budget { cpu_share, ..streaming });
        assert!(matches!(refused, Err(Error::Fraction("cpu_share", _))), "{refused:?}");
    }
    assert!(matches!(
        plan(Budget { ram: Some(100), ..streaming }),
        Err(Error::HostBudgetTooSmall { ram_bytes: 100, .. })
    ));
    assert!(matches!(plan(Budget { vram: Some(0), ..Budget::default() }), Err(Error::BudgetTooSmall { .. })));
}

#[test]
fn the_remedy_is_the_flag_that_is_the_cause() {
    let graph = decoder(2, 32, 64, 3000, true);
    let demand = demand(&graph, 8, 64);
    let free = MemoryPlan::new(&graph, &Budget::default(), &demand).unwrap();
    let (fixed, weights) = (free.segments.fixed(), free.segments.resident);
    let remedy = |vram, resident_fraction, ring| {
        let budget = Budget { vram: Some(vram), resident_fraction, ring, ..Budget::default() };
        MemoryPlan::new(&graph, &budget, &demand).unwrap_err().to_string()
    };
    for fraction in [0.9, 1.0] {
        let message = remedy(fixed + weights / 2, Some(fraction), None);
        assert!(message.ends_with("; lower `resident_fraction` or raise `vram`"), "{message}");
    }
    let message = remedy(fixed + weights / 2, None, Some(weights));
    assert!(message.ends_with("; lower `ring` or raise `vram`"), "{message}");
    for fraction in [None, Some(0.5)] {
        let message = remedy(fixed / 2, fraction, None);
        assert!(message.ends_with("; raise `vram` or lower `context`"), "{message}");
    }
    let ram = |resident_fraction| {
        let budget =
            Budget { ram: Some(1), resident_fraction, vram: Some(fixed + weights / 2), ..Budget::default() };
        MemoryPlan::new(&graph, &budget, &demand).unwrap_err().to_string()
    };
    assert!(ram(None).ends_with("; raise `ram` or `vram`"));
    assert!(ram(Some(0.0)).ends_with("; raise `ram` or `resident_fraction`"));
}
