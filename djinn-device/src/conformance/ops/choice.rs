//! Checks of the choice of tokens.

use super::rig::{PARTS, Rig, rows};
use crate::args::Choose;
use crate::reference::choice::is_clear;
use crate::{DType, Draw, Drawn, Ops, Space, Span};

/// Logits of a row: few, around those of a block of threads, and those of a vocabulary.
const VOCABS: [usize; 7] = [1, 2, 31, 257, 1024, 4099, LARGE];
/// The reference takes long for these: not all settings choose from them.
const LARGE: usize = 128_256;

/// Settings, but for what counts the random numbers.
const DRAWS: [Draw; 11] = {
    let warm = Draw { temperature: 0.8, logprob: true, ..Draw::GREEDY };
    [
        Draw::GREEDY,
        Draw { logprob: true, ..Draw::GREEDY },
        Draw { top_k: 1, ..warm },
        warm,
        Draw { temperature: 30.0, ..warm },
        Draw { top_k: 40, ..warm },
        Draw { top_p: 0.9, ..warm },
        Draw { min_p: 0.05, ..warm },
        Draw { temperature: 2.5, top_k: 1000, top_p: 0.95, logprob: false, ..warm },
        Draw { temperature: 10.0, top_p: 0.999, ..warm },
        Draw { top_k: 7, top_p: 0.6, min_p: 0.1, ..warm },
    ]
};

/// Rows of logits, and what chooses from them.
struct Case {
    vocab: usize,
    logits: Vec<f32>,
    draws: Vec<[u32; Draw::WORDS]>,
}

impl Case {
    /// A row for each of `draws`, with random numbers for which no rounding decides.
    fn new<D: Ops>(rig: &mut Rig<D>, vocab: usize, draws: &[Draw], steps: f32) -> Case {
        let mut case = Case { vocab, logits: Vec::new(), draws: Vec::new() };
        for draw in draws {
            // Sums of several look like those of a model: few are great.
            let terms = [(); 4].map(|()| rig.random.spread(vocab, 5.0));
            let sum = |i: usize| terms.iter().map(|term| term[i]).sum::<f32>();
            let logits: Vec<f32> = (0..vocab).map(|i| (sum(i) * steps).round() / steps).collect();
            let clear = (0..100).find_map(|_| {
                let seed = rig.random.below(usize::MAX) as u64;
                let draw = Draw { seed, position: rig.random.below(1 << 20) as u32, ..*draw };
                is_clear(&logits, &draw).then_some(draw)
            });
            let clear = clear.unwrap_or_else(|| panic!("{vocab} logits leave {draw:?} open"));
            case.logits.extend(logits);
            case.draws.push(clear.words());
        }
        case
    }

    /// The operation on some of the rows.
    fn args<D: Ops>(&self, rig: &mut Rig<D>, first: usize, count: usize, space: Space) -> (Choose, Span) {
        let logits = rig.upload(rows(&self.logits, self.vocab, first, count));
        let draws = self.draws[first..first + count].as_flattened();
        let draws = rig.upload_to(space, bytemuck::cast_slice(draws).to_vec());
        let drawn = rig.upload_to(space, vec![0xff; count * Drawn::WORDS * 4]);
        (Choose { logits, draws, drawn, vocab: self.vocab as u32, rows: count as u32 }, drawn)
    }

    /// All rows' results are those of the reference.
    #[track_caller]
    fn agrees<D: Ops>(&self, rig: &mut Rig<D>, name: &str, space: Space) {
        let (op, _) = self.args(rig, 0, self.draws.len(), space);
        rig.run(op);
        rig.matches(name, DType::F32);
    }
}

pub(super) fn chooses_as_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for vocab in VOCABS {
        // Few steps make many equal logits. The first of them are kept.
        for (i, (steps, space)) in [(1e4, Space::Device), (0.5, Space::Host)].into_iter().enumerate() {
            let draws = if vocab < LARGE { &DRAWS[..] } else { &DRAWS[5 + 3 * i..][..2] };
            let case = Case::new(rig, vocab, draws, steps);
            case.agrees(rig, &format!("choose of {vocab} logits in steps of 1/{steps}"), space);
        }
    }
}

pub(super) fn chooses_among_equals<D: Ops>(rig: &mut Rig<D>) {
    for vocab in [33, 4099] {
        let draws = [
            Draw::GREEDY,
            Draw { temperature: 1.0, ..Draw::GREEDY },
            Draw { temperature: 1.0, top_k: 3, ..Draw::GREEDY },
            Draw { temperature: 1.0, top_k: 20, top_p: 0.33, ..Draw::GREEDY },
            Draw { temperature: 1.0, min_p: 1.0, ..Draw::GREEDY },
        ];
        // Two of three are ruled out; zeros of both signs are equal.
        let mut case = Case::new(rig, vocab, &draws, 1e-6);
        for (i, logit) in case.logits.iter_mut().enumerate() {
            *logit = if i % vocab % 3 != 2 {
                f32::NEG_INFINITY
            } else if i % 2 == 0 {
                0.0
            } else {
                -0.0
            };
        }
        for (logits, words) in case.logits.chunks_exact(vocab).zip(&mut case.draws) {
            let draw = Draw::from_words(*words).expect("all choose");
            let clear =
                (0..1000).map(|position| Draw { position, ..draw }).find(|draw| is_clear(logits, draw));
            *words = clear.expect("one is clear").words();
        }
        case.agrees(rig, &format!("choose among {vocab} equal logits"), Space::Device);
    }
}

/// A row without a choice says why, and a row that asks for none is left out.
pub(super) fn chooses_from_sound_rows_alone<D: Ops>(rig: &mut Rig<D>) {
    const INF: f32 = f32::INFINITY;
    let bad: [&[(usize, f32)]; 5] =
        [&[], &[(4000, f32::NAN)], &[(70, INF), (9, f32::NAN)], &[(9, INF), (70, f32::NAN)], &[(4098, INF)]];
    for draw in [Draw::GREEDY, Draw { temperature: 1.0, top_p: 0.5, logprob: true, ..Draw::GREEDY }] {
        let mut case = Case::new(rig, 4099, &[draw; 7], 1e4);
        for (logits, bad) in case.logits.chunks_exact_mut(4099).zip(bad) {
            bad.iter().for_each(|&(at, logit)| logits[at] = logit);
        }
        case.logits[5 * 4099..6 * 4099].fill(-INF);
        case.draws[6] = [0; Draw::WORDS];
        case.agrees(rig, &format!("choose from bad rows by {draw:?}"), Space::Device);
    }
}

pub(super) fn choices_are_batch_invariant<D: Ops>(rig: &mut Rig<D>) {
    let draws: Vec<Draw> = DRAWS.into_iter().cycle().take(33).collect();
    let case = Case::new(rig, 4099, &draws, 1e4);
    let make = |rig: &mut Rig<D>, first: usize, count: usize| case.args(rig, first, count, Space::Device);
    let all = rig.output((0, 33), &make);
    rig.parts_of(&all, "choose", 33, &PARTS, make);
}
