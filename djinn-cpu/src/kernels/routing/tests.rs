//! Properties of routes and groups.

use super::*;
use crate::kernels::simd::Isa;
use djinn_device::args::CpuSlots;
use proptest::prelude::*;

fn fast() -> Fast {
    Fast::new(Isa::detect(), 2).unwrap()
}

/// Order and starts.
fn group(ids: &[u32], experts: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut order, mut starts) = (vec![u32::MAX; ids.len()], vec![u32::MAX; experts + 1]);
    fast().group(Group { ids, order: &mut order, starts: &mut starts, cpu: CpuSlots::NONE, of_cpu: false });
    (order, starts)
}

/// Weights and ids.
fn route(logits: &[f32], [experts, top_k]: [usize; 2], renormalise: bool) -> (Vec<f32>, Vec<u32>) {
    let len = logits.len() / experts * top_k;
    let (mut weights, mut ids) = (vec![f32::NAN; len], vec![u32::MAX; len]);
    fast().route(Route { logits, experts, top_k, renormalise, weights: &mut weights, ids: &mut ids });
    (weights, ids)
}

#[test]
fn a_route_and_its_groups_by_hand() {
    let logits = [0.0, 3_f32.ln(), 0.0, f32::NEG_INFINITY, f32::NAN, 1.0, 2.0, 2.0];
    let (weights, ids) = route(&logits, [4, 2], false);
    assert_eq!(ids, [1, 0, 2, 3]);
    assert!((weights[0] - 0.6).abs() < 1e-6 && (weights[1] - 0.2).abs() < 1e-6, "{weights:?}");
    assert!(weights[2].is_nan() && weights[3].is_nan(), "{weights:?}");
    let (weights, _) = route(&logits, [4, 2], true);
    assert!((weights[0] - 0.75).abs() < 1e-6 && (weights[1] - 0.25).abs() < 1e-6, "{weights:?}");
    // Nothing to choose by: valid ids all the same.
    let (weights, ids) = route(&[f32::NAN; 4], [4, 3], true);
    assert_eq!(ids, [0, 1, 2]);
    assert!(weights.iter().all(|weight| weight.is_nan()));
    let (order, starts) = group(&[1, 0, 2, 3, 1, 3], 5);
    assert_eq!((&order[..], &starts[..]), (&[1, 0, 4, 2, 3, 5][..], &[0, 1, 3, 4, 6, 6][..]));
}

proptest! {
    #[test]
    fn groups_partition_the_slots(experts in 1_usize..40, ids in prop::collection::vec(any::<u32>(), 1..400)) {
        let ids: Vec<u32> = ids.iter().map(|id| id % experts as u32).collect();
        let (order, starts) = group(&ids, experts);
        prop_assert_eq!((starts[0], starts[experts] as usize), (0, ids.len()));
        for expert in 0..experts {
            prop_assert!(starts[expert] <= starts[expert + 1]);
            let slots = &order[starts[expert] as usize..starts[expert + 1] as usize];
            prop_assert!(slots.is_sorted_by(|a, b| a < b), "{slots:?}");
            prop_assert!(slots.iter().all(|&slot| ids[slot as usize] as usize == expert));
        }
    }

    #[test]
    fn routes_choose_the_greatest(
        top_k in 1_usize..16,
        more in 0_usize..50,
        renormalise: bool,
        // Few different values, for ties.
        values in prop::collection::vec(-4_i8..5, 66 * 5),
    ) {
        let experts = top_k + more;
        let logits: Vec<f32> = values[..5 * experts].iter().map(|&value| f32::from(value) / 2.0).collect();
        let (weights, ids) = route(&logits, [experts, top_k], renormalise);
        for (r, logits) in logits.chunks(experts).enumerate() {
            let chosen = &ids[r * top_k..][..top_k];
            let before = |a: u32, b: u32| {
                let (x, y) = (logits[a as usize], logits[b as usize]);
                x > y || (x == y && a < b)
            };
            prop_assert!(chosen.windows(2).all(|pair| before(pair[0], pair[1])), "{chosen:?} of {logits:?}");
            let last = chosen[top_k - 1];
            let others = (0..experts as u32).filter(|id| !chosen.contains(id));
            prop_assert!(others.into_iter().all(|id| before(last, id)), "{chosen:?} of {logits:?}");
            let sum: f32 = weights[r * top_k..][..top_k].iter().sum();
            prop_assert!(sum < 1.0 + 1e-5, "{sum}");
            prop_assert!((!renormalise && top_k < experts) || sum > 1.0 - 1e-5, "{sum}");
        }
        // The definition, in f64.
        for (r, logits) in logits.chunks(experts).enumerate() {
            let power = |id: usize| f64::from(logits[id]).exp();
            let chosen = &ids[r * top_k..][..top_k];
            let among: f64 = match renormalise {
                true => chosen.iter().map(|&id| power(id as usize)).sum(),
                false => (0..experts).map(power).sum(),
            };
            for (&weight, &id) in weights[r * top_k..].iter().zip(chosen) {
                let want = power(id as usize) / among;
                prop_assert!((f64::from(weight) - want).abs() <= 1e-5 * want, "{weight} instead of {want}");
            }
        }
    }
}
