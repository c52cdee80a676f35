//! What fits: the KV pages that a budget leaves on the device and on the host, and the rows of steps.

use super::load::Load;
use crate::args::Exp1Args;
use crate::size;
use anyhow::{Context, Result, bail, ensure};
use djinn_engine::Options;
use djinn_host::{DeviceName, Setup, system};
use djinn_models::Model;
use djinn_scheduler::sim::{Profile, StepTimes};
use djinn_scheduler::{Capacity, CostModel};
use djinn_srg::cost::Work;
use djinn_vmu::{Machine, predict};

/// Sessions that a step holds at most.
const MOST_SEQUENCES: u32 = 256;
/// Device bytes left free for measuring the link, as a share of the budget, within bounds.
const PROBE_SHARE: u64 = 256;
const LEAST_PROBE: u64 = 4 << 10;
const MOST_PROBE: u64 = 16 << 20;
/// What the host holds beside weights and pages: inputs, logits, staging.
const BESIDE: u64 = 256 << 20;

/// A model's memory for the experiment.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// For the engine; how many KV pages the device has is not chosen yet.
    pub(super) options: Options,
    /// KV pages that hold a whole context.
    pub(super) context_pages: u32,
    pub(super) page_bytes: u64,
    /// Rows of a step, if pages leave room for as many.
    rows: u32,
    /// Rows of a step in which sessions decode; `None`: as many.
    rows_beside_decodes: Option<u32>,
    /// Host memory that will be taken at most.
    pub(super) pinned_bytes: u64,
    /// Device and host bytes of each of two buffers in which the link is measured.
    pub(super) probe_bytes: u64,
    /// The most sessions at once that the experiment wants room for.
    most: u32,
    vram: u64,
}

impl Room {
    /// Everything but the number of device pages, which depends on what the device takes for itself. Keys and values
    /// are as `device` keeps them.
    pub(super) fn new(args: &Exp1Args, device: DeviceName, model: &Model, load: &Load) -> Result<Self> {
        let most = args.density.iter().copied().chain([load.agents]).max().unwrap_or(1);
        let setup = Setup { device, ..Setup::default() };
        let options = setup.options_for(model, load.context)?;
        let mut options = options.serving(most.clamp(1, MOST_SEQUENCES));
        // Chunks are whole pages.
        let pages = options.context.div_ceil(options.page_tokens as u64) as u32;
        options.prefill_rows = options.prefill_rows.min(pages * options.page_tokens);
        // Weights that stream would hide what pages cost.
        options.budget.resident_fraction = Some(1.0);
        let context_pages = u32::try_from(options.context.div_ceil(options.page_tokens as u64))?;
        let plan = with_pages(&options, context_pages, None).plan(&model.graph, 0)?;
        let page_bytes = plan.kv.page_bytes();
        let weights = plan.host_weight_bytes();
        options.host_pages = host_pages(args, most, context_pages, page_bytes, weights)?;
        options.budget.ram = args.ram;
        let plan = with_pages(&options, context_pages, None).plan(&model.graph, 0)?;
        Ok(Room {
            context_pages,
            page_bytes,
            rows: u32::try_from(plan.stack.rows.rows)?,
            rows_beside_decodes: options.rows_beside_decodes(&model.graph, &plan),
            pinned_bytes: plan.host_bytes.saturating_add(BESIDE),
            probe_bytes: (args.vram() / PROBE_SHARE).clamp(LEAST_PROBE, MOST_PROBE) & !0xfff,
            most,
            vram: args.vram(),
            options,
        })
    }

    /// Options with as many device pages as the budget leaves, on a device that takes `reserved_bytes` for itself, and
    /// the capacity that the scheduler is told of. There are no more pages than all agents' contexts need.
    ///
    /// Steps stay as long as they are without pages, unless one more context fits beside shorter ones. Shorter steps have at
    /// least the rows of those in which sessions decode.
    pub(super) fn fill(&self, model: &Model, reserved_bytes: u64) -> Result<(Options, Capacity)> {
        // The probe's two buffers are beside the plan.
        let vram = self.vram.saturating_sub(2 * self.probe_bytes);
        let rows = |pages| {
            let plan = with_pages(&self.options, pages, Some(vram)).plan(&model.graph, reserved_bytes);
            plan.ok().and_then(|plan| u32::try_from(plan.stack.rows.rows).ok())
        };
        let fits = |pages, least| rows(pages).is_some_and(|rows| rows >= least);
        let shortest = self.rows_beside_decodes.map_or(self.rows, |rows| rows.min(self.rows));
        if !fits(self.context_pages, shortest) {
            let prompt = shortest.saturating_sub(self.options.decode_rows);
            let prefill_chunks = prompt.div_ceil(self.options.prefill_rows).max(1);
            let short = Options { prefill_chunks, ..self.options.clone() };
            let free = with_pages(&short, self.context_pages, None).plan(&model.graph, reserved_bytes)?;
            // The probe takes its share of whatever the budget is.
            let total = free.segments.total() + 2 * LEAST_PROBE;
            let least = (total + total / (PROBE_SHARE / 2 - 1) + 1).min(total + 2 * MOST_PROBE);
            bail!(
                "--vram {} does not hold {}, its activations and the KV pages of one context of {} tokens, which exp1 \
                 keeps on the device; give {least} bytes ({}) or more",
                size::human(self.vram),
                model.name,
                self.options.context,
                size::human(least)
            );
        }
        let useful = self.context_pages.saturating_mul(self.most);
        // The most pages beside steps of `least` rows.
        let most = |least| {
            let (mut pages, mut above) = (0, useful.saturating_add(1));
            while above - pages > 1 {
                let middle = pages + (above - pages) / 2;
                *(if fits(middle, least) { &mut pages } else { &mut above }) = middle;
            }
            pages
        };
        let contexts = |pages: u32| pages / self.context_pages;
        let (mut pages, more) = (most(self.rows), most(shortest));
        if contexts(more) > contexts(pages) {
            pages = more;
        }
        let options = with_pages(&self.options, pages, Some(vram));
        let capacity = Capacity {
            device_pages: pages,
            host_pages: options.host_pages,
            page_tokens: options.page_tokens,
            rows: rows(pages).context("a plan that fitted no longer fits")?,
            sequences: options.sequences,
            chunk: options.prefill_rows,
            rows_beside_decodes: self.rows_beside_decodes,
        };
        Ok((options, capacity))
    }

