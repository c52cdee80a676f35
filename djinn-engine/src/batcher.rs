//! Many sessions on one engine: carries out the scheduler's plans.
//!
//! A plan has sizes and ids; the batcher has the tokens. It enqueues the plan's copies of KV pages and begins its step
//! in one call, and tells in [`poll`](Backend::poll) what has ended, so that nobody waits while the device works.
//!
//! **A session's tokens depend on the session alone**: not on its neighbours, on being moved, on hints. On devices whose
//! products choose their arithmetic by the number of rows, that takes care: a step's rows are launched so that each
//! depends on its own session at most ([`Entry::chunks`]), a context that was given up is computed again in the pieces
//! in which it was computed first, and prefixes are shared in whole chunks, which would have been computed so anyway.

mod conversation;
mod moves;
mod step;

use crate::batch::SHORT_RUN;
use crate::{BadLogit, Engine, Error, Finish, Result, Sampling};
use conversation::{Conversation, Place};
use djinn_device::Ops;
use djinn_scheduler::{Backend, Capacity, Completion, CopyOutcome, Plan, Residency, SessionId, State};
use djinn_vmu::{Direction, Transfer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use step::UnderWay;

/// What a session is to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// New tokens: the first prompt, or what follows the turn before.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most, at least 1.
    pub max_tokens: u64,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the turn; the one that was met is the last of it.
    pub stop_tokens: Vec<u32>,
}

/// Where a new session's keys and values may come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// From nowhere: nothing is shared with anybody.
    #[default]
    Own,
    /// Sessions of one salt share the prefixes that they have in common. Whatever else enters the keys and values
    /// must be in the salt.
    Salt(Vec<u8>),
    /// From a session that lives on: the new one begins with all of its tokens, before its own turn.
    Fork(SessionId),
}

/// A token that was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// The session.
    pub session: SessionId,
    /// The token.
    pub token: u32,
    /// With the last token of a turn, why it ended.
    pub finish: Option<Finish>,
}

/// Executes plans on an engine.
pub struct Batcher<D: Ops> {
    engine: Engine<D>,
    conversations: BTreeMap<SessionId, Conversation>,
    /// Parkings whose copies are under way.
    moving: BTreeMap<u64, SessionId>,
    copied: Vec<CopyOutcome>,
    under_way: Option<UnderWay>,
    /// Pages came free that the scheduler does not know of yet.
    dropped_seeds: bool,
    /// As of [`held_beside`](Self::held_beside), until something changes: whoever polls does so all the time.
    held: Option<u32>,
    failure: Option<String>,
    steps: u64,
    generated: Vec<NewToken>,
    failed: Vec<(SessionId, BadLogit)>,
    transfers: Vec<(SessionId, Transfer)>,
}

impl<D: Ops> fmt::Debug for Batcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = self.conversations.len();
        f.debug_struct("Batcher").field("sessions", &sessions).field("under_way", &self.under_way).finish()
    }
}

impl<D: Ops> Batcher<D> {
    /// A batcher without sessions on a loaded engine.
    ///
    /// # Errors
    /// Options that no scheduler can plan for: a step needs a row for each of its sequences beside a chunk
    /// ([`Options::decode_rows`](crate::Options::decode_rows)) and logits for each, and chunks are whole pages.
    pub fn new(engine: Engine<D>) -> Result<Self> {
        let capacity = capacity(&engine);
        let rows = engine.plan().stack.rows;
        if rows.rows < u64::from(capacity.sequences + capacity.chunk)
            || rows.logit_rows < capacity.sequences.into()
        {
            return Err(Error::Option(
                "decode_rows and logit_rows must be as many as sequences, to serve them",
            ));
        }
        if !capacity.chunk.is_multiple_of(capacity.page_tokens) {
            return Err(Error::Option("prefill_rows must be a multiple of page_tokens, to serve sessions"));
        }
        if engine.plan().kv.sequences > 1 && !engine.rows_are_aligned() {
            return Err(Error::Option("this model's odd widths allow one sequence at a time on this device"));
        }
        Ok(Batcher {
            engine,
            conversations: BTreeMap::new(),
            moving: BTreeMap::new(),
            copied: Vec::new(),
            under_way: None,
            dropped_seeds: false,
            held: None,
            failure: None,
            steps: 0,
            generated: Vec::new(),
            failed: Vec::new(),
            transfers: Vec::new(),
        })
    }

