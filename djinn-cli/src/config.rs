//! Where a flag's value comes from: the command line, then its `DJINN_*` variable, then the settings files, then its
//! default. Variables and keys are derived from the flags, so that every flag has both.

mod conflicts;
mod file;
mod places;
#[cfg(test)]
mod tests;
pub(crate) mod usage;
mod variables;

use crate::args::{Cli, Command, SamplingArgs};
use crate::output;
use anyhow::Result;
use clap::builder::{BoolishValueParser, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Id};
use file::FileSettings;
use places::{Found, Places};
use std::ffi::OsString;
use std::path::PathBuf;
use variables::variable;

/// Reads the command line, the environment and the settings files. Ends the process where the command line
/// cannot be understood, or asks for help.
pub(crate) fn load(line: Vec<OsString>) -> Result<Cli> {
    read(line)?.or_else(|error| usage::end(&error))
}

/// The outer error is the settings files', the inner one the command line's.
fn read(line: Vec<OsString>) -> Result<Result<Cli, clap::Error>> {
    // The first reading finds the settings file, which may name the model.
    let first = match alone(&line) {
        Ok(matches) => matches,
        Err(error) => return Ok(Err(error)),
    };
    let named = first.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let Found { settings, remark } = Places::from_env().load(named)?;
    let cli = understand(&line, &first, &settings);
    if let Ok(cli) = &cli {
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        variables::unknown(&Cli::command(), set).iter().for_each(|remark| output::remark(remark));
        remark.filter(|_| !cli.quiet).iter().for_each(|remark| output::remark(remark));
    }
    Ok(cli)
}

