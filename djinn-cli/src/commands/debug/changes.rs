//! Changes a stopped session, and steers sessions.

use super::command::{At, Change, Direction};
use super::looks::read;
use super::stops::Steered;
use super::{Debug, tensors};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use djinn_engine::debug::{AtTtl, Breakpoint, DebugSetup, Filter};
use djinn_engine::{Edit, Happening, Opening, Turn};
use djinn_srg::Hook;
use std::ops::Range;
use std::path::Path;

impl Debug<'_> {
    /// The positions that a command applies to.
    fn positions(&self, values: Range<u64>, at: At) -> Result<Range<u64>> {
        let one = match at {
            At::All => return Ok(values),
            At::Current => self.session()?.shown,
            At::Position(position) => position,
        };
        let Range { start, end } = values;
        ensure!(values.contains(&one), "it is stopped at positions {start} to {}, not {one}", end - 1);
        Ok(one..one + 1)
    }

    /// The tokens with values at a hook.
    fn with_values(&self, hook: &Hook) -> Result<Range<u64>> {
        let at = self.stopped()?.positions;
        Ok(if self.is_of_logits(hook) { at.end - 1..at.end } else { at })
    }

    /// Changes tokens' values at a hook.
    pub(super) fn set(&mut self, hook: &str, change: Change, at: At) -> Result<()> {
        let hook = self.hook(hook)?;
        let positions = self.positions(self.with_values(&hook)?, at)?;
        match change {
            Change::Value(value) => self.change(&hook, positions, Edit::set(vec![value])),
            Change::Scale(factor) => self.change(&hook, positions, Edit::scale(factor)),
            Change::Mean => {
                let values = self.values(&hook)?;
                for position in positions {
                    let row = values.row(position)?;
                    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
                    self.change(&hook, position..position + 1, Edit::set(vec![mean as f32]))?;
                }
                Ok(())
            }
        }
    }

    fn change(&mut self, hook: &Hook, positions: Range<u64>, edit: Edit) -> Result<()> {
        let id = self.session()?.id;
        Ok(self.engine.edit(id, vec![(hook.clone(), positions, edit)])?)
    }

    /// Writes tokens' values to a new file.
    pub(super) fn save(&mut self, hook: &str, file: &str, at: At) -> Result<()> {
        let stop = self.stopped()?;
        let hook = self.hook(hook)?;
        let positions = self.positions(self.with_values(&hook)?, at)?;
        let values = self.values(&hook)?;
        let width = values.width;
        let mut rows = Vec::with_capacity((positions.end - positions.start) as usize * width);
        for position in positions.clone() {
            rows.extend_from_slice(values.row(position)?);
        }
        let place = |position: u64| (position - stop.positions.start) as usize;
        let tokens = &stop.tokens[place(positions.start)..place(positions.end)];
        tensors::write(Path::new(file), &hook.name, positions.start, tokens, &rows)?;
        output::line(&format!("{} tokens of {width} values in {file}", tokens.len()))
    }

    /// Sets saved values.
    pub(super) fn load(&mut self, hook: &str, file: &str) -> Result<()> {
        let hook = self.hook(hook)?;
        let here = self.with_values(&hook)?;
        let values = tensors::read(Path::new(file))?;
        let width = hook.columns.1 as usize;
        let tokens = values.len() / width;
        let positions = match (here.end - here.start) as usize {
            _ if values.len() != tokens * width || tokens == 0 => {
                bail!("{file} has {} values, and a token has {width} at {}", values.len(), hook.name)
            }
            _ if tokens == 1 => self.positions(here, At::Current)?,
            all if tokens == all => here,
            all => bail!("{file} has {tokens} tokens; it is stopped at {all}"),
        };
        self.change(&hook, positions, Edit::set(values))
    }

    /// Adds a vector at each token from now on, or stops doing so.
    pub(super) fn steer(&mut self, name: &str, by: Option<(String, Direction, f32)>) -> Result<()> {
        let steered = match by {
            None => {
                ensure!(self.steering.iter().any(|one| one.name == name), "there is no steering {name:?}");
                None
            }
            Some((hook, direction, strength)) => {
                let hook = self.hook(&hook)?;
                let vector = match direction {
                    Direction::File(file) => tensors::read(Path::new(&file))?,
                    Direction::Texts(texts) => self.difference(&hook, &texts)?,
                };
                let width = hook.columns.1;
                ensure!(
                    vector.len() as u64 == width,
                    "the vector has {} values, and a token has {width} at {}",
                    vector.len(),
                    hook.name
                );
                Some(Steered { name: name.to_owned(), hook, vector, strength })
            }
        };
        let others = self.steering.iter().filter(|one| one.name != name);
        let all = others.chain(&steered).map(Steered::steering).collect();
        if let Some(session) = self.sessions.get(self.current).filter(|session| session.ended.is_none()) {
            self.engine.steer(session.id, all)?;
        }
        self.steering.retain(|one| one.name != name);
        self.steering.extend(steered);
        Ok(())
    }

    /// The difference of two texts' last tokens at a hook, f32 `[width]`.
    fn difference(&mut self, hook: &Hook, texts: &[String; 2]) -> Result<Vec<f32>> {
        let [first, second] = [self.last_of(hook, &texts[0])?, self.last_of(hook, &texts[1])?];
        Ok(first.into_iter().zip(second).map(|(a, b)| a - b).collect())
    }

    /// The values of a text's last token at a hook, f32 `[width]`.
    fn last_of(&mut self, hook: &Hook, text: &str) -> Result<Vec<f32>> {
        let tokens = self.speech.tokenizer()?.encode(text, true)?;
        djinn_host::check_prompt(self.speech.model(), Some(self.engine.context()), &tokens)?;
        let last = tokens.len() as u64 - 1;
        let capture = Breakpoint {
            hook: hook.clone(),
            filter: Filter { positions: last..last + 1, ..Filter::default() },
            condition: None,
            pause: false,
            capture: true,
            hits: None,
            ttl: None,
            at_ttl: AtTtl::Resume,
        };
        let turn = Turn { tokens, max_tokens: 1, ..Turn::default() };
        let debug = DebugSetup { breakpoints: vec![capture], steering: Vec::new() };
        let id = self.engine.open(Opening { turn, debug, ..Opening::default() })?;
        let ended = loop {
            let happened = self.engine.go_on()?.into_iter();
            let own = happened.filter(|(session, _)| *session == id).map(|(_, happening)| happening).next();
            match own {
                Some(Happening::Token { .. }) => break Ok(()),
                Some(gone) => break Err(super::show::reason(&gone)),
                None => {}
            }
        };
        let captured = ended.map(|()| self.engine.take_captures(id));
        self.engine.close(Some(id))?;
        let captures = captured.map_err(|why| anyhow::anyhow!("{text:?} was not computed: {why}"))??;
        let values = captures.captures.into_iter().next().context("nothing was read")?.values;
        Ok(read(&(last..last + 1), hook, values).values)
    }
}
