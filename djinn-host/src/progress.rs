//! Progress of long work, on standard error: a bar on a terminal, one line for each step otherwise.

use djinn_models::printable;
use djinn_vmu::size;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Prints a remark to standard error. A failure to do so is ignored.
pub fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable::lines(text));
}

/// One step of work, counted in bytes.
pub struct Meter {
    bar: Option<ProgressBar>,
    what: String,
    quiet: bool,
    start: Instant,
}

impl Meter {
    /// `what` names the work, such as `loading smollm2`.
    pub fn new(what: String, quiet: bool) -> Self {
        let what = printable::one_line(&what);
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
            let style = ProgressStyle::with_template(template).expect("the template is a constant");
            ProgressBar::no_length().with_style(style).with_message(what.clone())
        });
        Meter { bar, what, quiet, start: Instant::now() }
    }

    /// Announces the work, if there is no bar.
    pub fn announce(&self) {
        if self.bar.is_none() && !self.quiet {
            remark(&self.what);
        }
    }

    /// `done` bytes are done, of `total` if that is known.
    pub fn set(&self, done: u64, total: Option<u64>) {
        if let Some(bar) = &self.bar {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(done);
        }
    }

    /// Ends the bar. Without a bar, reports the work in one line.
    pub fn finish(&self, bytes: u64) {
        let seconds = self.start.elapsed().as_secs_f64();
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if self.quiet => {}
            None => remark(&format!("{}: {} in {seconds:.1} s", self.what, size::human(bytes))),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
