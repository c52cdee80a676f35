//! A model of a server's, whose session keeps the keys and values from turn to turn.

use super::super::elsewhere::RemoteStats;
use super::{Partner, Said};
use djinn_host::remote::{RemoteAnswer, RemoteChat};
use djinn_host::{Dialogue, Generation, Result};
use djinn_models::GenerationDefaults;
use std::ops::ControlFlow;

pub(super) struct Elsewhere {
    pub(super) chat: RemoteChat,
    /// The last answer, and the tokens of context that it left.
    last: Option<(RemoteAnswer, u64)>,
}

impl Elsewhere {
    pub(super) fn new(chat: RemoteChat) -> Self {
        Elsewhere { chat, last: None }
    }
}

impl Partner for Elsewhere {
    fn name(&self) -> &str {
        self.chat.name()
    }

    fn place(&self) -> String {
        self.chat.server().url().to_owned()
    }

    fn context(&self) -> u64 {
        self.chat.context()
    }

    fn longer_context(&self) -> &'static str {
        "the server's --ctx sets another"
    }

    fn defaults(&self) -> &GenerationDefaults {
        self.chat.defaults()
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
        let reply = self.chat.ask(generation, text, on_text)?;
        let (answer, _) = self.last.insert((reply.answer, reply.left));
        let is_cut = answer.finish == "length";
        Ok(Said { tokens: answer.came as usize, is_cut, forgotten: reply.forgotten, left: reply.left })
    }

    fn remark_cost(&self) -> Option<u64> {
        let (answer, left) = self.last.as_ref()?;
        RemoteStats::new(self.chat.server().url(), answer).remark();
        Some(*left)
    }
}
