//! `/v1/sessions/{id}/resume` of a session that is paused at a breakpoint: to the end, or to its next pause.

use super::engine::{debug, paused_at};
use super::hooks;
use crate::ApiError;
use crate::body::{Fields, Part};
use crate::sessions::Named;
use djinn_engine::debug::{Breakpoint, Filter, PausedAt};
use djinn_srg::{Graph, Hook};
use serde_json::Value;

/// The next pause that a client requests.
enum Until {
    NextLayer,
    NextToken,
    Hook(Hook),
}

/// The next pause of a session.
enum Next {
    /// A later hook of the same tokens.
    Later(Hook),
    /// A hook of the tokens that follow.
    Following(Hook),
}

/// Resumes a session that is paused at a breakpoint, as far as its client requests.
///
/// # Errors
/// 409 if the session is not paused, 400 for a place that it will not reach.
pub(crate) async fn resume(named: &Named, fields: &Fields) -> Result<(), ApiError> {
    let (engine, graph) = (named.engine()?, named.model.graph());
    let until = until(fields, graph)?;
    let at = paused_at(engine, graph).await?;
    let next = until.map(|until| until.next(graph, &at)).transpose()?;
    // The session may be lost before anybody asks again, and is then opened without the breakpoints that are used up.
    super::routes::refresh(named).await;
    match next {
        None => debug(engine, graph, |debugger, id| debugger.resume_until(id, None)).await,
        Some(Next::Later(hook)) => {
            debug(engine, graph, |debugger, id| debugger.resume_until(id, Some(hook))).await
        }
        Some(Next::Following(hook)) => {
            let filter = Filter { positions: at.positions.end..u64::MAX, ..Filter::default() };
            let breakpoint = Breakpoint {
                hook,
                filter,
                condition: None,
                pause: true,
                capture: false,
                hits: Some(1),
                ttl: at.ttl,
                at_ttl: at.at_ttl,
            };
            super::routes::arm(named, breakpoint).await?;
            debug(engine, graph, |debugger, id| debugger.resume_until(id, None)).await
        }
    }
}

fn until(fields: &Fields, graph: &Graph) -> Result<Option<Until>, ApiError> {
    let wrong =
        || ApiError::field("until", "`until` must be next_layer, next_token, or an object with `hook`");
    match fields.get("until") {
        None => Ok(None),
        Some(Value::String(until)) => match until.as_str() {
            "next_layer" => Ok(Some(Until::NextLayer)),
            "next_token" => Ok(Some(Until::NextToken)),
            _ => Err(wrong()),
        },
        Some(Value::Object(_)) => {
            let part = Part::of(fields, "until")?;
            part.only(&["hook"])?;
            let hook: Option<String> = part.read("hook")?;
            Ok(Some(Until::Hook(hooks::find(graph, &hook.ok_or_else(wrong)?, "until.hook")?.clone())))
        }
        Some(_) => Err(wrong()),
    }
}

impl Until {
    fn next(self, graph: &Graph, at: &PausedAt) -> Result<Next, ApiError> {
        let here = hooks::find(graph, &at.hook, "until")?;
        match self {
            Until::Hook(hook) if hook.after > here.after => Ok(Next::Later(hook)),
            Until::Hook(hook) => {
                let message =
                    format!("`{}` does not come after `{}`, where the session is paused", hook.name, at.hook);
                Err(ApiError::field("until.hook", message))
            }
            Until::NextToken => Ok(Next::Following(here.clone())),
            Until::NextLayer => {
                // The hook with its own name in a block, or else one with that name there.
                let names = graph.hooks.iter().filter(|hook| hooks::is_same_point(hook, here));
                let in_block = |hook| Some((hooks::layer(hook)?, hooks::in_block(hook)?));
                let block = [here].into_iter().chain(names).find_map(in_block);
                let hook = |block: u64, name: &str| {
                    hooks::find(graph, &format!("blocks.{block}.{name}"), "until").cloned()
                };
                let first = hook(0, "hook_out")?;
                match block {
                    Some((block, name)) => match hook(block + 1, name) {
                        Ok(next) => Ok(Next::Later(next)),
                        Err(_) => Ok(Next::Following(hook(0, name)?)),
                    },
                    None if first.after > here.after => Ok(Next::Later(first)),
                    None => Ok(Next::Following(first)),
                }
            }
        }
    }
}
