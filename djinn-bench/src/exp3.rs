//! Experiment 3: sessions that stop at a breakpoint in the middle of the model while others need their memory, and go on
//! with the tokens that they would have had.

mod cost;
mod paused;
mod steering;
mod written;

pub(crate) use cost::Kind;
pub(crate) use paused::Resumed;
pub(crate) use steering::Strength;

use crate::args::Exp3Args;
use crate::document::{Document, check_folder};
use crate::{model, report};
use anyhow::{Result, anyhow, ensure};
use djinn_device::Ops;
use djinn_engine::debug::{AtTtl, Breakpoint, DebugSetup, Debugger, Filter, Look, Looked, TokenKind};
use djinn_engine::{Happening, Opening, Options, Service, SessionId, Turn};
use djinn_host::{Needs, OnDevice, Setup};
use djinn_models::Model;
use djinn_scheduler::{Registry, SessionEvent, Settings};
use serde::{Deserialize, Serialize};
use std::sync::mpsc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exp3 {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) hook: String,
    pub(crate) vram_bytes: u64,
    pub(crate) weight_bytes: u64,
    /// Bytes of keys and values of one session at its end.
    pub(crate) session_bytes: u64,
    pub(crate) sessions: u32,
    pub(crate) context: u32,
    pub(crate) paused: Option<paused::Paused>,
    pub(crate) cost: Option<cost::Cost>,
    pub(crate) written: Option<written::Written>,
    pub(crate) steering: Vec<steering::Strength>,
}

impl Exp3 {
    /// Weights and all sessions' keys and values.
    pub(crate) fn demand_bytes(&self) -> u64 {
        self.weight_bytes + u64::from(self.sessions) * self.session_bytes
    }
}

pub(crate) fn run(args: &Exp3Args) -> Result<()> {
    check_folder(args.json.as_deref())?;
    let (tokens, context) = (args.tokens, args.context);
    ensure!(tokens <= context / 2, "--tokens {tokens} is more than half of --context {context}");
    let mut setup = args.device.setup()?;
    let model = model::open(&setup, &args.model)?;
    setup.vram = Some(args.vram);
    let options = options(&setup, args, &model)?;
    let needs = Needs::of(&model, &options);
    let needs = Needs { pinned_bytes: needs.pinned_bytes.saturating_add(args.host_kv), ..needs };
    let body = setup.on_device(needs, Stopping { args, model: &model, options, setup: &setup })?;
    Document::new("exp3", setup.device, body).publish(args.json.as_deref(), report::exp3)
}

fn options(setup: &Setup, args: &Exp3Args, model: &Model) -> Result<Options> {
    let options = setup.options_for(model, args.context.into())?;
    let mut options = options.serving(args.batch.max(8).min(most_sessions(args)));
    options.hook_bytes = 256 << 20;
    // Weights that stream would hide what stops cost.
    options.budget.resident_fraction = Some(1.0);
    let least = Options { pages: Some(1), ..options.clone() }.plan(&model.graph, 0)?;
    options.host_pages = u32::try_from(args.host_kv / least.kv.page_bytes())?;
    Ok(options)
}

/// Sessions that are open at the same time.
fn most_sessions(args: &Exp3Args) -> u32 {
    args.sessions.max(args.batch)
}

struct Stopping<'a> {
    args: &'a Exp3Args,
    model: &'a Model,
    options: Options,
    setup: &'a Setup,
}

