//! Checks of the choice of tokens.

use super::rig::{PARTS, Rig, rows};
use crate::args::Choose;
use crate::reference::choice::{changed, is_clear};
use crate::{Change, Changes, DType, Draw, Drawn, Ops, Space, Span};

/// Logits of a row: few, around those of a block of threads, and those of a vocabulary.
const VOCABS: [usize; 7] = [1, 2, 31, 257, 1024, 4099, LARGE];
/// The reference takes long for these: not all settings choose from them.
const LARGE: usize = 128_256;

/// Settings without what counts the random numbers.
const DRAWS: [Draw; 14] = {
    let warm = Draw { temperature: 0.8, logprob: true, ..Draw::GREEDY };
    [
        Draw::GREEDY,
        Draw { logprob: true, ..Draw::GREEDY },
        Draw { best: 1, ..Draw::GREEDY },
        Draw { top_k: 1, ..warm },
        warm,
        Draw { temperature: 30.0, ..warm },
        Draw { top_k: 40, ..warm },
        Draw { best: 20, ..warm },
        Draw { top_p: 0.9, ..warm },
        Draw { min_p: 0.05, ..warm },
        Draw { temperature: 2.5, top_k: 1000, top_p: 0.95, logprob: false, ..warm },
        Draw { temperature: 10.0, top_p: 0.999, ..warm },
        Draw { top_k: 7, top_p: 0.6, min_p: 0.1, ..warm },
        Draw { temperature: 0.02, top_k: 200, ..warm },
    ]
};

/// Rows of logits, and what chooses from them.
struct Case {
    vocab: usize,
    logits: Vec<f32>,
    draws: Vec<[u32; Draw::WORDS]>,
    /// Changes of all rows.
    changes: Vec<u32>,
    /// Latest tokens, one for each row.
    earlier: Vec<u32>,
}

/// What changes a row's logits: `biased` tokens by biases, `penalised` ones by how often they came, and every `allowed`-th
/// token is allowed.
#[derive(Clone, Copy, Debug)]
struct Changing {
    biased: usize,
    penalised: usize,
    allowed: Option<usize>,
    /// Whether the latest token is one of those, or another one.
    latest: Option<bool>,
}

/// Nothing, one kind alone, and all kinds together.
const CHANGING: [Changing; 7] = {
    let none = Changing { biased: 0, penalised: 0, allowed: None, latest: None };
    [
        none,
        Changing { biased: 3, ..none },
        Changing { penalised: 700, ..none },
        Changing { allowed: Some(3), ..none },
        Changing { latest: Some(false), ..none },
        Changing { biased: 40, penalised: 300, allowed: Some(2), latest: Some(true) },
        Changing { biased: 1024, penalised: 90_000, allowed: Some(1), latest: Some(false) },
    ]
};

impl Case {
    /// A row for each of `draws`, with random numbers for which no rounding decides.
    fn new<D: Ops>(rig: &mut Rig<D>, vocab: usize, draws: &[Draw], steps: f32) -> Case {
        Case::changed(rig, vocab, draws, steps, &CHANGING[..1])
    }

    /// The same of logits that change in some ways, row by row.
    fn changed<D: Ops>(
        rig: &mut Rig<D>,
        vocab: usize,
        draws: &[Draw],
        steps: f32,
        changing: &[Changing],
    ) -> Case {
        let (logits, changes) = (Vec::new(), vec![0; Change::WORDS]);
        let mut case = Case { vocab, logits, draws: Vec::new(), changes, earlier: Vec::new() };
        for (draw, changing) in draws.iter().zip(changing.iter().cycle()) {
            // Sums of several look like those of a model: few are great.
            let terms = [(); 4].map(|()| rig.random.spread(vocab, 5.0));
            let sum = |i: usize| terms.iter().map(|term| term[i]).sum::<f32>();
            let logits: Vec<f32> = (0..vocab).map(|i| (sum(i) * steps).round() / steps).collect();
            let (tokens, allowed, latest) = changing.words(rig, vocab);
            let changes = Changes { tokens: &tokens, allowed: allowed.as_deref(), latest };
            let after = changed(&logits, draw, &changes);
            let clear = (0..100).find_map(|_| {
                let seed = rig.random.below(usize::MAX) as u64;
                let draw = Draw { seed, position: rig.random.below(1 << 20) as u32, ..*draw };
                is_clear(&after, &draw).then_some(draw)
            });
            let clear = clear.unwrap_or_else(|| panic!("{vocab} logits leave {draw:?}, {changing:?} open"));
            let mut words = clear.words();
            changes.put(&mut words, &mut case.changes);
            if latest.is_some() {
                Changes::put_latest(&mut words, case.earlier.len() as u32);
            }
            case.earlier.push(latest.unwrap_or(u32::MAX));
            case.logits.extend(logits);
            case.draws.push(words);
        }
        case
    }

    /// The operation on some of the rows.
    fn args<D: Ops>(&self, rig: &mut Rig<D>, first: usize, count: usize, space: Space) -> (Choose, Span) {
        let logits = rig.upload(rows(&self.logits, self.vocab, first, count));
        let draws = self.draws[first..first + count].as_flattened();
        let draws = rig.upload_to(space, bytemuck::cast_slice(draws).to_vec());
        let [changes, earlier] = [&self.changes, &self.earlier]
            .map(|words| rig.upload_to(space, bytemuck::cast_slice(words).to_vec()));
        let drawn = rig.upload_to(space, vec![0xff; count * Drawn::WORDS * 4]);
        let (vocab, rows) = (self.vocab as u32, count as u32);
        (Choose { logits, draws, changes, earlier, drawn, vocab, rows }, drawn)
    }

