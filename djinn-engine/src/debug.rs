//! Breakpoints: stop a session at a hook, look at its activations, change them, and go on.
//!
//! A stopped session keeps nothing on the device but its KV pages. The step in which it meets a breakpoint runs to
//! its end and does not count for the session: its context does not grow, no token is chosen, and the scheduler
//! pauses it. When it goes on, the same tokens are computed again, with the changes made meanwhile. Rows have the
//! same bits in every batch, and prefill chunks keep their boundaries. So a stopped session gives the same tokens
//! as one that did not stop. A look at a stopped session, at any hook, works in the same way.
//!
//! Changes are data over absolute positions. They are kept as long as the session, since keys and values may be
//! given up and computed again.

mod cache;
mod demand;
mod pattern;
mod record;
mod step;

pub(crate) use cache::KvWritten;
pub use cache::{KvAnswer, KvEdit, KvHalf, KvOp, KvRange, KvValues};
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

/// The id of a session's breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BreakpointId(pub u64);

impl fmt::Display for BreakpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "breakpoint {}", self.0)
    }
}

/// Where a session stops, or is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakpoint {
    /// Where in a step.
    pub hook: Hook,
    /// At which tokens.
    pub filter: Filter,
    /// What must hold of the tokens.
    pub condition: Option<BreakCondition>,
    /// Whether it stops the session.
    pub pause: bool,
    /// Whether it keeps the values: see [`Debugger::take_captures`].
    pub capture: bool,
    /// After this number of hits it is disarmed. `None`: never.
    pub hits: Option<u64>,
    /// How long the session stays stopped. `None`: without limit.
    pub ttl: Option<Duration>,
    /// What happens after that time.
    pub at_ttl: AtTtl,
}

impl Breakpoint {
    /// Whether the values at the hook must be read. Tokens, positions and logits alone decide about a pause without
    /// a probe.
    pub(crate) fn needs_values(&self) -> bool {
        self.capture || matches!(self.condition, Some(BreakCondition::Probe { .. }))
    }

    /// Checks the breakpoint on its own, without a session.
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

/// The tokens that a breakpoint applies to. Each token is considered once, when it is first computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// What kind of tokens.
    pub tokens: TokenKind,
    /// Positions in the session's context.
    pub positions: Range<u64>,
    /// For generated tokens: their places in their turn, counted from 1.
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
    /// Both.
    #[default]
    Any,
    /// From a prompt.
    Prompt,
    /// From the model.
    Generated,
}

/// A condition on a token.
#[derive(Clone, Debug, PartialEq)]
pub enum BreakCondition {
    /// The token is one of these.
    Tokens(Vec<u32>),
    /// The distribution of the next token has a greater entropy than this, in nats. Only generated tokens and the
    /// last token of a prompt have one.
    Entropy {
        /// The bound.
        above: f32,
    },
    /// The dot product of the token's values with a vector is greater than this.
    Probe {
        /// f32 `[width]`.
        direction: Vec<f32>,
        /// The bound.
        above: f32,
    },
}

/// What happens to a session that was stopped for its whole time to live.
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
    /// The name under which [`Debugger::applied`] counts it.
    pub name: String,
    /// The hook point, or a [part](Hook::part) of it.
    pub hook: Hook,
    /// The change, the same for every token.
    pub edit: Edit,
    /// The kind of tokens.
    pub tokens: TokenKind,
}

impl Steering {
    /// The hook memory that it takes in a step, besides that for each of the step's rows.
    pub fn bytes(&self) -> u64 {
        Demand::of_edit(&self.hook, &self.edit).fixed
    }

    /// A digest that differs between different changes, whatever their names.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?} {:?} ", self.hook, self.tokens).as_bytes());
        self.edit.hash(&mut hash);
        hash.finalize().into()
    }
}

/// The breakpoints and steering of a new session.
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

    /// Adds the steering to an origin's salt, since keys and values depend on it. Returns whether the origin has a
    /// salt.
    pub(crate) fn salt(&self, origin: &mut Origin) -> bool {
        match origin {
            Origin::Salt(salt) if !self.steering.is_empty() => {
                let digests: Vec<u8> = self.steering.iter().flat_map(Steering::digest).collect();
                salt.extend(blake3::hash(&digests).as_bytes());
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
    /// The breakpoint, or `None` if [`Debugger::resume_until`] stopped it.
    pub breakpoint: Option<BreakpointId>,
    /// The hook.
    pub hook: String,
    /// The tokens that are computed again when it goes on: one, or a prefill chunk.
    pub positions: Range<u64>,
    /// The positions that met the breakpoint.
    pub hit: Vec<u64>,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// When it stopped.
    pub since: Instant,
    /// How long it stays stopped.
    pub ttl: Option<Duration>,
    /// What happens after that time.
    pub at_ttl: AtTtl,
}

/// What to read from a stopped session, with its changes so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Hooks to read, for all tokens at which the session stopped; hooks of logits, for the last one only.
    pub hooks: Vec<Hook>,
    /// Keys and values to read, after the tokens at which it stopped were computed.
    pub caches: Vec<KvRange>,
    /// Changes for this look only: hook, positions, change.
    pub edits: Vec<(Hook, Range<u64>, Edit)>,
    /// Whether the last token's logits are wanted.
    pub logits: bool,
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// The tokens at which the session is stopped.
    pub positions: Range<u64>,
    /// In the order of `Look::hooks`: f32 `[tokens, width]` of the last tokens.
    pub values: Vec<(String, Vec<f32>)>,
    /// In the order of `Look::caches`.
    pub caches: Vec<KvValues>,
    /// f32 `[vocab]`, if wanted.
    pub logits: Vec<f32>,
}

/// The values that a breakpoint has read in a step.
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

/// What breakpoints read from a session since the last request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Captures {
    /// In order of time.
    pub captures: Vec<TokenCapture>,
    /// Tokens whose values were dropped, since [`Captures::MOST_BYTES`] were held already.
    pub dropped: u64,
}

