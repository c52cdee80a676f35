//! Facts about a request's answers, for its line in the log and its span. They contain no text of the request or
//! answer.

use crate::{ApiError, FinishReason, GenerateRequest, TokenUsage};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

tokio::task_local! {
    static REQUEST: RequestFacts;
}

/// The facts, shared with the answers of the request, which write them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestFacts(Arc<Mutex<Facts>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The model: the request's name for it, and its first name.
    pub(crate) model: Option<[String; 2]>,
    /// Facts about the generation, once it has begun.
    pub(crate) generated: Option<Generated>,
    /// The code or type of the error that ended the answers.
    pub(crate) failure: Option<&'static str>,
}

/// What was requested, and what was generated.
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
    /// Time from the request to its first token.
    pub(crate) first_token: Option<Duration>,
    /// Of the ended answers, in order.
    pub(crate) finishes: Vec<FinishReason>,
}

impl Generated {
    /// The facts before a generation begins.
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
    /// Those of the present task's request, or empty ones.
    pub(crate) fn current() -> Self {
        REQUEST.try_with(Self::clone).unwrap_or_default()
    }

    /// Runs `work` with these as the present task's facts.
    pub(crate) async fn serve<F: Future>(&self, work: F) -> F::Output {
        REQUEST.scope(self.clone(), work).await
    }

    fn update(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records the request's model.
    pub(crate) fn of_model(&self, asked: Option<String>, name: String) {
        self.update(|facts| facts.model = Some([asked.unwrap_or_else(|| name.clone()), name]));
    }

    /// Records that answers begin.
    pub(crate) fn began(&self, generated: Generated) {
        self.update(|facts| facts.generated = Some(generated));
    }

    /// Changes the facts about the generation.
    pub(crate) fn generated(&self, change: impl FnOnce(&mut Generated)) {
        self.update(|facts| {
            facts.generated.as_mut().map(change);
        });
    }

    /// Records that answers fail.
    pub(crate) fn failed(&self, error: &ApiError) {
        self.update(|facts| facts.failure = Some(error.code.unwrap_or(error.kind)));
    }

    pub(crate) fn told(&self) -> Facts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
