//! Breakpoints: as clients write and read them, and as a session's record keeps them.

use crate::ApiError;
use crate::body::{Fields, Part};
use crate::debug::hooks;
use crate::model::ServedModel;
use crate::steering::check_values;
use djinn_engine::SessionId;
use djinn_engine::debug::{AtTtl, BreakCondition, Breakpoint, BreakpointId, Filter, PausedAt, TokenKind};
use serde_json::{Value, json};
use std::ops::Range;
use std::time::{Duration, Instant};

pub(crate) const MOST_BREAKPOINTS: usize = 64;
const MOST_TOKENS: usize = 1024;
/// The default time to live of a pause.
const TTL: Duration = Duration::from_secs(300);

/// Reads a breakpoint from a request's body.
///
/// # Errors
/// 400 that names the field.
pub(super) fn read(fields: &Fields, model: &ServedModel) -> Result<Breakpoint, ApiError> {
    let hook: Option<String> = fields.read("hook")?;
    let hook = hook.ok_or_else(|| ApiError::field("hook", "`hook` is missing"))?;
    let hook = hooks::find(model.graph(), &hook, "hook")?.clone();
    let one_of = |name: &'static str, known: &str| ApiError::field(name, format!("`{name}` must be {known}"));
    let tokens = match fields.read::<String>("tokens")?.as_deref() {
        None | Some("any") => TokenKind::Any,
        Some("prompt") => TokenKind::Prompt,
        Some("generated") => TokenKind::Generated,
        Some(_) => return Err(one_of("tokens", "any, prompt or generated")),
    };
    let (pause, capture) = match fields.read::<String>("action")?.as_deref() {
        None | Some("pause") => (true, false),
        Some("capture") => (false, true),
        Some("pause_and_capture") => (true, true),
        Some(_) => return Err(one_of("action", "pause, capture or pause_and_capture")),
    };
    let at_ttl = match fields.read::<String>("on_ttl")?.as_deref() {
        None | Some("resume") => AtTtl::Resume,
        Some("abort") => AtTtl::Abort,
        Some(_) => return Err(one_of("on_ttl", "resume or abort")),
    };
    let hits = match fields.integer("hits", 1..=u64::MAX)? {
        None if pause && !fields.is_null("hits") => Some(1),
        hits => hits,
    };
    let longest = model.longest_pause;
    let ttl = fields.integer("ttl_ms", 1..=u64::MAX)?.map_or(TTL, Duration::from_millis).min(longest);
    let condition = condition(fields, &hook, model)?;
    let filter = Filter { tokens, positions: range(fields, "positions")?, steps: range(fields, "steps")? };
    let filter = of_generated(filter, fields.get("steps").is_some())?;
    Ok(Breakpoint { hook, filter, condition, pause, capture, hits, ttl: Some(ttl), at_ttl })
}

/// An object with `from` and `to`; the whole range if it is absent.
fn range(fields: &Fields, name: &'static str) -> Result<Range<u64>, ApiError> {
    let part = Part::of(fields, name)?;
    part.only(&["from", "to"])?;
    let (from, to) = (part.read("from")?.unwrap_or(0), part.read("to")?.unwrap_or(u64::MAX));
    match from < to {
        true => Ok(from..to),
        false => Err(ApiError::field(name, format!("`{name}` has nothing from {from} to {to}"))),
    }
}

/// Steps are places of generated tokens, so a filter with steps takes no tokens of a prompt.
fn of_generated(filter: Filter, has_steps: bool) -> Result<Filter, ApiError> {
    match filter.tokens {
        _ if !has_steps => Ok(filter),
        _ if filter.steps.end == 1 => {
            Err(ApiError::field("steps", "`steps` are counted from 1, and `to` is not among them"))
        }
        TokenKind::Prompt => {
            Err(ApiError::field("steps", "`steps` are places of generated tokens, and `tokens` is prompt"))
        }
        TokenKind::Any | TokenKind::Generated => Ok(Filter { tokens: TokenKind::Generated, ..filter }),
    }
}

