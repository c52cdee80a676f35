//! A model on this machine: one session, whose keys and values are kept from turn to turn.

use super::{Partner, Said};
use crate::loaded::Loaded;
use crate::stats::RunStats;
use djinn_engine::{Finish, Stats};
use djinn_host::{Chat, Dialogue, Generation, Reply, Result, Speech, seed};
use djinn_models::{GenerationDefaults, Model};
use std::ops::ControlFlow;

pub(super) struct Local<'a> {
    loaded: &'a mut Loaded,
    model: &'a Model,
    chat: Chat<'a>,
    /// What the last answer cost.
    last: Option<Last>,
}

struct Last {
    stats: Stats,
    seed: Option<u64>,
    left: u64,
}

impl<'a> Local<'a> {
    pub(super) fn new(loaded: &'a mut Loaded, speech: Speech<'a>) -> Self {
        Local { loaded, model: speech.model(), chat: Chat::new(speech), last: None }
    }
}

impl Partner for Local<'_> {
    fn name(&self) -> &str {
        &self.model.name
    }

    fn place(&self) -> String {
        self.loaded.engine.device_info().name
    }

    fn context(&self) -> u64 {
        self.loaded.engine.context()
    }

    fn longer_context(&self) -> &'static str {
        "--ctx sets another"
    }

    fn defaults(&self) -> &GenerationDefaults {
        &self.model.defaults
    }

    fn conversation(&mut self) -> &mut Dialogue {
        &mut self.chat.conversation
    }

    fn ask(
        &mut self,
        generation: &Generation,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Said> {
        let Reply { answer, sampling, forgotten, left } =
            self.chat.ask(&mut *self.loaded.engine, generation, text, on_text)?;
        self.last = Some(Last { stats: answer.stats, seed: seed(&sampling), left });
        let is_cut = answer.finish == Finish::Length;
        Ok(Said { tokens: answer.tokens.len(), is_cut, forgotten, left })
    }

    fn remark_cost(&self) -> Option<u64> {
        let Last { stats, seed, left } = self.last.as_ref()?;
        RunStats::new(&*self.loaded.engine, stats, self.loaded.time, *seed).remark();
        Some(*left)
    }
}
