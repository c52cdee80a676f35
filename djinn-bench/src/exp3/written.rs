//! What is read at every hook of a token and written back there: nothing may change.

use super::{Bench, look};
use anyhow::Result;
use djinn_device::Ops;
use djinn_engine::debug::{Breakpoint, DebugSetup, Debugger, Filter, Look, TokenKind};
use djinn_engine::{Edit, Happening, SessionId};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Hook points of the model; all were written in one step.
    pub(crate) hooks: u32,
    /// Generated tokens, and those that equal a run without, with the bits of their log-probabilities.
    pub(crate) tokens: u32,
    pub(crate) equal_tokens: u32,
}

const PROMPT: u32 = 100;

pub(super) fn measure<D: Ops>(bench: &mut Bench<'_, D>) -> Result<Written> {
    let (prompt, tokens) = (PROMPT.min(bench.args.context / 2), bench.args.tokens);
    bench.logprobs = Some(0);
    let plain = bench.open(7_000, prompt, tokens, DebugSetup::default())?;
    let want = said(bench, plain)?;
    let hooks = bench.service.hooks();
    let filter = Filter { tokens: TokenKind::Generated, steps: 2..3, ..Filter::default() };
    let first = hooks.first().expect("a model has hooks").hook.name.clone();
    let stop = Breakpoint { filter, hits: Some(1), ..bench.breakpoint(&first)? };
    let id =
        bench.open(7_000, prompt, tokens, DebugSetup { breakpoints: vec![stop], steering: Vec::new() })?;
    let mut got = said(bench, id)?;
    let all = hooks.iter().map(|point| point.hook.clone()).collect();
    let read = look(bench, id, Look { hooks: all, ..Look::default() })?;
    for (point, (_, values)) in hooks.iter().zip(read.values) {
        bench.service.edit(id, vec![(point.hook.clone(), read.positions.clone(), Edit::set(values))])?;
    }
    bench.service.resume_until(id, None)?;
    got.extend(said(bench, id)?);
    bench.clear()?;
    bench.logprobs = None;
    let equal = got.iter().zip(&want).filter(|(a, b)| a == b).count();
    Ok(Written { hooks: hooks.len() as u32, tokens: want.len() as u32, equal_tokens: equal as u32 })
}

/// What a session says until it stops or is done: tokens, and the bits of their log-probabilities.
fn said<D: Ops>(bench: &mut Bench<'_, D>, id: SessionId) -> Result<Vec<(u32, Option<u32>)>> {
    let mut said = Vec::new();
    while bench.service.state().session(id).is_some_and(|session| session.is_ready()) {
        for (session, happening) in bench.advance()? {
            if let (true, Happening::Token { token, logprobs, .. }) = (session == id, happening) {
                said.push((token, logprobs.map(|logprobs| logprobs.chosen.to_bits())));
            }
        }
    }
    Ok(said)
}