impl Captures {
    /// The most bytes of values that are held for a session.
    pub const MOST_BYTES: usize = 256 << 20;
}

/// A hook point of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPoint {
    /// Where; with the canonical name.
    pub hook: Hook,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Values per token.
    pub width: u64,
    /// Whether only tokens with logits have values there: generated ones, and the last one of a prompt.
    pub of_logits: bool,
}

/// Called when a session stops.
pub type PauseAnswer = Box<dyn FnOnce(PausedAt) + Send>;

/// Work with a debugger, on the thread of its service.
pub type DebugWork = Box<dyn FnOnce(&mut dyn Debugger) + Send>;

/// Called when a look is over.
pub type LookAnswer = Box<dyn FnOnce(Result<Looked>) + Send>;

/// Called when queries and keys were read.
pub type ScoresAnswer = Box<dyn FnOnce(Result<AttentionScores>) + Send>;

/// Access to the activations of sessions. A [`Service`](crate::Service) implements it, and
/// [`Client::begin_debug`](crate::Client::begin_debug) hands it out.
///
/// # Errors
/// All calls: [`Error::NoSession`]; [`Error::NotPaused`] if the session must be stopped at a breakpoint;
/// [`Error::Intervention`] if the hook does not allow the change; [`Error::HookMemory`].
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

    /// A session's breakpoints, with their hits so far.
    fn breakpoints(&self, id: SessionId) -> Result<Vec<(BreakpointId, Breakpoint, u64)>>;

    /// Removes a breakpoint. Returns whether it existed. A session that it stopped stays stopped.
    fn clear_breakpoint(&mut self, id: SessionId, breakpoint: BreakpointId) -> Result<bool>;

    /// Replaces a session's steering, from the next computed token on.
    fn steer(&mut self, id: SessionId, steering: Vec<Steering>) -> Result<()>;

    /// Where a session is stopped, or `None`.
    fn paused_at(&self, id: SessionId) -> Option<PausedAt>;

    /// Calls `answer` when the session stops, at once if it is stopped. Drops it if the session ends.
    fn on_pause(&mut self, id: SessionId, answer: PauseAnswer);

    /// Changes values at hooks of a stopped session, or at [parts](Hook::part) of them, each for some of the positions at
    /// which it stopped. The changes stay with the session. If one is refused, none is made.
    fn edit(&mut self, id: SessionId, edits: Vec<(Hook, Range<u64>, Edit)>) -> Result<()>;

    /// Reads a block's queries and keys from a stopped session, as [`look`](Self::look) does. The attention pattern
    /// follows from them. It may not take more bytes than the hook memory has.
    fn attention(&mut self, id: SessionId, layer: u32, answer: ScoresAnswer);

    /// Changes keys or values of a stopped session, for tokens before those at which it stopped. The change stays
    /// with the session and affects no other one. `answer` is called once the change is recorded. It is dropped if
    /// the session ends or goes on before.
    fn edit_cache(&mut self, id: SessionId, edit: KvEdit, answer: KvAnswer);

    /// Reads a stopped session. `answer` gets the result after a step. It is dropped if the session ends before.
    fn look(&mut self, id: SessionId, look: Look, answer: LookAnswer);

    /// Lets a session go on. With a later hook of the same tokens, the session stops again there.
    fn resume_until(&mut self, id: SessionId, until: Option<Hook>) -> Result<()>;

    /// Opens a copy of a stopped session, stopped at the same place and without breakpoints. Both share pages on
    /// the device until one writes to them.
    fn fork_paused(&mut self, id: SessionId) -> Result<SessionId>;

    /// Takes what breakpoints have read from a session.
    fn take_captures(&mut self, id: SessionId) -> Result<Captures>;

    /// By name: how many tokens of the latest turn steering has changed. Changes of stopped sessions count as
    /// `edit`.
    fn applied(&self, id: SessionId) -> Result<Vec<(String, u64)>>;

    /// A session's tokens, and the ranges that the model generated.
    fn tokens(&self, id: SessionId) -> Result<(Vec<u32>, Vec<Range<u64>>)>;
}
