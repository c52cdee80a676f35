//! Predictions against what arithmetic allows.

use super::*;
use crate::plan::tests::{decoder, demand, mixture};
use crate::{Budget, Demand, Placement};
use djinn_srg::DType;

fn machine(link: f64) -> Machine {
    Machine { name: "test".into(), flops: 1e12, memory: 1e11, link, ..Machine::default() }
}

fn streaming(fraction: f64) -> (Graph, MemoryPlan) {
    planned(Budget { resident_fraction: Some(fraction), ..Budget::default() })
}

fn planned(budget: Budget) -> (Graph, MemoryPlan) {
    let graph = decoder(8, 64, 256, 1000, true);
    let demand: Demand = demand(&graph, 64, 128);
    let plan = MemoryPlan::new(&graph, &budget, &demand).unwrap();
    (graph, plan)
}

#[test]
fn a_slow_link_takes_streamed_bytes_over_its_rate() {
    let (graph, plan) = streaming(0.5);
    let p = predict(&graph, &plan, &Work::decode(1, 64, DType::F16), &machine(1e6));
    let floor = plan.placement.streamed_bytes() as f64 / 1e6;
    assert_eq!(p.bottleneck, Bottleneck::Link);
    assert!(p.seconds >= floor * 0.999 && p.seconds < floor * 1.05, "{} of {floor}", p.seconds);
}

#[test]
fn a_resident_model_takes_its_operations_time() {
    let (graph, plan) = streaming(1.0);
    let p = predict(&graph, &plan, &Work::decode(1, 64, DType::F16), &machine(1e6));
    assert_eq!(p.copy_seconds, 0.0);
    assert!((p.seconds - p.compute_seconds).abs() < 1e-12);
    assert_eq!(p.bottleneck, Bottleneck::Memory);
}

#[test]
fn a_fast_link_hides_behind_computation() {
    let (graph, plan) = streaming(0.5);
    let p = predict(&graph, &plan, &Work::prefill(64, DType::F16), &machine(1e13));
    assert!(p.seconds < p.compute_seconds * 1.01);
    assert_eq!(p.bottleneck, Bottleneck::Memory);
}

#[test]
fn the_cpu_takes_its_share_of_the_links_time() {
    let (resident_fraction, machine) = (Some(0.2), machine(1e6));
    let (graph, plan) = planned(Budget { resident_fraction, cpu_share: 0.5, ..Budget::default() });
    let predict = |rows| predict(&graph, &plan, &Work::decode(rows, 64, DType::F16), &machine);
    let (few, many) = (predict(Placement::CPU_ROWS), predict(Placement::CPU_ROWS + 1));
    let (all, on_cpu) = (plan.placement.streamed_bytes() as f64, plan.placement.cpu_bytes() as f64);
    assert!(on_cpu > 0.4 * all && on_cpu <= 0.5 * all);
    assert!((few.copy_seconds - (all - on_cpu) / 1e6).abs() < 1e-9, "{few:?}");
    assert!((many.copy_seconds - all / 1e6).abs() < 1e-9, "{many:?}");
    assert!(few.seconds >= on_cpu / 1e6 && few.seconds < 0.75 * many.seconds, "{few:?}, {many:?}");
    let (graph, plan) = planned(Budget { resident_fraction, cpu_share: 1.0, ..Budget::default() });
    let p = super::predict(&graph, &plan, &Work::decode(1, 64, DType::F16), &machine);
    assert_eq!((p.copy_seconds, p.bottleneck), (0.0, Bottleneck::Cpu));
}

/// So it does with experts, beside the copies of others.
#[test]
fn the_cpu_takes_its_share_of_a_rows_experts() {
    let (graph, machine) = (mixture(4, 64, 96, 500, true, [8, 4]), machine(1e6));
    let predict = |cpu_share, rows| {
        let budget = Budget { resident_fraction: Some(0.2), cpu_share, ..Budget::default() };
        let plan = MemoryPlan::new(&graph, &budget, &demand(&graph, 16, 64)).unwrap();
        let on_cpu = plan.placement.expected_cpu_bytes(rows) as f64 / 1e6;
        (predict(&graph, &plan, &Work::decode(rows, 64, DType::F16), &machine), on_cpu)
    };
    let [(none, zero), (half, beside), (whole, alone)] = [0.0, 0.5, 1.0].map(|share| predict(share, 1));
    let of_all = |share: f64| share * none.copy_seconds;
    assert!(zero == 0.0 && beside > of_all(0.4 * EXPERT_COPIES) && half.copy_seconds < of_all(0.6));
    assert!(half.seconds > beside && half.seconds < 0.7 * none.seconds, "{half:?}, {none:?}");
    assert!(whole.seconds > alone && whole.bottleneck == Bottleneck::Cpu, "{whole:?}");
    assert!((predict(0.5, Placement::CPU_ROWS + 1).0.seconds) > none.seconds);
}

