//! Compares logits with those that transformers wrote beside a checkpoint.

use super::results::LogitCheck;
use crate::model;
use anyhow::{Context, Result, ensure};
use djinn_device::Ops;
use djinn_host::{Needs, OnDevice, Setup};
use serde::Deserialize;
use std::path::Path;

/// Rows of a step: few, as in decoding.
const ROWS: u32 = 8;

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f64>>,
}

/// Runs the checkpoint, every weight streamed, and compares with its `expected.json`.
pub(super) fn compare(checkpoint: &Path, setup: &Setup) -> Result<LogitCheck> {
    let path = checkpoint.join("expected.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let expected: Expected = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    setup.on_device(Needs::default(), Comparison { checkpoint, setup, expected })
}

struct Comparison<'a> {
    checkpoint: &'a Path,
    setup: &'a Setup,
    expected: Expected,
}

impl OnDevice for Comparison<'_> {
    type Out = LogitCheck;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<LogitCheck> {
        let model = model::open(self.setup, &self.checkpoint.to_string_lossy())?;
        let longest = self.expected.cases.iter().map(|case| case.prompt.len()).max().unwrap_or(0);
        let mut options = self.setup.options_for(&model, longest as u64)?;
        options.budget.resident_fraction = Some(0.0);
        options.logit_rows = ROWS;
        let mut engine = model::load(device, &model, &options)?;
        let vocab = model.graph.vocab as usize;
        let mut check =
            LogitCheck { checkpoint: model.name, positions: 0, relative_error: 0.0, difference_norm: 0.0 };
        for case in &self.expected.cases {
            let logits = engine.logits(&mut engine.free_pages(), &case.prompt)?;
            for (&position, wanted) in case.positions.iter().zip(&case.logits) {
                let found = logits
                    .chunks_exact(vocab)
                    .nth(position)
                    .context("expected.json names a position too far")?;
                ensure!(wanted.len() == vocab, "expected.json has {} logits of {vocab}", wanted.len());
                let (difference, norm) = distance(found, wanted);
                check.positions += 1;
                check.relative_error = check.relative_error.max(difference / norm);
                check.difference_norm = check.difference_norm.max(difference);
            }
        }
        Ok(check)
    }
}

/// ‖found − wanted‖ and ‖wanted‖.
fn distance(found: &[f32], wanted: &[f64]) -> (f64, f64) {
    let square = |sum: f64, (&f, &w): (&f32, &f64)| sum + (f as f64 - w).powi(2);
    let difference = found.iter().zip(wanted).fold(0.0, square);
    (difference.sqrt(), wanted.iter().map(|w| w * w).sum::<f64>().sqrt())
}
