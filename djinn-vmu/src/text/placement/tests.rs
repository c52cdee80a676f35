//! Budgets are kept, and streamed chunks lie evenly between the others.

use super::*;
use crate::text::{Section, choose_on_cpu};
use djinn_srg::{Condition, NodeId};
use proptest::prelude::*;

fn chunk(bytes: u64, condition: Option<Condition>) -> Chunk {
    Chunk { tiles: 0..0, bytes, sections: vec![Section { offset: 0, bytes, condition }] }
}

fn chunks(sizes: &[u64]) -> Vec<Chunk> {
    sizes.iter().map(|&bytes| chunk(bytes, None)).collect()
}

proptest! {
    #[test]
    fn the_budget_is_kept_and_nothing_more_would_fit(sizes in prop::collection::vec(1u64..100, 1..60),
                                                     budget in 0u64..4000) {
        let chunks = chunks(&sizes);
        let resident = choose_resident(&chunks, budget, false);
        let spent: u64 = sizes.iter().zip(&resident).filter(|(_, r)| **r).map(|(s, _)| s).sum();
        prop_assert!(spent <= budget);
        let smallest = sizes.iter().zip(&resident).filter(|(_, r)| !**r).map(|(s, _)| *s).min();
        prop_assert!(smallest.is_none_or(|s| spent + s > budget));
    }

    #[test]
    fn the_cpu_gets_its_share_of_what_streams(sizes in prop::collection::vec((1u64..100, 0..3), 1..60),
                                                    share in 0.0..=1.0f64) {
        let condition = Condition { group: NodeId(0), expert: 0, experts: 8, top_k: 2 };
        let chunk = |&(bytes, kind): &(u64, i32)| chunk(bytes, (kind == 2).then_some(condition));
        let (chunks, resident): (Vec<Chunk>, Vec<bool>) = sizes.iter().map(|of| (chunk(of), of.1 == 1)).unzip();
        let on_cpu = choose_on_cpu(&chunks, &resident, share);
        // At the end of every chunk the share is kept, within a chunk.
        let (mut streamed, mut chosen) = (0, 0);
        for (&(bytes, kind), on_cpu) in sizes.iter().zip(on_cpu) {
            prop_assert!(kind == 0 || !on_cpu);
            streamed += if kind == 0 { bytes } else { 0 };
            chosen += if on_cpu { bytes } else { 0 };
            let goal = streamed as f64 * share;
            prop_assert!(chosen as f64 <= goal && (chosen + 100) as f64 > goal, "{chosen} of {goal}");
        }
        prop_assert!(share < 1.0 || chosen == streamed);
    }

    #[test]
    fn what_every_pass_uses_is_resident_first(sizes in prop::collection::vec((1u64..100, any::<bool>()), 1..60),
                                              budget in 0u64..4000) {
        let condition = Condition { group: NodeId(0), expert: 0, experts: 8, top_k: 2 };
        let chunk = |&(bytes, expert): &(u64, bool)| chunk(bytes, expert.then_some(condition));
        let chunks: Vec<Chunk> = sizes.iter().map(chunk).collect();
        let resident = choose_resident(&chunks, budget, false);
        let spent = |expert: bool| -> u64 {
            let resident = sizes.iter().zip(&resident).filter(|((_, e), r)| *e == expert && **r);
            resident.map(|((bytes, _), _)| bytes).sum()
        };
        prop_assert!(spent(false) + spent(true) <= budget);
        let always: Vec<u64> = sizes.iter().filter(|(_, e)| !e).map(|(bytes, _)| *bytes).collect();
        let alone = choose_resident(&self::chunks(&always), budget, false);
        let of_alone = always.iter().zip(alone).filter(|(_, r)| *r).map(|(bytes, _)| bytes).sum::<u64>();
        prop_assert_eq!(spent(false), of_alone, "experts take nothing from the others");
        let left = budget - spent(false) - spent(true);
        let streamed = sizes.iter().zip(&resident).filter(|(_, r)| !**r).map(|((bytes, _), _)| *bytes);
        prop_assert!(streamed.min().is_none_or(|bytes| bytes > left));
    }

    #[test]
    fn experts_of_a_router_stay_together(sizes in prop::collection::vec(1u64..100, 4..60), routers in 1usize..6,
                                         percent in 0u64..120) {
        let router = |i: usize| i * routers / sizes.len();
        let condition = |i: usize| Condition { group: NodeId(router(i) as u32), expert: i as u32, experts: 64, top_k: 2 };
        let chunks: Vec<Chunk> = sizes.iter().enumerate().map(|(i, &bytes)| chunk(bytes, Some(condition(i)))).collect();
        let budget = sizes.iter().sum::<u64>() * percent / 100;
        let resident = choose_resident(&chunks, budget, true);
        let spent: u64 = sizes.iter().zip(&resident).filter(|(_, r)| **r).map(|(s, _)| s).sum();
        let smallest = sizes.iter().zip(&resident).filter(|(_, r)| !**r).map(|(s, _)| *s).min();
        prop_assert!(spent <= budget && smallest.is_none_or(|bytes| spent + bytes > budget));
        // What is resident of routers in part is what whole ones leave of the budget.
        let of = |of: usize| (0..sizes.len()).filter(move |&i| router(i) == of);
        let parts = (0..routers).filter(|&r| of(r).any(|i| resident[i]) && !of(r).all(|i| resident[i]));
        let in_part: u64 = parts.flat_map(of).filter(|&i| resident[i]).map(|i| sizes[i]).sum();
        let whole = (0..routers).map(|r| of(r).map(|i| sizes[i]).sum::<u64>()).max().unwrap();
        prop_assert!(in_part <= whole, "{in_part} in parts, {whole} the largest");
    }

    #[test]
    fn streamed_chunks_are_spread_evenly(n in 8usize..200, percent in 1u64..100) {
        let resident = choose_resident(&chunks(&vec![100; n]), n as u64 * percent, false);
        let share = resident.iter().filter(|r| **r).count() as f64 / n as f64;
        // No window has many more resident chunks than its share.
        for window in [8, n / 2 + 1] {
            for run in resident.windows(window) {
                let count = run.iter().filter(|r| **r).count() as f64;
                prop_assert!((count - share * window as f64).abs() <= 3.0, "{run:?} of {share}");
            }
        }
    }
}
