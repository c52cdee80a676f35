//! A chat on the terminal, with a model on this machine or of a server's.

mod choices;
mod line;
mod local;
mod remote;
mod saved;

use super::MAX_CHAT_TOKENS;
use super::show::Show;
use crate::args::RunArgs;
use crate::commands::editor::{Asked, Editor};
use crate::interrupt::Interrupt;
use crate::loaded::Loaded;
use crate::output;
use crate::terminal;
use anyhow::{Result, anyhow};
use choices::Choices;
use djinn_host::remote::{Remote, RemoteChat};
use djinn_host::{Dialogue, Error, Generation, Speech};
use djinn_models::GenerationDefaults;
use line::{Command, Known, Line};
use local::Local;
use remote::Elsewhere;
use saved::Saved;
use std::ops::ControlFlow;
use std::path::Path;

/// Refuses a seed on the command line if the chat begins without sampling.
pub(super) fn check_seed(args: &RunArgs, defaults: &GenerationDefaults) -> Result<()> {
    let generation = args.sampling.generation(MAX_CHAT_TOKENS).for_chat(defaults);
    args.sampling.check_seed(&generation.sampling(defaults))
}

/// Talks with a model on this machine until Ctrl-D or `/exit`.
pub(super) fn run(
    loaded: &mut Loaded,
    speech: Speech<'_>,
    args: &RunArgs,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<()> {
    speech.tokenizer()?;
    talk(&mut Local::new(loaded, speech), args, interrupt, quiet)
}

/// Talks with a model of `server` in the same way.
pub(super) fn run_at(server: Remote, args: &RunArgs, interrupt: &Interrupt, quiet: bool) -> Result<()> {
    let chat = RemoteChat::open(server, &args.model, args.raw, args.system.as_deref())?;
    check_seed(args, chat.defaults())?;
    let mut partner = Elsewhere::new(chat);
    talk(&mut partner, args, interrupt, quiet)?;
    // A server that is gone has forgotten it.
    let _ = partner.chat.end();
    Ok(())
}

/// Who answers.
trait Partner {
    /// The model.
    fn name(&self) -> &str;

    /// Where it computes.
    fn place(&self) -> String;

    /// Tokens of a conversation.
    fn context(&self) -> u64;

    /// What makes it longer.
    fn longer_context(&self) -> &'static str;

    /// What the model's makers say about how it generates.
    fn defaults(&self) -> &GenerationDefaults;

    /// What was said so far.
    fn conversation(&mut self) -> &mut Dialogue;

    /// Answers a message, until `on_text` breaks.
    fn ask(
        &mut self,
        generation: &Generation,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> djinn_host::Result<Said>;

    /// Prints what the last answer cost; how many tokens of context it left. `None` if there was none.
    fn remark_cost(&self) -> Option<u64>;
}

/// What came of a message.
struct Said {
    /// Of the answer.
    tokens: usize,
    /// The answer ended because it may be no longer.
    is_cut: bool,
    /// Turns that were forgotten to make room.
    forgotten: usize,
    /// Tokens of the context that are left.
    left: u64,
}

/// Talks until Ctrl-D or `/exit`.
fn talk(partner: &mut dyn Partner, args: &RunArgs, interrupt: &Interrupt, quiet: bool) -> Result<()> {
    interrupt.chat();
    let _hushed = terminal::hush();
    let mut talk = Talk { partner, choices: Choices::new(&args.sampling), interrupt, quiet };
    let mut editor = Editor::new("> ", "history", Known { settings: choices::names() })?;
    let (name, place, context) = (talk.partner.name(), talk.partner.place(), talk.partner.context());
    talk.remark(&format!("{name} on {place}, a context of {context} tokens; /help lists what can be done"));
    loop {
        let text = match editor.ask()? {
            Asked::End => return Ok(()),
            Asked::Dropped => continue,
            Asked::Text(text) => text,
        };
        match Line::parse(&text) {
            Err(why) => tell(&anyhow!(why)),
            Ok(Line::Empty) => {}
            Ok(Line::Command(command)) => match talk.obey(command) {
                Ok(Some(said)) => output::remark(&said),
                Ok(None) => return Ok(()),
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

struct Talk<'a> {
    partner: &'a mut dyn Partner,
    choices: Choices,
    interrupt: &'a Interrupt,
    quiet: bool,
}

impl Talk<'_> {
    fn generation(&self) -> Generation {
        self.choices.args().generation(MAX_CHAT_TOKENS).for_chat(self.partner.defaults())
    }

    fn remark(&self, text: &str) {
        if !self.quiet {
            output::remark(text);
        }
    }

    /// Answers a message on standard output. What is wrong with the message is told; other errors end the chat.
    fn answer(&mut self, text: &str) -> Result<()> {
        let generation = self.generation();
        let (mut show, mut begun) = (Show::new(self.interrupt, true), false);
        let asked = self.partner.ask(&generation, text, &mut |piece| {
            begun |= !piece.is_empty();
            show.piece(piece)
        });
        let answered = show.end(asked);
        if begun || answered.is_ok() {
            output::piece("\n")?;
        }
        match answered {
            Ok(said) => self.conclude(&said),
            Err(error) if error.downcast_ref().is_some_and(goes_on) => tell(&error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Says what the user would not notice.
    fn conclude(&self, said: &Said) {
        let context = self.partner.context();
        let fits = format!("to fit the context of {context} tokens");
        match said.forgotten {
            0 => {}
            1 => self.remark(&format!("(the oldest turn was forgotten, {fits})")),
            many => self.remark(&format!("(the oldest {many} turns were forgotten, {fits})")),
        }
        if said.is_cut {
            self.remark(&match said.left {
                0 => {
                    let longer = self.partner.longer_context();
                    format!("(the answer ends here: the context of {context} tokens is full; {longer})")
                }
                _ => format!("(the answer ends here, after {} tokens: /set max-tokens N)", said.tokens),
            });
        }
    }

    /// Does what the user wants of the chat; gives what to say, or `None` if the chat ends.
    fn obey(&mut self, command: Command) -> Result<Option<String>> {
        Ok(Some(match command {
            Command::Help => line::help(),
            Command::System(text) => self.system(text)?,
            Command::Set(None) => choices::describe(&self.generation(), self.partner.defaults()),
            Command::Set(Some((name, value))) => {
                self.choices.set(&name, value.as_deref()).map_err(|why| anyhow!(why))?;
                choices::describe(&self.generation(), self.partner.defaults())
            }
            Command::Stats => self.stats(),
            Command::Clear => {
                self.partner.conversation().clear();
                "the conversation begins anew".to_owned()
            }
            Command::Save { file, overwrite } => {
                let messages = self.partner.conversation().messages();
                let saved = Saved { messages, settings: self.choices.changes().clone() };
                saved.write(Path::new(&file), overwrite)?;
                format!("{} messages are in {file}", saved.messages.len())
            }
            Command::Load(file) => self.load(&file)?,
            Command::Exit => return Ok(None),
        }))
    }

    fn system(&mut self, text: Option<String>) -> Result<String> {
        let conversation = self.partner.conversation();
        if let Some(text) = text {
            conversation.set_system(&text)?;
        }
        Ok(match conversation.system() {
            Some(text) => format!("system message: {text}"),
            None => "no system message; the chat template may have its own".to_owned(),
        })
    }

    /// Prints what the last answer cost; gives what is left.
    fn stats(&self) -> String {
        let context = self.partner.context();
        match self.partner.remark_cost() {
            Some(left) => format!("{left} of {context} tokens of context left"),
            None => format!("no answer yet; a context of {context} tokens"),
        }
    }

    fn load(&mut self, file: &str) -> Result<String> {
        let Saved { messages, settings } = Saved::read(Path::new(file))?;
        let (count, names) = (messages.len(), settings.keys().cloned().collect::<Vec<_>>().join(", "));
        let before = self.choices.changes().clone();
        self.choices.replace(settings).map_err(|why| anyhow!("{file}: {why}"))?;
        if let Err(error) = self.partner.conversation().resume(messages) {
            self.choices.replace(before).map_err(|why| anyhow!(why))?;
            return Err(anyhow::Error::from(error).context(file.to_owned()));
        }
        Ok(match &*names {
            "" => format!("{count} messages from {file}"),
            names => format!("{count} messages from {file}, and {names}"),
        })
    }
}

/// Whether the chat goes on after an error: the message or the conversation is at fault, or a server that may take the next one.
fn goes_on(error: &Error) -> bool {
    match error {
        Error::MessageTooLong { .. } | Error::UnknownToken { .. } | Error::Model(_) => true,
        Error::Engine(djinn_engine::Error::UnknownToken { .. }) => true,
        Error::Refused { status, .. } => !matches!(status, 401 | 403 | 404),
        _ => false,
    }
}
