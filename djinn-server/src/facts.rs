//! What the answers to a request are, for its line in the log and its span. There is no text in it.

use crate::{ApiError, FinishReason, GenerateRequest, TokenUsage};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

tokio::task_local! {
    static REQUEST: RequestFacts;
}

/// What is known of a request; shared with the answers that it begins, which tell it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestFacts(Arc<Mutex<Facts>>);

/// What is known of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The model, as the request calls it and by its first name.
    pub(crate) model: Option<[String; 2]>,
    /// What is generated, if that has begun.
    pub(crate) generated: Option<Generated>,
    /// Why the answers broke off: an error's code or type.
    pub(crate) failure: Option<&'static str>,
}

/// What was asked for and has come.
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "spans alone tell all of it"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct Generated {
    /// The name of the session whose turn it is.
    pub(crate) session: Option<String>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: f32,
    /// Answers to each prompt.
    pub(crate) choices: u32,
    pub(crate) usage: TokenUsage,
    /// From when it was asked for to its first token.
    pub(crate) first_token: Option<Duration>,
    /// Of the answers that are over, in order of their ends.
    pub(crate) finishes: Vec<FinishReason>,
}

impl Generated {
    /// What is known of a generation before it begins.
    pub(crate) fn of(generate: &GenerateRequest) -> Self {
        Generated {
            session: generate.session.as_ref().map(|session| session.id.clone()),
            max_tokens: generate.max_tokens,
            temperature: generate.sampling.temperature,
            choices: generate.choices,
            ..Generated::default()
        }
    }
}

impl RequestFacts {
    /// Those of the request that this task serves; of none, where there is no request.
    pub(crate) fn current() -> Self {
        REQUEST.try_with(Self::clone).unwrap_or_default()
    }

    /// Serves the request: what `work` finds is told here.
    pub(crate) async fn serve<F: Future>(&self, work: F) -> F::Output {
        REQUEST.scope(self.clone(), work).await
    }

    fn update(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The request is for this model, which it calls so.
    pub(crate) fn of_model(&self, asked: Option<String>, name: String) {
        self.update(|facts| facts.model = Some([asked.unwrap_or_else(|| name.clone()), name]));
    }

    /// Answers begin.
    pub(crate) fn began(&self, generated: Generated) {
        self.update(|facts| facts.generated = Some(generated));
    }

    /// Answers go on.
    pub(crate) fn generated(&self, change: impl FnOnce(&mut Generated)) {
        self.update(|facts| {
            facts.generated.as_mut().map(change);
        });
    }

    /// Answers break off.
    pub(crate) fn failed(&self, error: &ApiError) {
        self.update(|facts| facts.failure = Some(error.code.unwrap_or(error.kind)));
    }

    /// All that is known.
    pub(crate) fn told(&self) -> Facts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
