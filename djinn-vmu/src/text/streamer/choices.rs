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

/// Device bytes for each streamed chunk that a pass may skip: whether it was moved.
pub(crate) const FLAG_BYTES: u64 = 4;

/// The choices that streamed chunks depend on.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    groups: Vec<Group>,
    /// By slot: whether its copy moved bytes. `None` if every pass moves all.
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
        let mut choices = Choices { moved: vec![true; slots.len()], ..Choices::default() };
        for condition in slots.iter().filter_map(|slot| slot.condition) {
            if choices.group(condition.group).is_none() {
                let known = held.event(device)?;
                choices.groups.push(Group { node: condition.group, known, choice: None });
            }
        }
        if !choices.groups.is_empty() {
            choices.flags = Some(Mirror::new(device, held, FLAG_BYTES * slots.len() as u64)?);
        }
        Ok(choices)
    }

    fn group(&mut self, node: NodeId) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.node == node)
    }

    fn choice(&self, condition: Condition) -> Option<Choice> {
        self.groups.iter().find(|group| group.node == condition.group)?.choice
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

    /// Whether the choice was announced in this pass.
    pub(crate) fn announced(&self, condition: Condition) -> bool {
        self.choice(condition).is_some()
    }

    /// The event that a copy under `condition` must wait for, and the number of uses that have ended after it. `None`
    /// if the copy stream has waited for it, or for later uses.
    pub(crate) fn wait_for(&mut self, condition: Condition, waited: u64) -> Option<(Event, u64)> {
        let Group { known, choice, .. } = self.group(condition.group)?;
        let choice = choice.as_mut().filter(|choice| !choice.waited && waited <= choice.released)?;
        choice.waited = true;
        Some((*known, choice.released))
    }

    /// Enqueues the copy of a part of a slot, which happens if the pass uses it.
    pub(crate) fn copy<D: Ops>(
        &self,
        device: &D,
        stream: Stream,
        (index, slot): (usize, &Slot),
        [src, dst]: [Span; 2],
    ) -> Result<()> {
        let Some(condition) = slot.condition else { return Ok(device.copy(stream, src, dst)?) };
        let choice = self.choice(condition);
        let Choice { starts, .. } =
            choice.unwrap_or_else(|| panic!("slot {index} is copied before {condition:?} was announced"));
        let flags = self.flags.as_ref().expect("there are slots with conditions");
        let moved = flags.device.slice(FLAG_BYTES * index as u64, FLAG_BYTES);
        let Condition { expert, experts, .. } = condition;
        let args = CopyExpert { src, dst, starts, moved, expert, experts };
        args.check();
        Ok(device.copy_expert(stream, &args)?)
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
        flags.read(device, |bytes| {
            let flags =
                bytes.chunks_exact(FLAG_BYTES as usize).map(|flag| flag.iter().any(|&byte| byte != 0));
            for ((moved, flag), slot) in moved.iter_mut().zip(flags).zip(slots) {
                *moved = flag || slot.condition.is_none();
            }
        });
    }

    /// By slot: whether the latest ended pass moved its bytes.
    pub(crate) fn moved(&self) -> &[bool] {
        &self.moved
    }
}