/// What the command line alone gives, and which settings file. What is missing may be elsewhere: the model in a file or
/// a variable, other arguments in variables.
fn alone(line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let alone = |arg: Arg| {
        let Some(key) = key(&arg).map(str::to_owned) else { return arg };
        let is_elsewhere = key == "model" || std::env::var_os(variable(&key)).is_some();
        let arg = if is_elsewhere { arg.required(false) } else { arg };
        if key == "config" { arg } else { arg.env(None::<&'static str>) }
    };
    let command = prepare(Cli::command(), &FileSettings::default(), &[]);
    command.mut_args(alone).mut_subcommands(|sub| sub.mut_args(alone)).try_get_matches_from(line)
}

/// `first` is what the command line alone gives.
fn understand(line: &[OsString], first: &ArgMatches, settings: &FileSettings) -> Result<Cli, clap::Error> {
    let overruled = conflicts::overruled(first, settings)?;
    // Which flags exclude each other is settled.
    let free = |arg: Arg| arg.conflicts_with(Resettable::<Id>::Reset);
    let command = prepare(Cli::command(), settings, &overruled);
    let matches = command.mut_subcommands(|sub| sub.mut_args(free)).try_get_matches_from(line)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let sampling = match &mut cli.command {
        Command::Run(run) => Some(&mut run.sampling),
        Command::Debug(debug) => Some(&mut debug.sampling),
        _ => None,
    };
    if let (Some(sampling), Some((_, matches))) = (sampling, matches.subcommand()) {
        settle_sampling(sampling, matches)?;
    }
    if let Some((_, matches)) = matches.subcommand() {
        refuse_idle(&cli, matches)?;
    }
    Ok(cli)
}

/// Gives every flag its variable, and its key's value as the default; but neither of them if it is `overruled`.
fn prepare(command: clap::Command, settings: &FileSettings, overruled: &[Id]) -> clap::Command {
    let prepared = |arg: Arg| match overruled.contains(arg.get_id()) {
        true => prepare_flag(arg, &FileSettings::default()).env(None::<&'static str>),
        false => prepare_flag(arg, settings),
    };
    command.mut_args(prepared).mut_subcommands(|sub| sub.mut_args(prepared))
}

fn prepare_flag(arg: Arg, settings: &FileSettings) -> Arg {
    let Some(key) = key(&arg).map(str::to_owned) else { return arg };
    let arg = arg.env(variable(&key)).hide_env(true);
    let values = settings.get(&key);
    if !is_switch(&arg) {
        // A negative number is a value, to be refused by the flag's name.
        let arg = arg.allow_negative_numbers(true);
        return if values.is_empty() { arg } else { arg.required(false).default_values(values.to_vec()) };
    }
    // A switch takes an optional value, so that what a variable or the file switches on can be switched off.
    let arg = arg.action(ArgAction::Set).value_parser(BoolishValueParser::new()).hide_possible_values(true);
    let arg = arg.num_args(0..=1).require_equals(true).value_name("BOOL").default_missing_value("true");
    arg.default_value(values.first().cloned().unwrap_or_else(|| "false".into())).hide_default_value(true)
}

/// What an argument is called in a settings file, and in its variable: a flag by its name; and the model.
fn key(arg: &Arg) -> Option<&str> {
    arg.get_long().or_else(|| (arg.get_id() == "model").then_some("model"))
}

/// Every flag, with the command that has it; flags of all commands have none.
fn flags(command: &clap::Command) -> impl Iterator<Item = (Option<&str>, &Arg)> {
    let own = command.get_arguments().map(|arg| (None, arg));
    let subs = command.get_subcommands();
    own.chain(subs.flat_map(|sub| sub.get_arguments().map(|arg| (Some(sub.get_name()), arg))))
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Where the sampling's values come from decides what they mean: a seed on the command line is for this run;
/// `--greedy` and the other ways to sample exclude each other; the nearer source wins.
fn settle_sampling(sampling: &mut SamplingArgs, matches: &ArgMatches) -> Result<(), clap::Error> {
    sampling.seed_is_asked_for = matches.value_source("seed") == Some(ValueSource::CommandLine);
    let rivals =
        ["temperature", "top_k", "top_p", "min_p"].iter().filter_map(|id| matches.value_source(id)).max();
    let (Some(rival), true) = (rivals, sampling.greedy) else { return Ok(()) };
    let source = matches.value_source("greedy").unwrap_or(ValueSource::DefaultValue);
    match source.cmp(&rival) {
        std::cmp::Ordering::Less => sampling.greedy = false,
        std::cmp::Ordering::Greater => {
            (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) = (None, None, None, None);
        }
        std::cmp::Ordering::Equal => {
            let flags = ["greedy", "temperature", "top-k", "top-p", "min-p"].map(|flag| match source {
                ValueSource::EnvVariable => variable(flag),
                _ => format!("--{flag}"),
            });
            let [greedy, others @ .., last] = &flags;
            let others = others.join(", ");
            let message = format!("{greedy} contradicts {others} and {last}; give one or the others\n");
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

/// Refuses flags of the command line that have no effect without another one. Variables and files are for several
/// commands.
fn refuse_idle(cli: &Cli, matches: &ArgMatches) -> Result<(), clap::Error> {
    let is_on_line = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
    let refuse = |why: &str| Err(Cli::command().error(ErrorKind::ArgumentConflict, format!("{why}\n")));
    let is_asked = match &cli.command {
        Command::Run(run) => run.server.server.is_some(),
        Command::Logits(logits) => logits.server.server.is_some(),
        Command::Plan(plan) => plan.server.server.is_some(),
        Command::Srg(srg) => srg.server.server.is_some(),
        Command::Push(_) | Command::Top(_) => true,
        Command::Serve(serve) if serve.store.store.is_none() && is_on_line("store_quota") => {
            return refuse(
                "--store-quota is for models that clients send, and there is no place for them; give --store DIR",
            );
        }
        _ => return Ok(()),
    };
    if !is_on_line("api_key") {
        return Ok(());
    }
    match matches.get_many::<String>("api_key").map_or(0, |keys| keys.len()) {
        _ if !is_asked => {
            refuse("--api-key is for a server, and none is asked; give --server URL, or drop it")
        }
        0 | 1 => Ok(()),
        several => {
            refuse(&format!("--api-key is given {several} times, and a request has one key; give one"))
        }
    }
}
