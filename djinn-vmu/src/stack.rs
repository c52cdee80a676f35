//! The stack segment: activations at offsets planned once.

use crate::{Allocations, Result};
use djinn_device::{Buffer, Device, Space, Span};
use djinn_srg::{Graph, Rows, StackPlan, ValueId};

/// One arena for all activations and step inputs. Nothing is allocated during a step.
#[derive(Debug)]
pub struct StackSegment {
    buffer: Buffer,
    plan: StackPlan,
}

impl StackSegment {
    /// Allocates the arena of `plan`.
    ///
    /// # Errors
    /// A device out of memory.
    pub fn new<D: Device>(device: &D, plan: StackPlan, held: &mut Allocations) -> Result<Self> {
        Ok(StackSegment { buffer: held.alloc(device, Space::Device, plan.bytes)?, plan })
    }

    /// The bytes of a stack value in a step of `rows`.
    ///
    /// # Panics
    /// If the step is larger than the plan's.
    pub fn span(&self, graph: &Graph, value: ValueId, rows: Rows) -> Span {
        let most = self.plan.rows;
        assert!(
            rows.rows <= most.rows && rows.logit_rows <= most.logit_rows,
            "a step of {rows:?} on a stack of {most:?}"
        );
        self.buffer.slice(self.plan.offset(value), graph.value(value).bytes(rows))
    }

    /// The first bytes, which hold the step's inputs.
    pub fn inputs(&self) -> Span {
        self.buffer.slice(0, self.plan.input_bytes)
    }

    /// Offsets and sizes.
    pub fn plan(&self) -> &StackPlan {
        &self.plan
    }
}
