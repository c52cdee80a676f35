//! Compares two sessions: their generated tokens, and their activations.

use super::Debug;
use super::looks::read;
use super::show::{Table, norm, number};
use crate::output;
use anyhow::{Result, ensure};
use djinn_engine::debug::Look;
use djinn_srg::Hook;

/// Tokens shown from the first different one on, and before it.
const AFTER: usize = 12;
const BEFORE: usize = 2;

impl Debug<'_> {
    /// Compares two sessions: their tokens and, if both are stopped at the same tokens, a hook of each block.
    pub(super) fn diff(&mut self, names: &[String; 2], kind: &str) -> Result<()> {
        let places = [self.named(&names[0])?, self.named(&names[1])?];
        let ids = places.map(|place| self.sessions[place].id);
        let hooks: Vec<Hook> = (0..self.blocks.len())
            .map_while(|block| self.hook(&format!("blocks.{block}.{kind}")).ok())
            .collect();
        ensure!(
            !hooks.is_empty(),
            "blocks have no hook {kind:?}; `info hooks blocks.0` lists those of the first"
        );
        let [first, second] = [self.generated(ids[0])?, self.generated(ids[1])?];
        let same = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
        let [left, right] = names;
        if same == first.len() && same == second.len() {
            output::line(&format!("{left} and {right} have the same tokens"))?;
        } else {
            output::line(&format!("{left} and {right} differ from token {} on:", same + 1))?;
            output::line(&self.beside(same, [(left, &first), (right, &second)]).text(""))?;
        }
        self.diff_values(ids, &hooks)
    }

    /// Tokens side by side, around the first different one.
    fn beside(&self, same: usize, of: [(&String, &Vec<u32>); 2]) -> Table {
        let mut table = Table::default();
        table.row(["token".to_owned(), of[0].0.clone(), of[1].0.clone()]);
        let most = of[0].1.len().max(of[1].1.len());
        for at in same.saturating_sub(BEFORE)..most.min(same + AFTER) {
            let cell = |tokens: &[u32]| tokens.get(at).map_or("-".to_owned(), |&token| self.token(token));
            table.row([(at + 1).to_string(), cell(of[0].1), cell(of[1].1)]);
        }
        if most > same + AFTER {
            table.row(["…".to_owned()]);
        }
        table
    }

    fn diff_values(&mut self, ids: [djinn_engine::SessionId; 2], hooks: &[Hook]) -> Result<()> {
        let [Some(one), Some(other)] = ids.map(|id| self.engine.paused_at(id)) else { return Ok(()) };
        if one.positions != other.positions {
            return Ok(());
        }
        let look = Look { hooks: hooks.to_vec(), ..Look::default() };
        let [one, other] = [self.look_at(ids[0], look.clone())?, self.look_at(ids[1], look)?];
        let last = one.positions.end - 1;
        let mut table = Table::default();
        table.row(["hook".to_owned(), "norm of the difference".to_owned(), "of the norm".to_owned()]);
        for ((hook, (_, a)), (_, b)) in hooks.iter().zip(one.values).zip(other.values) {
            let (a, b) = (read(&one.positions, hook, a), read(&one.positions, hook, b));
            let (a, b) = (a.row(last)?, b.row(last)?);
            let apart: Vec<f32> = a.iter().zip(b).map(|(a, b)| b - a).collect();
            let (apart, all) = (norm(&apart), norm(a));
            let share = if all > 0.0 { format!("{:.1} %", 100.0 * apart / all) } else { "-".to_owned() };
            table.row([hook.name.clone(), number(apart), share]);
        }
        output::line(&format!("at position {last}, where both are stopped:"))?;
        output::line(&table.text(""))
    }
}
