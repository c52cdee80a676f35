//! Models for measuring: loaded with progress, with prompts that differ.

use crate::interrupt;
use anyhow::{Context, Result};
use djinn_device::Ops;
use djinn_engine::{Engine, Entry, Options, Pages, Sequence, Wanted, greedy};
use djinn_host::{Meter, Setup, WeightEncoding};
use djinn_models::{Location, Model};
use std::ops::ControlFlow;

/// Opens the model that `--model` names; reads no weights.
pub(crate) fn open(setup: &Setup, name: &str) -> Result<Model> {
    setup.open(name).with_context(|| format!("--model {name}"))
}

/// The same, to plan it: weights are not looked at either.
pub(crate) fn open_to_plan(setup: &Setup, name: &str) -> Result<Model> {
    let model = Location::find(name).and_then(|place| djinn_models::open(&place, &setup.planning_options()));
    model.with_context(|| format!("--model {name}"))
}

/// A model's name with the encoding that was asked for.
pub(crate) fn label(name: &str, encoding: Option<WeightEncoding>) -> String {
    encoding.map_or_else(|| name.to_owned(), |encoding| format!("{name} ({encoding})"))
}

/// Loads the model's weights; shows how far it is. Ctrl-C ends it.
pub(crate) fn load<D: Ops>(device: D, model: &Model, options: &Options) -> Result<Engine<D>> {
    let (meter, presses) = (Meter::new(format!("loading {}", model.name), false), interrupt::presses());
    meter.announce();
    let mut progress = |done: u64, all: u64| {
        meter.set(done, Some(all));
        match interrupt::presses() == presses {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let engine = djinn_host::load_on(device, model, options, &mut progress);
    engine.with_context(|| format!("cannot load {}", model.name))
}

/// Token ids of a prompt of `len` tokens; prompts of different `seed` differ.
pub(crate) fn prompt(len: u32, vocab: u64, seed: u64) -> Vec<u32> {
    (0..len as u64).map(|i| (((i + 131 * seed) * 37 + 5) % vocab) as u32).collect()
}

/// A sequence with a prompt of its own, and the token after it.
pub(crate) fn prefilled<D: Ops>(
    engine: &mut Engine<D>,
    pages: &mut Pages,
    tokens: u32,
    seed: u64,
) -> Result<(Sequence, u32)> {
    let mut sequence = Sequence::default();
    let rows = engine.plan().stack.rows.rows as usize;
    let mut logits = Vec::new();
    for piece in prompt(tokens, engine.graph().vocab, seed).chunks(rows) {
        logits = engine.step(pages, &mut [Entry::new(&mut sequence, piece, Wanted::Last)])?.0;
    }
    let first = greedy(&logits, sequence.tokens() - 1)?;
    Ok((sequence, first))
}
