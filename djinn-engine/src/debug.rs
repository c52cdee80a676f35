//! Breakpoints: stopping a session at a hook, looking at its activations, changing them, and going on.
//!
//! Nothing of a stopped session is kept on the device. The step in which it meets a breakpoint runs to its end, and does
//! not count for the session: its context does not grow, no token is chosen, and the scheduler pauses it. To go on, the
//! same tokens are computed again, with what was changed meanwhile. Rows have the same bits in every batch and prefill
//! chunks keep their cut, so a session that stopped gives the tokens that it would have given without. A session
//! that is stopped is looked at in the same way, at any hook.
//!
//! What changes activations is data over absolute positions. It is kept as long as the session, since keys and values
//! that were given up are computed again.

mod cache;
mod demand;
mod pattern;
mod record;
mod step;

pub use cache::{KvAnswer, KvEdit, KvHalf, KvOp, KvRange, KvValues};
pub(crate) use cache::{KvWritten, decode};
pub(crate) use demand::{Demand, Sizes};
pub(crate) use pattern::{Attending, pattern_name};
pub use pattern::{AttentionPattern, AttentionScores};
pub(crate) use record::Record;
pub(crate) use step::{EntryTokens, Judged, Step};

use crate::{Edit, Error, Origin, Result};
use djinn_scheduler::SessionId;
use djinn_srg::Hook;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Names a breakpoint of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BreakpointId(pub u64);

impl fmt::Display for BreakpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "breakpoint {}", self.0)
    }
}

/// Where a session stops, or what is read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakpoint {
    /// Where in a step.
    pub hook: Hook,
    /// At which tokens.
    pub filter: Filter,
    /// What must hold of them.
    pub condition: Option<BreakCondition>,
    /// Stops the session.
    pub pause: bool,
    /// Keeps the values: see [`Debugger::take_captures`].
    pub capture: bool,
    /// After how many hits it does nothing any more; it counts for ever, if not given.
    pub hits: Option<u64>,
    /// How long the session stays stopped; for ever, if not given.
    pub ttl: Option<Duration>,
    /// What happens after that time.
    pub at_ttl: AtTtl,
}

impl Breakpoint {
    /// Whether the values at the hook must be read. A pause alone is decided by tokens, positions and logits.
    pub(crate) fn needs_values(&self) -> bool {
        self.capture || matches!(self.condition, Some(BreakCondition::Probe { .. }))
    }

    /// Checks what the hook and the numbers say by themselves.
    pub(crate) fn check(&self) -> Result<()> {
        let width = self.hook.columns.1;
        let detail = match &self.condition {
            _ if !self.pause && !self.capture => "the breakpoint does nothing".to_owned(),
            _ if self.hits == Some(0) => "the breakpoint has no hits".to_owned(),
            Some(BreakCondition::Probe { direction, .. }) if direction.len() as u64 != width => {
                format!("the probe has {} values, where {width} are", direction.len())
            }
            Some(BreakCondition::Probe { direction, above })
                if !direction.iter().chain([above]).all(|x| x.is_finite()) =>
            {
                "the probe has numbers that are not finite".to_owned()
            }
            Some(BreakCondition::Entropy { above }) if !above.is_finite() => {
                format!("an entropy above {above}")
            }
            Some(BreakCondition::Tokens(tokens)) if tokens.is_empty() => {
                "the condition lists no token".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Error::Intervention { hook: self.hook.name.clone(), detail })
    }
}

/// Which tokens a breakpoint is for. Each token is met once, when it is first computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// What kind of tokens.
    pub tokens: TokenKind,
    /// At which positions of the session's context.
    pub positions: Range<u64>,
    /// Of generated tokens: at which places in their turn, counted from 1.
    pub steps: Range<u64>,
}

