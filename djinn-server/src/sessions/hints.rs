//! A request's session hints beyond the name: priority, time to live, and what follows the turn.

use super::identity;
use crate::body::{Fields, Part};
use crate::{ApiError, GenerateRequest, SteeringUse};
use axum::http::HeaderMap;
use djinn_scheduler::Signal;
use djinn_srg::Graph;
use serde_json::Value;
use std::time::Duration;

/// The supported version of `kv_hints`.
const KV_HINTS: &str = "0.1";
const MOST_ACTIONS: usize = 64;
/// The longest time to live of an unused session, in seconds.
pub(super) const LONGEST_TTL: u64 = 7 * 24 * 3600;

/// The session that a request continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionUse {
    /// The tenant, whose sessions no other tenant finds.
    pub tenant: Vec<u8>,
    /// Its name.
    pub id: String,
    /// The name of its parent session.
    pub parent: Option<String>,
    /// The header or field that named it.
    pub named_by: &'static str,
    /// Whether it ends with this turn.
    pub is_last: bool,
    /// Its time to live without use.
    pub time_to_live: Option<Duration>,
    /// How long the tool takes that the turn's answer calls.
    pub expected_wait: Option<Duration>,
    /// The signal to send after the turn.
    pub signal: Option<Signal>,
}

#[derive(Debug)]
pub(crate) struct Hints {
    tenant: Vec<u8>,
    session: Option<SessionUse>,
    priority: Option<i32>,
    steering: Option<SteeringUse>,
}

impl Hints {
    /// Reads the headers and fields of a request of `tenant` for the model of `graph`. `response` is the session that its
    /// response would name.
    ///
    /// # Errors
    /// 400 that names the header or field.
    pub(crate) fn read(
        headers: &HeaderMap,
        fields: &Fields,
        tenant: Vec<u8>,
        graph: &Graph,
        response: Option<&str>,
    ) -> Result<Self, ApiError> {
        let agent = Part::of(fields, "agent_hints")?;
        let nvext = Part::of(fields, "nvext")?;
        let (nv_agent, control) = (nvext.part("agent_hints")?, nvext.part("session_control")?);
        let ends = match control.read::<String>("action")?.as_deref() {
            None | Some("bind" | "open") => false,
            Some("close") => true,
            Some(_) => return Err(control.wrong("action", "must be bind, open or close")),
        };
        let lives = match (
            control.whole("timeout", LONGEST_TTL)?,
            agent.whole("cache_ttl_ms", LONGEST_TTL * 1000)?,
        ) {
            (Some(seconds), _) => Some(Duration::from_secs(seconds)),
            (None, milliseconds) => milliseconds.map(Duration::from_millis),
        };
        let expected_wait = agent.whole("expected_tool_duration_ms", u64::MAX)?.map(Duration::from_millis);
        let urgency: Option<i32> = nv_agent.read("priority")?;
        let signal = kv_signal(fields)?;
        Part::of(fields, "metadata")?;
        let session = identity::find(headers, fields, response)?.map(|named| SessionUse {
            tenant: tenant.clone(),
            id: named.id,
            parent: named.parent,
            named_by: named.named_by,
            is_last: named.is_last || ends,
            time_to_live: lives,
            expected_wait,
            signal,
        });
        // In Dynamo's field, higher priorities go first.
        let priority = urgency.filter(|_| fields.get("priority").is_none()).map(i32::saturating_neg);
        Ok(Hints { tenant, session, priority, steering: SteeringUse::read(fields, graph)? })
    }

    pub(crate) fn session_id(&self) -> Option<&str> {
        self.session.as_ref().map(|session| session.id.as_str())
    }

    /// Makes a generation a turn of the session.
    pub(crate) fn apply(self, generate: &mut GenerateRequest) {
        generate.session = self.session;
        (generate.tenant, generate.steering) = (self.tenant, self.steering);
        generate.priority = self.priority.unwrap_or(generate.priority);
    }
}

/// The first `djinn.signal` of version 1 among the actions of `kv_hints`. Others have no effect.
fn kv_signal(fields: &Fields) -> Result<Option<Signal>, ApiError> {
    let hints = Part::of(fields, "kv_hints")?;
    if fields.get("kv_hints").is_none() {
        return Ok(None);
    }
    if hints.read::<String>("protocol_version")?.as_deref() != Some(KV_HINTS) {
        return Err(hints.wrong("protocol_version", format_args!("must be \"{KV_HINTS}\"")));
    }
    hints.read::<String>("message_id")?;
    let actions: Vec<Value> = hints.read("actions")?.unwrap_or_default();
    if actions.len() > MOST_ACTIONS {
        return Err(hints.wrong("actions", format_args!("has more than {MOST_ACTIONS} actions")));
    }
    let mut signal = None;
    for (at, action) in actions.iter().enumerate() {
        let action = Part::new(format!("kv_hints.actions[{at}]"), Some(action))?;
        let kind: Option<String> = action.read("action_type")?;
        let kind = kind.ok_or_else(|| action.wrong("action_type", "is missing"))?;
        let version = match action.get("action_version") {
            None => return Err(action.wrong("action_version", "is missing")),
            Some(Value::String(version)) => version.clone(),
            Some(Value::Number(version)) => version.to_string(),
            Some(_) => return Err(action.wrong("action_version", "must be a text or a number")),
        };
        if (kind.as_str(), version.as_str()) == ("djinn.signal", "1") {
            signal = Some(self::signal(&action.part("payload")?)?);
        }
    }
    Ok(signal)
}

/// Reads a client's signal.
pub(super) fn signal(part: &Part) -> Result<Signal, ApiError> {
    match part.get("phase").and_then(Value::as_str) {
        Some("io_wait") => {
            let tool = match part.get("tool") {
                None => None,
                Some(Value::String(tool)) if tool.len() <= super::LONGEST_TOOL => Some(tool.clone()),
                Some(_) => return Err(part.wrong("tool", "must be a text of up to 128 bytes")),
            };
            let estimated_resume_ms = match part.get("estimated_resume_ms") {
                None => None,
                Some(time) => {
                    let time = time.as_u64();
                    Some(time.ok_or_else(|| part.wrong("estimated_resume_ms", "must be whole milliseconds"))?)
                }
            };
            Ok(Signal::IoWait { tool, estimated_resume_ms })
        }
        Some("compute") => Ok(Signal::Compute),
        Some("idle") => Ok(Signal::Idle),
        _ => Err(part.wrong("phase", "must be io_wait, compute or idle")),
    }
}
