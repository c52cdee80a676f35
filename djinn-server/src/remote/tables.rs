//! `/v1/models/{name}/plan` and `/srg`: the output of `djinn plan` and `djinn srg` for a model of the server. Query
//! parameters are their flags.

use crate::reply::{self, Answered};
use crate::server::Server;
use crate::{ApiError, ServedModel};
use djinn_host::{PlanAsked, Setup, SrgAsked, Target, WorkArgs, of_query, plan_text, srg_text};
use djinn_models::{Model, OpenOptions};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most passes of a prompt in a plan. They follow from its length and the rows of a prefill chunk.
const MOST_PASSES: u32 = 4096;
/// The most tokens of a prompt for costs.
const MOST_TOKENS: u32 = 1 << 24;

/// The machine for predictions on the server's CPU, once it is known.
#[derive(Debug, Default)]
pub(crate) struct OwnMachine(Mutex<Option<Target>>);

impl OwnMachine {
    pub(crate) fn set(&self, target: Target) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
    }

    /// The machine. If it is not known, it is measured for less than half a second.
    fn get(&self) -> djinn_host::Result<Target> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(target) => Ok(target.clone()),
            None => Ok(known.insert(Target::quick()?).clone()),
        }
    }

    /// Adds to `target`, which is this machine or a card, what [`Target::measure_encoded`] measures once.
    fn measure_encoded(&self, target: &mut Target, model: &Model) -> djinn_host::Result<()> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Some(own)) = (target.card, &mut *known) {
            own.measure_encoded(model)?;
            target.machine.encoded.clone_from(&own.machine.encoded);
        }
        Ok(())
    }
}

/// Which of the two is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Plan,
    Graph,
}

/// Answers a request for a model's plan or graph, as text or JSON.
pub(crate) async fn show(
    server: &Arc<Server>,
    name: &str,
    table: Table,
    query: &HashMap<String, String>,
) -> Answered {
    let model = server.served(name).ok_or_else(|| ApiError::no_model(name))?;
    let pairs = || query.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let (server, asked) = (
        Arc::clone(server),
        match table {
            Table::Plan => Asked::Plan(of_query(pairs()).map_err(wrong)?),
            Table::Graph => Asked::Graph(of_query(pairs()).map_err(wrong)?),
        },
    );
    asked.check()?;
    let (json, text) = model.work(move |model| Ok((asked.is_json(), asked.text(&server, model)?))).await?;
    Ok(reply::of_type(if json { "application/json" } else { "text/plain; charset=utf-8" }, text))
}

enum Asked {
    Plan(PlanAsked),
    Graph(SrgAsked),
}

impl Asked {
    fn work(&self) -> &WorkArgs {
        match self {
            Asked::Plan(asked) => &asked.work,
            Asked::Graph(asked) => &asked.work,
        }
    }

    fn is_json(&self) -> bool {
        match self {
            Asked::Plan(asked) => asked.json,
            Asked::Graph(asked) => asked.json,
        }
    }

    /// Bounds the work before it begins.
    fn check(&self) -> Result<(), ApiError> {
        let tokens = self.work().prompt_len;
        if tokens > MOST_TOKENS {
            return Err(ApiError::field("prompt-len", format!("give up to {MOST_TOKENS} tokens")));
        }
        match self {
            Asked::Graph(asked) => asked.check().map_err(wrong),
            Asked::Plan(asked) => match asked.memory.prefill_rows {
                Some(rows) if tokens.div_ceil(rows) > MOST_PASSES => {
                    let message =
                        format!("{tokens} tokens in chunks of {rows} are more than {MOST_PASSES} passes");
                    Err(ApiError::field("prefill-chunk", message))
                }
                _ => Ok(()),
            },
        }
    }

    fn text(&self, server: &Server, model: &ServedModel) -> Result<String, ApiError> {
        let failed = |error: djinn_host::Error| ApiError::failed(error.to_string());
        let mut target = self.work().target(|| server.own_machine.get()).map_err(failed)?;
        let setup = match self {
            Asked::Plan(asked) => asked.memory,
            Asked::Graph(asked) => Setup { dtype: asked.dtype, ..Setup::default() },
        };
        let opened = opened(model.model(), &target.open_options(&setup))?;
        server.own_machine.measure_encoded(&mut target, &opened).map_err(failed)?;
        let text = match self {
            Asked::Plan(asked) => plan_text(&opened, asked, target),
            Asked::Graph(asked) => srg_text(&opened, asked, &target),
        };
        text.map_err(wrong)
    }
}

/// The model, opened for the requested machine. No weights are read.
fn opened(model: &Model, options: &OpenOptions) -> Result<Model, ApiError> {
    let opened = djinn_models::open(&model.location, options);
    opened.map_err(|error| ApiError::failed(format!("the model cannot be opened again: {error}")))
}

fn wrong(error: djinn_host::Error) -> ApiError {
    ApiError::invalid(djinn_host::one_line(&error))
}
