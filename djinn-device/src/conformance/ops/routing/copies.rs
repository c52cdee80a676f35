//! Checks of [`CopyExpert`].

use super::group;
use crate::args::CopyExpert;
use crate::conformance::ops::rig::Rig;
use crate::{DType, Ops, Space};

/// Bytes of the destination's buffer before and after it.
const MARGIN: usize = 48;

/// One expert's copy.
#[derive(Clone, Copy, Debug)]
struct Copy {
    expert: usize,
    len: usize,
    /// First bytes in the source's buffer, and in the destination's after the margin.
    from: [usize; 2],
    source: Space,
}

/// Runs copies of experts, where each in `used` has slots, and compares what every byte is, and the flags.
fn run<D: Ops>(rig: &mut Rig<D>, used: &[bool], copies: &[Copy]) {
    let experts = used.len();
    let ids: Vec<u32> = (0..experts as u32).filter(|&e| used[e as usize]).flat_map(|e| [e; 3]).collect();
    let ids = rig.upload(&ids);
    let group = group(rig, ids, experts);
    rig.run(group);
    let moved = rig.blank(copies.len() * 4);
    for (i, &Copy { expert, len, from, source }) in copies.iter().enumerate() {
        let (bytes, before) = (rig.random.bytes(from[0] + len), rig.random.bytes(from[1] + len + 2 * MARGIN));
        let args = CopyExpert {
            src: rig.upload_to(source, bytes).slice(from[0] as u64, len as u64),
            dst: rig.upload(&before).slice((from[1] + MARGIN) as u64, len as u64),
            starts: group.starts,
            moved: moved.slice(i as u64 * 4, 4),
            expert: expert as u32,
            experts: experts as u32,
        };
        rig.run(args);
    }
    let flags: Vec<u32> = rig.download(moved);
    let want: Vec<u32> = copies.iter().map(|copy| used[copy.expert].into()).collect();
    assert_eq!(flags, want, "moved of {copies:?}");
    rig.matches(&format!("{copies:?} of {experts} experts"), DType::F32);
}

/// Used experts' bytes arrive, others' destinations keep what they had, and every flag says which.
pub(in crate::conformance::ops) fn copies_experts_in_use<D: Ops>(rig: &mut Rig<D>) {
    for experts in [1_usize, 2, 8, 60, 1024] {
        for pattern in 0..4 {
            let used = (0..experts).map(|e| match pattern {
                0 => true,
                1 => e + 1 == experts,
                2 => e == 0,
                _ => e % 3 == 1 || e == experts / 2,
            });
            let some =
                [0, 1, experts / 2, experts.saturating_sub(2), experts - 1].map(|e| e.min(experts - 1));
            let lens = [16, 4096, 100_003, 256, 65_536 * 3 + 512];
            let copies = some.into_iter().zip(lens).flat_map(|(expert, len)| {
                [Space::Host, Space::Device].map(|source| Copy { expert, len, from: [0, 0], source })
            });
            run(rig, &used.collect::<Vec<_>>(), &copies.collect::<Vec<_>>());
        }
    }
}

/// Copies at once arrive where copies one after the other do, and what lies between their destinations stays. One expert may
/// have several parts and one flag.
pub(in crate::conformance::ops) fn copies_many_experts_at_once<D: Ops>(rig: &mut Rig<D>) {
    for (experts, each, source) in
        [(1, 16, Space::Host), (7, 70_016, Space::Host), (7, 333, Space::Device), (200, 4_112, Space::Host)]
    {
        for pattern in 0..3 {
            let used = |e: usize| match pattern {
                0 => true,
                1 => e + 1 == experts,
                _ => e.is_multiple_of(8),
            };
            let ids: Vec<u32> = (0..experts as u32).filter(|&e| used(e as usize)).collect();
            let ids = rig.upload(&ids);
            let group = group(rig, ids, experts);
            rig.run(group);
            // Every third expert has two parts, the second before all others.
            let parts = experts + experts.div_ceil(3);
            let [from, before] = [0, parts * MARGIN].map(|more| rig.random.bytes(parts * each + more));
            let (from, ring) = (rig.upload_to(source, from), rig.upload(&before));
            let moved = rig.blank(experts * 4);
            let mut copies = Vec::new();
            let (mut first, mut rest) = (0, experts.div_ceil(3));
            for expert in 0..experts {
                let mut copy = |at: &mut usize| {
                    copies.push(CopyExpert {
                        src: from.slice((copies.len() * each) as u64, each as u64),
                        dst: ring.slice((*at * (each + MARGIN)) as u64, each as u64),
                        starts: group.starts,
                        moved: moved.slice(expert as u64 * 4, 4),
                        expert: expert as u32,
                        experts: experts as u32,
                    });
                    *at += 1;
                };
                copy(&mut rest);
                if expert.is_multiple_of(3) {
                    copy(&mut first);
                }
            }
            CopyExpert::check_all(&copies);
            rig.enqueued(rig.device.copy_experts(rig.stream, &copies));
            copies.iter().for_each(|&copy| rig.expect(copy));
            let flags: Vec<u32> = rig.download(moved);
            let want: Vec<u32> = (0..experts).map(|e| used(e).into()).collect();
            assert_eq!(flags, want, "moved of {experts} experts, {pattern}");
            rig.matches(&format!("{each} bytes of each of {experts} experts, {pattern}"), DType::F32);
        }
    }
}

/// Sources and destinations may begin anywhere, and have any length.
pub(in crate::conformance::ops) fn copies_wherever_bytes_begin<D: Ops>(rig: &mut Rig<D>) {
    let mut copies = Vec::new();
    for len in [1, 3, 15, 16, 17, 31, 33, 1000, 70_001] {
        for from in [[0, 0], [16, 32], [1, 0], [0, 7], [5, 5], [8, 4]] {
            for expert in [0, 1] {
                copies.push(Copy { expert, len, from, source: Space::Host });
            }
        }
    }
    run(rig, &[true, false], &copies);
}
