//! Executes a plan: its copies and its step. Turns entries into the engine's batch, and results into tokens.

use super::conversation::Conversation;
use super::under_way::{Part, UnderWay, begin_of};
use super::{Batcher, NewToken};
use crate::debug::Judged;
use crate::hooks::{KvAccess, ReadBack};
use crate::pass::choices::Chooses;
use crate::{BatchEntry, ChosenToken, Error, NoToken, Result, Wanted};
use djinn_device::Ops;
use djinn_scheduler::{Backend, Completion, Plan, State, TurnEnd};
use djinn_vmu::Direction;
use std::time::{Duration, Instant};

impl<D: Ops> Backend for Batcher<D> {
    fn name(&self) -> &str {
        "engine"
    }

    fn submit(&mut self, plan: &Plan, state: &State, _: Duration) {
        self.attempt(|batcher| {
            batcher.leave_to(state);
            let foreign = batcher.pass_on(plan);
            batcher.engine.clear(&foreign)?;
            let fresh: Vec<u32> = plan.grants.iter().flat_map(|grant| grant.fresh.iter().copied()).collect();
            batcher.engine.prepare(&fresh, &plan.duplicates)?;
            batcher.swap(Direction::Out, &plan.swap_out)?;
            batcher.swap(Direction::In, &plan.swap_in)?;
            batcher.begin(plan, state)
        });
    }

    /// A step at hooks needs the host before the next one.
    fn takes_next(&self) -> bool {
        !self.holds_back && self.engine.takes_next() && self.all_stays_on_the_device()
    }

    fn next_event(&self) -> Option<Duration> {
        let busy = !self.under_way.is_empty() || self.moving > 0 || !self.copied.is_empty();
        // The caller polls until something has ended.
        (busy || self.failure.is_some()).then_some(Duration::ZERO)
    }

    fn poll(&mut self, _: Duration) -> Completion {
        let mut completion = Completion::default();
        self.attempt(|batcher| {
            batcher.see_copies()?;
            batcher.finish(&mut completion)
        });
        completion.copies = std::mem::take(&mut self.copied);
        completion.failure = self.failure.clone();
        completion
    }
}

