//! A chat on the terminal: one session, whose keys and values are kept from turn to turn.

mod choices;
mod line;
mod saved;

use super::MAX_CHAT_TOKENS;
use super::show::Show;
use crate::args::RunArgs;
use crate::commands::editor::{Asked, Editor};
use crate::interrupt::Interrupt;
use crate::loaded::Loaded;
use crate::output;
use crate::stats::RunStats;
use crate::terminal;
use anyhow::{Result, anyhow};
use choices::Choices;
use djinn_engine::{Finish, Stats};
use djinn_host::{Chat, Error, Generation, Reply, Speech, seed};
use djinn_models::Model;
use line::{Command, Known, Line};
use saved::Saved;
use std::path::Path;

/// Talks until Ctrl-D or `/exit`.
pub(super) fn run(
    loaded: &mut Loaded,
    speech: Speech<'_>,
    args: &RunArgs,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<()> {
    speech.tokenizer()?;
    let model = speech.model();
    interrupt.chat();
    let _hushed = terminal::hush();
    let choices = Choices::new(&args.sampling);
    let mut talk = Talk { loaded, model, chat: Chat::new(speech), choices, interrupt, quiet, last: None };
    let mut editor = Editor::new("> ", "history", Known { settings: choices::names() })?;
    let (device, context) = (talk.loaded.engine.device_info().name, talk.context());
    talk.remark(&format!(
        "{} on {device}, a context of {context} tokens; /help lists what can be done",
        model.name
    ));
    loop {
        let text = match editor.ask()? {
            Asked::End => return Ok(()),
            Asked::Dropped => continue,
            Asked::Text(text) => text,
        };
        match Line::parse(&text) {
            Err(why) => tell(&anyhow!(why)),
            Ok(Line::Empty) => {}
            Ok(Line::Command(Command::Exit)) => return Ok(()),
            Ok(Line::Command(command)) => match talk.obey(command) {
                Ok(said) => output::remark(&said),
                Err(error) => tell(&error),
            },
            Ok(Line::Message(text)) => talk.answer(&text)?,
        }
    }
}

/// Tells the user what cannot be done; the chat goes on.
fn tell(error: &anyhow::Error) {
    output::remark(&output::one_line(error.as_ref()));
}

/// A chat under way.
struct Talk<'a> {
    loaded: &'a mut Loaded,
    model: &'a Model,
    chat: Chat<'a>,
    choices: Choices,
    interrupt: &'a Interrupt,
    quiet: bool,
    /// What the last answer cost.
    last: Option<Last>,
}

struct Last {
    stats: Stats,
    seed: Option<u64>,
    left: u64,
}

impl Talk<'_> {
    fn context(&self) -> u64 {
        self.loaded.engine.context()
    }

    fn generation(&self) -> Generation {
        self.choices.args().generation(MAX_CHAT_TOKENS).for_chat(&self.model.defaults)
    }

    fn remark(&self, text: &str) {
        if !self.quiet {
            output::remark(text);
        }
    }

    /// Answers a message on standard output. What is wrong with the message is told; other errors end the chat.
    fn answer(&mut self, text: &str) -> Result<()> {
        let generation = self.generation();
        let (chat, engine) = (&mut self.chat, &mut *self.loaded.engine);
        let mut show = Show::new(self.interrupt, true);
        let asked = chat.ask(engine, &generation, text, &mut |piece| show.piece(piece));
        match show.end(asked) {
            Ok(reply) => {
                output::piece("\n")?;
                self.conclude(reply);
                Ok(())
            }
            Err(error) if error.downcast_ref().is_some_and(is_the_message) => {
                tell(&error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Says what the user would not notice.
    fn conclude(&mut self, reply: Reply) {
        let Reply { answer, sampling, forgotten, left } = reply;
        let context = self.context();
        match forgotten {
            0 => {}
            1 => self
                .remark(&format!("(the oldest turn was forgotten, to fit the context of {context} tokens)")),
            many => {
                self.remark(&format!(
                    "(the oldest {many} turns were forgotten, to fit the context of {context} tokens)"
                ));
            }
        }
        if answer.finish == Finish::Length {
            self.remark(&match left {
                0 => format!(
                    "(the answer ends here: the context of {context} tokens is full; --ctx sets another)"
                ),
                _ => {
                    format!("(the answer ends here, after {} tokens: /set max-tokens N)", answer.tokens.len())
                }
            });
        }
        self.last = Some(Last { stats: answer.stats, seed: seed(&sampling), left });
    }

    /// Does what the user wants of the chat; gives what to say.
    fn obey(&mut self, command: Command) -> Result<String> {
        match command {
            Command::Help => Ok(line::help()),
            Command::System(text) => self.system(text),
            Command::Set(None) => Ok(choices::describe(&self.generation(), &self.model.defaults)),
            Command::Set(Some((name, value))) => {
                self.choices.set(&name, value.as_deref()).map_err(|why| anyhow!(why))?;
                Ok(choices::describe(&self.generation(), &self.model.defaults))
            }
            Command::Stats => Ok(self.stats()),
            Command::Clear => {
                self.chat.clear();
                Ok("the conversation begins anew".to_owned())
            }
            Command::Save { file, overwrite } => {
                let saved =
                    Saved { messages: self.chat.messages(), settings: self.choices.changes().clone() };
                saved.write(Path::new(&file), overwrite)?;
                Ok(format!("{} messages are in {file}", saved.messages.len()))
            }
            Command::Load(file) => self.load(&file),
            Command::Exit => Ok(String::new()),
        }
    }

    fn system(&mut self, text: Option<String>) -> Result<String> {
        if let Some(text) = text {
            self.chat.set_system(&text)?;
        }
        Ok(match self.chat.system() {
            Some(text) => format!("system message: {text}"),
            None => "no system message; the chat template may have its own".to_owned(),
        })
    }

    /// Prints what the last answer cost; gives what is left.
    fn stats(&self) -> String {
        let context = self.context();
        let Some(Last { stats, seed, left }) = &self.last else {
            return format!("no answer yet; a context of {context} tokens");
        };
        let report = RunStats::new(&*self.loaded.engine, stats, self.loaded.time, *seed);
        report.remark();
        format!("{left} of {context} tokens of context left")
    }

    fn load(&mut self, file: &str) -> Result<String> {
        let Saved { messages, settings } = Saved::read(Path::new(file))?;
        let (count, names) = (messages.len(), settings.keys().cloned().collect::<Vec<_>>().join(", "));
        let before = self.choices.changes().clone();
        self.choices.replace(settings).map_err(|why| anyhow!("{file}: {why}"))?;
        if let Err(error) = self.chat.resume(messages) {
            self.choices.replace(before).map_err(|why| anyhow!(why))?;
            return Err(anyhow::Error::from(error).context(file.to_owned()));
        }
        Ok(match &*names {
            "" => format!("{count} messages from {file}"),
            names => format!("{count} messages from {file}, and {names}"),
        })
    }
}

/// Whether the message or the conversation is at fault, not the model or the machine.
fn is_the_message(error: &Error) -> bool {
    matches!(error, Error::MessageTooLong { .. } | Error::Model(_))
}
