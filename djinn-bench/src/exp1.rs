//! Experiment 1, agent density: many sessions that wait for tools most of the time on one device, under one policy
//! after another, in one engine.

mod bed;
mod calibrate;
mod defaults;
mod live;
mod load;
mod map;
pub(crate) mod policies;
pub(crate) mod results;
mod room;
mod rows;

use crate::args::Exp1Args;
use crate::document::{self, Document};
use crate::model;
use crate::{figures, interrupt, remark, report, size};
use anyhow::{Context, Result, bail, ensure};
use bed::{Bed, Ran, SimBed};
use djinn_device::Ops;
use djinn_engine::Workspaces;
use djinn_host::{Card, DeviceName, Needs, OnDevice, Setup};
use djinn_models::Model;
use djinn_scheduler::Capacity;
use djinn_scheduler::sim::{Oracle, Profile, RunSpan, Workload};
use live::LiveBed;
use load::Load;
use policies::Policies;
use results::{Config, Density, Exp1, Point, Row, Simulated, Unloaded, compare};
use room::Room;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// A number of agents holds the bound if P99 latency is at most this multiple of the unloaded one.
const FACTOR: f64 = 1.5;
/// The unloaded latency is measured over this many seconds at most.
const ALONE: Duration = Duration::from_secs(30);
/// The machine whose roofline is simulated where nothing else is said.
const DEFAULT_MACHINE: &str = "h200";

/// What was asked for, checked.
struct Experiment<'a> {
    args: &'a Exp1Args,
    model: &'a Model,
    load: Load,
    policies: Policies,
    room: Room,
    /// As `--profile` gives it: where its times are from, and the times.
    profile: Option<(String, Profile)>,
}

pub(crate) fn run(args: &Exp1Args) -> Result<()> {
    document::check_folder(args.json.as_deref())?;
    if args.simulate {
        let none = matches!(args.device.device, DeviceName::Auto | DeviceName::Cpu);
        ensure!(none, "--simulate uses no device; leave out --device");
        ensure!(args.device.threads.is_none(), "--simulate uses no device; leave out --threads");
    }
    let args = &defaults::fill(args)?;
    let policies = Policies::new(args)?;
    let profile = args.profile.as_deref().map(read_profile).transpose()?;
    let model = model::open(&Setup::default(), args.model())?;
    let load = Load::new(args, model.graph.max_context)?;
    let room = room(args, &model, &load, profile.as_ref().map(|(_, profile)| profile))?;
    let experiment = Experiment { args, model: &model, load, policies, room, profile };
    interrupt::catch(interrupt::exit)?;
    let document = if args.simulate {
        experiment.simulated()?
    } else {
        let setup = Setup { vram: Some(args.vram()), ..args.device.setup()? };
        setup.on_device(experiment.needs(), &experiment)?
    };
    print!("{}", report::exp1(&document));
    if let Some(folder) = &args.figures {
        figures::exp1(&document, folder)?;
    }
    let failed: Vec<String> = document.body.policies.iter().filter_map(failed).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

fn failed(row: &Row) -> Option<String> {
    row.failure.as_ref().map(|why| format!("{}: {why}", row.policy))
}

/// The room; a profile must be of the pages that it has. A simulated device keeps keys and values in 16 bits, unless
/// the profile is of pages in 32.
fn room(args: &Exp1Args, model: &Model, load: &Load, profile: Option<&Profile>) -> Result<Room> {
    let device = if args.simulate { DeviceName::Cuda(0) } else { args.device.device };
    let room = Room::new(args, device, model, load)?;
    let Some(profile) = profile else { return Ok(room) };
    let wanted = profile.cost.page_bytes;
    if wanted == room.page_bytes {
        return Ok(room);
    }
    if args.simulate {
        let wide = Room::new(args, DeviceName::Cpu, model, load)?;
        if wanted == wide.page_bytes {
            return Ok(wide);
        }
    }
    bail!(
        "--profile: its KV pages have {wanted} bytes and those of {} {}; take a profile of the same model",
        model.name,
        room.page_bytes
    )
}

/// Reads a profile, or the one of a result of exp1. Says where it is from.
fn read_profile(path: &Path) -> Result<(String, Profile)> {
    let name = || format!("--profile {}", path.display());
    let text = std::fs::read_to_string(path).with_context(name)?;
    let mut value: Value = serde_json::from_str(&text).with_context(name)?;
    let mut from = format!("from {}", path.file_name().unwrap_or_default().to_string_lossy());
    if value.get("experiment").and_then(Value::as_str) == Some("exp1") {
        let machine = ["gpu", "cpu"].into_iter().find_map(|name| value["machine"][name].as_str());
        from += &machine.map_or_else(String::new, |machine| format!(", measured on {machine}"));
        value = value["profile"].take();
    }
    let profile: Profile = serde_json::from_value(value)
        .with_context(|| format!("{}: neither a result of exp1 nor a profile", name()))?;
    profile.check().with_context(name)?;
    Ok((from, profile))
}

impl OnDevice for &Experiment<'_> {
    type Out = Document<Exp1>;
    type Error = anyhow::Error;

    fn on<D: Ops + 'static>(self, device: D) -> Result<Document<Exp1>> {
        let (options, capacity) = self.room.fill(self.model, device.info().reserved_bytes)?;
        remark(&self.args.shown());
        let mut engine = model::load(device, self.model, &options)?;
        let (times, profile) = match &self.profile {
            Some(given) => given.clone(),
            None => {
                let profile = calibrate::measure(&mut engine, &self.room, &options)?;
                ("measured before the runs".to_owned(), profile)
            }
        };
        let mut document = self.document(capacity, times, profile);
        let mut bed = LiveBed::new(engine, self.args.seed)?;
        self.conduct(&mut bed, &mut document)?;
        Ok(document)
    }
}