fn condition(
    fields: &Fields,
    hook: &djinn_srg::Hook,
    model: &ServedModel,
) -> Result<Option<BreakCondition>, ApiError> {
    if fields.get("condition").is_none() {
        return Ok(None);
    }
    let part = Part::of(fields, "condition")?;
    let needed = |name: &str| part.wrong(name, "is missing");
    let above = || part.finite("above")?.ok_or_else(|| needed("above"));
    Ok(Some(match part.read::<String>("type")?.as_deref() {
        Some("token") => {
            part.only(&["type", "tokens"])?;
            let tokens: Vec<u32> = part.read("tokens")?.ok_or_else(|| needed("tokens"))?;
            if tokens.is_empty() || tokens.len() > MOST_TOKENS {
                return Err(part.wrong("tokens", format_args!("must have 1 to {MOST_TOKENS} token ids")));
            }
            model.check_tokens(&tokens, "condition.tokens")?;
            BreakCondition::Tokens(tokens)
        }
        Some("entropy") => {
            part.only(&["type", "above"])?;
            BreakCondition::Entropy { above: above()? }
        }
        Some("probe") => {
            part.only(&["type", "direction", "above"])?;
            let direction: Vec<f32> = part.read("direction")?.ok_or_else(|| needed("direction"))?;
            check_values(hook, &direction, 1, "condition.direction")?;
            BreakCondition::Probe { direction, above: above()? }
        }
        _ => return Err(part.wrong("type", "must be token, entropy or probe")),
    }))
}

/// A breakpoint of a session that has keys and values, or will have.
#[derive(Clone, Debug)]
pub(crate) struct Armed {
    /// The number in its id.
    pub(crate) number: u64,
    pub(crate) breakpoint: Breakpoint,
    /// Where it is armed, if it is.
    pub(crate) at: Option<(SessionId, BreakpointId)>,
    /// Its last known hits.
    pub(crate) hits: u64,
    /// Hits in earlier sessions of the engine.
    pub(crate) before: u64,
}

impl Armed {
    pub(super) fn id(number: u64) -> String {
        format!("bp_{number}")
    }

    /// The number in an id.
    pub(super) fn number(id: &str) -> Option<u64> {
        id.strip_prefix("bp_")?.parse().ok()
    }

    /// Whether its hits are used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.breakpoint.hits.is_some_and(|most| self.hits >= most)
    }

    /// The rest of it, for a session that is opened again.
    pub(crate) fn again(&self) -> Breakpoint {
        let hits = self.breakpoint.hits.map(|hits| hits.saturating_sub(self.hits));
        Breakpoint { hits, ..self.breakpoint.clone() }
    }

    /// As JSON for its client.
    pub(super) fn json(&self) -> Value {
        let Breakpoint { hook, filter, condition, pause, capture, hits, ttl, at_ttl } = &self.breakpoint;
        let open = |range: &Range<u64>| json!({ "from": range.start, "to": (range.end < u64::MAX).then_some(range.end) });
        json!({
            "id": Self::id(self.number),
            "object": "breakpoint",
            "hook": hook.name,
            "tokens": match filter.tokens {
                TokenKind::Any => "any",
                TokenKind::Prompt => "prompt",
                TokenKind::Generated => "generated",
            },
            "positions": open(&filter.positions),
            "steps": open(&filter.steps),
            "condition": condition.as_ref().map(|condition| match condition {
                BreakCondition::Tokens(tokens) => json!({ "type": "token", "tokens": tokens }),
                BreakCondition::Entropy { above } => json!({ "type": "entropy", "above": above }),
                BreakCondition::Probe { direction, above } => {
                    json!({ "type": "probe", "direction": direction, "above": above })
                }
            }),
            "action": match (pause, capture) {
                (true, false) => "pause",
                (false, _) => "capture",
                (true, true) => "pause_and_capture",
            },
            "hits": hits,
            "ttl_ms": ttl.map(milliseconds),
            "on_ttl": match at_ttl {
                AtTtl::Resume => "resume",
                AtTtl::Abort => "abort",
            },
            "hit_count": self.hits,
            "armed": self.at.is_some() && !self.is_spent(),
        })
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Where a session is paused, as JSON for its client.
pub(crate) fn paused_json(at: &PausedAt, session: SessionId, armed: &[Armed]) -> Value {
    let of = |id: BreakpointId| armed.iter().find(|armed| armed.at == Some((session, id)));
    let now = Instant::now();
    let ends = at.ttl.and_then(|ttl| at.since.checked_add(ttl));
    json!({
        "breakpoint": at.breakpoint.and_then(of).map(|armed| Armed::id(armed.number)),
        "hook": at.hook,
        "positions": { "from": at.positions.start, "to": at.positions.end },
        "hit_positions": at.hit,
        "token_ids": at.tokens,
        "since_ms": milliseconds(now.saturating_duration_since(at.since)),
        "expires_in_ms": ends.map(|end| milliseconds(end.saturating_duration_since(now))),
    })
}
