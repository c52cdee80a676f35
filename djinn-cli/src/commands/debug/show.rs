//! Formats tokens, values and places.

use super::Debug;
use crate::output;
use anyhow::Result;
use djinn_engine::debug::PausedAt;
use djinn_engine::{Finish, Happening, SessionId};

/// Columns of text, each as wide as its longest cell.
#[derive(Default)]
pub(super) struct Table(Vec<Vec<String>>);

impl Table {
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// The rows as lines, or `empty` if there are none.
    pub(super) fn text(&self, empty: &str) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let length = |cell: &String| cell.chars().count();
        let widths: Vec<usize> = (0..columns)
            .map(|column| self.0.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).filter(|(_, width)| **width > 0);
            // The formatter takes no width of more than 16 bits.
            let cells = cells.map(|(cell, width)| cell.clone() + &" ".repeat(width - length(cell)));
            cells.collect::<Vec<String>>().join("  ").trim_end().to_owned()
        };
        let lines: Vec<String> = self.0.iter().map(line).collect();
        if lines.is_empty() { empty.to_owned() } else { lines.join("\n") }
    }
}

/// A number with four significant digits.
pub(super) fn number(x: f32) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        small if !(1e-3..1e6).contains(&small) => format!("{x:.3e}"),
        small => format!("{x:.*}", (3 - small.log10().floor() as i32).max(0) as usize),
    }
}

pub(super) fn norm(values: &[f32]) -> f32 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32
}

/// Why a session is gone.
pub(super) fn reason(happening: &Happening) -> String {
    match happening {
        Happening::Refused(why) => why.to_string(),
        Happening::Failed(why) => format!("{why:?}"),
        other => format!("{other:?}"),
    }
}

impl Debug<'_> {
    /// A token's text, in quotes.
    pub(super) fn token(&self, token: u32) -> String {
        let text = self.speech.tokenizer().ok().and_then(|tokenizer| {
            let mut stream = tokenizer.stream(false).continuing();
            Some(stream.push(token)? + &stream.finish())
        });
        text.map_or_else(|| token.to_string(), |text| format!("{text:?}"))
    }

    /// Prints where the current session is stopped, and its next tokens.
    pub(super) fn show_stop(&mut self, at: &PausedAt) -> Result<()> {
        let session = self.session()?;
        let (id, shown) = (session.id, session.shown);
        let met = at.breakpoint.filter(|_| at.hit.contains(&shown));
        let number = met.and_then(|id| session.armed.iter().find(|(_, of)| *of == id));
        let by = number.map_or(String::new(), |(number, _)| format!("breakpoint {number}, "));
        let token = self.token(at.tokens[(shown - at.positions.start) as usize]);
        let (_, by_model) = self.engine.tokens(id)?;
        let is_generated = by_model.iter().any(|part| part.contains(&shown));
        let kind = if is_generated { "generated" } else { "prompt" };
        let (first, last) = (at.positions.start, at.positions.end - 1);
        let beside = if first == last { String::new() } else { format!(", one of {first} to {last}") };
        output::line(&format!("{by}{}: {token} at position {shown} ({kind}{beside})", at.hook))?;
        let hook = self.hook(&at.hook)?;
        match self.lens_at(&hook, 3)? {
            Some(tokens) => output::line(&format!("lens: {tokens}")),
            None => output::line(&format!("next: {}", self.next_tokens(3)?)),
        }
    }

    /// Prints why a session has ended.
    pub(super) fn say_end(&self, name: &str, id: SessionId, finish: Finish) -> Result<()> {
        let tokens = self.generated(id)?.len();
        let why = crate::commands::run::name(finish);
        output::line(&format!("{name} has ended after {tokens} tokens ({why})"))
    }

    /// The likeliest tokens of logits, each with its probability.
    pub(super) fn likeliest(&self, logits: &[f32], top: usize) -> String {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - most).exp()).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let one = |&token: &usize| {
            let share = 100.0 * f64::from(logits[token] - most).exp() / sum;
            format!("{} {share:.1} %", self.token(token as u32))
        };
        order.iter().take(top).map(one).collect::<Vec<_>>().join(", ")
    }
}
