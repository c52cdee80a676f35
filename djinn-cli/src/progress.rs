//! How far long work is: a bar on a terminal, one line for each step elsewhere.

use crate::cache::Progress as Pulled;
use crate::{output, size};
use djinn_models::printable;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Instant;

/// One step of work, counted in bytes.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    quiet: bool,
    start: Instant,
}

impl Progress {
    /// Work called `what`, e.g. `loading smollm2`.
    pub(crate) fn new(what: String, quiet: bool) -> Self {
        let what = printable::one_line(&what);
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
            let style = ProgressStyle::with_template(template).expect("the template is a constant");
            ProgressBar::no_length().with_style(style).with_message(what.clone())
        });
        Progress { bar, what, quiet, start: Instant::now() }
    }

    /// `done` bytes are done, of `total` where that is known.
    pub(crate) fn tell(&self, done: u64, total: Option<u64>) {
        if let Some(bar) = &self.bar {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(done);
        }
    }

    /// Ends the bar; elsewhere, says in one line what was done.
    pub(crate) fn finish(&self, bytes: u64) {
        let seconds = self.start.elapsed().as_secs_f64();
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if self.quiet => {}
            None => output::remark(&format!("{}: {} in {seconds:.1} s", self.what, size::human(bytes))),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The steps of a pull, each with its own bar.
pub(crate) struct PullProgress {
    quiet: bool,
    step: RefCell<Option<Progress>>,
}

impl PullProgress {
    /// Nothing has been told yet.
    pub(crate) fn new(quiet: bool) -> Self {
        PullProgress { quiet, step: RefCell::new(None) }
    }

    /// Takes what a pull tells.
    pub(crate) fn tell(&self, event: Pulled) {
        let mut step = self.step.borrow_mut();
        match event {
            Pulled::Step(what) => {
                let next = Progress::new(what, self.quiet);
                if next.bar.is_none() && !self.quiet {
                    output::remark(&next.what);
                }
                *step = Some(next);
            }
            Pulled::Bytes { done, total } => {
                if let Some(step) = &*step {
                    step.tell(done, total);
                }
            }
        }
    }
}
