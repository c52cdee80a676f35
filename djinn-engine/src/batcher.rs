//! Carries out the scheduler's plans for many sessions on one engine.
//!
//! A plan has sizes and ids; the batcher has the tokens. It enqueues the plan's copies of KV pages and begins its
//! step in one call. [`poll`](djinn_scheduler::Backend::poll) says what has ended, so the host never waits while
//! the device works.
//!
//! **A session's tokens depend on the session alone**, not on its neighbours, on swaps, or on hints. Some devices
//! choose the arithmetic of a product by its number of rows. So a step's rows are launched such that each depends
//! on its own session only ([`Entry::chunks`]), a context that was given up is computed again with its old
//! boundaries, and prefixes are shared in whole prefill chunks.

mod conversation;
mod counts;
mod debugged;
mod moves;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;
mod under_way;

use crate::sampler::check_logprobs;
use crate::{Constraint, Engine, Error, NoToken, Result, SHORT_RUN, Sampling, TokenLogprobs};
use conversation::Conversation;
pub use counts::StepCounts;
use djinn_device::Ops;
use djinn_pages::Pages;
use djinn_scheduler::{Capacity, CopyOutcome, PageName, SessionId};
use djinn_vmu::{PassStats, Transfer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
pub use under_way::DeviceTimes;
use under_way::UnderWay;

/// What a session does next.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// New tokens: the first prompt, or what follows the previous turn.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most, at least 1.
    pub max_tokens: u64,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the turn. The one that occurs is the turn's last token.
    pub stop_tokens: Vec<u32>,
    /// What the turn's tokens must obey.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Return, with each token, its log-probability and those of the best 0 to 20 tokens.
    pub logprobs: Option<u8>,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token was chosen.
    Stop,
    /// The turn's constraint allows no further token.
    Complete,
    /// `max_tokens`, or the end of the context, was reached.
    Length,
    /// The receiver wants no more tokens.
    Cancelled,
}

