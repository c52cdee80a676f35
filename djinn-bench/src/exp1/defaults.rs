//! What experiment 1 does where the command line is silent: something that fits the machine.

use super::policies;
use crate::args::Exp1Args;
use crate::size;
use anyhow::{Context, Result};
use djinn_host::{DeviceName, system};

/// The most device memory that is taken unasked.
const MOST_VRAM: u64 = 63 << 30;
/// Left free of a card.
const SLACK: u64 = 1 << 30;
/// Cards with less free memory get a smaller model than [`LARGE`].
const LEAST_FOR_LARGE: u64 = 16 << 30;
const LARGE: &str = "synthetic:llama-2-7b";
/// Of smaller cards: a model and a budget that holds some thirty of its contexts.
const MIDDLE: (&str, u64) = ("synthetic:llama-3.2-1b", 5 << 30);
/// Of the CPU: a model and a budget that holds a third of the agents' contexts, so that policies differ.
const SMALL: (&str, u64) = ("synthetic:tiny", 2 << 20);

/// The arguments with a model, a budget and policies. On the CPU without a model the workload `closed` is one of
/// short turns and waits, a minute in all.
pub(super) fn fill(args: &Exp1Args) -> Result<Exp1Args> {
    let mut args = args.clone();
    args.device.device = if args.simulate { DeviceName::Cpu } else { args.device.device.find()? };
    let (model, vram) = match args.device.device {
        _ if args.simulate => (LARGE, MOST_VRAM),
        DeviceName::Cpu if args.model.is_none() => {
            small(&mut args);
            SMALL
        }
        DeviceName::Cuda(ordinal) => on_card(free_bytes(ordinal, args.vram)?, args.model.is_some()),
        _ => (LARGE, system::memory().map_or(MOST_VRAM, |memory| MOST_VRAM.min(memory.total / 2))),
    };
    args.model.get_or_insert_with(|| model.to_owned());
    args.vram.get_or_insert(vram);
    if args.policies.is_empty() {
        args.policies = policies::usual();
    }
    Ok(args)
}

/// A card's free memory. One that does not tell it needs a budget from the user.
fn free_bytes(ordinal: u32, given: Option<u64>) -> Result<u64> {
    let free = djinn_cuda::probe(ordinal)?.free_bytes;
    free.or(given.map(|vram| vram + SLACK)).context("the card does not tell its free memory; give --vram")
}

/// For a card with `free` bytes: a model, unless one was `given`, and a budget.
fn on_card(free: u64, given: bool) -> (&'static str, u64) {
    let fits = free.saturating_sub(SLACK);
    let large = given || free >= LEAST_FOR_LARGE;
    if large { (LARGE, MOST_VRAM.min(fits)) } else { (MIDDLE.0, MIDDLE.1.min(fits)) }
}

/// Short turns and waits, four policies, as far as nothing else was asked for.
fn small(args: &mut Exp1Args) {
    if args.policies.is_empty() {
        args.policies = policies::TINY.map(str::to_owned).to_vec();
    }
    if args.workload != "closed" {
        return;
    }
    args.agents.get_or_insert(12);
    args.context.get_or_insert(256);
    args.turn_tokens.get_or_insert(16);
    args.seconds.get_or_insert(10.0);
    args.warm_up.get_or_insert(if args.sessions.is_some() { 0.0 } else { 3.0 });
    if args.think.is_empty() {
        args.think = vec![1.0, 2.0];
    }
}

impl Exp1Args {
    pub(super) fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(LARGE)
    }

    pub(super) fn vram(&self) -> u64 {
        self.vram.unwrap_or(MOST_VRAM)
    }

    /// What was chosen, in one line.
    pub(super) fn shown(&self) -> String {
        format!("{} within {}, {}", self.model(), size::human(self.vram()), self.policies.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_get_what_fits_them() {
        assert_eq!(on_card(139 << 30, false), (LARGE, 63 << 30));
        assert_eq!(on_card(23 << 30, false), (LARGE, 22 << 30));
        assert_eq!(on_card(11 << 30, false), MIDDLE);
        assert_eq!(on_card(4 << 30, false), (MIDDLE.0, 3 << 30));
        assert_eq!(on_card(11 << 30, true).1, 10 << 30, "a model of the user's may take what the card has");
    }
}
