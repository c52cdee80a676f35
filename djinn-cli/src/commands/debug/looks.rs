//! Reads a stopped session: values, the logit lens, the next tokens.

use super::Debug;
use super::command::LensOf;
use super::show::{Table, norm, number};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use djinn_engine::Edit;
use djinn_engine::SessionId;
use djinn_engine::debug::{Look, Looked};
use djinn_srg::Hook;
use std::ops::Range;
use std::sync::mpsc::{TryRecvError, channel};

/// Values at a hook.
pub(super) struct Values {
    pub(super) positions: Range<u64>,
    pub(super) width: usize,
    /// f32 `[tokens, width]`.
    pub(super) values: Vec<f32>,
}

impl Values {
    /// A token's values, f32 `[width]`.
    pub(super) fn row(&self, position: u64) -> Result<&[f32]> {
        let Range { start, end } = self.positions;
        ensure!(self.positions.contains(&position), "there are values of positions {start} to {}", end - 1);
        let first = (position - start) as usize * self.width;
        Ok(&self.values[first..first + self.width])
    }
}

impl Debug<'_> {
    /// Reads the current session.
    fn look(&mut self, look: Look) -> Result<Looked> {
        let id = self.session()?.id;
        self.look_at(id, look)
    }

    /// Reads a stopped session.
    pub(super) fn look_at(&mut self, id: SessionId, look: Look) -> Result<Looked> {
        let (sender, looked) = channel();
        // The answer is awaited below.
        self.engine.look(id, look, Box::new(move |answer| drop(sender.send(answer))));
        loop {
            match looked.try_recv() {
                Ok(answer) => return Ok(answer?),
                Err(TryRecvError::Disconnected) => bail!("the session is gone"),
                Err(TryRecvError::Empty) => drop(self.engine.go_on()?),
            }
        }
    }

    pub(super) fn values(&mut self, hook: &Hook) -> Result<Values> {
        self.stopped()?;
        let mut looked = self.look(Look { hooks: vec![hook.clone()], ..Look::default() })?;
        let (_, values) = looked.values.pop().context("nothing was read")?;
        Ok(read(&looked.positions, hook, values))
    }

    /// The position that a command applies to.
    fn position(&self, at: Option<u64>) -> Result<u64> {
        Ok(at.unwrap_or(self.session()?.shown))
    }

    /// Shows a token's values.
    pub(super) fn print(&mut self, hook: &str, at: Option<u64>, first: usize) -> Result<()> {
        let stop = self.stopped()?;
        let hook = self.hook(hook)?;
        let values = self.values(&hook)?;
        let position = self.position(at)?;
        let row = values.row(position)?;
        let token = self.token(stop.tokens[(position - stop.positions.start) as usize]);
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
        let (low, high) =
            row.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
        let (norm, mean) = (number(norm(row)), number(mean as f32));
        output::line(&format!("{} of {token} at position {position}: {} values", hook.name, row.len()))?;
        output::line(&format!("norm {norm}, mean {mean}, from {} to {}", number(low), number(high)))?;
        let shown: Vec<String> = row.iter().take(first).map(|&x| number(x)).collect();
        let more = if first < row.len() { " …" } else { "" };
        if first > 0 { output::line(&format!("{}{more}", shown.join(" "))) } else { Ok(()) }
    }

    /// Shows the next tokens, by the logit lens at a hook or at every block's output.
    pub(super) fn lens(&mut self, of: &LensOf, top: usize) -> Result<()> {
        let at = self.stopped()?;
        let hooks = match of {
            LensOf::Here => vec![self.hook(&at.hook)?],
            LensOf::Hook(name) => vec![self.hook(name)?],
            LensOf::All => self.blocks.clone(),
        };
        let interrupt = self.interrupt;
        let _work = interrupt.work();
        let mut table = Table::default();
        for hook in hooks {
            if interrupt.asked() {
                output::remark("interrupted");
                break;
            }
            let Some(tokens) = self.lens_at(&hook, top)? else {
                bail!(
                    "the lens reads what blocks pass on (hook_in, hook_resid_mid, hook_out of a block); {} is none of it",
                    hook.name
                );
            };
            table.row([hook.name, tokens]);
        }
        output::line(&table.text("nothing was read"))
    }

    /// The next tokens by the logit lens, which uses the values at a hook as the last block's output. `None` for a hook
    /// that is not of the residual stream.
    pub(super) fn lens_at(&mut self, hook: &Hook, top: usize) -> Result<Option<String>> {
        let last_block = self.last_block()?;
        // Values of other hooks may be as many, but the last norm and the unembedding are not made for them.
        let is_residual = djinn_server::is_residual(&self.speech.model().graph, hook);
        if !is_residual || hook.after > last_block.after {
            return Ok(None);
        }
        let values = self.values(hook)?;
        let row = values.row(self.position(None)?)?.to_vec();
        // The logits are those after the last of the tokens.
        let last = values.positions.end - 1..values.positions.end;
        let edits = vec![(last_block, last, Edit::set(row))];
        let looked = self.look(Look { edits, logits: true, ..Look::default() })?;
        Ok(Some(self.likeliest(&looked.logits, top)))
    }

    /// Shows the next tokens after the last of the stopped ones.
    pub(super) fn logits(&mut self, top: usize) -> Result<()> {
        let tokens = self.next_tokens(top)?;
        output::line(&tokens)
    }

    /// The next tokens after the last of the stopped ones.
    pub(super) fn next_tokens(&mut self, top: usize) -> Result<String> {
        self.stopped()?;
        let looked = self.look(Look { logits: true, ..Look::default() })?;
        Ok(self.likeliest(&looked.logits, top))
    }
}

/// Values read at a hook. If there are fewer rows than positions, they belong to the last ones.
pub(super) fn read(positions: &Range<u64>, hook: &Hook, values: Vec<f32>) -> Values {
    let width = hook.columns.1 as usize;
    let rows = (values.len() / width.max(1)) as u64;
    Values { positions: positions.end - rows..positions.end, width, values }
}