impl<D: Ops> Batcher<D> {
    /// Works on the engine. After a failure nothing is executed any more.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none()
            && let Err(error) = work(self)
        {
            self.failure = Some(error.to_string());
            self.error = Some(error);
            self.under_way.clear();
        }
    }

    /// Begins the plan's step. `state` has the pages of its sessions.
    fn begin(&mut self, plan: &Plan, state: &State) -> Result<()> {
        if plan.batch.is_empty() {
            return Ok(());
        }
        let (began, chunk) = (Instant::now(), self.engine.chunk());
        let ahead = !self.under_way.is_empty();
        let before = self.under_way.front().map(UnderWay::places).unwrap_or_default();
        let mut chunks = Vec::new();
        for entry in &plan.batch {
            let from = begin_of(state, entry);
            let conversation = self.conversations.get_mut(&entry.session());
            let conversation = conversation.expect("a session in a plan was opened");
            // Tokens that it did not compute are shared prefixes, in whole prefill chunks.
            conversation.computed_as_chunks(from, chunk);
            chunks.push(conversation.cut(from, entry.tokens(), chunk));
        }
        let mut parts: Vec<Part> = plan.batch.iter().map(|entry| self.part(state, entry, ahead)).collect();
        let mut batch: Vec<BatchEntry<'_>> = Vec::new();
        for (part, chunks) in parts.iter().zip(&chunks) {
            let Conversation { tokens, sampler, .. } = &self.conversations[&part.session];
            batch.push(BatchEntry {
                pages: state.session(part.session).expect("it is in the plan").table().device(),
                from: part.from,
                // Any token stands in for one that is not known yet.
                tokens: if ahead {
                    &[0]
                } else {
                    &tokens[part.from as usize..(part.from + part.tokens) as usize]
                },
                after: if ahead { before.get(&part.session).copied() } else { None },
                chunks,
                wanted: if part.reads_logits() { Wanted::Last } else { Wanted::Nothing },
                choose: part.chooses.then(|| sampler.draw(part.from + part.tokens)),
                changes: sampler.changes(),
                interventions: part.debugged.as_ref().map_or(&[], |step| &step.interventions),
            });
        }
        let caches = parts.iter().enumerate().flat_map(|(entry, part)| {
            let looks = part.debugged.as_ref().is_some_and(|step| step.looks);
            self.conversations[&part.session].cache_accesses(entry, plan.rewrites_of(part.session), looks)
        });
        let caches: Vec<KvAccess<'_>> = caches.collect();
        let waits = ahead && self.wait_for_tokens(&parts);
        let chooses = if waits { Chooses::Later } else { Chooses::Now };
        let fails = match self.engine.begin_with(&batch, &caches, chooses) {
            // Nothing was enqueued. All sessions with interventions fail, as the error does not say whose it is.
            Err(Error::Intervention { hook, detail }) => {
                batch.iter_mut().for_each(|entry| entry.interventions = &[]);
                self.engine.begin_with(&batch, &[], chooses)?;
                Some(NoToken::Intervention { hook, detail })
            }
            begun => begun.map(|()| None)?,
        };
        for part in parts.iter_mut().filter(|part| part.debugged.is_some()) {
            part.fails.clone_from(&fails);
        }
        let goes_on = self.goes_on_in(&parts);
        self.under_way.push_back(UnderWay { parts, ahead, goes_on, waits, began });
        Ok(())
    }

    /// Ends the step if the device is done with it.
    fn finish(&mut self, completion: &mut Completion) -> Result<()> {
        if self.under_way.is_empty() || !self.engine.is_done()? {
            return Ok(());
        }
        let step = self.under_way.pop_front().expect("just seen");
        let (ahead, goes_on, before) = (step.ahead, step.goes_on, self.engine.latest_span());
        let rows = step.parts.iter().map(|part| part.tokens).sum::<u64>();
        let mut ended = Vec::new();
        let (most, vocab) = (self.engine.context(), self.engine.graph().vocab as usize);
        let Batcher { engine, conversations, generated, failed, streamed, times, counts, .. } = self;
        let (began, pass) = engine.finish_with(|logits, drawn, ReadBack { captured, caches }| {
            let began = Instant::now();
            let (mut rows, mut drawn) = (logits.chunks_exact(vocab), drawn.into_iter());
            let mut captured = captured.into_iter().peekable();
            let mut caches = caches.into_iter().peekable();
            for (entry, mut part) in step.parts.into_iter().enumerate() {
                let logits = if part.reads_logits() { rows.next() } else { None };
                let drawn = if part.chooses { drawn.next() } else { None };
                if part.dropped {
                    continue;
                }
                let session = part.session;
                let conversation = conversations.get_mut(&session).expect("it is in the step");
                if let Some(why) = part.fails {
                    conversation.end_turn();
                    failed.push((session, why));
                    completion.stopped.push(session);
                    ended.push((session, TurnEnd::Failed));
                    continue;
                }
                if let Some(debugged) = part.debugged.take() {
                    let own = std::iter::from_fn(|| captured.next_if(|read| read.entry == entry)).collect();
                    let own_caches = std::iter::from_fn(|| caches.next_if(|(of, _)| *of == entry));
                    let own_caches = own_caches.map(|(_, values)| values).collect();
                    let at = (part.from, part.tokens, part.yields);
                    let judged = conversation.judge(at, debugged, own, own_caches, logits);
                    if judged != Judged::Counts {
                        completion.stopped.push(session);
                        continue;
                    }
                }
                if !part.yields || conversation.rests() {
                    continue;
                }
                let Conversation { sampler, tokens, .. } = &mut *conversation;
                match sampler.take(drawn, tokens.len() as u64) {
                    Ok(ChosenToken { token, logprobs }) => {
                        let finish = conversation.push(token, most);
                        generated.push(NewToken { session, token, finish, logprobs });
                        ended.extend(finish.map(|_| (session, TurnEnd::Finish)));
                    }
                    Err(why) => {
                        conversation.end_turn();
                        failed.push((session, why));
                        ended.push((session, TurnEnd::Failed));
                    }
                }
            }
            began
        })?;
        engine.sampled(began);
        streamed.add(&pass);
        counts.add(rows, &pass);
        times.add(before.filter(|_| goes_on), engine.latest_span(), ahead);
        self.drop_guesses(None);
        completion.step = Some(ended);
        self.choose_later()
    }
}
