//! Turns a batch's interventions into copies and operations, each after a launch.

use super::kv::{KvAccess, KvAct, LayerCache};
use super::{Act, Captured, Edit, Intervention, of_logits};
use crate::debug::{KvRange, KvValues};
use crate::parts::Parts;
use crate::pass::batch::Layout;
use crate::{BatchEntry, Error, Result};
use djinn_device::args::EditRows;
use djinn_device::{Buffer, Device, Ops, Span, Stream};
use djinn_srg::{Dim, Graph, NodeId, Rows, ValueId};
use djinn_vmu::{Launch, Program};
use std::ops::Range;

/// Alignment of vectors and captures in host memory.
const ALIGN: u64 = 16;

/// The work of a step at hooks.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// In order of launch.
    work: Vec<AtLaunch>,
    captures: Vec<Capture>,
    caches: Vec<CacheRead>,
}

/// The values that a step has read.
#[derive(Debug, Default)]
pub(crate) struct ReadBack {
    /// In the order of the entries and their interventions.
    pub(crate) captured: Vec<Captured>,
    /// Keys and values, each with the entry of the batch, in order.
    pub(crate) caches: Vec<(usize, KvValues)>,
}

/// Work right after a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AtLaunch {
    /// The launch, and one of its nodes: the first, or the one fused with it.
    at: (usize, NodeId),
    work: Work,
}

/// The operation to enqueue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Copy(Span, Span),
    Edit(EditRows),
}

/// Where a capture's rows go in host memory: whole rows, even if only some columns are wanted.
#[derive(Debug)]
struct Capture {
    entry: usize,
    hook: String,
    tokens: Vec<Range<usize>>,
    span: Span,
    row: usize,
    columns: Range<usize>,
}

/// Where a layer's keys and values go in host memory: whole parts of pages.
#[derive(Debug)]
struct CacheRead {
    entry: usize,
    range: KvRange,
    cache: LayerCache,
    span: Span,
}

/// Divides host memory into pieces.
struct Staging {
    left: Option<Span>,
}

impl Staging {
    fn take(&mut self, hook: &str, bytes: u64) -> Result<Span> {
        let taken = bytes.next_multiple_of(ALIGN);
        let have = self.left.map_or(0, |left| left.len());
        let Some(left) = self.left.filter(|_| taken <= have) else {
            let detail = format!("the step's interventions need {} more bytes of `hook_bytes`", taken - have);
            return Err(Error::Intervention { hook: hook.to_owned(), detail });
        };
        self.left = Some(left.slice(taken, have - taken));
        Ok(left.slice(0, bytes))
    }
}

