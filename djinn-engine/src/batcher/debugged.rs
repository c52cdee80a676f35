//! Sessions at hooks: what a step does there, and the memory it may use.

use super::Batcher;
use super::conversation::Conversation;
use crate::debug::{
    DebugSetup, Demand, EntryTokens, Judged, KvRange, KvValues, Look, Record, Sizes, Steering, Step,
};
use crate::hooks::{KvAccess, KvAct, LayerCache, of_logits};
use crate::{Captured, Error, Result};
use djinn_device::Ops;
use djinn_scheduler::SessionId;
use djinn_srg::{Dim, Graph, Hook};

/// Bytes of one row of a hook's value, all columns included.
fn row_bytes(graph: &Graph, hook: &Hook) -> u64 {
    match graph.value(hook.value).shape.as_slice() {
        [_, Dim::Fixed(width)] => width * 4,
        shape => panic!("a hook is rows of columns, not {shape:?}"),
    }
}

impl<D: Ops> Batcher<D> {
    /// The work of a step at hooks for `tokens` tokens of a session, if the session has a record.
    pub(super) fn step_at_hooks(&self, id: SessionId, from: u64, tokens: u64, yields: bool) -> Option<Step> {
        let conversation = &self.conversations[&id];
        let record = conversation.record.as_ref()?;
        let graph = self.engine.graph();
        Some(record.step(&conversation.entry(from, tokens, yields), &|hook| of_logits(graph, hook)))
    }

    /// A session's record of breakpoints, changes and captures.
    ///
    /// # Errors
    /// An unknown session.
    pub(crate) fn record(&self, id: SessionId) -> Result<Option<&Record>> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        Ok(conversation.record.as_deref())
    }

    /// The same, mutable. Creates the record if there is none.
    ///
    /// # Errors
    /// An unknown session.
    pub(crate) fn record_mut(&mut self, id: SessionId) -> Result<&mut Record> {
        let conversation = self.conversations.get_mut(&id).ok_or(Error::NoSession { session: id.0 })?;
        let computed = conversation.computed;
        Ok(conversation.record.get_or_insert_with(|| Box::new(Record::after(computed))))
    }

    /// Replaces a session's steering, from the tokens at which it is stopped, or from the first that no step has
    /// begun.
    ///
    /// # Errors
    /// An unknown session.
    pub(crate) fn steer(&mut self, id: SessionId, steering: Vec<Steering>) -> Result<()> {
        let computed = self.conversations.get(&id).map_or(0, |conversation| conversation.computed);
        let record = self.record_mut(id)?;
        let from = record.paused_at().map_or(computed, |at| at.positions.start);
        record.steer(steering, from);
        Ok(())
    }

    /// Gives a new session its breakpoints and steering, beside the changes that a fork has from its parent. `salted`
    /// says that the salt of its prefixes contains the steering.
    pub(crate) fn set_up(&mut self, id: SessionId, setup: DebugSetup, salted: bool) {
        if let Ok(record) = self.record_mut(id) {
            record.set_up(setup, salted);
        }
    }

    pub(crate) fn hook_bytes(&self) -> u64 {
        self.engine.hook_bytes()
    }

    /// Checks that no step can need more hook memory than there is, with `more` added to the demand of session `of`,
    /// or of a new session. Nothing more is always allowed.
    ///
    /// # Errors
    /// [`Error::HookMemory`].
    pub(crate) fn check_hook_memory(&self, of: Option<SessionId>, more: Demand) -> Result<()> {
        if more == Demand::default() {
            return Ok(());
        }
        let own = of.and_then(|id| self.conversations.get(&id)?.record.as_deref());
        let own = own.map_or(more, |record| self.demand(record) + more);
        let others = self.conversations.iter().filter(|(id, _)| Some(**id) != of);
        let others = others.filter_map(|(_, other)| Some(self.demand(other.record.as_deref()?)));
        let rows = self.engine.plan().stack.rows.rows;
        let (need, have) = (Demand::of_step(others.chain([own]), rows), self.hook_bytes());
        if need > have { Err(Error::HookMemory { need, have }) } else { Ok(()) }
    }

    /// The hook memory that a record may need.
    pub(crate) fn demand(&self, record: &Record) -> Demand {
        self.with_sizes(|sizes| record.demand(sizes))
    }

    fn with_sizes<T>(&self, of: impl FnOnce(&Sizes<'_>) -> T) -> T {
        let row = |hook: &Hook| row_bytes(self.engine.graph(), hook);
        let cache = |range: &KvRange| {
            let cache = self.layer_cache(range.layer);
            cache.map_or(0, |cache| cache.staged_bytes(&range.positions))
        };
        let written = |range: &KvRange| {
            let cache = self.layer_cache(range.layer);
            cache.map_or(0, |cache| cache.written_bytes(&range.positions))
        };
        of(&Sizes { row: &row, cache: &cache, written: &written })
    }

    /// A block's cache, or `None` if there is no such block.
    pub(crate) fn layer_cache(&self, layer: u32) -> Option<LayerCache> {
        LayerCache::of(&self.engine.parts, layer)
    }

    /// The hook memory that a look at `rows` tokens may need.
    pub(crate) fn demand_of_look(&self, look: &Look, rows: u64) -> Demand {
        self.with_sizes(|sizes| look.demand(rows, sizes))
    }

    /// The hook memory that a change of keys or values may need: for a look at the present ones, and for the new ones.
    pub(crate) fn demand_of_edit(&self, range: &KvRange) -> Demand {
        let look = Look { caches: vec![range.clone()], ..Look::default() };
        self.with_sizes(|sizes| look.demand(0, sizes) + Demand::of_written((sizes.written)(range)))
    }

    /// Opens a session with all tokens of a stopped one, in the middle of the same turn.
    ///
    /// # Errors
    /// An unknown session.
    pub(crate) fn fork_within_turn(&mut self, parent: SessionId, id: SessionId) -> Result<()> {
        let parent = self.conversations.get(&parent).ok_or(Error::NoSession { session: parent.0 })?;
        let fork = parent.fork_within_turn(id)?;
        self.conversations.insert(id, fork);
        Ok(())
    }

    /// How many tokens a session's turn may still generate, and the positions of its generated tokens.
    ///
    /// # Errors
    /// An unknown session.
    pub(crate) fn progress(&self, id: SessionId) -> Result<(u64, &[std::ops::Range<u64>])> {
        let conversation = self.conversations.get(&id).ok_or(Error::NoSession { session: id.0 })?;
        Ok((conversation.tokens_left(), &conversation.by_model))
    }
}

