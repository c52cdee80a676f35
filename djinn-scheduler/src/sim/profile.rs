//! Times of a machine with a model, from a small table of measurements.

use crate::cost::{CostModel, seconds};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times of steps by size (decoding sessions, or tokens of a chunk) and by the mean context before them. Between and
/// beyond the points, times are linear in both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTimes {
    /// Sessions or tokens, ascending; called `batches` in older files.
    #[serde(alias = "batches")]
    pub sizes: Vec<u32>,
    /// Tokens of context, ascending.
    pub contexts: Vec<u64>,
    /// Milliseconds `[size][context]`.
    pub ms: Vec<Vec<f64>>,
}

impl StepTimes {
    /// Refuses an invalid table.
    pub fn check(&self) -> Result<()> {
        let ascend = self.sizes.is_sorted_by(|a, b| a < b) && self.contexts.is_sorted_by(|a, b| a < b);
        let full = self.ms.len() == self.sizes.len() && !self.ms.is_empty() && !self.contexts.is_empty();
        let wide = self.ms.iter().all(|row| row.len() == self.contexts.len());
        let positive = self.ms.iter().flatten().all(|&ms| ms.is_finite() && ms > 0.0);
        if ascend && full && wide && positive {
            return Ok(());
        }
        let what = "a table of step times is not a full grid of positive times".to_owned();
        Err(Error::Machine { what, remedy: "give ms[size][context] with sizes and contexts ascending" })
    }

    /// Time of a step of `size` sessions or tokens after `context` tokens on average.
    pub fn step(&self, size: u32, context: f64) -> Duration {
        let (low, high, part) = between(&self.sizes, size as f64);
        let at = |row: usize| {
            let (left, right, part) = between(&self.contexts, context);
            self.ms[row][left] + (self.ms[row][right] - self.ms[row][left]) * part
        };
        seconds((at(low) + (at(high) - at(low)) * part).max(0.001) / 1e3)
    }
}

/// The points around `x`, and its relative position between them.
fn between<T: Copy + Into<u64>>(points: &[T], x: f64) -> (usize, usize, f64) {
    let at = |index: usize| Into::<u64>::into(points[index]) as f64;
    if points.len() == 1 {
        return (0, 0, 0.0);
    }
    let high = (1..points.len() - 1).find(|&index| x <= at(index)).unwrap_or(points.len() - 1);
    (high - 1, high, (x - at(high - 1)) / (at(high) - at(high - 1)))
}

/// Prompts of at most this many tokens are computed like decodes, a row for each token.
pub(super) const SHORT_PROMPT: u64 = 32;

/// Times of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Rates of copies one way at a time, and of prefill.
    pub cost: CostModel,
    /// Bytes per second each way while both directions of the link are busy.
    pub both_ways_bytes_per_s: f64,
    /// Steps last this multiple of their time while a copy is under way.
    pub slowed_by_copies: f64,
    /// Decode steps, over sessions.
    pub decode: StepTimes,
    /// What a prefill chunk adds to a step, by its tokens. If missing, a chunk is bound by arithmetic or, if small, by
    /// memory like a decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<StepTimes>,
}

impl Profile {
    /// Reads what [`to_json`](Self::to_json) writes, and checks it.
    pub fn from_json(text: &str) -> Result<Self> {
        let profile: Profile = serde_json::from_str(text).map_err(|error| Error::Machine {
            what: format!("the profile is not one: {error}"),
            remedy: "give the fields that `Profile` documents",
        })?;
        profile.check()?;
        Ok(profile)
    }