    /// All rows' results are those of the reference.
    #[track_caller]
    fn agrees<D: Ops>(&self, rig: &mut Rig<D>, name: &str, space: Space) {
        let (op, _) = self.args(rig, 0, self.draws.len(), space);
        rig.run(op);
        rig.matches(name, DType::F32);
    }
}

impl Changing {
    /// The fields of [`Changes`] for a row of `vocab` logits.
    fn words<D: Ops>(
        self,
        rig: &mut Rig<D>,
        vocab: usize,
    ) -> (Vec<[u32; Change::WORDS]>, Option<Vec<u32>>, Option<u32>) {
        let Changing { biased, penalised, allowed, latest } = self;
        let mut tokens = rig.random.permutation(vocab);
        let known = (biased.max(penalised)).min(vocab);
        let others = tokens.split_off(known);
        let change = |(i, &token): (usize, &u32)| Change {
            token,
            bias: if i < biased { (i % 21) as f32 - 10.0 } else { 0.0 },
            count: if i < penalised { (i % 4) as u32 } else { 0 },
            seen: i < penalised && i % 3 > 0,
        };
        let latest = latest.and_then(|known| if known { tokens.last() } else { others.first() }.copied());
        let mut words = vec![0; vocab.div_ceil(32)];
        // The last token of a row may be the only one.
        let is_allowed = |token: &usize| (vocab - 1 - token).is_multiple_of(allowed.unwrap_or(1));
        (0..vocab).filter(is_allowed).for_each(|token| words[token / 32] |= 1 << (token % 32));
        let tokens = tokens.iter().enumerate().map(change).map(|change| change.words()).collect();
        (tokens, allowed.map(|_| words), latest)
    }
}

pub(super) fn chooses_as_the_reference<D: Ops>(rig: &mut Rig<D>) {
    for vocab in VOCABS {
        // Few steps make many equal logits. The first of them are kept.
        for (i, (steps, space)) in [(1e4, Space::Device), (0.5, Space::Host)].into_iter().enumerate() {
            let draws = if vocab < LARGE { &DRAWS[..] } else { &DRAWS[7 + 3 * i..][..2] };
            let case = Case::new(rig, vocab, draws, steps);
            case.agrees(rig, &format!("choose of {vocab} logits in steps of 1/{steps}"), space);
        }
    }
}

pub(super) fn chooses_from_changed_logits<D: Ops>(rig: &mut Rig<D>) {
    let penalties =
        Draw { repetition_penalty: 1.3, frequency_penalty: 0.4, presence_penalty: -0.3, ..DRAWS[1] };
    for vocab in VOCABS {
        // The reference takes long for a vocabulary of a model.
        let count = if vocab < LARGE { CHANGING.len() } else { 1 };
        let changing = &CHANGING[CHANGING.len() - count..];
        let cold = vec![Draw { best: 5, ..penalties }; count];
        let warm = vec![Draw { temperature: 0.9, top_p: 0.95, ..penalties }; count];
        let few = vec![Draw { temperature: 3.0, top_k: 30, min_p: 0.01, ..penalties }; count];
        let cases = [(warm, Space::Host), (cold, Space::Device), (few, Space::Host)];
        for (draws, space) in cases.into_iter().take(if vocab < LARGE { 3 } else { 1 }) {
            let case = Case::changed(rig, vocab, &draws, 1e4, changing);
            case.agrees(rig, &format!("choose of {vocab} changed logits by {:?}", draws[0]), space);
        }
    }
}

/// A row whose changes rule out all that the model allows says so, and extreme ones keep logits finite.
pub(super) fn changes_stay_within_numbers<D: Ops>(rig: &mut Rig<D>) {
    let vocab = 100;
    let extreme = Draw { repetition_penalty: 1e-30, frequency_penalty: -2.0, logprob: true, ..Draw::GREEDY };
    let mut case = Case::new(rig, vocab, &[extreme; 4], 1e4);
    let allowed: Vec<u32> = vec![1 << 7, 0, 1 << 31, 0];
    for at in [7, 95, 207, 295] {
        case.logits[at] = if at < 200 { f32::NEG_INFINITY } else { 3e38 };
    }
    let tokens = [(7, 0), (95, 4), (40, 1)]
        .map(|(token, count)| Change { token, bias: 1.0, count, seen: true }.words());
    for (at, words) in case.draws.iter_mut().enumerate() {
        let allowed = [Some(&*allowed), None][at % 2];
        Changes { tokens: &tokens[..3 - at / 2], allowed, latest: None }.put(words, &mut case.changes);
    }
    case.agrees(rig, "choose after extreme changes", Space::Device);
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
    let draws: Vec<Draw> = draws.into_iter().map(|draw| Draw { presence_penalty: 0.5, ..draw }).collect();
    let case = Case::changed(rig, 4099, &draws, 1e4, &CHANGING);
    let make = |rig: &mut Rig<D>, first: usize, count: usize| case.args(rig, first, count, Space::Device);
    let all = rig.output((0, 33), &make);
    rig.parts_of(&all, "choose", 33, &PARTS, make);
}
