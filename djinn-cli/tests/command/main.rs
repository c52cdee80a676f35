//! The built `djinn` binary, from its command line to its output.

mod cache;
#[cfg(unix)]
mod chat;
mod debug;
mod failures;
mod one_token;
mod pack;
mod plan;
#[cfg(unix)]
mod push;
mod remote;
mod run;
mod serve;
mod settings;
mod srg;
#[cfg(unix)]
mod stranger;
mod streaming;
mod text;
#[cfg(unix)]
mod top;
mod trace;

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A place of its own for a run of `djinn`: its working directory, its cache, the user's own settings and
/// history (in `home/djinn`), and no `DJINN_*` variable.
struct Place {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Place {
    fn new() -> Self {
        Place { folder: TempDir::new().unwrap(), variables: Vec::new() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn with(mut self, variable: &str, value: &str) -> Self {
        self.variables.push((variable.to_owned(), value.to_owned()));
        self
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_djinn"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DJINN_"))
        {
            command.env_remove(name);
        }
        command.args(args).current_dir(self.path()).env("DJINN_CACHE", self.path().join("cache"));
        command
            .env("XDG_CONFIG_HOME", self.path().join("home"))
            .env("XDG_STATE_HOME", self.path().join("home"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn output(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command(args);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        // A command that does not read its input may be gone already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Standard output of a run that succeeds.
    fn ok(&self, args: &[&str]) -> String {
        self.ok_with(args, "")
    }

    fn ok_with(&self, args: &[&str], input: &str) -> String {
        let output = self.output(args, input);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// The message of a run that fails with one line on standard error and nothing on standard output.
    fn refused(&self, args: &[&str]) -> String {
        self.refused_with(args, "")
    }

    fn refused_with(&self, args: &[&str], input: &str) -> String {
        let output = self.output(args, input);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?} printed before it failed");
        assert!(error.starts_with("error: ") && error.lines().count() == 1, "{args:?}: {error}");
        error.trim_end().trim_start_matches("error: ").to_owned()
    }
}

/// The checkpoints that Hugging Face's transformers wrote.
fn checkpoints() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/checkpoints")
}

fn checkpoint(name: &str) -> String {
    checkpoints().join(name).to_str().unwrap().to_owned()
}

/// Copies a checkpoint to where it may be changed.
fn copy_checkpoint(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(checkpoints().join(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