    /// What a scheduler is to plan for.
    pub fn capacity(&self) -> Capacity {
        capacity(&self.engine)
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<D> {
        &self.engine
    }

    /// Gives the engine back, after all sessions were dropped.
    ///
    /// # Errors
    /// A failure of the device, now or before.
    pub fn into_engine(mut self) -> Result<Engine<D>> {
        self.clear()?;
        Ok(self.engine)
    }

    /// A session begins; tell the scheduler first, which may refuse it. It lives until a plan's state lacks it.
    ///
    /// # Errors
    /// Tokens outside the vocabulary, an empty turn, a sampling that means nothing, a fork of a session that does not
    /// exist; nothing is kept then.
    pub fn open(&mut self, id: SessionId, turn: Turn, origin: Origin) -> Result<()> {
        self.check(&turn)?;
        let (salt, parent) = match origin {
            Origin::Own => (None, None),
            Origin::Salt(salt) => (Some(salt), None),
            Origin::Fork(parent) => {
                let parent = self.conversations.get(&parent).ok_or(Error::NoSession { session: parent.0 })?;
                (None, Some(parent))
            }
        };
        let conversation = match parent {
            Some(parent) => {
                let data = &mut self.engine.memory.as_mut().expect("loaded").data;
                parent.fork(id, data, turn)?
            }
            None => Conversation::new(id, salt, turn)?,
        };
        assert!(self.conversations.insert(id, conversation).is_none(), "{id} is opened twice");
        self.held = None;
        Ok(())
    }

    /// A session's next turn.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn extend(&mut self, id: SessionId, turn: Turn) -> Result<()> {
        self.check(&turn)?;
        let conversation = self.conversations.get_mut(&id).ok_or(Error::NoSession { session: id.0 })?;
        conversation.extend(turn)
    }

    pub(crate) fn check(&self, turn: &Turn) -> Result<()> {
        let vocab = self.engine.graph().vocab;
        if turn.tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if turn.max_tokens == 0 {
            return Err(Error::Option("a turn generates one token at least; raise max_tokens"));
        }
        turn.sampling.check()?;
        match turn.tokens.iter().find(|&&token| u64::from(token) >= vocab) {
            Some(&token) => Err(Error::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    /// All tokens of a session, those that were generated included.
    pub fn tokens(&self, id: SessionId) -> Option<&[u32]> {
        self.conversations.get(&id).map(|conversation| &*conversation.tokens)
    }

    /// Tokens that were generated since the last call.
    pub fn take_tokens(&mut self) -> Vec<NewToken> {
        std::mem::take(&mut self.generated)
    }

    /// Sessions that ended since the last call because no token can be chosen after their context.
    pub fn take_failures(&mut self) -> Vec<(SessionId, BadLogit)> {
        std::mem::take(&mut self.failed)
    }

    /// Copies of pages that ended since the last call.
    pub fn take_transfers(&mut self) -> Vec<(SessionId, Transfer)> {
        std::mem::take(&mut self.transfers)
    }

    /// Pages that stay on the device for sessions which are not there: parked ones share them with others, or a fork
    /// has not begun yet. Tell the scheduler before it plans ([`Scheduler::reserve`](djinn_scheduler::Scheduler::reserve));
    /// a [`Completion`] has them, too.
    ///
    /// A page that a session on the device shares is counted here as well as with that session: it may be given up, or
    /// write to its own copy, in the very plan that this count is for.
    pub fn held_beside(&self) -> u32 {
        let mut held: BTreeSet<u32> = BTreeSet::new();
        for conversation in self.conversations.values() {
            match &conversation.place {
                Place::Parked(parked) => held.extend(parked.shared_pages()),
                Place::Forked(sequence) => held.extend(sequence.pages()),
                Place::Gone | Place::Device(_) | Place::Arriving(_) => {}
            }
        }
        held.len() as u32
    }

    /// Books a failure of the engine; from now on nothing is executed.
    fn fail(&mut self, error: &Error) {
        self.failure.get_or_insert_with(|| error.to_string());
        self.under_way = None;
    }

    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none()
            && let Err(error) = work(self)
        {
            self.fail(&error);
        }
    }
}

impl<D: Ops> Backend for Batcher<D> {
    fn name(&self) -> &str {
        "engine"
    }

    fn submit(&mut self, plan: &Plan, state: &State, _: Duration) {
        self.held = None;
        self.attempt(|batcher| {
            batcher.leave_to(state);
            batcher.discard(&plan.discard);
            if plan.batch.is_empty() && plan.short > 0 {
                batcher.drop_seeds();
            }
            batcher.swap_out(&plan.swap_out)?;
            batcher.swap_in(&plan.swap_in)?;
            batcher.begin(plan)
        });
    }

    fn next_event(&self) -> Option<Duration> {
        let busy = self.under_way.is_some()
            || self.dropped_seeds
            || !self.copied.is_empty()
            || self.copies_under_way();
        // Whoever asks polls until something has ended.
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
        let changed = completion.step.is_some() || !completion.copies.is_empty();
        completion.held = match self.held.filter(|_| !changed) {
            Some(held) => held,
            None => self.held_beside(),
        };
        self.held = Some(completion.held);
        self.dropped_seeds = false;
        completion
    }
}

fn capacity<D: Ops>(engine: &Engine<D>) -> Capacity {
    let kv = &engine.plan().kv;
    Capacity {
        device_pages: kv.pages,
        host_pages: kv.host_pages,
        page_tokens: kv.page_tokens,
        rows: u32::try_from(engine.plan().stack.rows.rows).unwrap_or(u32::MAX),
        sequences: kv.sequences,
        chunk: engine.chunk(),
    }
}