    /// Whole contexts that a device of this capacity holds where all first prompts begin with the same `shared` tokens.
    /// Pages are shared in whole prefill chunks and count once.
    pub(super) fn contexts(&self, capacity: &Capacity, shared: u64) -> u32 {
        let chunk = u64::from(capacity.chunk);
        let shared = (shared / chunk * chunk / u64::from(capacity.page_tokens)) as u32;
        (capacity.device_pages - shared) / (self.context_pages - shared)
    }

    /// Times as a machine's roofline gives them.
    pub(super) fn roofline(
        &self,
        model: &Model,
        options: &Options,
        capacity: &Capacity,
        machine: &Machine,
    ) -> Result<Profile> {
        let plan = options.plan(&model.graph, machine.reserved_bytes)?;
        let seconds = |work: &Work| predict(&model.graph, &plan, work, machine).seconds;
        let prompt = capacity.rows - options.decode_rows;
        let batches = grid(1, options.sequences);
        let contexts = vec![options.context.div_ceil(4), options.context];
        let ms =
            |batch: u32, context: u64| seconds(&Work::decode(batch as u64, context, options.kv_dtype)) * 1e3;
        let row = |&batch: &u32| contexts.iter().map(|&context| ms(batch, context)).collect();
        let ms = batches.iter().map(row).collect();
        let cost = CostModel {
            page_bytes: self.page_bytes,
            out_bytes_per_s: machine.link,
            in_bytes_per_s: machine.link,
            prefill_tokens_per_s: f64::from(prompt)
                / seconds(&Work::prefill(prompt.into(), options.kv_dtype)),
        };
        let decode = StepTimes { sizes: batches, contexts, ms };
        let tokens = grid(LEAST_CHUNK, prompt);
        let ms = |&size: &u32| vec![seconds(&Work::prefill(size.into(), options.kv_dtype)) * 1e3];
        let chunk = Some(StepTimes { ms: tokens.iter().map(ms).collect(), sizes: tokens, contexts: vec![0] });
        // What both directions at once, and a copy beside a step, cost on PCIe of the fifth generation.
        let profile = Profile {
            cost,
            both_ways_bytes_per_s: 0.9 * machine.link,
            slowed_by_copies: 1.02,
            decode,
            chunk,
        };
        profile.check()?;
        Ok(profile)
    }
}

/// The smallest chunk of a prompt in a table of times; shorter ones are on the line through the first two.
pub(super) const LEAST_CHUNK: u32 = 64;

/// Points from `low` to `high`, each twice the one before, but for the last; `high` alone if `low` is above it.
pub(super) fn grid(low: u32, high: u32) -> Vec<u32> {
    let doubling = std::iter::successors(Some(low.max(1)), |&x: &u32| x.checked_mul(2));
    doubling.take_while(|&x| x < high).chain([high.max(1)]).collect()
}

fn with_pages(options: &Options, pages: u32, vram: Option<u64>) -> Options {
    let mut options = Options { pages: Some(pages), ..options.clone() };
    options.budget.vram = vram;
    options
}

/// Pages on the host: as asked for, else those of every agent's context, within half of the machine's memory where
/// they are really taken.
fn host_pages(
    args: &Exp1Args,
    agents: u32,
    context_pages: u32,
    page_bytes: u64,
    weights: u64,
) -> Result<u32> {
    let pages = |bytes: u64| u32::try_from(bytes / page_bytes).unwrap_or(u32::MAX);
    match args.host_kv {
        Some(0) => Ok(0),
        Some(bytes) => {
            ensure!(
                bytes >= page_bytes,
                "--host-kv {} is less than a KV page, {}; give that or more, or 0 for none",
                size::human(bytes),
                size::human(page_bytes)
            );
            Ok(pages(bytes))
        }
        None => {
            let half = match args.simulate {
                true => Some(u64::MAX),
                false => system::memory().map(|memory| memory.total / 2),
            };
            let ram = args.ram.or(half).context("cannot tell the machine's memory; give --ram")?;
            Ok(pages(ram.saturating_sub(weights))
                .min(agents.min(MOST_SEQUENCES).saturating_mul(context_pages)))
        }
    }
}
