//! Steering: named vectors that are added to activations of sessions, and other changes of all their tokens.
//!
//! A vector has a direction for each of some hook points, usually the ends of blocks. [`parse`] reads it from JSON,
//! safetensors or GGUF, [`store`] keeps it within bounds, [`apply`] implements a request's field `steering`, and
//! [`routes`] serves it.

mod apply;
mod parse;
pub(crate) mod routes;
mod store;

pub(crate) use apply::{HookRoom, Steered};
pub use apply::{LastingEdit, SteeredTokens, SteeringAlgorithm, SteeringUse, VectorUse};
pub(crate) use parse::{
    BodyForm, ReadTensor, check_rows, check_values, form as body_form, one_tensor, tensor_of,
};
pub(crate) use store::SteeringStore;

use djinn_srg::Hook;

#[derive(Clone, Debug, PartialEq)]
struct Direction {
    hook: Hook,
    /// f32 `[width]`, all finite.
    values: Vec<f32>,
}

/// The vectors under one name.
#[derive(Clone, Debug, PartialEq)]
struct Vectors {
    /// In order of execution, at most one at each hook point.
    directions: Vec<Direction>,
    /// A digest of all of them.
    digest: blake3::Hash,
}

impl Vectors {
    fn new(directions: Vec<Direction>) -> Self {
        let mut hash = blake3::Hasher::new();
        for Direction { hook, values } in &directions {
            hash.update(format!("{} {}\n", hook.name, values.len()).as_bytes());
            for value in values {
                hash.update(&value.to_le_bytes());
            }
        }
        Vectors { directions, digest: hash.finalize() }
    }

    /// Approximate bytes.
    fn bytes(&self) -> u64 {
        let one = |direction: &Direction| (direction.values.len() * 4 + direction.hook.name.len()) as u64;
        self.directions.iter().map(one).sum()
    }
}