#[test]
fn blocking_copies_add_up_with_the_operations() {
    let budget = Budget { resident_fraction: Some(0.5), blocking_copies: true, ..Budget::default() };
    let (graph, plan) = planned(budget);
    for link in [1e6, 1e9, 1e13] {
        let p = predict(&graph, &plan, &Work::decode(1, 64, DType::F16), &machine(link));
        let sum = p.copy_seconds + p.compute_seconds;
        assert!((p.seconds / sum - 1.0).abs() < 1e-9, "{} of {sum} at {link} bytes/s", p.seconds);
    }
}

#[test]
fn straddling_chunks_are_joined_in_compute_time() {
    let budget = Budget { resident_fraction: Some(0.0), ring: Some(70_000), ..Budget::default() };
    let predicted = |straddle| {
        let (graph, plan) = planned(Budget { straddle, ..budget });
        let ring = &plan.placement.ring;
        let wrapped = |&index: &usize| !ring.parts(index)[1].is_empty();
        let joined: u64 = (0..ring.slots().len()).filter(wrapped).map(|index| ring.slots()[index].len).sum();
        (predict(&graph, &plan, &Work::decode(1, 64, DType::F16), &machine(1e9)), joined)
    };
    let ((skip, none), (straddle, joined)) = (predicted(false), predicted(true));
    assert!(none == 0 && joined > 0, "{none} and {joined} bytes are joined");
    let added = straddle.compute_seconds - skip.compute_seconds;
    assert!((added - 2.0 * joined as f64 / 1e11).abs() < 1e-12, "{added} s for {joined} bytes");
    assert_eq!(straddle.copy_seconds, skip.copy_seconds);
}

#[test]
fn experts_cross_the_link_as_often_as_they_are_chosen() {
    let graph = mixture(6, 64, 128, 500, true, [8, 2]);
    let at = |fraction, rows, link, blocking_copies| {
        let budget = Budget { resident_fraction: Some(fraction), blocking_copies, ..Budget::default() };
        let plan = MemoryPlan::new(&graph, &budget, &demand(&graph, 64, 128)).unwrap();
        let p = predict(&graph, &plan, &Work::decode(rows, 64, DType::F16), &machine(link));
        let seconds = |chunk: ChunkId| {
            let speed =
                if plan.placement.chunks[chunk.0 as usize].router().is_some() { EXPERT_COPIES } else { 1.0 };
            plan.placement.expected_copy(chunk, rows) / (speed * link)
        };
        (p, plan.placement.streamed().map(seconds).sum::<f64>())
    };
    for rows in [1, 4, 64] {
        let (p, copies) = at(0.3, rows, 1e6, false);
        assert!((p.copy_seconds / copies - 1.0).abs() < 1e-3, "{} of {copies}", p.copy_seconds);
        assert_eq!(p.bottleneck, Bottleneck::Link);
        assert!(p.seconds >= p.copy_seconds && p.seconds < p.copy_seconds * 1.05);
    }
    let (few, many) = (at(0.3, 1, 1e6, false).0, at(0.3, 64, 1e6, false).0);
    assert!(few.copy_seconds < many.copy_seconds / 3.0 && few.compute_seconds < many.compute_seconds);
    // Only experts are streamed, and none is fetched before its router has spoken: what comes before it is not hidden.
    let (waits, _) = at(0.5, 1, 3e10, false);
    assert!(waits.seconds > waits.copy_seconds.max(waits.compute_seconds) * 1.02, "{waits:?}");
    let (alone, _) = at(0.5, 1, 3e10, true);
    assert!((alone.seconds / (alone.copy_seconds + alone.compute_seconds) - 1.0).abs() < 1e-9);
    assert!(waits.seconds < alone.seconds);
}
