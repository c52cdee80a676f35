//! Waits learned by tool, and the reliability of clients' estimates.

use super::{Forecast, Waits};
use crate::session::{Session, Wait};
use std::collections::BTreeMap;
use std::time::Duration;

/// The most tools with statistics of their own. Others share one.
const TOOLS: usize = 256;
/// Estimates that must be seen before they are judged.
const JUDGED_AFTER: u64 = 5;

/// Forecasts by tool, learned online. A new tool begins with the statistics of all tools.
#[derive(Clone, Debug)]
pub struct LearnedWaits {
    all: Tool,
    tools: BTreeMap<String, Tool>,
}

#[derive(Clone, Debug)]
struct Tool {
    waits: Waits,
    /// Mean of |ln(actual / estimate)|, and the number of estimates.
    error: f64,
    estimates: u64,
    /// Half the distance between quartiles, in natural logarithms: the error of guessing the median.
    spread: f64,
}

impl Tool {
    fn new(waits: Waits) -> Self {
        let spread = spread(&waits);
        Tool { waits, error: 0.0, estimates: 0, spread }
    }

    fn observe(&mut self, wait: &Wait, lasted: Duration) {
        self.waits.observe(lasted);
        self.spread = spread(&self.waits);
        if let Some(expected) = wait.expected {
            let floor = Duration::from_millis(10);
            let off = (lasted.max(floor).as_secs_f64() / expected.max(floor).as_secs_f64()).ln().abs();
            self.estimates += 1;
            self.error += (off - self.error) / (self.estimates.min(50) as f64);
        }
    }

    /// The client's estimate, if estimates have been better than the histogram.
    fn believed(&self, wait: &Wait, now: Duration) -> Option<Duration> {
        let expected = wait.expected.filter(|&expected| wait.elapsed(now) < expected)?;
        (self.estimates < JUDGED_AFTER || self.error < self.spread).then_some(expected)
    }
}

fn spread(waits: &Waits) -> f64 {
    let at = |share| waits.quantile(share, Duration::ZERO).as_secs_f64().max(1e-3).ln();
    0.5 * (at(0.75) - at(0.25))
}

impl LearnedWaits {
    /// Before anything is learned, waits are assumed near `default_wait`, within a factor of 8 either way.
    pub fn new(default_wait: Duration) -> Self {
        LearnedWaits { all: Tool::new(Waits::prior(default_wait, 8.0, 2.0)), tools: BTreeMap::new() }
    }

    /// The statistics of a tool.
    pub fn waits(&self, tool: Option<&str>) -> &Waits {
        &self.tool(tool).waits
    }

    fn tool(&self, name: Option<&str>) -> &Tool {
        const ENOUGH: u64 = 3;
        let own = name.and_then(|name| self.tools.get(name));
        own.filter(|tool| tool.waits.seen() >= ENOUGH).unwrap_or(&self.all)
    }
}

impl Forecast for LearnedWaits {
    fn name(&self) -> &str {
        "predicted"
    }

    fn remaining(&self, _: &Session, wait: &Wait, now: Duration) -> Duration {
        let (tool, elapsed) = (self.tool(wait.tool.as_deref()), wait.elapsed(now));
        let total = tool.believed(wait, now).unwrap_or_else(|| tool.waits.quantile(0.5, elapsed));
        total.saturating_sub(elapsed)
    }

    fn due(&self, _: &Session, wait: &Wait) -> Option<Duration> {
        const NARROW: f64 = 0.25;
        let tool = self.tool(wait.tool.as_deref());
        let expected = tool.believed(wait, wait.since).map(|total| wait.since + total);
        // A spread so small that a return at the early tenth pays.
        let learned = || {
            let narrow = tool.waits.seen() >= JUDGED_AFTER && tool.spread < NARROW;
            narrow.then(|| wait.since + tool.waits.quantile(0.1, Duration::ZERO))
        };
        expected.or_else(learned)
    }

    fn observe(&mut self, wait: &Wait, lasted: Duration) {
        if wait.tool.as_deref() != Some(Wait::IDLE) {
            self.all.observe(wait, lasted);
        }
        let Some(name) = &wait.tool else { return };
        if self.tools.len() < TOOLS || self.tools.contains_key(name) {
            let fresh = || Tool::new(self.all.waits.clone());
            self.tools.entry(name.clone()).or_insert_with(fresh).observe(wait, lasted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Arrival, SessionId};

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    fn wait(tool: &str, expected: Option<u64>) -> Wait {
        Wait { tool: Some(tool.to_owned()), since: ms(0), expected: expected.map(ms) }
    }

    /// The forecast at the beginning of a wait, milliseconds.
    fn forecast(learned: &LearnedWaits, wait: &Wait) -> u64 {
        let arrival = Arrival { id: SessionId(0), priority: 0, prompt: 1, max_tokens: 1, limit: 2 };
        learned.remaining(&Session::new(&arrival, ms(0)), wait, ms(0)).as_millis() as u64
    }

    #[test]
    fn tools_are_learned_apart_and_new_ones_from_all() {
        let mut learned = LearnedWaits::new(ms(300));
        for _ in 0..30 {
            learned.observe(&wait("read", None), ms(100));
            learned.observe(&wait("build", None), ms(30_000));
        }
        assert!((80..130).contains(&forecast(&learned, &wait("read", None))));
        assert!((25_000..37_000).contains(&forecast(&learned, &wait("build", None))));
        let new = forecast(&learned, &wait("new", None));
        assert!((100..30_000).contains(&new), "{new}");
    }

    #[test]
    fn waits_between_turns_teach_nothing_of_tools() {
        let mut learned = LearnedWaits::new(ms(300));
        let before = forecast(&learned, &wait("new", None));
        (0..50).for_each(|_| learned.observe(&wait(Wait::IDLE, None), ms(600_000)));
        assert_eq!(forecast(&learned, &wait("new", None)), before);
        assert!(forecast(&learned, &wait(Wait::IDLE, None)) > 100_000);
    }

    #[test]
    fn estimates_count_as_long_as_they_are_good() {
        let (mut honest, mut wrong) = (LearnedWaits::new(ms(300)), LearnedWaits::new(ms(300)));
        for at in 0..40 {
            let lasted = [200, 2_000, 20_000][at % 3];
            honest.observe(&wait("bash", Some(lasted * 11 / 10)), ms(lasted));
            wrong.observe(&wait("bash", Some(600_000)), ms(200 + at as u64));
        }
        assert_eq!(forecast(&honest, &wait("bash", Some(7_000))), 7_000);
        let distrusted = forecast(&wrong, &wait("bash", Some(600_000)));
        assert!((150..300).contains(&distrusted), "{distrusted}");
    }

    #[test]
    fn names_of_tools_do_not_fill_the_memory() {
        let mut learned = LearnedWaits::new(ms(300));
        (0..10_000).for_each(|at| learned.observe(&wait(&format!("tool {at}"), None), ms(50)));
        assert_eq!(learned.tools.len(), TOOLS);
    }
}
