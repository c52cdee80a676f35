//! What a render may use: memory and work, counted before they are spent, and depth.

use crate::error::{Eval, Fault};
use crate::value::Value;
use std::cell::Cell;

/// Memory for values and text that a render makes, in bytes, and for each byte of its input.
const MEMORY: u64 = 128 << 20;
const MEMORY_PER_BYTE: u64 = 8;
/// Units of work, and for each byte of the input. A unit is about a nanosecond: a byte copied, and less than
/// one for a byte that is only looked at.
const WORK: u64 = 400_000_000;
const WORK_PER_BYTE: u64 = 16;

/// Deepest nesting of a value: a list in a list is 2.
pub(crate) const MAX_VALUE_DEPTH: u16 = 160;
/// Deepest nesting of statements, expressions and macro calls while rendering.
const MAX_DEPTH: u32 = 400;

/// Work of writing a float: its shortest digits are searched for.
pub(crate) const FLOAT: u64 = 300;

/// Bytes that an object costs beside its contents.
const OBJECT: usize = 96;

/// The account of one render. All sums are of what was ever made or done: nothing is given back.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: Cell<u64>,
    memory_limit: u64,
    work: Cell<u64>,
    depth: Cell<u32>,
}

impl Budget {
    /// The account for an input of `input_bytes`.
    pub(crate) fn new(input_bytes: u64) -> Self {
        let memory = MEMORY.saturating_add(MEMORY_PER_BYTE.saturating_mul(input_bytes));
        let work = WORK.saturating_add(WORK_PER_BYTE.saturating_mul(input_bytes));
        Self { memory: Cell::new(memory), memory_limit: memory, work: Cell::new(work), depth: Cell::new(0) }
    }

    /// Counts work, in units.
    pub(crate) fn work(&self, units: u64) -> Eval<()> {
        let left = self.work.get().checked_sub(units);
        self.work.set(left.ok_or_else(|| Fault::Limit("takes too long".into()))?);
        Ok(())
    }

    /// Counts the work of reading a text once; of other values what is done with them counts.
    pub(crate) fn look_at(&self, value: &Value) -> Eval<()> {
        self.work(value.as_str().map_or(0, |text| text.len() as u64))
    }

    /// Counts the work of finding a part in a text: a search reads both, the part several times before it begins.
    pub(crate) fn find(&self, text: &str, part: &str) -> Eval<()> {
        self.work(text.len() as u64 + part.len() as u64 * 8)
    }

    /// Counts bytes that are about to be allocated, and the work of filling them.
    pub(crate) fn bytes(&self, bytes: usize) -> Eval<()> {
        let left = self.memory.get().checked_sub(bytes as u64);
        let limit = self.memory_limit >> 20;
        let refused = || Fault::Limit(format!("made more than {limit} MiB of text and lists"));
        self.memory.set(left.ok_or_else(refused)?);
        self.work(bytes as u64)
    }

    /// Counts an object with a list of items of `T`.
    pub(crate) fn items<T>(&self, count: usize) -> Eval<()> {
        self.bytes(OBJECT.saturating_add(count.saturating_mul(size_of::<T>())))
    }

    /// Does something one level deeper, as far as the stack's limit.
    pub(crate) fn deeper<T>(&self, run: impl FnOnce() -> Eval<T>) -> Eval<T> {
        if self.depth.get() == MAX_DEPTH {
            return Err(Fault::Limit(format!("nests more than {MAX_DEPTH} calls and blocks")));
        }
        self.depth.set(self.depth.get() + 1);
        let found = run();
        self.depth.set(self.depth.get() - 1);
        found
    }
}
