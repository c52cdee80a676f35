//! Breakpoints and steering, with the user's numbers and names; lists.

use super::Debug;
use super::command::{Stop, Topic, When};
use super::running::MAIN;
use super::show::{Table, number};
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use djinn_engine::Edit;
use djinn_engine::debug::{AtTtl, BreakCondition, Breakpoint, Filter, Steering, TokenKind};

/// A breakpoint, for every new session.
pub(super) struct Armed {
    pub(super) number: u64,
    pub(super) breakpoint: Breakpoint,
}

/// Steering, as the user wrote it.
pub(super) struct Steered {
    pub(super) name: String,
    pub(super) hook: djinn_srg::Hook,
    pub(super) vector: Vec<f32>,
    pub(super) strength: f32,
}

impl Steered {
    /// The same for the engine.
    pub(super) fn steering(&self) -> Steering {
        Steering {
            name: self.name.clone(),
            hook: self.hook.clone(),
            edit: Edit::add(self.vector.clone(), self.strength),
            tokens: TokenKind::Any,
        }
    }
}

impl Debug<'_> {
    /// Arms a breakpoint in all running and future sessions.
    pub(super) fn set_breakpoint(&mut self, stop: Stop) -> Result<()> {
        let condition = match stop.when {
            None => None,
            Some(When::Entropy(above)) => Some(BreakCondition::Entropy { above }),
            Some(When::Token(text)) => Some(BreakCondition::Tokens(vec![self.one_token(&text)?])),
        };
        let breakpoint = Breakpoint {
            hook: self.hook(&stop.hook)?,
            filter: Filter { tokens: stop.tokens, positions: stop.positions, steps: stop.steps },
            condition,
            pause: true,
            capture: false,
            hits: stop.once.then_some(1),
            ttl: None,
            at_ttl: AtTtl::Resume,
        };
        let number = self.numbered + 1;
        let mut all = Vec::new();
        for session in self.sessions.iter_mut().filter(|session| session.ended.is_none()) {
            match self.engine.set_breakpoint(session.id, breakpoint.clone()) {
                Ok(armed) => all.push((session, armed)),
                Err(refused) => {
                    for (session, armed) in all {
                        self.engine.clear_breakpoint(session.id, armed)?;
                    }
                    return Err(refused.into());
                }
            }
        }
        for (session, armed) in all {
            session.armed.push((number, armed));
        }
        self.numbered = number;
        output::line(&format!("breakpoint {number}: {}", self.describe(&breakpoint)))?;
        self.breakpoints.push(Armed { number, breakpoint });
        Ok(())
    }

    /// The only token of a text.
    fn one_token(&self, text: &str) -> Result<u32> {
        let tokens = self.speech.tokenizer()?.encode(text, false)?;
        match tokens[..] {
            [token] => Ok(token),
            [] => bail!("an empty text is no token"),
            _ => {
                let texts: Vec<String> = tokens.iter().take(8).map(|&token| self.token(token)).collect();
                bail!("{text:?} is {} tokens, not one: {}", tokens.len(), texts.join(" "))
            }
        }
    }

    /// Removes a breakpoint, or all of them.
    pub(super) fn delete(&mut self, number: Option<u64>) -> Result<()> {
        let goes = |of: u64| number.is_none_or(|number| number == of);
        if let Some(number) = number {
            ensure!(
                self.breakpoints.iter().any(|armed| goes(armed.number)),
                "there is no breakpoint {number}"
            );
        }
        self.breakpoints.retain(|armed| !goes(armed.number));
        for session in &mut self.sessions {
            let (gone, left) = std::mem::take(&mut session.armed).into_iter().partition(|(of, _)| goes(*of));
            session.armed = left;
            let gone: Vec<_> = gone;
            for (_, armed) in gone {
                self.engine.clear_breakpoint(session.id, armed)?;
            }
        }
        Ok(())
    }

    /// The steering of new sessions.
    pub(super) fn steerings(&self) -> Vec<Steering> {
        self.steering.iter().map(Steered::steering).collect()
    }

    /// Lists what there is.
    pub(super) fn info(&self, topic: &Topic) -> Result<()> {
        let (table, empty) = match topic {
            Topic::Breakpoints => (self.breakpoint_table()?, "no breakpoints".to_owned()),
            Topic::Session => (self.session_table()?, format!("no sessions; `run` begins {MAIN}")),
            Topic::Hooks(filter) => {
                let filter = filter.as_deref().unwrap_or_default();
                (self.hook_table(filter), format!("no hooks with {filter:?} in a name"))
            }
            Topic::Steering => (self.steering_table()?, "no steering".to_owned()),
        };
        output::line(&table.text(&empty))
    }

    fn breakpoint_table(&self) -> Result<Table> {
        let session = self.sessions.get(self.current);
        let engine =
            session.map(|session| self.engine.breakpoints(session.id)).transpose()?.unwrap_or_default();
        let hits = |number: u64| {
            let id = session?.armed.iter().find(|(of, _)| *of == number)?.1;
            engine.iter().find(|(of, ..)| *of == id).map(|(_, _, hits)| *hits)
        };
        let mut table = Table::default();
        for Armed { number, breakpoint } in &self.breakpoints {
            let hits = hits(*number).map_or(String::new(), |hits| format!("{hits} hits"));
            table.row([number.to_string(), self.describe(breakpoint), hits]);
        }
        Ok(table)
    }

    /// A breakpoint in the syntax of `break`.
    fn describe(&self, breakpoint: &Breakpoint) -> String {
        let Filter { tokens, positions, steps } = &breakpoint.filter;
        let mut text = breakpoint.hook.name.clone();
        text += match tokens {
            TokenKind::Any => "",
            TokenKind::Prompt => " prompt",
            TokenKind::Generated => " generated",
        };
        let bounds = [("at", positions), ("step", steps)];
        for (word, range) in bounds.into_iter().filter(|(_, range)| range.end != u64::MAX) {
            text += &format!(" {word} {}", range.start);
        }
        match &breakpoint.condition {
            Some(BreakCondition::Tokens(tokens)) => {
                text += &tokens
                    .iter()
                    .map(|&token| format!(" if token {}", self.token(token)))
                    .collect::<String>();
            }
            Some(BreakCondition::Entropy { above }) => text += &format!(" if entropy > {above}"),
            Some(BreakCondition::Probe { .. }) | None => {}
        }
        if breakpoint.hits == Some(1) { text + " once" } else { text }
    }

    fn session_table(&self) -> Result<Table> {
        let mut table = Table::default();
        for (place, session) in self.sessions.iter().enumerate() {
            let mark = if place == self.current { "*" } else { "" };
            let state = match (self.engine.paused_at(session.id), session.ended) {
                (Some(at), _) => format!("stopped at {}, position {}", at.hook, session.shown),
                (None, Some(_)) => "ended".to_owned(),
                (None, None) => "runs".to_owned(),
            };
            let tokens = self.generated(session.id)?.len();
            table.row([mark.to_owned(), session.name.clone(), state, format!("{tokens} tokens generated")]);
        }
        Ok(table)
    }

    fn hook_table(&self, filter: &str) -> Table {
        let mut table = Table::default();
        for point in &self.points {
            let mut names = std::iter::once(&point.hook.name).chain(&point.aliases);
            if names.any(|name| name.contains(filter)) {
                let width = format!("{} values", point.width);
                table.row([point.hook.name.clone(), width, point.aliases.join(", ")]);
            }
        }
        table
    }

    fn steering_table(&self) -> Result<Table> {
        let session = self.sessions.get(self.current);
        let applied = session.map(|session| self.engine.applied(session.id)).transpose()?.unwrap_or_default();
        let mut table = Table::default();
        for Steered { name, hook, vector, strength } in &self.steering {
            let norm = number(super::show::norm(vector) * strength);
            let tokens = applied.iter().find(|(of, _)| of == name).map_or(0, |(_, tokens)| *tokens);
            table.row([name.clone(), hook.name.clone(), format!("norm {norm}"), format!("{tokens} tokens")]);
        }
        if let Some((_, tokens)) = applied.iter().find(|(of, _)| of == "edit") {
            table.row(["set by hand".to_owned(), String::new(), String::new(), format!("{tokens} tokens")]);
        }
        Ok(table)
    }

    /// Whether a hook has values only for tokens whose logits are computed.
    pub(super) fn is_of_logits(&self, hook: &djinn_srg::Hook) -> bool {
        self.points.iter().any(|point| point.of_logits && point.hook.name == hook.name)
    }

    /// The last block's output, which the logit lens sets.
    pub(super) fn last_block(&self) -> Result<djinn_srg::Hook> {
        self.blocks.last().cloned().context("the model has no blocks")
    }
}
