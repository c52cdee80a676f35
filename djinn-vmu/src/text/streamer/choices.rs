//! Routers' choices in a pass: which copies of experts' weights may be enqueued, what they wait for, and which of them
//! moved bytes.
//!
//! The device decides whether such a copy moves bytes, by the slots of its expert. So it may be enqueued once the
//! choice is, and runs once the choice is known.

use crate::text::mirror::Mirror;
use crate::text::slot::Slot;
use crate::{Allocations, Result};
use djinn_device::args::CopyExpert;
use djinn_device::{Device, Event, Ops, Span, Stream};
use djinn_srg::{Condition, NodeId};

/// Device bytes for each section of streamed chunks: whether a pass moved it.
pub(crate) const FLAG_BYTES: u64 = 4;

/// The choices that streamed chunks depend on.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    groups: Vec<Group>,
    /// By section: whether its bytes were moved. `None` if every pass moves all.
    flags: Option<Mirror>,
    /// The flags of the latest ended pass.
    moved: Vec<bool>,
}

/// One router's choice.
#[derive(Debug)]
struct Group {
    node: NodeId,
    /// The choice is known.
    known: Event,
    /// Its choice in the present pass; `None` before it is announced.
    choice: Option<Choice>,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    /// The first slot of each expert.
    starts: Span,
    /// Uses whose end was recorded before the choice.
    released: u64,
    /// Whether the copy stream has waited for it.
    waited: bool,
}

impl Choices {
    /// For a pass's slots.
    pub(crate) fn new<D: Device>(device: &D, held: &mut Allocations, slots: &[Slot]) -> Result<Self> {
        let sections = slots.iter().map(|slot| slot.sections.len()).sum();
        let mut choices = Choices { moved: vec![true; sections], ..Choices::default() };
        for router in slots.iter().filter_map(Slot::router) {
            if choices.group(router).is_none() {
                let known = held.event(device)?;
                choices.groups.push(Group { node: router, known, choice: None });
            }
        }
        if !choices.groups.is_empty() {
            choices.flags = Some(Mirror::new(device, held, FLAG_BYTES * sections as u64)?);
        }
        Ok(choices)
    }

    fn group(&mut self, node: NodeId) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.node == node)
    }

    fn choice(&self, router: NodeId) -> Option<Choice> {
        self.groups.iter().find(|group| group.node == router)?.choice
    }

    /// Announces that the choice of `node` was enqueued on `compute` after the end of `released` uses. Copies that
    /// begin when they are needed come after it, and need no event.
    pub(crate) fn announce<D: Device>(
        &mut self,
        device: &D,
        compute: Stream,
        node: NodeId,
        starts: Span,
        released: u64,
        blocking: bool,
    ) -> Result<()> {
        let Some(group) = self.group(node) else { return Ok(()) };
        if !blocking {
            device.record(compute, group.known)?;
        }
        group.choice = Some(Choice { starts, released, waited: blocking });
        Ok(())
    }

    /// Whether the router's choice was announced in this pass.
    pub(crate) fn announced(&self, router: NodeId) -> bool {
        self.choice(router).is_some()
    }

    /// The event that a copy for the router's experts must wait for, and the number of uses that have ended after it. `None`
    /// if the copy stream has waited for it, or for later uses.
    pub(crate) fn wait_for(&mut self, router: NodeId, waited: u64) -> Option<(Event, u64)> {
        let Group { known, choice, .. } = self.group(router)?;
        let choice = choice.as_mut().filter(|choice| !choice.waited && waited <= choice.released)?;
        choice.waited = true;
        Some((*known, choice.released))
    }

    /// Enqueues the copy of a slot: of experts' sections, those that the pass uses.
    pub(crate) fn copy<D: Ops>(&self, device: &D, stream: Stream, slot: &Slot) -> Result<()> {
        let Some(router) = slot.router() else {
            let mut parts = slot.copy.parts.iter();
            return Ok(parts.try_for_each(|&(host, ring)| device.copy(stream, host, ring))?);
        };
        let chunk = slot.chunk.0;
        let choice = self.choice(router);
        let Choice { starts, .. } =
            choice.unwrap_or_else(|| panic!("chunk {chunk} is copied before {router:?} was announced"));
        let flags = self.flags.as_ref().expect("there are experts").device;
        let mut copies = Vec::new();
        for (index, section) in (slot.first_section..).zip(&slot.sections) {
            let moved = flags.slice(FLAG_BYTES * index as u64, FLAG_BYTES);
            let Condition { expert, experts, .. } = section.condition.expect("all sections are experts'");
            let copy = |&(src, dst)| CopyExpert { src, dst, starts, moved, expert, experts };
            copies.extend(section.parts.iter().map(copy));
        }
        CopyExpert::check_all(&copies);
        Ok(device.copy_experts(stream, &copies)?)
    }

    /// Enqueues reading the flags back, after the last slot's copy.
    pub(crate) fn read_back<D: Device>(&self, device: &D, compute: Stream) -> Result<()> {
        self.flags.as_ref().map_or(Ok(()), |flags| flags.enqueue(device, compute))
    }

    /// Drops the choices of a pass that is over or will not run.
    pub(crate) fn forget(&mut self) {
        self.groups.iter_mut().for_each(|group| group.choice = None);
    }

    /// Reads the flags of a pass that is done.
    pub(crate) fn end_pass<D: Device>(&mut self, device: &D, slots: &[Slot]) {
        self.forget();
        let Choices { flags: Some(flags), moved, .. } = self else { return };
        let conditions = slots.iter().flat_map(|slot| slot.sections.iter().map(|section| section.condition));
        flags.read(device, |bytes| {
            let flags =
                bytes.chunks_exact(FLAG_BYTES as usize).map(|flag| flag.iter().any(|&byte| byte != 0));
            for ((moved, flag), condition) in moved.iter_mut().zip(flags).zip(conditions) {
                *moved = flag || condition.is_none();
            }
        });
    }

    /// By section: whether the latest ended pass moved its bytes.
    pub(crate) fn moved(&self) -> &[bool] {
        &self.moved
    }
}
