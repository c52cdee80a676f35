//! The API for `--server`: answers, logits, a model's plan and graph, made by the command's own code.

pub(crate) mod generate;
pub(crate) mod logits;
pub(crate) mod tables;