/// Which keys and values a new session may share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// None.
    #[default]
    Own,
    /// Those of sessions with the same salt, as far as the tokens agree. Everything else that keys and values
    /// depend on must be part of the salt.
    Salt(Vec<u8>),
    /// Those of a living session: the new one begins with all of its tokens, before its own turn.
    Fork(SessionId),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct NewToken {
    /// The session.
    pub session: SessionId,
    /// The token.
    pub token: u32,
    /// Why the turn ended; set with its last token.
    pub finish: Option<Finish>,
    /// Set if the turn asks for them.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Executes plans on an engine.
pub struct Batcher<D: Ops> {
    engine: Engine<D>,
    conversations: BTreeMap<SessionId, Conversation>,
    /// For each device page: its latest tenant, if known.
    holders: Vec<Option<Arc<[u8]>>>,
    /// Number of sessions with page copies under way.
    moving: usize,
    copied: Vec<CopyOutcome>,
    /// Steps under way, in order. The second takes its tokens from the first.
    under_way: VecDeque<UnderWay>,
    /// Sessions of the latest step whose next turn has not begun since.
    latest: BTreeSet<SessionId>,
    failure: Option<String>,
    /// The failure, until it is taken.
    error: Option<Error>,
    /// Streaming statistics of ended steps, until they are taken.
    streamed: PassStats,
    times: DeviceTimes,
    /// Counts of ended steps, without the device's times.
    counts: StepCounts,
    /// Enqueue no step while another one is under way.
    holds_back: bool,
    generated: Vec<NewToken>,
    failed: Vec<(SessionId, NoToken)>,
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
    /// Options that no scheduler can plan for: a step needs a row for each other sequence beside a prefill chunk
    /// ([`Options::decode_rows`](crate::Options::decode_rows)) and logits for each, and prefill chunks are whole pages where
    /// sequences are many. The engine has then [left](Engine::leave) its runtime.
    pub fn new(engine: Engine<D>) -> Result<Self> {
        let (engine, capacity) = engine.prepared(|engine| checked_capacity(engine))?;
        Ok(Batcher {
            engine,
            conversations: BTreeMap::new(),
            holders: vec![None; capacity.device_pages as usize],
            moving: 0,
            copied: Vec::new(),
            under_way: VecDeque::new(),
            latest: BTreeSet::new(),
            failure: None,
            error: None,
            streamed: PassStats::default(),
            times: DeviceTimes::default(),
            counts: StepCounts::default(),
            holds_back: false,
            generated: Vec::new(),
            failed: Vec::new(),
            transfers: Vec::new(),
        })
    }

    /// The limits that a scheduler plans for.
    pub fn capacity(&self) -> Capacity {
        capacity(&self.engine)
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<D> {
        &self.engine
    }

    /// The engine, for work without a session.
    pub(crate) fn engine_mut(&mut self) -> &mut Engine<D> {
        &mut self.engine
    }

    /// As [`Engine::logits`], in free pages.
    pub(crate) fn logits(&mut self, pages: &mut Pages, tokens: &[u32]) -> Result<Vec<f32>> {
        // Which pages this takes is unknown, so each is cleared before its next tenant.
        self.holders.fill(None);
        self.engine.logits(pages, tokens)
    }

    /// Waits until the device has finished the first step under way.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn wait(&mut self) -> Result<()> {
        self.engine.wait()
    }

    /// The device's time in and between the steps that ended.
    pub fn device_times(&self) -> DeviceTimes {
        self.times
    }

    /// Drops all sessions and returns the engine.
    ///
    /// # Errors
    /// A failure of the device, now or before.
    pub fn into_engine(mut self) -> Result<Engine<D>> {
        self.clear()?;
        Ok(self.engine)
    }

    /// Registers a new session. Tell the scheduler first, since it may refuse the session. The session lives until
    /// it is missing from a plan's state.
    ///
    /// # Errors
    /// Tokens outside the vocabulary, an empty turn, invalid sampling, too many log-probabilities, or a fork of an
    /// unknown session. Nothing is kept then.
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
            Some(parent) => parent.fork(id, turn)?,
            None => Conversation::new(id, salt, turn)?,
        };
        assert!(self.conversations.insert(id, conversation).is_none(), "{id} is opened twice");
        Ok(())
    }

    /// Begins a session's next turn.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn extend(&mut self, id: SessionId, turn: Turn) -> Result<()> {
        self.check(&turn)?;
        let conversation = self.conversations.get_mut(&id).ok_or(Error::NoSession { session: id.0 })?;
        self.latest.remove(&id);
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
        check_logprobs(turn.logprobs)?;
        match turn
            .tokens
            .iter()
            .chain(turn.sampling.logit_bias.keys())
            .find(|&&token| u64::from(token) >= vocab)
        {
            Some(&token) => Err(Error::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }

    /// All tokens of a session, generated ones included.
    pub fn tokens(&self, id: SessionId) -> Option<&[u32]> {
        self.conversations.get(&id).map(|conversation| &*conversation.tokens)
    }

    /// Ends a session's turn: no token is chosen until the next turn, and a step that was begun ahead does not
    /// count for it. Returns whether the session was in such a step.
    pub(crate) fn end_turn(&mut self, id: SessionId) -> bool {
        let ended = self.conversations.get_mut(&id).is_some_and(|conversation| conversation.end_turn());
        // If it is in two steps, its turn ends with the first.
        let steps = self.under_way.iter().filter(|step| step.has(id)).count();
        if ended && steps == 1 {
            self.drop_guesses(Some(id));
        }
        ended
    }

    /// How many of a session's first `tokens` tokens remain valid without the tokens after them.
    pub(crate) fn tokens_to_keep(&self, id: SessionId, tokens: u64) -> Result<u64> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        Ok(conversation.tokens_to_keep(tokens, &self.engine.device().info()))
    }

    /// Drops all but the first `tokens` tokens of a session that is in no step.
    pub(crate) fn truncate(&mut self, id: SessionId, tokens: u64) {
        let page_tokens = u64::from(self.capacity().page_tokens);
        let conversation = self.conversations.get_mut(&id).unwrap_or_else(|| panic!("{id} is unknown"));
        conversation.truncate(tokens, page_tokens);
    }

    pub(crate) fn is_stepping(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether to finish the step under way before the next one is enqueued.
    pub(crate) fn hold_back(&mut self, holds_back: bool) {
        self.holds_back = holds_back;
    }

    /// Counts of the steps so far.
    pub(crate) fn steps(&self) -> StepCounts {
        let under_way = self.under_way.front().map(|step| step.began.elapsed());
        StepCounts { times: self.times, under_way, ..self.counts }
    }

    /// Streaming statistics of the steps that ended since the last call.
    pub(crate) fn take_streamed(&mut self) -> PassStats {
        std::mem::take(&mut self.streamed)
    }

    /// Tokens generated since the last call.
    pub fn take_tokens(&mut self) -> Vec<NewToken> {
        std::mem::take(&mut self.generated)
    }

    /// Sessions that ended since the last call because no token could be chosen.
    pub fn take_failures(&mut self) -> Vec<(SessionId, NoToken)> {
        std::mem::take(&mut self.failed)
    }

    /// Page copies that ended since the last call.
    pub fn take_transfers(&mut self) -> Vec<(SessionId, Transfer)> {
        std::mem::take(&mut self.transfers)
    }

    /// Names of the full pages of a session's tokens, for prefix sharing.
    pub fn page_names(&mut self, id: SessionId) -> Vec<PageName> {
        let page_tokens = self.engine.plan().kv.page_tokens;
        self.conversations.get_mut(&id).map(|one| one.page_names(page_tokens)).unwrap_or_default()
    }

    /// The error that broke the engine. Returned once.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }
}

/// The capacity, if a scheduler can plan for it.
fn checked_capacity<D: Ops>(engine: &Engine<D>) -> Result<Capacity> {
    let (capacity, rows) = (capacity(engine), engine.plan().stack.rows);
    if rows.rows < u64::from(capacity.sequences - 1 + capacity.chunk)
        || rows.logit_rows < capacity.sequences.into()
    {
        return Err(Error::Option("decode_rows and logit_rows must be as many as sequences, to serve them"));
    }
    let many = capacity.sequences > 1;
    if many && !capacity.chunk.is_multiple_of(capacity.page_tokens) {
        return Err(Error::Option("prefill_rows must be a multiple of page_tokens, to serve sessions"));
    }
    Ok(capacity)
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
        rows_beside_decodes: engine.rows_beside_decodes(),
    }
}
