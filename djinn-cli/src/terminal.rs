//! The terminal's modes in a chat. Keys that are pressed while it answers are not echoed into the answer: they wait
//! for the next prompt.

/// Until it is dropped, the terminal shows no key, and hands keys out one by one. Ctrl-C stays a signal.
pub(crate) struct Hushed(());

impl Drop for Hushed {
    fn drop(&mut self) {
        restore();
    }
}

#[cfg(unix)]
mod modes {
    use rustix::termios::{InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use std::sync::Mutex;

    /// The modes from before; the thread that hears Ctrl-C restores them as well.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    pub(super) fn hush() {
        let Ok(before) = tcgetattr(std::io::stdin()) else { return };
        let mut hushed = before.clone();
        // In the terminal's own line mode, a line ends at 4,095 bytes and the rest of a paste is lost.
        hushed.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        hushed.input_modes.remove(InputModes::ICRNL);
        if tcsetattr(std::io::stdin(), OptionalActions::Now, &hushed).is_ok() {
            *lock() = Some(before);
        }
    }

    pub(super) fn restore() {
        if let Some(before) = lock().take() {
            // A terminal that is gone needs no modes.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
    }

    fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
        BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(not(unix))]
mod modes {
    pub(super) fn hush() {}

    pub(super) fn restore() {}
}

/// Hushes the terminal of standard input, if it is one.
pub(crate) fn hush() -> Hushed {
    modes::hush();
    Hushed(())
}

/// Gives the terminal the modes from before it was hushed.
pub(crate) fn restore() {
    modes::restore();
}
