//! A session as the batcher keeps it: its tokens, how they were computed, where their keys and values are.

use super::{SHORT_RUN, Turn};
use crate::{BadLogit, Finish, Result, Sampler};
use djinn_scheduler::SessionId;
use djinn_vmu::{Arriving, DataSegment, Parked, Sequence};
use std::ops::Range;

/// Where keys and values are.
#[derive(Debug)]
pub(super) enum Place {
    /// Nowhere.
    Gone,
    /// On the device, in use.
    Device(Sequence),
    /// On the device, as those of another session, until the session's first step.
    Forked(Sequence),
    /// In host memory, or on the way there.
    Parked(Parked),
    /// On the way back.
    Arriving(Arriving),
}

/// A session.
#[derive(Debug)]
pub(super) struct Conversation {
    /// All tokens; keys and values exist for a leading part.
    pub(super) tokens: Vec<u32>,
    pub(super) place: Place,
    /// Names the sessions that share prefixes.
    salt: Vec<u8>,
    /// Positions that were computed as chunks, ascending; all others below `computed` were computed row by row.
    chunks: Vec<Range<u64>>,
    computed: u64,
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    max_tokens: u64,
    generated: u64,
}

impl Conversation {
    /// Without a salt, the prefix of nobody else is its own.
    pub(super) fn new(id: SessionId, salt: Option<Vec<u8>>, turn: Turn) -> Result<Self> {
        // Told apart by the first byte.
        let salt = match salt {
            Some(salt) => [&[1], &*salt].concat(),
            None => [&[0], &id.0.to_le_bytes()[..]].concat(),
        };
        Ok(Conversation {
            tokens: turn.tokens,
            place: Place::Gone,
            salt,
            chunks: Vec::new(),
            computed: 0,
            sampler: Sampler::new(turn.sampling)?,
            stop_tokens: turn.stop_tokens,
            max_tokens: turn.max_tokens,
            generated: 0,
        })
    }

    /// A session that begins with all that this one has, and goes on with `turn`.
    pub(super) fn fork(&self, id: SessionId, data: &mut DataSegment, turn: Turn) -> Result<Self> {
        let tokens = [&*self.tokens, &*turn.tokens].concat();
        let own = Conversation::new(id, None, Turn { tokens, ..turn })?;
        let place = match &self.place {
            Place::Device(sequence) | Place::Forked(sequence) => Place::Forked(data.fork(sequence)),
            _ => Place::Gone,
        };
        Ok(Conversation { place, chunks: self.chunks.clone(), computed: self.computed, ..own })
    }

    pub(super) fn extend(&mut self, turn: Turn) -> Result<()> {
        self.sampler = Sampler::new(turn.sampling)?;
        self.tokens.extend(turn.tokens);
        (self.stop_tokens, self.max_tokens, self.generated) = (turn.stop_tokens, turn.max_tokens, 0);
        Ok(())
    }

    /// Tokens whose keys and values are on the device.
    pub(super) fn held(&self) -> u64 {
        match &self.place {
            Place::Device(sequence) | Place::Forked(sequence) => sequence.tokens(),
            Place::Gone | Place::Parked(_) | Place::Arriving(_) => 0,
        }
    }

    /// Brings what can be found of the prompt to a session that has nothing on the device; the tokens found. The last
    /// token is always left to compute.
    pub(super) fn find(&mut self, data: &mut DataSegment, chunk: u32) -> u64 {
        self.place = match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Gone => {
                let mut found = data.lookup(&self.salt, &self.tokens[..self.tokens.len() - 1]);
                let whole = found.tokens() / u64::from(chunk) * u64::from(chunk);
                data.truncate(&mut found, whole);
                self.computed_as_chunks(whole, chunk);
                Place::Device(found)
            }
            Place::Forked(sequence) => Place::Device(sequence),
            other => other,
        };
        self.held()
    }

    /// The first `tokens` positions hold what whole chunks would have computed.
    fn computed_as_chunks(&mut self, tokens: u64, chunk: u32) {
        if tokens > self.computed {
            let starts = if is_long(chunk.into()) { 0..tokens } else { 0..0 }.step_by(chunk as usize);
            self.chunks = starts.map(|start| start..start + u64::from(chunk)).collect();
            self.computed = tokens;
        }
    }

    /// Which of the `count` tokens from `from` on are computed as chunks, within them: as they were before, or, of
    /// tokens that were never computed, those of a long run.
    pub(super) fn cut(&mut self, from: u64, count: u64) -> Vec<Range<usize>> {
        let end = from + count;
        let fresh = from.max(self.computed);
        if end > fresh {
            if is_long(end - fresh) {
                self.chunks.push(fresh..end);
            }
            self.computed = end;
        }
        let first = self.chunks.partition_point(|chunk| chunk.end <= from);
        let within = self.chunks[first..].iter().take_while(|chunk| chunk.start < end);
        let at = |position: u64| (position.clamp(from, end) - from) as usize;
        within.map(|chunk| at(chunk.start)..at(chunk.end)).collect()
    }

    /// Lets others find the whole chunks that the session begins with, once its prompt is computed.
    pub(super) fn publish(&self, data: &mut DataSegment, chunk: u32) {
        let Place::Device(sequence) = &self.place else { return };
        let chunk = u64::from(chunk);
        let whole = if is_long(chunk) {
            let expected = |at: u64| at * chunk..(at + 1) * chunk;
            (0..).zip(&self.chunks).take_while(|(at, chunk)| **chunk == expected(*at)).count() as u64
        } else {
            // No position was computed as part of a chunk, whatever the prompts were.
            self.computed / chunk
        };
        let tokens = (whole * chunk).min(sequence.tokens());
        data.publish(&self.salt, &self.tokens[..tokens as usize], sequence);
    }

    /// Chooses a token after the context, and says why the turn ends if it does. `most` is the longest context.
    ///
    /// # Errors
    /// Those of the sampler; the context stays as it is.
    pub(super) fn choose(&mut self, logits: &[f32], most: u64) -> Result<(u32, Option<Finish>), BadLogit> {
        let token = self.sampler.choose(logits, &self.tokens)?;
        self.tokens.push(token);
        self.generated += 1;
        let finish = if self.stop_tokens.contains(&token) {
            Some(Finish::Stop)
        } else if self.generated >= self.max_tokens || self.tokens.len() as u64 > most {
            Some(Finish::Length)
        } else {
            None
        };
        Ok((token, finish))
    }
}

/// Whether a run of tokens is computed as a chunk.
fn is_long(tokens: u64) -> bool {
    tokens > SHORT_RUN as u64
}
