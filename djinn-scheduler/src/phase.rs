//! Phases of a session and the table of their transitions.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use std::fmt;

/// A session's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Computes prompt tokens, or a discarded context again.
    Prefill,
    /// Generates, one token per step.
    Decode,
    /// Waits for a tool.
    IoWait,
    /// Held at a breakpoint or by its client.
    Paused,
    /// Between turns, for an unknown time.
    Idle,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 5] = [Phase::Prefill, Phase::Decode, Phase::IoWait, Phase::Paused, Phase::Idle];

    /// Whether a session in this phase wants to compute.
    pub fn is_ready(self) -> bool {
        matches!(self, Phase::Prefill | Phase::Decode)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::IoWait => "io_wait",
            Phase::Paused => "paused",
            Phase::Idle => "idle",
        })
    }
}

/// Events of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// A new session arrives.
    Arrive,
    /// All its prompt tokens are computed.
    PromptDone,
    /// The turn ended with a tool call.
    ToolCall,
    /// The turn ended.
    Finish,
    /// The client ends the turn; the session lives on.
    EndTurn,
    /// The client says that the session waits for a tool.
    SignalIoWait,
    /// The client says that the session is about to compute.
    SignalCompute,
    /// The client says that the session waits for nothing in particular.
    SignalIdle,
    /// The next prompt arrives.
    NextTurn,
    /// The latest tokens are dropped.
    Rollback,
    /// Hold it.
    Pause,
    /// Let it go on.
    Resume,
    /// Its keys and values were discarded, or their copy failed.
    StateLost,
    /// The client is gone.
    Abort,
    /// The session is closed.
    End,
}

impl EventKind {
    /// All events.
    pub const ALL: [EventKind; 15] = [
        EventKind::Arrive,
        EventKind::PromptDone,
        EventKind::ToolCall,
        EventKind::Finish,
        EventKind::EndTurn,
        EventKind::SignalIoWait,
        EventKind::SignalCompute,
        EventKind::SignalIdle,
        EventKind::NextTurn,
        EventKind::Rollback,
        EventKind::Pause,
        EventKind::Resume,
        EventKind::StateLost,
        EventKind::Abort,
        EventKind::End,
    ];
}

/// What an event does to a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The session changes to this phase.
    To(Phase),
    /// The session stays paused, and will continue in this phase.
    Later(Phase),
    /// The session returns to its phase before the pause. `Decode` becomes `Prefill` if its state is gone.
    Back,
    /// The phase stays, but the event's content applies, such as a new estimate.
    Stay,
    /// It applies when the session waits.
    Deferred,
    /// It is invalid in this phase. Nothing changes.
    Rejected,
    /// The session is over.
    Ended,
    /// The session does not exist.
    Missing,
}

/// The table: what `event` does to a session in phase `from`; `None` is a session that does not exist.
pub fn transition(from: Option<Phase>, event: EventKind) -> Next {
    use EventKind as E;
    use Next::{Back, Deferred, Ended, Later, Missing, Rejected, Stay, To};
    let Some(phase) = from else {
        return if event == E::Arrive { To(Phase::Prefill) } else { Missing };
    };
    match (phase, event) {
        (_, E::Abort | E::End) => Ended,
        (_, E::Arrive) => Rejected,

        (Phase::Prefill, E::PromptDone) => To(Phase::Decode),
        (Phase::Decode, E::ToolCall) => To(Phase::IoWait),
        (Phase::Decode, E::Finish) => To(Phase::Idle),
        (Phase::Prefill | Phase::Decode, E::EndTurn) => To(Phase::Idle),
        (Phase::Paused, E::PromptDone) => Later(Phase::Decode),
        (Phase::Paused, E::ToolCall) => Later(Phase::IoWait),
        (Phase::Paused, E::Finish | E::EndTurn) => Later(Phase::Idle),
        (Phase::IoWait | Phase::Idle, E::EndTurn) => Stay,
        (_, E::PromptDone | E::ToolCall | E::Finish) => Rejected,

        (Phase::Prefill | Phase::Decode, E::SignalCompute) => Stay,
        (Phase::Prefill | Phase::Decode | Phase::Paused, E::SignalIoWait | E::SignalIdle) => Deferred,
        (Phase::Paused, E::SignalCompute) => Deferred,
        (Phase::Idle, E::SignalIoWait) => To(Phase::IoWait),
        (Phase::IoWait, E::SignalIdle) => To(Phase::Idle),
        (Phase::IoWait | Phase::Idle, E::SignalIoWait | E::SignalCompute | E::SignalIdle) => Stay,

        (Phase::IoWait | Phase::Idle, E::NextTurn) => To(Phase::Prefill),
        (Phase::IoWait | Phase::Idle, E::Rollback) => Stay,
        (_, E::NextTurn | E::Rollback) => Rejected,

        (Phase::Paused, E::Pause) => Stay,
        (_, E::Pause) => To(Phase::Paused),
        (Phase::Paused, E::Resume) => Back,
        (_, E::Resume) => Rejected,

        (Phase::Decode, E::StateLost) => To(Phase::Prefill),
        (_, E::StateLost) => Stay,
    }
}

/// The whole table as text: a row for each event, a column for each phase.
pub fn table() -> String {
    let columns = [None].into_iter().chain(Phase::ALL.map(Some));
    let mut text = format!("{:<14}", "event");
    for column in columns.clone() {
        text += &format!("| {:<10}", column.map_or("(none)".to_owned(), |phase| phase.to_string()));
    }
    for event in EventKind::ALL {
        text.truncate(text.trim_end().len());
        text += &format!("\n{:<14}", format!("{event:?}"));
        for column in columns.clone() {
            let cell = match transition(column, event) {
                Next::To(phase) => format!("-> {phase}"),
                Next::Later(phase) => format!("=> {phase}"),
                other => format!("{other:?}").to_lowercase(),
            };
            text += &format!("| {cell:<10}");
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}