impl Default for Filter {
    fn default() -> Self {
        Filter { tokens: TokenKind::Any, positions: 0..u64::MAX, steps: 0..u64::MAX }
    }
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenKind {
    /// From anywhere.
    #[default]
    Any,
    /// From a prompt.
    Prompt,
    /// From the model.
    Generated,
}

/// What must hold of a token.
#[derive(Clone, Debug, PartialEq)]
pub enum BreakCondition {
    /// It is one of these.
    Tokens(Vec<u32>),
    /// The distribution of the next token has an entropy above this, in nats. Only the last token of a prompt and
    /// generated tokens have one.
    Entropy {
        /// The bound.
        above: f32,
    },
    /// The dot product of its values with a vector is above this.
    Probe {
        /// f32 `[width]`.
        direction: Vec<f32>,
        /// The bound.
        above: f32,
    },
}

/// What happens to a session that was stopped for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtTtl {
    /// It goes on.
    #[default]
    Resume,
    /// It ends.
    Abort,
}

/// A change of all tokens of a kind, from some position on.
#[derive(Clone, Debug, PartialEq)]
pub struct Steering {
    /// What [`Debugger::applied`] counts it under.
    pub name: String,
    /// Where.
    pub hook: Hook,
    /// What: the same for every token.
    pub edit: Edit,
    /// Which tokens.
    pub tokens: TokenKind,
}

/// What a session begins with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DebugSetup {
    /// Breakpoints, numbered from 1.
    pub breakpoints: Vec<Breakpoint>,
    /// Steering, from the first token on.
    pub steering: Vec<Steering>,
}

impl DebugSetup {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.breakpoints.is_empty() && self.steering.is_empty()
    }

    /// Puts the steering into the salt of an origin, since it enters the keys and values; whether it has one.
    pub(crate) fn salt(&self, origin: &mut Origin) -> bool {
        match origin {
            Origin::Salt(salt) if !self.steering.is_empty() => {
                let steering = self.steering.iter().map(|one| (&one.hook.name, &one.edit, one.tokens));
                // Within a process, equal text stands for equal values.
                let text = format!("{:?}", steering.collect::<Vec<_>>());
                salt.extend(blake3::hash(text.as_bytes()).as_bytes());
                true
            }
            Origin::Salt(_) => true,
            Origin::Own | Origin::Fork(_) => false,
        }
    }
}

/// Where a session is stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct PausedAt {
    /// The breakpoint; `None` where [`Debugger::resume_until`] stopped it.
    pub breakpoint: Option<BreakpointId>,
    /// The hook.
    pub hook: String,
    /// The tokens that are computed again when it goes on: one, or a prefill chunk.
    pub positions: Range<u64>,
    /// Those of them that met the breakpoint.
    pub hit: Vec<u64>,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// When it stopped.
    pub since: Instant,
    /// How long it stays so.
    pub ttl: Option<Duration>,
    /// What happens after that time.
    pub at_ttl: AtTtl,
}

/// What to read of a session that is stopped. Its changes so far apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Where to read, for all tokens at which it stopped; only for the last one where logits are.
    pub hooks: Vec<Hook>,
    /// Keys and values to read, as they are after the tokens at which it stopped were computed.
    pub caches: Vec<KvRange>,
    /// Changes for this look alone: where, at which positions, what.
    pub edits: Vec<(Hook, Range<u64>, Edit)>,
    /// Whether the last token's logits are wanted.
    pub logits: bool,
}

/// What a look has read.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// The tokens at which the session is stopped.
    pub positions: Range<u64>,
    /// By hook, as asked for: f32 `[tokens, width]` of the last tokens.
    pub values: Vec<(String, Vec<f32>)>,
    /// As asked for.
    pub caches: Vec<KvValues>,
    /// f32 `[vocab]`, if wanted.
    pub logits: Vec<f32>,
}

/// What a breakpoint has read in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenCapture {
    /// The breakpoint.
    pub breakpoint: BreakpointId,
    /// The hook.
    pub hook: String,
    /// The positions of the tokens.
    pub positions: Vec<u64>,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// f32 `[tokens, width]`.
    pub values: Vec<f32>,
}

/// What was read of a session since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captures {
    /// In order of time.
    pub captures: Vec<TokenCapture>,
    /// Tokens that were not kept, since [`Captures::MOST_BYTES`] were held already.
    pub dropped: u64,
}

impl Captures {
    /// Bytes of values that are held for a session.
    pub const MOST_BYTES: usize = 256 << 20;
}

/// A hook point of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPoint {
    /// Where; with the canonical name.
    pub hook: Hook,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Values of a token.
    pub width: u64,
    /// Only tokens whose logits are computed have values there: generated ones, and the last one of a prompt.
    pub of_logits: bool,
}