impl OnDevice for Stopping<'_> {
    type Out = Exp3;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<Exp3> {
        let Stopping { args, model, mut options, setup } = self;
        // As many pages as the budget leaves, and no more than all sessions need.
        let most = args.context.div_ceil(options.page_tokens) * most_sessions(args);
        let reserved = device.info().reserved_bytes;
        let fits = |pages: u32| {
            Options { pages: Some(pages), ..options.clone() }.plan(&model.graph, reserved).is_ok()
        };
        let (mut low, mut high) = (1, most + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        options.pages = Some(low);
        let mut engine = model::load(device, model, &options)?;
        engine.warm_up(&mut engine.free_pages())?;
        let cost = engine.measure_cost(&mut engine.free_pages())?;
        let mut settings = Settings::default();
        settings.rules.queue_timeout = Duration::from_secs(3_600);
        let service = |capacity| Registry::default().scheduler(&settings, capacity, cost);
        let mut bench = Bench { service: Service::new(engine, service)?, args, logprobs: None };
        let engine = bench.service.engine();
        let blocks =
            engine.graph().nodes.iter().filter_map(|node| node.layer).max().map_or(1, |last| last + 1);
        let hook = args.hook.clone().unwrap_or_else(|| format!("blocks.{}.hook_out", blocks / 2));
        bench.service.hook(&hook)?;
        let kv = engine.plan().kv;
        let mut body = Exp3 {
            model: model.name.clone(),
            device: setup.device.to_string(),
            hook,
            vram_bytes: args.vram,
            weight_bytes: engine.plan().segments.resident,
            session_bytes: u64::from(args.context.div_ceil(kv.page_tokens)) * kv.page_bytes(),
            sessions: args.sessions,
            context: args.context,
            paused: None,
            cost: None,
            written: None,
            steering: Vec::new(),
        };
        body.written = Some(written::measure(&mut bench)?);
        body.paused = Some(paused::measure(&mut bench, &body.hook)?);
        body.cost = Some(cost::measure(&mut bench, &body.hook)?);
        body.steering = steering::measure(&mut bench, &body.hook)?;
        Ok(body)
    }
}

/// A service, and how it is asked.
struct Bench<'a, D: Ops> {
    service: Service<D>,
    args: &'a Exp3Args,
    /// What sessions that are opened tell of each token: they take the host time.
    logprobs: Option<u8>,
}

impl<D: Ops> Bench<'_, D> {
    /// Opens a session with a prompt of its own.
    fn open(&mut self, seed: u32, prompt: u32, max_tokens: u32, debug: DebugSetup) -> Result<SessionId> {
        let vocab = self.service.engine().graph().vocab;
        let tokens = model::prompt(prompt, vocab, seed.into());
        let turn = Turn { tokens, max_tokens: max_tokens.into(), logprobs: self.logprobs, ..Turn::default() };
        Ok(self.service.open(Opening { turn, debug, ..Opening::default() })?)
    }

    /// A breakpoint at the hook for generated tokens.
    fn breakpoint(&self, hook: &str) -> Result<Breakpoint> {
        Ok(Breakpoint {
            hook: self.service.hook(hook)?,
            filter: Filter { tokens: TokenKind::Generated, ..Filter::default() },
            condition: None,
            pause: true,
            capture: false,
            hits: None,
            ttl: None,
            at_ttl: AtTtl::Resume,
        })
    }

    /// Does what can be done; what happened.
    fn advance(&mut self) -> Result<Vec<(SessionId, Happening)>> {
        let happened = self.service.advance()?;
        for (id, happening) in &happened {
            ensure!(!matches!(happening, Happening::Refused(_)), "{id} was refused");
        }
        Ok(happened)
    }

    /// Goes on until nothing computes.
    fn settle(&mut self) -> Result<()> {
        loop {
            self.advance()?;
            let busy = self.service.state().sessions().any(|session| session.is_ready());
            if !busy && self.service.idle_for() != Some(Duration::ZERO) {
                return Ok(());
            }
        }
    }

    /// The tokens that the model generated for a session.
    fn generated(&self, id: SessionId) -> Result<Vec<u32>> {
        let (tokens, by_model) = self.service.tokens(id)?;
        Ok(by_model
            .into_iter()
            .flat_map(|turn| tokens[turn.start as usize..turn.end as usize].to_vec())
            .collect())
    }

    fn clear(&mut self) -> Result<()> {
        let ids: Vec<SessionId> = self.service.state().sessions().map(|session| session.id).collect();
        for id in ids {
            self.service.event(id, SessionEvent::End)?;
        }
        self.settle()
    }
}

/// Reads a session that is stopped.
fn look<D: Ops>(bench: &mut Bench<'_, D>, id: SessionId, look: Look) -> Result<Looked> {
    let (sender, looked) = mpsc::channel();
    bench.service.look(id, look, Box::new(move |result| drop(sender.send(result))));
    bench.settle()?;
    Ok(looked.try_recv().map_err(|_| anyhow!("the look was not answered"))??)
}
