//! A session as the batcher keeps it: its tokens, and how they were computed.

use super::{SHORT_RUN, Turn};
use crate::debug::Record;
use crate::service::OpenTurn;
use crate::{Constraint, Finish, Result, Sampler, Sampling};
use djinn_device::DeviceInfo;
use djinn_scheduler::{PageName, SessionId};
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Conversation {
    /// All tokens; keys and values exist for a leading part.
    pub(super) tokens: Vec<u32>,
    /// Sessions with the same salt share prefixes.
    salt: Arc<[u8]>,
    /// The salt of the first session in its line of forks. Pages of one tenant need not be cleared between its
    /// sessions.
    pub(super) tenant: Arc<[u8]>,
    /// Names of the full pages.
    names: Vec<PageName>,
    /// Positions that were computed as prefill chunks, ascending. All others below `computed` were computed row by
    /// row.
    chunks: Vec<Range<u64>>,
    pub(super) computed: u64,
    pub(super) sampler: Sampler,
    stop_tokens: Vec<u32>,
    max_tokens: u64,
    generated: u64,
    /// Positions of generated tokens, by turn, ascending.
    pub(super) by_model: Vec<Range<u64>>,
    /// The turn is over: no token is chosen until the next one.
    rests: bool,
    /// Breakpoints, changes and captures at hooks, if there ever were any.
    pub(super) record: Option<Box<Record>>,
}

impl Conversation {
    /// Without a salt, the session shares no prefix.
    pub(super) fn new(id: SessionId, salt: Option<Vec<u8>>, turn: Turn) -> Result<Self> {
        // The first byte distinguishes salted sessions from private ones.
        let salt: Arc<[u8]> = match salt {
            Some(salt) => [&[1], &*salt].concat().into(),
            None => [&[0], &id.0.to_le_bytes()[..]].concat().into(),
        };
        Ok(Conversation {
            sampler: sampler(turn.sampling, turn.constraint, turn.logprobs)?,
            tokens: turn.tokens,
            tenant: Arc::clone(&salt),
            salt,
            names: Vec::new(),
            chunks: Vec::new(),
            computed: 0,
            stop_tokens: turn.stop_tokens,
            max_tokens: turn.max_tokens,
            generated: 0,
            by_model: Vec::new(),
            rests: false,
            record: None,
        })
    }

    /// A session that begins with all tokens of this one, and continues with `turn`.
    pub(super) fn fork(&self, id: SessionId, turn: Turn) -> Result<Self> {
        let tokens = [&*self.tokens, &*turn.tokens].concat();
        let own = Conversation::new(id, None, Turn { tokens, ..turn })?;
        Ok(self.hand_down(own))
    }

    /// A copy of this session in the middle of its turn, under another id.
    pub(super) fn fork_within_turn(&self, id: SessionId) -> Result<Self> {
        let tokens = self.tokens.clone();
        let own = Conversation::new(id, None, Turn { tokens, ..Turn::default() })?;
        let (sampler, stop_tokens) = (self.sampler.clone(), self.stop_tokens.clone());
        let (max_tokens, generated, rests) = (self.max_tokens, self.generated, self.rests);
        let fork = self.hand_down(Conversation { sampler, stop_tokens, max_tokens, generated, rests, ..own });
        let record = self.record.as_ref().map(|record| Box::new(record.fork_within_turn()));
        Ok(Conversation { record, ..fork })
    }

    /// Gives a fork the record of how its tokens were computed.
    fn hand_down(&self, fork: Conversation) -> Self {
        Conversation {
            tenant: Arc::clone(&self.tenant),
            chunks: self.chunks.clone(),
            computed: self.computed,
            by_model: self.by_model.clone(),
            record: self.record.as_ref().map(|record| Box::new(record.fork())),
            ..fork
        }
    }

    /// Tokens that the turn may still generate.
    pub(super) fn tokens_left(&self) -> u64 {
        self.max_tokens - self.generated
    }

    /// A session between two turns whose first `computed` tokens were computed, `chunks` of them as prefill chunks.
    pub(super) fn at_rest(
        id: SessionId,
        tokens: Vec<u32>,
        computed: u64,
        chunks: Vec<Range<u64>>,
    ) -> Result<Self> {
        let own = Conversation::new(id, None, Turn { tokens, ..Turn::default() })?;
        Ok(Conversation { computed, chunks, rests: true, ..own })
    }

    /// The same in the middle of a turn. The turn's tokens so far are the last ones.
    pub(super) fn in_turn(self, turn: OpenTurn) -> Result<Self> {
        let from = self.tokens.len() - turn.generated as usize;
        let sampler = Sampler::resumed(turn.sampling, &self.tokens[from..])?;
        let generated = from as u64..self.tokens.len() as u64;
        let by_model = std::iter::once(generated).filter(|range| !range.is_empty()).collect();
        let (generated, max_tokens) = (turn.generated, turn.generated + turn.tokens_left);
        let stop_tokens = turn.stop_tokens;
        Ok(Conversation { sampler, by_model, generated, max_tokens, stop_tokens, rests: false, ..self })
    }

    /// The unfinished turn, or `None` between two turns. `Err` if its constraint has state that cannot be moved.
    pub(super) fn open_turn(&self) -> Result<Option<OpenTurn>, ()> {
        if self.rests {
            return Ok(None);
        }
        let sampling = self.sampler.state().ok_or(())?;
        let (generated, tokens_left) = (self.generated, self.tokens_left());
        Ok(Some(OpenTurn { sampling, generated, tokens_left, stop_tokens: self.stop_tokens.clone() }))
    }

