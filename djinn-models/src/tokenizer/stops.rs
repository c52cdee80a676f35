//! Stop strings over streamed text.

use crate::{Error, Result};

/// Cuts a stream of text at the first stop string. Text that may begin one is held back until that is decided, so the
/// result does not depend on how the text was cut into pieces.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    withheld: String,
    /// The stop string that occurred.
    met: Option<usize>,
}

/// The result of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopScan {
    /// Text to show now; may be empty.
    pub text: String,
    /// Whether a stop string occurred: generation ends, and the text from it on is cut.
    pub stopped: bool,
}

impl StopStrings {
    /// Searches for `stops`; without any, text passes through at once.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] for an empty stop string, which would stop at once.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().collect();
        if stops.iter().any(String::is_empty) {
            return Err(Error::Tokenizer("a stop string is empty; leave it out".into()));
        }
        Ok(Self { stops, ..Self::default() })
    }

    /// Adds the next piece of text. The match that ends first wins; among those, the longest. After a stop all text is
    /// dropped.
    pub fn push(&mut self, piece: &str) -> StopScan {
        if self.met.is_some() {
            return StopScan { text: String::new(), stopped: true };
        }
        self.withheld.push_str(piece);
        let found = self.stops.iter().enumerate().filter_map(|(at, stop)| {
            let start = self.withheld.find(stop.as_str())?;
            Some((start + stop.len(), start, at))
        });
        if let Some((_, start, at)) = found.min() {
            self.met = Some(at);
            let mut text = std::mem::take(&mut self.withheld);
            text.truncate(start);
            return StopScan { text, stopped: true };
        }
        let keep = self.undecided();
        let rest = self.withheld.split_off(self.withheld.len() - keep);
        StopScan { text: std::mem::replace(&mut self.withheld, rest), stopped: false }
    }

    /// The stop string that occurred, if any.
    pub fn met(&self) -> Option<&str> {
        self.stops.get(self.met?).map(String::as_str)
    }

    /// Ends the text. Returns the text that was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }

    /// Length of the longest end of the held-back text that begins a stop string.
    fn undecided(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let from = self.withheld.len().saturating_sub(longest);
        let ends = (from..self.withheld.len()).filter(|at| self.withheld.is_char_boundary(*at));
        let mut ends = ends.map(|at| &self.withheld[at..]);
        ends.find(|end| self.stops.iter().any(|stop| stop.starts_with(end))).map_or(0, str::len)
    }
}
