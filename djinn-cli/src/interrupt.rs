//! Signals. Ctrl-C: the first one ends the present work, the second one the process. When no work is under way, Ctrl-C
//! ends the process. In a chat it only drops the line. SIGTERM ends the process. A server that serves is told to end by
//! the first of either, to load its models again by SIGUSR1, and to begin anew by SIGUSR2. Whatever ends it leaves no
//! half pull, and the terminal as it was.

use crate::{cache, output, terminal};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// As a shell reports a process that SIGINT ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// Knows whether the user wants the present work to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    flags: Arc<Flags>,
}

type End = Box<dyn FnOnce() + Send>;

/// Each flag stands for itself: no other memory is published through it.
#[derive(Default)]
struct Flags {
    working: AtomicBool,
    asked: AtomicBool,
    chatting: AtomicBool,
    /// Ends what serves, once.
    end: Mutex<Option<End>>,
}

impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flags")
            .field("working", &self.working)
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

impl Flags {
    /// Tells what serves to end; false if nothing serves, or it was told before.
    fn end(&self) -> bool {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        end.map(|end| end()).is_some()
    }

    fn hear(&self) {
        // Held throughout, so that what begins to serve meanwhile is told, or finds that it was asked.
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = end.take() {
            return end();
        }
        let ends = match self.working.load(Ordering::SeqCst) {
            true => self.asked.swap(true, Ordering::SeqCst),
            false => !self.chatting.load(Ordering::SeqCst),
        };
        if ends {
            clean_up();
            leave()
        }
    }
}

/// Ends the process without exit handlers: those of a GPU's driver must not run beside a thread that still uses it.
fn leave() -> ! {
    #[cfg(unix)]
    signal_hook::low_level::exit(INTERRUPTED.into());
    #[cfg(not(unix))]
    std::process::exit(INTERRUPTED.into());
}

/// Undoes what would outlive the process.
fn clean_up() {
    terminal::restore();
    if cache::abandon() {
        output::remark("\ninterrupted; nothing of it is kept");
    }
}

#[cfg(unix)]
fn clean_up_on_termination(flags: Arc<Flags>) -> std::io::Result<()> {
    use signal_hook::{consts::SIGTERM, iterator::Signals, low_level::emulate_default_handler};
    let mut signals = Signals::new([SIGTERM])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if flags.end() {
                continue;
            }
            clean_up();
            // Ends the process.
            let _ = emulate_default_handler(signal);
        }
    });
    Ok(())
}

#[cfg(not(unix))]
fn clean_up_on_termination(_: Arc<Flags>) -> std::io::Result<()> {
    Ok(())
}

impl Interrupt {
    /// Handles signals from now on. Once in a process.
    pub(crate) fn install() -> Result<Self> {
        let flags = Arc::new(Flags::default());
        let seen = Arc::clone(&flags);
        ctrlc::set_handler(move || seen.hear()).context("cannot handle Ctrl-C")?;
        clean_up_on_termination(Arc::clone(&flags)).context("cannot handle SIGTERM")?;
        Ok(Interrupt { flags })
    }

    /// Ctrl-C at rest is the line editor's business from now on.
    pub(crate) fn chat(&self) {
        self.flags.chatting.store(true, Ordering::SeqCst);
    }

    /// The first Ctrl-C or SIGTERM from now on calls `end`, and the process goes on. False, without effect, if the
    /// present work was asked to end.
    pub(crate) fn serve(&self, end: impl FnOnce() + Send + 'static) -> bool {
        let mut told = self.flags.end.lock().unwrap_or_else(PoisonError::into_inner);
        let serves = !self.asked();
        if serves {
            *told = Some(Box::new(end));
        }
        serves
    }

    /// Until the value is dropped, Ctrl-C asks for the end of the work. Work within work is a part of it: what was asked
    /// for during one part holds for the next.
    pub(crate) fn work(&self) -> Work<'_> {
        let is_part = self.flags.working.load(Ordering::SeqCst);
        if !is_part {
            self.flags.asked.store(false, Ordering::SeqCst);
            self.flags.working.store(true, Ordering::SeqCst);
        }
        Work { flags: &self.flags, is_part }
    }

    /// Whether the work should end; after it, whether it was asked to.
    pub(crate) fn asked(&self) -> bool {
        self.flags.asked.load(Ordering::SeqCst)
    }
}

/// SIGUSR1 and SIGUSR2, where the system has signals. They do not end the process, and wait until they are obeyed.
#[derive(Debug)]
pub(crate) struct UserSignals {
    #[cfg(unix)]
    signals: signal_hook::iterator::Signals,
}

impl UserSignals {
    /// Keeps signals from now on if the command line may be that of a server. Call it before anything else: by default,
    /// these signals end a process.
    pub(crate) fn keep(line: &[OsString]) -> Result<Option<Self>> {
        if !line.iter().any(|word| word == "serve") {
            return Ok(None);
        }
        #[cfg(unix)]
        {
            use signal_hook::consts::{SIGUSR1, SIGUSR2};
            let signals = signal_hook::iterator::Signals::new([SIGUSR1, SIGUSR2])
                .context("cannot handle SIGUSR1 and SIGUSR2")?;
            Ok(Some(UserSignals { signals }))
        }
        #[cfg(not(unix))]
        Ok(Some(UserSignals {}))
    }

    /// SIGUSR1 calls `reload` from now on, and SIGUSR2 `renew`; those that were kept do so at once.
    pub(crate) fn obey(self, reload: impl Fn() + Send + 'static, renew: impl Fn() + Send + 'static) {
        #[cfg(unix)]
        {
            let mut signals = self.signals;
            let act = move |signal| {
                if signal == signal_hook::consts::SIGUSR1 { reload() } else { renew() }
            };
            std::thread::spawn(move || signals.forever().for_each(act));
        }
        #[cfg(not(unix))]
        drop((reload, renew));
    }
}

/// Work under way that Ctrl-C asks to end.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    flags: &'a Flags,
    is_part: bool,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.is_part {
            self.flags.working.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_in_one_part_of_a_work_holds_for_the_next() {
        let interrupt = Interrupt::default();
        let whole = interrupt.work();
        let loading = interrupt.work();
        interrupt.flags.hear();
        drop(loading);
        let answer = interrupt.work();
        assert!(interrupt.asked());
        drop((answer, whole));
        let _later = interrupt.work();
        assert!(!interrupt.asked());
    }

    #[test]
    fn work_that_was_asked_to_end_serves_nothing() {
        let interrupt = Interrupt::default();
        let loading = interrupt.work();
        interrupt.flags.hear();
        assert!(!interrupt.serve(|| panic!("it does not serve")));
        drop(loading);
        let (_loading, told) = (interrupt.work(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&told);
        assert!(interrupt.serve(move || seen.store(true, Ordering::SeqCst)));
        interrupt.flags.hear();
        assert!(told.load(Ordering::SeqCst) && !interrupt.asked());
    }
}
