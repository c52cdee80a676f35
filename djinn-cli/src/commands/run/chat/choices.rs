//! The settings of a chat's answers: the initial flags, with the changes of `/set`.

use crate::args::SamplingArgs;
use crate::config::usage::plain;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser};
use djinn_host::{Generation, nearest};
use djinn_models::GenerationDefaults;
use std::collections::BTreeMap;

/// Settings that ask for randomness.
const WARM: [&str; 4] = ["temperature", "top-k", "top-p", "min-p"];

/// Values by setting, as `/set` spells them.
pub(super) type Changes = BTreeMap<String, String>;

pub(super) struct Choices {
    began: SamplingArgs,
    now: SamplingArgs,
    changes: Changes,
}

/// The flags of an answer without a command.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Flags {
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// The parser of `/set`: the flags, with values for switches.
fn command() -> Command {
    Flags::command().disable_help_flag(true).mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => {
            let arg = arg.action(ArgAction::Set).value_parser(BoolishValueParser::new());
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        _ => arg,
    })
}

pub(super) fn names() -> Vec<String> {
    command().get_arguments().filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
}

impl Choices {
    /// The settings that the command line gave.
    pub(super) fn new(began: &SamplingArgs) -> Self {
        Choices { began: began.clone(), now: began.clone(), changes: Changes::new() }
    }

    /// The present flags.
    pub(super) fn args(&self) -> &SamplingArgs {
        &self.now
    }

    /// What was set, by name.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Sets `name`. Without a value, a switch becomes on, and other settings return to their initial value. An error
    /// is a message for the user, and changes nothing.
    pub(super) fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let command = command();
        let Some(arg) = command.get_arguments().find(|arg| arg.get_long() == Some(name)) else {
            let names = names();
            return Err(match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => format!("there is no setting {name}; did you mean {near}?"),
                None => format!("there is no setting {name}; there are {}", names.join(", ")),
            });
        };
        let mut changes = self.changes.clone();
        let switched = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        match value.or(switched.then_some("true")) {
            Some(value) => drop(changes.insert(name.to_owned(), value.to_owned())),
            None => drop(changes.remove(name)),
        }
        // The later of the two applies.
        if WARM.contains(&name) {
            changes.remove("greedy");
        }
        self.replace(changes)
    }

    /// Sets all of `changes`, and nothing else. An error is a message for the user, and changes nothing.
    pub(super) fn replace(&mut self, changes: Changes) -> Result<(), String> {
        let line = changes.iter().map(|(name, value)| format!("--{name}={value}"));
        let wrong = |error: clap::Error| {
            let text = error.to_string();
            plain(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
        };
        let matches = command().try_get_matches_from(line).map_err(wrong)?;
        let mut now = self.began.clone();
        now.update_from_arg_matches(&matches).map_err(wrong)?;
        if !changes.contains_key("greedy") && WARM.iter().any(|name| changes.contains_key(*name)) {
            now.greedy = false;
        }
        (self.now, self.changes) = (now, changes);
        Ok(())
    }
}

/// The settings in effect, as text.
pub(super) fn describe(generation: &Generation, defaults: &GenerationDefaults) -> String {
    let sampling = generation.sampling(defaults);
    let mut text = match sampling.temperature {
        0.0 => "greedy".to_owned(),
        temperature => format!(
            "temperature {temperature}, top-k {}, top-p {}, min-p {}",
            sampling.top_k, sampling.top_p, sampling.min_p
        ),
    };
    if sampling.temperature > 0.0 {
        text += &match generation.seed {
            Some(seed) => format!(", seed {seed}"),
            None => ", another seed each time".to_owned(),
        };
    }
    text += &format!(", repetition-penalty {}", sampling.repetition_penalty);
    text += &format!(", max-tokens {}", generation.max_tokens);
    if !generation.stop.is_empty() {
        text += &format!(", stop {:?}", generation.stop);
    }
    if generation.ignore_eos {
        text += ", ignore-eos";
    }
    text
}
