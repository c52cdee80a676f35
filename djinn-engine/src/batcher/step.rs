//! A plan's step: from its entries to the engine's batch, and from logits to tokens.

use super::conversation::{Conversation, Place};
use super::{Batcher, Completion, NewToken};
use crate::{Entry, Error, Result, Wanted};
use djinn_device::Ops;
use djinn_scheduler::{Entry as Planned, Plan, SessionId, TurnEnd};
use djinn_vmu::Sequence;
use std::ops::Range;

/// A step between its beginning and its end.
#[derive(Debug)]
pub(super) struct UnderWay {
    parts: Vec<Part>,
    /// Tokens that were found beyond what the step was to compute.
    found: Vec<(SessionId, u64)>,
}

/// A session's part of a step.
#[derive(Debug)]
struct Part {
    session: SessionId,
    /// Tokens to compute, by position; none where all were found.
    tokens: Range<u64>,
    chunks: Vec<Range<usize>>,
    /// Whether a token is chosen after it.
    yields: bool,
    prompt_ends: bool,
}

impl UnderWay {
    /// Whether the engine has a pass for it.
    pub(super) fn runs(&self) -> bool {
        self.parts.iter().any(|part| !part.tokens.is_empty())
    }
}

impl<D: Ops> Batcher<D> {
    /// Begins the plan's step.
    pub(super) fn begin(&mut self, plan: &Plan) -> Result<()> {
        if plan.batch.is_empty() {
            return Ok(());
        }
        let mut step = UnderWay { parts: Vec::new(), found: Vec::new() };
        for entry in &plan.batch {
            let part = self.part(entry, &mut step.found);
            step.parts.push(part);
        }
        if step.runs() {
            match self.begin_pass(&step) {
                // A session that writes to a page which a fork holds needs another one, that the scheduler could not
                // plan for: the fork came later than the pages were granted.
                Err(Error::ContextFull { tokens, context }) if tokens <= context => {
                    self.drop_seeds();
                    self.begin_pass(&step)?;
                }
                begun => begun?,
            }
        }
        self.under_way = Some(step);
        Ok(())
    }

    fn part(&mut self, entry: &Planned, found: &mut Vec<(SessionId, u64)>) -> Part {
        let session = entry.session();
        let chunk = self.engine.chunk();
        let data = &mut self.engine.memory.as_mut().expect("loaded").data;
        let conversation = self.conversations.get_mut(&session);
        let conversation =
            conversation.unwrap_or_else(|| panic!("{session} is in a plan, but was not opened"));
        let planned = match conversation.place {
            Place::Device(_) => conversation.held(),
            _ => 0,
        };
        let from = conversation.find(data, chunk);
        let end = planned + entry.tokens();
        if from > end {
            found.push((session, from - end));
        }
        let (prompt_ends, yields) = match entry {
            Planned::Prefill { last, .. } => (*last, *last),
            Planned::Decode { .. } => (false, true),
        };
        let tokens = from.min(end)..end;
        let chunks = conversation.cut(tokens.start, end - tokens.start);
        Part { session, tokens, chunks, yields, prompt_ends }
    }

    fn begin_pass(&mut self, step: &UnderWay) -> Result<()> {
        let Batcher { engine, conversations, .. } = self;
        // A step has each session once, so that their sequences can be taken out for it.
        let running = || step.parts.iter().filter(|part| !part.tokens.is_empty());
        let mut sequences: Vec<Sequence> =
            running().map(|part| take_sequence(conversations.get_mut(&part.session), part.session)).collect();
        let mut batch: Vec<Entry<'_>> = Vec::new();
        for (part, sequence) in running().zip(&mut sequences) {
            let tokens = &conversations[&part.session].tokens;
            let tokens = &tokens[part.tokens.start as usize..part.tokens.end as usize];
            let wanted = if part.yields { Wanted::Last } else { Wanted::Nothing };
            batch.push(Entry { sequence, tokens, chunks: &part.chunks, wanted });
        }
        let begun = engine.begin(&mut batch);
        for (part, sequence) in running().zip(sequences) {
            conversations.get_mut(&part.session).expect("it is in the step").place = Place::Device(sequence);
        }
        begun
    }

    /// Ends the step if the device is done with it.
    pub(super) fn finish(&mut self, completion: &mut Completion) -> Result<()> {
        let Some(step) = &self.under_way else { return Ok(()) };
        if step.runs() && !self.engine.is_done()? {
            return Ok(());
        }
        let step = self.under_way.take().expect("just seen");
        let mut ended = Vec::new();
        if step.runs() {
            let (most, vocab) = (self.engine.context(), self.engine.graph().vocab as usize);
            let Batcher { engine, conversations, generated, failed, .. } = self;
            engine.finish(|logits| {
                let yielding = step.parts.iter().filter(|part| part.yields);
                for (part, logits) in yielding.zip(logits.chunks_exact(vocab)) {
                    let conversation: &mut Conversation =
                        conversations.get_mut(&part.session).expect("it is in the step");
                    let session = part.session;
                    match conversation.choose(logits, most) {
                        Ok((token, finish)) => {
                            generated.push(NewToken { session, token, finish });
                            ended.extend(finish.map(|_| (session, TurnEnd::Finish)));
                        }
                        Err(bad) => {
                            failed.push((session, bad));
                            ended.push((session, TurnEnd::Failed));
                        }
                    }
                }
            })?;
        }
        self.steps += 1;
        let chunk = self.engine.chunk();
        for part in step.parts.iter().filter(|part| part.prompt_ends) {
            let data = &mut self.engine.memory.as_mut().expect("loaded").data;
            self.conversations[&part.session].publish(data, chunk);
        }
        let sessions: Vec<SessionId> = step.parts.iter().map(|part| part.session).collect();
        self.park_if_due(&sessions)?;
        completion.found = step.found;
        completion.step = Some(ended);
        Ok(())
    }
}

fn take_sequence(conversation: Option<&mut Conversation>, id: SessionId) -> Sequence {
    let place = &mut conversation.expect("it is in the step").place;
    match std::mem::replace(place, Place::Gone) {
        Place::Device(sequence) => sequence,
        other => panic!("{id} is to compute, but is {other:?}"),
    }
}
