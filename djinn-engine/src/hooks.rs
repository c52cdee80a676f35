//! Interventions: what a step reads and changes at hook points.
//!
//! ```text
//! launches   … │ attn.add │ ln2 │ gate_up │ …       enqueued in order on the compute stream
//!                         ▲
//!             hook_resid_mid: edit rows 3 and 4, copy row 7 to the host
//! ```
//!
//! An intervention names rows of one entry. It changes no other entry, since operations compute each row from that
//! row's inputs. One operation edits rows in place ([`EditRows`](djinn_device::args::EditRows)), and copies read them,
//! between the launch that completes the value and the first that reads it. Vectors and captured values lie in pinned
//! host memory, so hooks take no device memory.

mod bind;
mod kv;

pub(crate) use bind::{AtLaunch, Bound, Pending, ReadBack, bind};
pub(crate) use kv::{KvAccess, KvAct, LayerCache};

use crate::{Error, Result};
use djinn_srg::{Dim, Graph, Hook};
use std::ops::Range;

/// A read or change at a hook, for some of an entry's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Intervention {
    /// The hook, from [`Graph::hook`](djinn_srg::Graph::hook).
    pub hook: Hook,
    /// Indices of the entry's tokens, ascending and disjoint. At hooks after the selection of rows, only tokens with
    /// wanted logits have a row.
    pub tokens: Vec<Range<usize>>,
    /// Read or change.
    pub act: Act,
}

/// What an intervention does. Those of one hook apply in the given order.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Reads the values at that point: see [`Engine::take_captured`](crate::Engine::take_captured).
    Capture,
    /// Changes the values.
    Edit(Edit),
}

/// A change of activations. Each token's values `y` become `clamp(scale·y + along·(y · direction)·direction + add,
/// low, high)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    scale: f32,
    along: f32,
    /// f32 `[width]`, of length 1. Empty for none.
    direction: Vec<f32>,
    /// f32 `[width]` for every token, or `[tokens, width]`. Empty for none.
    add: Vec<f32>,
    low: f32,
    high: f32,
}

impl Edit {
    const NONE: Edit = Edit {
        scale: 1.0,
        along: 0.0,
        direction: Vec::new(),
        add: Vec::new(),
        low: f32::NEG_INFINITY,
        high: f32::INFINITY,
    };

    /// Adds what it does to a hash.
    pub(crate) fn hash(&self, hash: &mut blake3::Hasher) {
        let Edit { scale, along, direction, add, low, high } = self;
        hash.update(format!("{} {} ", direction.len(), add.len()).as_bytes());
        for values in [&[*scale, *along, *low, *high], &direction[..], add] {
            hash.update(bytemuck::cast_slice(values));
        }
    }

    /// Replaces the values: f32 `[width]` for every token, or `[tokens, width]`.
    pub fn set(values: Vec<f32>) -> Self {
        Edit { scale: 0.0, add: values, ..Edit::NONE }
    }

    /// Adds `strength` times a vector: f32 `[width]` for every token, or `[tokens, width]`. Zero changes no bit.
    pub fn add(mut vector: Vec<f32>, strength: f32) -> Self {
        vector.iter_mut().for_each(|x| *x *= strength);
        Edit { add: vector, ..Edit::NONE }
    }

    /// Multiplies the values by a factor other than 0. For 0, use [`set`](Self::set).
    pub fn scale(factor: f32) -> Self {
        match factor {
            0.0 => Edit::set(vec![0.0]),
            _ => Edit { scale: factor, ..Edit::NONE },
        }
    }

    /// Clamps each value.
    pub fn clamp(low: f32, high: f32) -> Self {
        Edit { low, high, ..Edit::NONE }
    }

    /// Adds `factor` times the values' component along a direction, f32 `[width]` of any length but 0. -1 projects it
    /// out, 1 doubles it.
    pub fn along(mut direction: Vec<f32>, factor: f32) -> Self {
        let squares: f64 = direction.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        direction.iter_mut().for_each(|x| *x = (f64::from(*x) / squares.sqrt()) as f32);
        Edit { along: factor, direction, ..Edit::NONE }
    }

    /// The part for some of the tokens, with `width` values each.
    pub(crate) fn part(&self, tokens: Range<usize>, width: usize) -> Self {
        let add = match self.is_same_for_all(width) {
            true => self.add.clone(),
            false => self.add[tokens.start * width..tokens.end * width].to_vec(),
        };
        Edit { add, ..self.clone() }
    }

    /// Number of addends, for values of `width` columns.
    pub(crate) fn addends(&self, width: u64) -> u64 {
        (self.add.len() as u64).div_ceil(width).max(1)
    }

    /// Whether every token has the same addend.
    fn is_same_for_all(&self, width: usize) -> bool {
        self.add.len() <= width
    }

    /// Whether it changes no bit.
    fn is_nothing(&self) -> bool {
        let Edit { scale, along, add, low, high, .. } = self;
        (*scale, *along, *low, *high) == (1.0, 0.0, f32::NEG_INFINITY, f32::INFINITY)
            && add.iter().all(|&x| x == 0.0)
    }

    /// What is wrong with it for this many tokens and `width` columns.
    fn problem(&self, width: usize, tokens: usize) -> Option<String> {
        let Edit { scale, along, direction, add, low, high } = self;
        let finite = [scale, along].into_iter().chain(direction).chain(add).all(|x| x.is_finite());
        let widths = [0, 1, width, tokens * width];
        match () {
            () if !finite => Some("has numbers that are not finite, or a direction of length 0".to_owned()),
            () if low.is_nan() || high.is_nan() || low > high => Some(format!("has bounds {low} and {high}")),
            () if !widths.contains(&add.len()) => Some(format!(
                "has {} values; {tokens} tokens of {width} values each take {width} or {}",
                add.len(),
                tokens * width
            )),
            () if !direction.is_empty() && direction.len() != width => {
                Some(format!("has a direction of {} values, where {width} are", direction.len()))
            }
            () => None,
        }
    }
}

/// Values that a step read at a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// Index of the batch's entry.
    pub entry: usize,
    /// The hook's name.
    pub hook: String,
    /// Indices of the entry's tokens.
    pub tokens: Vec<Range<usize>>,
    /// f32 `[tokens, width]`.
    pub values: Vec<f32>,
}

/// Whether a hook's values have rows only for tokens with wanted logits.
pub(crate) fn of_logits(graph: &Graph, hook: &Hook) -> bool {
    matches!(graph.value(hook.value).shape.first(), Some(Dim::LogitRows))
}

impl Intervention {
    fn fail(&self, detail: impl std::fmt::Display) -> Error {
        Error::Intervention { hook: self.hook.name.clone(), detail: detail.to_string() }
    }

    /// Checks it for an entry of `tokens` tokens.
    pub(crate) fn check(&self, tokens: usize) -> Result<()> {
        let mut next = 0;
        for run in &self.tokens {
            let Range { start, end } = *run;
            if start < next || run.is_empty() || end > tokens {
                return Err(self.fail(format!("there are no tokens {start} to {end} among {tokens}")));
            }
            next = end;
        }
        let count = self.tokens.iter().map(Range::len).sum();
        let problem = match &self.act {
            _ if count == 0 => return Err(self.fail("it names no token")),
            Act::Capture => None,
            Act::Edit(edit) => edit.problem(self.hook.columns.1 as usize, count),
        };
        problem.map_or(Ok(()), |problem| Err(self.fail(format!("the edit {problem}"))))
    }
}