    /// How many tokens were computed, and which of them as prefill chunks.
    pub(super) fn computed(&self) -> (u64, &[Range<u64>]) {
        (self.computed, &self.chunks)
    }

    pub(super) fn extend(&mut self, turn: Turn) -> Result<()> {
        self.sampler = sampler(turn.sampling, turn.constraint, turn.logprobs)?;
        self.tokens.extend(turn.tokens);
        (self.stop_tokens, self.max_tokens, self.generated) = (turn.stop_tokens, turn.max_tokens, 0);
        self.rests = false;
        if let Some(record) = &mut self.record {
            record.begin_turn();
        }
        Ok(())
    }

    /// Names of the full pages that other sessions may share.
    pub(super) fn page_names(&mut self, page_tokens: u32) -> Vec<PageName> {
        PageName::extend(&mut self.names, &self.salt, &self.tokens, page_tokens);
        let private_from = self.record.as_ref().and_then(|record| record.private_from()).unwrap_or(u64::MAX);
        let most = (private_from / u64::from(page_tokens)).min(self.names.len() as u64);
        self.names[..most as usize].to_vec()
    }

    /// Ends the turn. Returns whether a token was still to be chosen.
    pub(super) fn end_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.rests, true)
    }

    pub(super) fn rests(&self) -> bool {
        self.rests
    }

    /// How many of the first `tokens` tokens remain valid without those after them. A prefill chunk of more rows
    /// than the device computes batch-invariantly goes as a whole: a shorter one has other bits.
    pub(super) fn tokens_to_keep(&self, tokens: u64, info: &DeviceInfo) -> u64 {
        let invariant_rows = u64::from(info.batch_invariant_rows.min(info.batch_invariant_run));
        let cut = |chunk: &&Range<u64>| chunk.start < tokens && tokens < chunk.end;
        let chunk = self.chunks.iter().find(cut).filter(|chunk| chunk.end - chunk.start > invariant_rows);
        chunk.map_or(tokens.min(self.tokens.len() as u64), |chunk| chunk.start)
    }

    /// Drops all but the first `tokens` tokens.
    pub(super) fn truncate(&mut self, tokens: u64, page_tokens: u64) {
        self.tokens.truncate(tokens as usize);
        self.names.truncate((tokens / page_tokens) as usize);
        self.computed = self.computed.min(tokens);
        self.chunks.retain(|chunk| chunk.start < tokens);
        if let Some(last) = self.chunks.last_mut() {
            last.end = last.end.min(tokens);
        }
        self.by_model.retain(|turn| turn.start < tokens);
        if let Some(last) = self.by_model.last_mut() {
            last.end = last.end.min(tokens);
        }
        if let Some(record) = &mut self.record {
            record.truncate(tokens);
        }
    }

    /// Records that the first `tokens` positions were computed as whole prefill chunks.
    pub(super) fn computed_as_chunks(&mut self, tokens: u64, chunk: u32) {
        if tokens > self.computed {
            let starts = if is_long(chunk.into()) { 0..tokens } else { 0..0 }.step_by(chunk as usize);
            self.chunks = starts.map(|start| start..start + u64::from(chunk)).collect();
            self.computed = tokens;
        }
    }

    /// Which of the `count` tokens from `from` on are computed as prefill chunks, relative to `from`. Tokens that
    /// were computed before keep their boundaries. Among new ones, long runs end at the next multiple of `chunk`.
    pub(super) fn cut(&mut self, from: u64, count: u64, chunk: u32) -> Vec<Range<usize>> {
        let end = from + count;
        let mut fresh = from.max(self.computed);
        while fresh < end {
            let next = (fresh + 1).next_multiple_of(chunk.into()).min(end);
            if is_long(next - fresh) {
                self.chunks.push(fresh..next);
            }
            (fresh, self.computed) = (next, next);
        }
        let first = self.chunks.partition_point(|chunk| chunk.end <= from);
        let within = self.chunks[first..].iter().take_while(|chunk| chunk.start < end);
        let at = |position: u64| (position.clamp(from, end) - from) as usize;
        within.map(|chunk| at(chunk.start)..at(chunk.end)).collect()
    }

    /// Forgets that tokens from `from` on were computed. Each was chosen by the model, and had a row of its own.
    pub(super) fn computed_until(&mut self, from: u64) {
        self.computed = self.computed.min(from);
        if let Some(record) = &mut self.record {
            record.computed_until(from);
        }
    }

    /// Appends a chosen token. Returns why the turn ends with it, if it does. `most` is the longest context.
    pub(super) fn push(&mut self, token: u32, most: u64) -> Option<Finish> {
        let at = self.tokens.len() as u64;
        match self.by_model.last_mut().filter(|turn| turn.end == at) {
            Some(turn) => turn.end += 1,
            None => self.by_model.push(at..at + 1),
        }
        self.tokens.push(token);
        self.generated += 1;
        let finish = if self.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else if self.sampler.is_complete() {
            Some(Finish::Complete)
        } else if self.generated >= self.max_tokens || self.tokens.len() as u64 > most {
            Some(Finish::Length)
        } else {
            None
        };
        self.rests = finish.is_some();
        finish
    }
}

fn sampler(
    sampling: Sampling,
    constraint: Option<Box<dyn Constraint>>,
    logprobs: Option<u8>,
) -> Result<Sampler> {
    Sampler::new(sampling)?.with_constraint(constraint).with_logprobs(logprobs)
}

/// Whether a run of tokens is computed as a prefill chunk.
fn is_long(tokens: u64) -> bool {
    tokens > SHORT_RUN as u64
}
