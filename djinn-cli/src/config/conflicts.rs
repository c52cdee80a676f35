//! Flags that exclude each other. The nearer source wins: the command line over variables, these over settings files.
//! The parser refuses two flags of the command line; here, two variables are refused. In files, both may stand: a file
//! is for several commands.

use super::file::FileSettings;
use super::{is_switch, key, variables::variable};
use crate::args::Cli;
use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Id};

/// Where a flag is given, the farthest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    File,
    Variable,
    Line,
}

/// The flags that lose to a nearer one, which excludes them. `line` is what the command line alone gives.
///
/// # Errors
/// Two variables that exclude each other.
pub(super) fn overruled(line: &ArgMatches, settings: &FileSettings) -> Result<Vec<Id>, clap::Error> {
    let command = Cli::command();
    let Some((name, line)) = line.subcommand() else { return Ok(Vec::new()) };
    let Some(sub) = command.find_subcommand(name) else { return Ok(Vec::new()) };
    let source = |arg: &Arg| source(&command, arg, line, settings);
    let mut lost: Vec<Id> = Vec::new();
    for nearer in [Source::Line, Source::Variable] {
        for [one, other] in pairs(sub) {
            if [one, other].iter().any(|arg| lost.contains(arg.get_id())) {
                continue;
            }
            match (source(one), source(other)) {
                (Some(one_is), Some(other_is)) if one_is == nearer && other_is < nearer => {
                    lost.push(other.get_id().clone());
                }
                (Some(one_is), Some(other_is)) if other_is == nearer && one_is < nearer => {
                    lost.push(one.get_id().clone());
                }
                (Some(Source::Variable), Some(Source::Variable)) if nearer == Source::Variable => {
                    let names = [one, other].map(|arg| variable(key(arg).unwrap_or_default()));
                    let [one, other] = names;
                    let message = format!("the variables {one} and {other} exclude each other; unset one\n");
                    return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
                }
                _ => {}
            }
        }
    }
    Ok(lost)
}

/// Arguments that exclude each other.
fn pairs(sub: &Command) -> impl Iterator<Item = [&Arg; 2]> {
    sub.get_arguments()
        .flat_map(|arg| sub.get_arg_conflicts_with(arg).into_iter().map(move |other| [arg, other]))
}

/// The nearest source of an argument. A switch that is off is not given.
fn source(command: &Command, arg: &Arg, line: &ArgMatches, settings: &FileSettings) -> Option<Source> {
    let id = arg.get_id().as_str();
    if line.value_source(id) == Some(ValueSource::CommandLine) {
        let is_off = is_switch(arg) && line.get_one::<bool>(id) == Some(&false);
        return (!is_off).then_some(Source::Line);
    }
    let key = key(arg)?;
    if let Some(value) = std::env::var_os(variable(key)) {
        let off = || BoolishValueParser::new().parse_ref(command, None, &value).is_ok_and(|on| !on);
        return (!is_switch(arg) || !off()).then_some(Source::Variable);
    }
    let values = settings.get(key);
    let is_off = values.is_empty() || is_switch(arg) && values == ["false"];
    (!is_off).then_some(Source::File)
}
