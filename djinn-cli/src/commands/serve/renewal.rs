//! A process that begins anew in its place: the same arguments, environment and id, and the same listening socket, so that
//! no client is refused meanwhile. It is what mends a lost CUDA context: by the driver's documentation only another
//! process can leave it; memory, threads and the driver's files go with the old program.
//!
//! The socket comes and goes as standard input, as from `systemd` (`StandardInput=socket`) or `inetd`.

use anyhow::{Context, Result};
use rustix::net::sockopt::socket_acceptconn;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The listening socket that is this process's standard input, if that is one; from then on it is empty.
pub(super) fn inherited() -> Result<Option<TcpListener>> {
    let input = std::io::stdin();
    if !matches!(socket_acceptconn(&input), Ok(true)) {
        return Ok(None);
    }
    let socket = input.as_fd().try_clone_to_owned().context("cannot keep the socket at standard input")?;
    rustix::stdio::dup2_stdin(File::open("/dev/null").context("/dev/null")?)?;
    let listener = TcpListener::from(socket);
    listener.local_addr().context("standard input is a listening socket, but not one of TCP")?;
    Ok(Some(listener))
}

/// Runs this program again in this process, at the same socket.
///
/// # Errors
/// If the system does not run it; else it does not return.
pub(super) fn renew(listener: TcpListener) -> Result<()> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "djinn".into());
    // The file that is run now may have been replaced or removed.
    let program = std::env::current_exe().ok().filter(|program| program.exists());
    let program = program.unwrap_or_else(|| Path::new("/proc/self/exe").to_owned());
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments).stdin(OwnedFd::from(listener));
    Err(command.exec()).with_context(|| format!("cannot begin anew from {}", program.display()))
}