/// Binds a batch's interventions and its accesses to keys and values in pages. Writes their vectors to host memory.
///
/// # Errors
/// What does not fit the entry, the hook or the hook memory.
pub(crate) fn bind<D: Device>(
    device: &D,
    parts: &Parts,
    batch: &[BatchEntry<'_>],
    layout: &Layout,
    accesses: &[KvAccess<'_>],
) -> Result<Bound> {
    let (mut bound, rows) = (Bound::default(), layout.rows());
    let mut staging = Staging { left: parts.hooks.map(Buffer::span) };
    for (entry, BatchEntry { tokens, from, interventions, .. }) in batch.iter().enumerate() {
        for intervention in *interventions {
            intervention.check(tokens.len())?;
            let rows_of = rows_of(&parts.graph, intervention, layout, entry, *from)?;
            let launch = launch_of(&parts.program, intervention.hook.after);
            let at = (launch, intervention.hook.after);
            let mut push = |work| bound.work.push(AtLaunch { at, work });
            match &intervention.act {
                Act::Capture => {
                    let capture =
                        capture(parts, intervention, entry, &rows_of, rows, &mut staging, &mut push)?;
                    bound.captures.push(capture);
                }
                Act::Edit(edit) if edit.is_nothing() => {}
                Act::Edit(edit) => {
                    push(Work::Edit(edit_rows(
                        device,
                        parts,
                        intervention,
                        edit,
                        &rows_of,
                        rows,
                        &mut staging,
                    )?));
                }
            }
        }
    }
    for KvAccess { entry, act } in accesses {
        let pages = batch[*entry].pages;
        match act {
            KvAct::Read(range) => {
                let cache = cache_of(parts, range)?;
                let bytes = cache.staged_bytes(&range.positions);
                let span = staging.take("the cache", bytes)?;
                let at = (launch_of(&parts.program, cache.writer), cache.writer);
                let mut copy = |from, to| bound.work.push(AtLaunch { at, work: Work::Copy(from, to) });
                cache.read(parts, pages, &range.positions, span, &mut copy);
                bound.caches.push(CacheRead { entry: *entry, range: (*range).clone(), cache, span });
            }
            KvAct::Write(written) => {
                let cache = cache_of(parts, &written.range)?;
                let span = staging.take("the cache", written.bytes.len() as u64)?;
                // The first launch belongs to no block.
                let at = (0, NodeId(0));
                let mut copy = |from, to| bound.work.push(AtLaunch { at, work: Work::Copy(from, to) });
                cache.write(device, parts, pages, written, span, &mut copy);
            }
        }
    }
    // A stable sort: work at one place keeps its order.
    bound.work.sort_by_key(|work| work.at);
    Ok(bound)
}

fn cache_of(parts: &Parts, range: &KvRange) -> Result<LayerCache> {
    LayerCache::of(parts, range.layer).ok_or_else(|| Error::UnknownHook(format!("blocks.{}", range.layer)))
}

/// The rows of a hook's value that belong to an intervention's tokens.
fn rows_of(graph: &Graph, of: &Intervention, layout: &Layout, entry: usize, from: u64) -> Result<Vec<u32>> {
    let row = |token: usize| -> Option<u32> {
        let position = (from + token as u64) as u32;
        let mut rows = layout.row_seq.iter().zip(&layout.positions);
        let row = rows.position(|(&seq, &at)| seq as usize == entry && at == position)? as u32;
        match of_logits(graph, &of.hook) {
            true => layout.wanted.iter().position(|&wanted| wanted == row).map(|row| row as u32),
            false => Some(row),
        }
    };
    let rows: Option<Vec<u32>> = of.tokens.iter().cloned().flatten().map(row).collect();
    rows.ok_or_else(|| of.fail("only tokens whose logits are wanted have a row there"))
}

/// The last launch that computes a node. A product in tiles has one for each tile.
fn launch_of(program: &Program, node: NodeId) -> usize {
    let computes = |at: &Launch| at.nodes().any(|of| of == node);
    program.launches.iter().rposition(computes).expect("a program computes every node")
}

fn capture(
    parts: &Parts,
    of: &Intervention,
    entry: usize,
    rows_of: &[u32],
    rows: Rows,
    staging: &mut Staging,
    push: &mut impl FnMut(Work),
) -> Result<Capture> {
    let value = parts.stack.span(&parts.graph, of.hook.value, rows);
    let row_bytes = value.len() / parts.graph.value(of.hook.value).rows(rows);
    let span = staging.take(&of.hook.name, row_bytes * rows_of.len() as u64)?;
    // One copy for each run of adjacent rows.
    let mut at = 0;
    for run in rows_of.chunk_by(|a, b| a + 1 == *b) {
        let bytes = row_bytes * run.len() as u64;
        push(Work::Copy(value.slice(u64::from(run[0]) * row_bytes, bytes), span.slice(at, bytes)));
        at += bytes;
    }
    let (first, count) = of.hook.columns;
    let columns = first as usize..(first + count) as usize;
    let (hook, tokens) = (of.hook.name.clone(), of.tokens.clone());
    Ok(Capture { entry, hook, tokens, span, row: row_bytes as usize / 4, columns })
}

fn edit_rows<D: Device>(
    device: &D,
    parts: &Parts,
    of: &Intervention,
    edit: &Edit,
    rows_of: &[u32],
    rows: Rows,
    staging: &mut Staging,
) -> Result<EditRows> {
    let x = parts.stack.span(&parts.graph, of.hook.value, rows);
    let x_width = x.len() / parts.graph.value(of.hook.value).rows(rows) / 4;
    let (column, width) = of.hook.columns;
    let count = rows_of.len();
    let mut take = |bytes| staging.take(&of.hook.name, bytes);
    let indices = take(count as u64 * 4)?;
    let add_rows = if edit.is_same_for_all(width as usize) { 1 } else { count };
    let (direction, add) = (take(width * 4)?, take(add_rows as u64 * width * 4)?);
    device.write_host(indices, |bytes| bytes.copy_from_slice(bytemuck::cast_slice(rows_of)));
    device.write_host(direction, |bytes| repeat(&edit.direction, bytes));
    device.write_host(add, |bytes| repeat(&edit.add, bytes));
    let &Edit { scale, along, low, high, .. } = edit;
    Ok(EditRows {
        x,
        indices,
        direction,
        add,
        scale,
        along,
        low,
        high,
        column: column as u32,
        width: width as u32,
        x_width: x_width as u32,
        rows: count as u32,
        add_rows: add_rows as u32,
    })
}

/// Fills `bytes` with copies of `values`, or with zeros if there are none.
fn repeat(values: &[f32], bytes: &mut [u8]) {
    if values.is_empty() {
        return bytes.fill(0);
    }
    let values: &[u8] = bytemuck::cast_slice(values);
    bytes.chunks_mut(values.len()).for_each(|part| part.copy_from_slice(&values[..part.len()]));
}

impl Bound {
    /// All work to enqueue. Steps with equal work enqueue the same calls.
    pub(crate) fn work(&self) -> &[AtLaunch] {
        &self.work
    }

    /// Whether some of it follows a node that gives a row for each slot of experts.
    pub(crate) fn are_at_slots(&self, graph: &Graph) -> bool {
        let of_slots = |id: &ValueId| matches!(graph.value(*id).shape.first(), Some(Dim::Slots(_)));
        self.work.iter().any(|work| graph.node(work.at.1).outputs.iter().any(of_slots))
    }

    /// The values that a finished step has read.
    pub(crate) fn read<D: Device>(self, device: &D) -> ReadBack {
        let read = |capture: Capture| {
            let Capture { entry, hook, tokens, span, row, columns } = capture;
            let values = device.read_host(span, |bytes| {
                let rows = bytes.chunks_exact(row * 4);
                let wanted = rows.flat_map(|row| &row[4 * columns.start..4 * columns.end]);
                let wanted: Vec<u8> = wanted.copied().collect();
                bytemuck::pod_collect_to_vec(&wanted)
            });
            Captured { entry, hook, tokens, values }
        };
        let cache = |CacheRead { entry, range, cache, span }: CacheRead| {
            (entry, device.read_host(span, |bytes| cache.values(range, bytes)))
        };
        ReadBack {
            captured: self.captures.into_iter().map(read).collect(),
            caches: self.caches.into_iter().map(cache).collect(),
        }
    }
}

/// The work at hooks that a pass has not enqueued yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending<'a>(pub(crate) &'a [AtLaunch]);

impl Pending<'_> {
    /// Whether there is work within a launch or right after it.
    pub(crate) fn are_at(&self, launch: usize) -> bool {
        self.0.first().is_some_and(|work| work.at.0 == launch)
    }

    /// Enqueues the work up to a launch's first node, which another one is fused with.
    pub(crate) fn enqueue_within<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        launch: usize,
        node: NodeId,
    ) -> Result<()> {
        self.enqueue_while(device, compute, |at| at <= (launch, node))
    }

    /// Enqueues the work up to the end of a launch.
    pub(crate) fn enqueue_after<D: Ops>(&mut self, device: &D, compute: Stream, launch: usize) -> Result<()> {
        self.enqueue_while(device, compute, |at| at.0 <= launch)
    }

    fn enqueue_while<D: Ops>(
        &mut self,
        device: &D,
        compute: Stream,
        is_due: impl Fn((usize, NodeId)) -> bool,
    ) -> Result<()> {
        while let Some((AtLaunch { at, work }, later)) = self.0.split_first()
            && is_due(*at)
        {
            match work {
                &Work::Copy(from, to) => device.copy_promptly(compute, from, to)?,
                Work::Edit(edit) => {
                    edit.check();
                    device.edit_rows(compute, edit)?;
                }
            }
            self.0 = later;
        }
        Ok(())
    }
}