impl Conversation {
    fn entry(&self, from: u64, tokens: u64, yields: bool) -> EntryTokens<'_> {
        let tokens = &self.tokens[from as usize..(from + tokens) as usize];
        EntryTokens { from, tokens, yields, generated: &self.by_model }
    }

    /// The accesses of a step to keys and values already in the session's pages, for entry `entry` of the batch: it
    /// writes the changes numbered `rewrites`, and reads what a look asks for.
    pub(super) fn cache_accesses(
        &self,
        entry: usize,
        rewrites: impl Iterator<Item = u64>,
        looks: bool,
    ) -> Vec<KvAccess<'_>> {
        let Some(record) = self.record.as_deref() else { return Vec::new() };
        let written = rewrites.filter_map(|number| record.cache(number)).map(KvAct::Write);
        let read = if looks { record.looked_caches() } else { &[] };
        written.chain(read.iter().map(KvAct::Read)).map(|act| KvAccess { entry, act }).collect()
    }

    /// Records what a step has read, and returns whether the step counts.
    pub(super) fn judge(
        &mut self,
        (from, tokens, yields): (u64, u64, bool),
        step: Step,
        captured: Vec<Captured>,
        caches: Vec<KvValues>,
        logits: Option<&[f32]>,
    ) -> Judged {
        let Some(mut record) = self.record.take() else { return Judged::Counts };
        let judged =
            record.judge(&self.entry(from, tokens, yields), step, captured, caches, logits, self.rests());
        self.record = Some(record);
        judged
    }
}
