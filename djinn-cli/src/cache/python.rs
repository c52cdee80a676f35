//! Runs a Python module isolated from the user's environment, and such that it ends with this process.

use super::partial::Partial;
use anyhow::{Result, bail};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs the module in its arguments. Standard input is a pipe that closes when this process ends, in any way; the
/// child then ends at once.
const BOOT: &str = "\
import os, runpy, sys, threading
def watch():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
";

/// Runs `python -m MODULE ARGUMENTS` in `partial` with the first of `pythons` that exists.
///
/// `-I` keeps modules of the working directory and of `PYTHONPATH` out. The working directory is `partial`, so that
/// relative entries of `PATH` and of pip's settings lead to no file of others; so is the folder for temporary files.
pub(super) fn run(pythons: &[PathBuf], partial: &Partial, module: &[&str]) -> Result<()> {
    for python in pythons {
        let mut command = Command::new(python);
        command.args(["-I", "-c", BOOT]).args(module);
        command.current_dir(partial.path()).env("TMPDIR", partial.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Ctrl-C reaches this process only, which then ends the child.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            child => child?,
        };
        partial.ties(child.stdin.take());
        let output = child.wait_with_output();
        partial.ties(None);
        let output = output?;
        return if output.status.success() { Ok(()) } else { bail!("{}", reason(&output)) };
    }
    let tried: Vec<String> = pythons.iter().map(|python| python.display().to_string()).collect();
    bail!("no Python found (tried {})", tried.join(", "))
}

fn reason(output: &std::process::Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    // What pip did not foresee is a traceback under a heading, and its last line says what failed.
    let error = lines().rfind(|line| line.starts_with("ERROR")).filter(|line| *line != "ERROR: Exception:");
    let last = error.or_else(|| lines().next_back());
    last.map_or_else(|| format!("it ended with {}", output.status), str::to_owned)
}
