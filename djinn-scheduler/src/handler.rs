//! Phase handlers: what a session in a phase that computes puts into a step.

use crate::session::Session;
use std::fmt;

/// What a step has left for the next session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRoom {
    /// Rows of the whole step.
    pub rows: u32,
    /// Rows that are left.
    pub rows_left: u32,
    /// Tokens of a chunk of prefill.
    pub chunk: u32,
    /// Rows of the whole step that one prompt may take.
    pub prompt_rows: u32,
    /// Sessions that decode in this step already.
    pub decoding: u32,
    /// Rows that prefill takes in this step already.
    pub prefilling: u32,
}

/// Fills a step with sessions of one phase. Phases that wait have no rows, so no handler: what happens to
/// them is the eviction policy's.
pub trait PhaseHandler: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// Which phase's sessions enter the step first: lower is earlier. Ties go to decode.
    fn order(&self) -> u32;

    /// Tokens that `session` puts into the step; 0 leaves it out. More than `room.rows_left`, or than the
    /// session has, is cut; a decode is 1 at most.
    fn tokens(&self, room: &StepRoom, session: &Session) -> u64;
}

/// Decodes: one token each, before all prefill.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeOne;

impl PhaseHandler for DecodeOne {
    fn name(&self) -> &str {
        "single"
    }

    fn order(&self) -> u32 {
        0
    }

    fn tokens(&self, _: &StepRoom, _: &Session) -> u64 {
        1
    }
}

/// Prefill in whole chunks, which end at multiples of the chunk in the context: what is left of the chunk that
/// the context ends in, or the prompt's shorter rest, enters a step entirely or not at all, and those after it as far as
/// the step takes them. So a context that was discarded is computed again in the pieces that it had, and a prefix is
/// whole chunks.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkedPrefill;

impl PhaseHandler for ChunkedPrefill {
    fn name(&self) -> &str {
        "chunked"
    }

    fn order(&self) -> u32 {
        1
    }

    fn tokens(&self, room: &StepRoom, session: &Session) -> u64 {
        let left = u64::from(room.rows_left.min(room.prompt_rows));
        let first = chunk_left(session.context, room.chunk);
        match left {
            _ if session.prompt <= left => session.prompt,
            _ if first <= left => left - (left - first) % u64::from(room.chunk),
            _ => 0,
        }
    }
}

/// Tokens from the end of `context` to the next multiple of `chunk`, at least 1.
pub(crate) fn chunk_left(context: u64, chunk: u32) -> u64 {
    let chunk = chunk as u64;
    chunk - context % chunk
}