impl Experiment<'_> {
    fn needs(&self) -> Needs {
        let workspaces = Workspaces::least(&self.model.graph);
        Needs { pinned_bytes: self.room.pinned_bytes, workspaces, ..Needs::default() }
    }

    fn simulated(&self) -> Result<Document<Exp1>> {
        let machine = || Card::find(DEFAULT_MACHINE).expect("a known card").machine();
        let machine = self.args.gpu.map_or_else(machine, Card::machine);
        let reserved_bytes = machine.reserved_bytes + self.needs().card_bytes();
        let (options, capacity) = self.room.fill(self.model, reserved_bytes)?;
        let (times, profile) = match &self.profile {
            Some(given) => given.clone(),
            None => {
                let profile = self.room.roofline(self.model, &options, &capacity, &machine)?;
                (format!("the roofline of {}", machine.name), profile)
            }
        };
        let mut document = self.document(capacity, times, profile.clone());
        let mut bed = SimBed { capacity, profile };
        self.conduct(&mut bed, &mut document)?;
        Ok(document)
    }

    fn document(&self, capacity: Capacity, times: String, profile: Profile) -> Document<Exp1> {
        let Experiment { args, load, room, .. } = self;
        let device = if args.simulate { "simulated".to_owned() } else { args.device.device.to_string() };
        let config = Config {
            model: self.model.name.clone(),
            device,
            vram_bytes: args.vram(),
            host_kv_bytes: capacity.host_pages as u64 * room.page_bytes,
            workload: load.description.clone(),
            agents: load.agents,
            context: load.context,
            warm_up_s: load.span.warm_up.as_secs_f64(),
            seconds: (load.span.end - load.span.warm_up).as_secs_f64(),
            seed: args.seed,
        };
        let notes = load.notes.iter().cloned().chain([self.policies.note(args)]).collect();
        let body = Exp1 {
            config,
            contexts_on_device: room.contexts(&capacity, load.shared),
            capacity,
            times,
            profile,
            notes,
            unloaded: None,
            policies: vec![],
            density: None,
        };
        remark(&format!(
            "{} KV pages of {} on the device, {} on the host: {} contexts of {} tokens fit the device",
            body.capacity.device_pages,
            size::human(room.page_bytes),
            body.capacity.host_pages,
            body.contexts_on_device,
            load.context
        ));
        Document::new("exp1", args.device.device, body)
    }

    /// All runs, each kept as soon as it has ended.
    fn conduct(&self, bed: &mut dyn Bed, document: &mut Document<Exp1>) -> Result<()> {
        if let Some(alone) = self.load.alone() {
            remark("one agent alone");
            let span = RunSpan { warm_up: Duration::ZERO, end: ALONE };
            let ran = self.drive(bed, &document.body.profile, "none", &alone, span)?;
            if let Some(why) = ran.report.failure {
                bail!("one agent alone: {why}");
            }
            document.body.unloaded = Some(Unloaded::of(&ran.report)).filter(|unloaded| unloaded.turns > 0);
        }
        interrupt::keep();
        let names = &self.policies.names;
        for (number, policy) in (1..).zip(names) {
            if broken(&document.body) {
                break;
            }
            let (agents, seconds) = (self.load.agents, self.load.span.end.as_secs_f64());
            let of = names.len();
            remark(&format!("{policy}: {agents} agents, {seconds} s at most (policy {number} of {of})"));
            let row = self.row(bed, &document.body.profile, policy, self.load.agents)?;
            remark(&format!(
                "{policy}: {:.1} tokens/s, {} turns, P99 {:.2} s",
                row.tokens_per_s, row.turns, row.p99.latency_s
            ));
            document.body.policies.push(row);
            compare(&mut document.body.policies);
            self.keep(document)?;
        }
        if !self.args.density.is_empty() && !broken(&document.body) {
            self.density(bed, document)?;
        }
        self.keep(document)
    }

    fn keep(&self, document: &Document<Exp1>) -> Result<()> {
        self.args.json.as_ref().map_or(Ok(()), |path| document.write(path))
    }

    fn drive(
        &self,
        bed: &mut dyn Bed,
        profile: &Profile,
        policy: &str,
        workload: &Workload,
        span: RunSpan,
    ) -> Result<Ran> {
        let oracle = Oracle::default();
        let scheduler = self.policies.scheduler(policy, bed.capacity(), profile.cost, &oracle)?;
        bed.run(scheduler, workload, span, &oracle)
    }

    fn row(&self, bed: &mut dyn Bed, profile: &Profile, policy: &str, agents: u32) -> Result<Row> {
        let (workload, span) = (self.load.workload(agents), self.load.span);
        let ran = self.drive(bed, profile, policy, &workload, span)?;
        let mut row = Row::of(policy, ran);
        if self.args.simulate_too && row.failure.is_none() {
            let mut twin = SimBed { capacity: bed.capacity(), profile: profile.clone() };
            let ran = self.drive(&mut twin, profile, policy, &workload, span)?;
            row.simulated = Some(Simulated::of(&ran.report, &row));
        }
        Ok(row)
    }

    /// For each policy more and more agents, until the bound is exceeded.
    fn density(&self, bed: &mut dyn Bed, document: &mut Document<Exp1>) -> Result<()> {
        let unloaded = document.body.unloaded.with_context(|| {
            format!("--density: no turn of one agent alone ended within {} s", ALONE.as_secs())
        })?;
        let bound_s = FACTOR * unloaded.p99_s;
        document.body.density = Some(Density { factor: FACTOR, bound_s, points: vec![] });
        let mut counts = self.args.density.clone();
        counts.sort_unstable();
        counts.dedup();
        for policy in &self.policies.names {
            for &agents in &counts {
                let Some(point) = self.point(bed, &document.body, policy, agents, bound_s)? else {
                    return Ok(());
                };
                let (holds, p99_s) = (point.holds, point.p99.latency_s);
                let verdict = if holds { "holds" } else { "exceeds" };
                remark(&format!("{policy}: {agents} agents: P99 {p99_s:.2} s {verdict} {bound_s:.2} s"));
                document.body.density.as_mut().expect("just made").points.push(point);
                self.keep(document)?;
                if !holds {
                    break;
                }
            }
        }
        Ok(())
    }

    /// One policy under one number of agents; `None` if the run was interrupted.
    fn point(
        &self,
        bed: &mut dyn Bed,
        body: &Exp1,
        policy: &str,
        agents: u32,
        bound_s: f64,
    ) -> Result<Option<Point>> {
        let measured = body.policies.iter().find(|row| row.policy == policy);
        let row = match measured.filter(|_| agents == self.load.agents) {
            Some(row) => row.clone(),
            None => self.row(bed, &body.profile, policy, agents)?,
        };
        if let Some(why) = &row.failure {
            ensure!(interrupt::presses() > 0, "{policy}, {agents} agents: {why}");
            return Ok(None);
        }
        Ok(Some(Point {
            policy: policy.to_owned(),
            agents,
            turns: row.turns,
            p50: row.p50,
            p99: row.p99,
            simulated_p99_s: row.simulated.map(|simulated| simulated.p99_s),
            // Who was refused had no latency.
            holds: row.turns > 0 && row.refused == 0 && row.p99.latency_s <= bound_s,
        }))
    }
}

/// Whether a run ended early: the engine is in no state to go on, or the user does not want to.
fn broken(body: &Exp1) -> bool {
    body.policies.iter().any(|row| row.failure.is_some())
}
