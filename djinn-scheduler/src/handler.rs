//! Phase handlers: what a computing session puts into a step.

use crate::session::Session;
use std::fmt;

/// The room that a step has left for the next session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRoom {
    /// Rows of the whole step.
    pub rows: u32,
    /// Rows that are left.
    pub rows_left: u32,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Rows of the whole step that one prompt may take, but for its end.
    pub prompt_rows: u32,
    /// Rows that stay empty if a session decodes in the step, so that it is shorter.
    pub empty_beside_decodes: u32,
    /// Sessions that decode in this step so far.
    pub decoding: u32,
    /// Rows of prefill in this step so far.
    pub prefilling: u32,
}

/// Fills a step with sessions of one phase. Waiting phases have no rows and no handler; the eviction policy treats
/// them.
pub trait PhaseHandler: fmt::Debug + Send {
    /// The name in the settings.
    fn name(&self) -> &str;

    /// The order of phases in a step: lower goes first, and decode before prefill on a tie.
    fn order(&self) -> u32;

    /// Tokens that `session` puts into the step; 0 leaves it out. It is cut to `room.rows_left`, to the session's
    /// tokens, and to 1 for a decode.
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

/// Prefill in whole chunks, which end at multiples of the chunk size in the context. The rest of the current chunk, or
/// the shorter rest of the prompt, enters a step as a whole or not at all. Further chunks follow as far as the step
/// has rows for prefill, and with the last of them the rest, also in rows that no decode takes. So a discarded context is computed
/// again with the same boundaries, and a shared prefix is whole chunks.
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
        let empty = if room.decoding > 0 { room.empty_beside_decodes } else { 0 };
        let rows = room.rows_left.saturating_sub(empty);
        let left = u64::from(rows.min(room.prompt_rows.saturating_sub(empty)));
        let first = chunk_left(session.context, room.chunk);
        match left {
            _ if session.prompt <= rows.into() => session.prompt,
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