/// What to do once a session is stopped.
pub type PauseAnswer = Box<dyn FnOnce(PausedAt) + Send>;

/// What to do with a debugger, on the thread of its service.
pub type DebugWork = Box<dyn FnOnce(&mut dyn Debugger) + Send>;

/// What to do once a look is over.
pub type LookAnswer = Box<dyn FnOnce(Result<Looked>) + Send>;

/// What to do once queries and keys were read.
pub type ScoresAnswer = Box<dyn FnOnce(Result<AttentionScores>) + Send>;

/// What people do with the activations of sessions. A [`Service`](crate::Service) is one, and
/// [`Client::begin_debug`](crate::Client::begin_debug) gives one.
///
/// # Errors
/// All calls: [`Error::NoSession`], [`Error::NotPaused`] where the
/// session must be stopped at a breakpoint, [`Error::Intervention`] for what the hook does
/// not allow, [`Error::HookMemory`].
pub trait Debugger {
    /// All hook points, in order of execution.
    fn hooks(&self) -> Vec<HookPoint>;

    /// The hook of this name.
    ///
    /// # Errors
    /// [`Error::UnknownHook`].
    fn hook(&self, name: &str) -> Result<Hook>;

    /// Arms a breakpoint.
    fn set_breakpoint(&mut self, id: SessionId, breakpoint: Breakpoint) -> Result<BreakpointId>;

    /// A session's breakpoints, each with its hits so far.
    fn breakpoints(&self, id: SessionId) -> Result<Vec<(BreakpointId, Breakpoint, u64)>>;

    /// Removes a breakpoint; whether it was there. A session that it stopped stays so.
    fn clear_breakpoint(&mut self, id: SessionId, breakpoint: BreakpointId) -> Result<bool>;

    /// Replaces a session's steering from the next token on that is computed.
    fn steer(&mut self, id: SessionId, steering: Vec<Steering>) -> Result<()>;

    /// Where a session is stopped, if it is.
    fn paused_at(&self, id: SessionId) -> Option<PausedAt>;

    /// Calls `answer` once the session is stopped: at once if it is. Drops it if the session ends.
    fn on_pause(&mut self, id: SessionId, answer: PauseAnswer);

    /// Changes a session that is stopped, for all its future: values at a hook, for positions among those at which it
    /// stopped.
    fn edit(&mut self, id: SessionId, hook: Hook, positions: Range<u64>, edit: Edit) -> Result<()>;

    /// Reads a block's queries and keys of a session that is stopped, from which the pattern of its attention follows;
    /// as [`look`](Self::look). The pattern may not take more bytes than the memory for hooks has.
    fn attention(&mut self, id: SessionId, layer: u32, answer: ScoresAnswer);

    /// Changes keys or values of a session that is stopped, of tokens before those at which it stopped: for all its
    /// future, and for no other session. `answer` is called once it is written down; it is dropped if the session ends or
    /// goes on before.
    fn edit_cache(&mut self, id: SessionId, edit: KvEdit, answer: KvAnswer);

    /// Reads a session that is stopped. `answer` gets the result after a step; it is dropped if the session ends before.
    fn look(&mut self, id: SessionId, look: Look, answer: LookAnswer);

    /// Lets a session go on; to a later hook of the same tokens, if one is given, where it stops again.
    fn resume_until(&mut self, id: SessionId, until: Option<Hook>) -> Result<()>;

    /// A session that has all that a stopped one has, and is stopped at the same place. Pages on the device are shared
    /// until either writes to them. Breakpoints are not taken over.
    fn fork_paused(&mut self, id: SessionId) -> Result<SessionId>;

    /// Takes what breakpoints have read of a session.
    fn take_captures(&mut self, id: SessionId) -> Result<Captures>;

    /// By name: the tokens of the latest turn that steering has changed; changes of stopped sessions count as `edit`.
    fn applied(&self, id: SessionId) -> Result<Vec<(String, u64)>>;

    /// A session's tokens, and where in them are those that the model generated.
    fn tokens(&self, id: SessionId) -> Result<(Vec<u32>, Vec<Range<u64>>)>;
}
