//! The engine as a test bed: plans run the model, time is the machine's.

use super::bed::{Bed, Ran, Swap};
use super::map::Watched;
use super::results::StepShares;
use anyhow::{Context, Result};
use djinn_device::Ops;
use djinn_engine::{Batcher, Engine, Origin, Turn};
use djinn_scheduler::sim::{Oracle, RunSpan, Workload};
use djinn_scheduler::{Backend, Capacity, Completion, Plan, Scheduler, SessionId, State, WallClock, drive};
use djinn_vmu::Direction;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub(super) struct LiveBed<D: Ops> {
    /// Absent only while a run has it, and after one that did not give it back.
    engine: Option<Engine<D>>,
    capacity: Capacity,
    seed: u64,
}

impl<D: Ops> LiveBed<D> {
    pub(super) fn new(engine: Engine<D>, seed: u64) -> Result<Self> {
        let batcher = Batcher::new(engine)?;
        let capacity = batcher.capacity();
        Ok(LiveBed { engine: Some(batcher.into_engine()?), capacity, seed })
    }
}

impl<D: Ops + Send> Bed for LiveBed<D> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn run(
        &mut self,
        scheduler: Scheduler,
        workload: &Workload,
        span: RunSpan,
        oracle: &Oracle,
    ) -> Result<Ran> {
        let engine = self.engine.take().context("the engine did not come back from an earlier run")?;
        let (before, replayed) = (engine.swap_stats(), engine.replayed_passes());
        let live = Live::new(Batcher::new(engine)?, self.seed, workload.shared(), span.warm_up);
        let mut backend = Watched::new(live, span).telling();
        let mut clock = WallClock::default();
        let mut report = drive(scheduler, &mut backend, &mut clock, workload, span, Some(oracle));
        let (live, seen) = backend.into_parts();
        // Plans count pages; those that the host has unchanged leave without a copy.
        let after = live.batcher.engine().swap_stats();
        let replayed = live.batcher.engine().replayed_passes() - replayed;
        let steps = StepShares::of(&live.batcher.device_times(), replayed);
        report.bytes_out = after.out.bytes - before.out.bytes;
        report.bytes_in = after.back.bytes - before.back.bytes;
        self.engine = match live.batcher.into_engine() {
            Ok(engine) => Some(engine),
            // The report says why.
            Err(_) if report.failure.is_some() => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Ran { report, seen, swaps: live.swaps, steps })
    }
}

/// A batcher that is given the tokens of the sessions that the scheduler knows.
struct Live<D: Ops> {
    batcher: Batcher<D>,
    seed: u64,
    /// Tokens that all first prompts begin with. The driver names the pages so.
    shared: u64,
    vocab: u64,
    /// A turn that the batcher did not take, or could not go on with.
    refused: Option<String>,
    warm_up: Duration,
    /// Tokens of each session at the end of the turn that was last given.
    given: BTreeMap<SessionId, u64>,
    /// For each session whose pages leave: how long after its signal they were asked to.
    leaving: BTreeMap<SessionId, f64>,
    swaps: Vec<Swap>,
}

impl<D: Ops> Live<D> {
    fn new(batcher: Batcher<D>, seed: u64, shared: u64, warm_up: Duration) -> Self {
        let vocab = batcher.engine().graph().vocab;
        let (given, leaving) = Default::default();
        Live { batcher, seed, shared, vocab, refused: None, warm_up, given, leaving, swaps: Vec::new() }
    }

    /// Gives the batcher each turn that it does not have yet.
    fn give(&mut self, state: &State) {
        for session in state.sessions().filter(|session| session.is_ready()) {
            // Within a turn the scheduler knows fewer tokens than there will be at its end.
            let known = session.context + session.prompt;
            let given = self.given.get(&session.id).copied();
            let from = given.unwrap_or(0);
            if known <= from {
                continue;
            }
            let (seed, vocab) = (self.seed, self.vocab);
            // Sessions are numbered from 1.
            let salt = |at| if at < self.shared { 0 } else { session.id.0 };
            let turn = Turn {
                tokens: (from..known).map(|at| salted(seed, salt(at), at, vocab)).collect(),
                max_tokens: session.max_tokens,
                ..Turn::default()
            };
            let taken = match given {
                None => self.batcher.open(session.id, turn, Origin::Own),
                Some(_) => self.batcher.extend(session.id, turn),
            };
            if let Err(error) = taken {
                self.refused.get_or_insert_with(|| format!("{}: {error}", session.id));
            }
            self.given.insert(session.id, known + session.max_tokens);
        }
    }

    fn collect(&mut self, now: Duration) {
        // They are not read.
        self.batcher.take_tokens();
        for (id, bad) in self.batcher.take_failures() {
            self.refused.get_or_insert_with(|| format!("{id}: {bad}"));
        }
        for (session, transfer) in self.batcher.take_transfers() {
            let submit_s = match transfer.direction {
                Direction::Out => self.leaving.remove(&session),
                Direction::In => None,
            };
            let (Some(first_byte), Some(moved)) = (transfer.first_byte(), transfer.moved()) else { continue };
            if now >= self.warm_up {
                self.swaps.push(Swap {
                    direction: transfer.direction,
                    bytes: transfer.bytes,
                    moved_s: moved.as_secs_f64(),
                    first_byte_s: first_byte.as_secs_f64(),
                    submit_s,
                });
            }
        }
    }
}

/// The token at a place of a session: of distinct sessions they differ, so that nothing is shared by accident.
/// SplitMix64 (Steele, Lea, Flood 2014).
fn salted(seed: u64, session: u64, at: u64, vocab: u64) -> u32 {
    let mix = |x: u64| {
        let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (mix(mix(mix(seed) ^ session) ^ at) % vocab) as u32
}

impl<D: Ops> fmt::Debug for Live<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("sessions", &self.given.len()).finish_non_exhaustive()
    }
}

impl<D: Ops + Send> Backend for Live<D> {
    fn name(&self) -> &str {
        "engine"
    }

    fn submit(&mut self, plan: &Plan, state: &State, now: Duration) {
        self.give(state);
        for copy in &plan.swap_out {
            // The driver signals at the moment in which a turn ends.
            let waits = state.session(copy.session).and_then(|session| session.wait.as_ref());
            self.leaving.extend(waits.map(|wait| (copy.session, wait.elapsed(now).as_secs_f64())));
        }
        self.batcher.submit(plan, state, now);
    }

    fn takes_next(&self) -> bool {
        self.batcher.takes_next()
    }

    fn next_event(&self) -> Option<Duration> {
        self.batcher.next_event()
    }

    fn poll(&mut self, now: Duration) -> Completion {
        let mut completion = self.batcher.poll(now);
        self.collect(now);
        completion.failure = completion.failure.or_else(|| self.refused.clone());
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::salted;

    #[test]
    fn sessions_have_prompts_of_their_own() {
        let prompt = |session| (0..64).map(|at| salted(1, session, at, 32_000)).collect::<Vec<_>>();
        let same = |a: &[u32], b: &[u32]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        assert_eq!(prompt(7), prompt(7));
        for other in [8, 9, 100] {
            assert!(same(&prompt(7), &prompt(other)) < 4, "{other}");
            assert_ne!(prompt(7)[0], prompt(other)[0]);
        }
        assert!(prompt(7).iter().all(|&token| token < 32_000));
    }
}
