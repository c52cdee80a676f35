//! What the command asks with `--server`: answers, logits, a model's plan and graph, as the command itself makes them.

pub(crate) mod generate;
pub(crate) mod logits;
pub(crate) mod tables;