    /// The profile as readable JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and lists have a form in JSON")
    }

    /// Time of a step. Decodes and prompts of at most [`SHORT_PROMPT`] tokens share one pass over the weights; each
    /// other prefill chunk is a pass of its own.
    pub(super) fn step(&self, rows: &[u64], chunks: &[(u64, u64)]) -> Duration {
        let mut time = Duration::ZERO;
        if !rows.is_empty() {
            let mean = rows.iter().sum::<u64>() as f64 / rows.len() as f64;
            time += self.decode.step(rows.len() as u32, mean);
        }
        for &(tokens, context) in chunks {
            time += match &self.chunk {
                Some(chunk) => chunk.step(tokens.try_into().unwrap_or(u32::MAX), context as f64),
                None => self.cost.recompute(tokens).max(self.decode.step(1, context as f64)),
            };
        }
        time
    }

    /// Refuses invalid figures.
    pub fn check(&self) -> Result<()> {
        let problem = self.cost.problem().or(match () {
            () if !(self.both_ways_bytes_per_s.is_finite() && self.both_ways_bytes_per_s > 0.0) => {
                Some("both_ways_bytes_per_s is not above 0")
            }
            () if !(1.0..=100.0).contains(&self.slowed_by_copies) => Some("slowed_by_copies is not 1 to 100"),
            () => None,
        });
        match problem {
            Some(what) => {
                let remedy = "give measured figures";
                Err(Error::Machine { what: format!("the profile's {what}"), remedy })
            }
            None => self.chunk.iter().chain([&self.decode]).try_for_each(StepTimes::check),
        }
    }

    /// A decoder whose step takes `fixed` time, and reads `weight_bytes` and each session's context once at
    /// `memory_bytes_per_s`: a roofline for machines without measurements.
    pub fn roofline(
        cost: CostModel,
        page_tokens: u32,
        weight_bytes: f64,
        memory_bytes_per_s: f64,
        fixed: Duration,
    ) -> Self {
        let token_bytes = cost.page_bytes as f64 / page_tokens.max(1) as f64;
        let ms = |batch: u32, context: u64| {
            let bytes = weight_bytes + batch as f64 * context as f64 * token_bytes;
            fixed.as_secs_f64() * 1e3 + bytes / memory_bytes_per_s * 1e3
        };
        let (sizes, contexts) = (vec![1, 64], vec![0, 32_768]);
        let row = |&batch: &u32| contexts.iter().map(|&context| ms(batch, context)).collect();
        let decode = StepTimes { ms: sizes.iter().map(row).collect(), sizes, contexts };
        Profile {
            both_ways_bytes_per_s: 0.9 * cost.in_bytes_per_s.min(cost.out_bytes_per_s),
            slowed_by_copies: 1.02,
            decode,
            chunk: None,
            cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_met_at_its_points_and_linear_between() {
        let table = StepTimes {
            sizes: vec![1, 8, 64],
            contexts: vec![0, 1_000],
            ms: vec![vec![10.0, 11.0], vec![12.0, 20.0], vec![20.0, 84.0]],
        };
        table.check().expect("a grid");
        let ms = |batch, context| (table.step(batch, context).as_secs_f64() * 1e6).round() / 1e3;
        assert_eq!([ms(1, 0.0), ms(8, 1e3), ms(64, 1e3)], [10.0, 20.0, 84.0]);
        assert_eq!([ms(8, 500.0), ms(36, 0.0), ms(8, 2e3)], [16.0, 16.0, 28.0]);
        assert!(StepTimes { ms: vec![vec![1.0]], ..table.clone() }.check().is_err());
        assert!(StepTimes { sizes: vec![8, 1, 64], ..table }.check().is_err());
    }

    fn profile() -> Profile {
        let (_, cost) = crate::conformance::small_machine();
        Profile::roofline(cost, 16, 10e9, 4e12, Duration::from_millis(1))
    }

    #[test]
    fn json_comes_back_and_broken_json_is_refused() {
        let (profile, text) = (profile(), profile().to_json());
        assert_eq!(Profile::from_json(&text), Ok(profile.clone()));
        let message = |text: &str| Profile::from_json(text).expect_err(text).to_string();
        let named = message(&text.replace("slowed_by_copies", "slowed"));
        assert!(named.contains("unknown field `slowed`") && named.contains("line 9"), "{named}");
        assert!(message("{").starts_with("the profile is not one: EOF"), "{}", message("{"));
        let slow = Profile { slowed_by_copies: 0.5, ..profile };
        assert!(message(&slow.to_json()).contains("slowed_by_copies is not 1 to 100"));
    }

    #[test]
    fn a_step_is_a_pass_of_rows_and_one_for_each_chunk() {
        let profile = profile();
        let ms = |rows: &[u64], chunks: &[(u64, u64)]| {
            (profile.step(rows, chunks).as_secs_f64() * 1e5).round() / 1e2
        };
        // 1 ms and 10 GB at 4 TB/s; a chunk of 200 tokens at 20,000 a second; 20 tokens cost a pass.
        assert_eq!((ms(&[0], &[]), ms(&[], &[(200, 0)]), ms(&[], &[(20, 0)])), (3.5, 10.0, 3.5));
        assert_eq!(ms(&[0, 0], &[(200, 0), (20, 0)]), 17.0);
        assert!(ms(&[1_000, 0], &[]) > 3.5);
    }
}
