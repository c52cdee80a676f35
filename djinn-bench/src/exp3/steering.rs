//! What a vector that is added at the hook does, by its strength.

use super::{Bench, look};
use anyhow::Result;
use djinn_device::Ops;
use djinn_engine::Edit;
use djinn_engine::debug::{Breakpoint, DebugSetup, Debugger, Filter, Look, Steering, TokenKind};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Strength {
    /// The vector's length, as a share of the activation's.
    pub(crate) strength: f32,
    /// How far the next token's logits move: the difference's length over theirs.
    pub(crate) logits_change: f64,
    /// Generated tokens that are others than without.
    pub(crate) changed_tokens: u32,
    pub(crate) tokens: u32,
}

const STRENGTHS: [f32; 7] = [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
const PROMPT: u32 = 64;

pub(super) fn measure<D: Ops>(bench: &mut Bench<'_, D>, hook: &str) -> Result<Vec<Strength>> {
    let (prompt, tokens) = (PROMPT.min(bench.args.context / 2), bench.args.tokens);
    let filter =
        Filter { tokens: TokenKind::Prompt, positions: u64::from(prompt) - 1..u64::MAX, ..Filter::default() };
    let stop = Breakpoint { filter, ..bench.breakpoint(hook)? };
    let id =
        bench.open(9_000, prompt, tokens, DebugSetup { breakpoints: vec![stop], steering: Vec::new() })?;
    bench.settle()?;
    let own = bench.service.hook(hook)?;
    let hooks = vec![own.clone()];
    let plain = look(bench, id, Look { hooks, logits: true, ..Look::default() })?;
    let width = own.columns.1 as usize;
    let last = &plain.values[0].1[plain.values[0].1.len() - width..];
    // A direction of signs, as long as the activation.
    let length = norm(last);
    let sign = |at: usize| if (at * 2_654_435_761) & 0x8000 == 0 { 1.0 } else { -1.0 };
    let vector: Vec<f32> = (0..width).map(|at| sign(at) * (length / (width as f64).sqrt()) as f32).collect();
    let position = plain.positions.end - 1..plain.positions.end;
    let mut strengths = Vec::new();
    let mut want = None;
    for strength in STRENGTHS {
        let edits = vec![(own.clone(), position.clone(), Edit::add(vector.clone(), strength))];
        let steered = look(bench, id, Look { edits, logits: true, ..Look::default() })?;
        let moved: Vec<f32> = steered.logits.iter().zip(&plain.logits).map(|(a, b)| a - b).collect();
        let edit = Edit::add(vector.clone(), strength);
        let steering = Steering { name: "signs".to_owned(), hook: own.clone(), edit, tokens: TokenKind::Any };
        let other = bench.open(
            9_000,
            prompt,
            tokens,
            DebugSetup { breakpoints: Vec::new(), steering: vec![steering] },
        )?;
        bench.settle()?;
        let got = bench.generated(other)?;
        let want = want.get_or_insert_with(|| got.clone());
        let changed_tokens = got.iter().zip(want.iter()).filter(|(a, b)| a != b).count() as u32;
        let logits_change = norm(&moved) / norm(&plain.logits);
        strengths.push(Strength { strength, logits_change, changed_tokens, tokens });
    }
    bench.clear()?;
    Ok(strengths)
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
}
