//! Parking: a session's keys and values leave for host memory, and come back.

use crate::{Engine, Entry, Result, Session, Wanted};
use djinn_device::{Ops, Space};
use djinn_srg::Rows;
use djinn_vmu::{Arriving, DataSegment, NotMoved, Parked, Sequence, SwapStats, Transfer};

impl<D: Ops> Engine<D> {
    /// Sends a session's keys and values to pinned host memory and takes them back; results do not change. Whether it
    /// did: without room on the host ([`Options::host_pages`](crate::Options::host_pages)) the session stays as it is,
    /// and one that cannot come back is computed again from its tokens before it goes on.
    ///
    /// # Errors
    /// A failure of the device, after which the engine runs no further step; in check mode, a page that came back with
    /// other bytes.
    pub fn park_and_restore(&mut self, session: &mut Session) -> Result<bool> {
        let moved = self.move_there_and_back(&mut session.sequence);
        self.transfers.clear();
        self.stop_on(moved)
    }

    pub(crate) fn move_there_and_back(&mut self, sequence: &mut Sequence) -> Result<bool> {
        self.transfers = self.poll_swaps()?;
        let parked = match self.park(std::mem::take(sequence))? {
            Ok(parked) => parked,
            Err(not_moved) => {
                *sequence = not_moved.sequence;
                return Ok(false);
            }
        };
        // Its own pages may be the only ones that it could come back to.
        self.transfers = self.settle_swaps()?;
        match self.restore(parked)? {
            Ok(arriving) => {
                *sequence = self.resume(arriving)?;
                self.parkings += 1;
                Ok(true)
            }
            Err(not_moved) => {
                self.discard(not_moved.sequence);
                Ok(false)
            }
        }
    }

    /// Begins to copy a sequence's own pages to pinned host memory, after all work enqueued so far; without room there
    /// the sequence stays as it is. See [`DataSegment::park`].
    ///
    /// # Errors
    /// A failure of the device, after which the engine runs no further step.
    pub fn park(&mut self, sequence: Sequence) -> Result<std::result::Result<Parked, NotMoved<Sequence>>> {
        let compute = self.compute;
        self.swapping(|data, device| data.park(device, compute, sequence))
    }

    /// Begins to copy a parked sequence back, beside computation; without room on the device it stays parked. See
    /// [`DataSegment::restore`].
    ///
    /// # Errors
    /// As [`park`](Self::park).
    pub fn restore(&mut self, parked: Parked) -> Result<std::result::Result<Arriving, NotMoved<Parked>>> {
        self.swapping(|data, device| data.restore(device, parked))
    }

    /// Whether a sequence was seen to be back, as of the latest [`poll_swaps`](Self::poll_swaps).
    pub fn has_arrived(&self, arriving: &Arriving) -> bool {
        self.memory.as_ref().expect("loaded").data.has_arrived(arriving)
    }

    /// A sequence that steps may use; they wait for its copies if these are not done.
    ///
    /// # Errors
    /// As [`park`](Self::park).
    pub fn resume(&mut self, arriving: Arriving) -> Result<Sequence> {
        let compute = self.compute;
        self.swapping(|data, device| data.resume(device, compute, arriving))
    }

    /// Gives a parked sequence up.
    pub fn discard(&mut self, parked: Parked) {
        self.memory.as_mut().expect("loaded").data.discard(parked);
    }

    /// Gives a sequence up that is on its way back.
    pub fn cancel(&mut self, arriving: Arriving) {
        self.memory.as_mut().expect("loaded").data.cancel(arriving);
    }

    /// Sees which copies are done, frees the pages that they came from and enqueues what was held back; gives the
    /// transfers that ended since. A few microseconds: call it between steps.
    ///
    /// # Errors
    /// As [`park`](Self::park); in check mode, a page that came back with other bytes, whose sequence is lost while
    /// the engine goes on.
    pub fn poll_swaps(&mut self) -> Result<Vec<Transfer>> {
        let ended = self.swapping(|data, device| data.poll(device))?;
        Ok(self.with_earlier(ended))
    }

    /// As [`poll_swaps`](Self::poll_swaps), once all copies are done: for a caller that has nothing else to do.
    ///
    /// # Errors
    /// As [`poll_swaps`](Self::poll_swaps).
    pub fn settle_swaps(&mut self) -> Result<Vec<Transfer>> {
        let ended = self.swapping(|data, device| data.settle(device))?;
        Ok(self.with_earlier(ended))
    }

    /// Transfers that were seen to end, but not told yet, and those of now.
    fn with_earlier(&mut self, ended: Vec<Transfer>) -> Vec<Transfer> {
        let mut all = std::mem::take(&mut self.transfers);
        all.extend(ended);
        all
    }

    /// Lets go of the copies that host memory keeps of pages that came back: who parks next is copied whole, as a
    /// measurement wants.
    pub fn forget_copies(&mut self) {
        self.memory.as_mut().expect("loaded").data.forget_copies();
    }

    /// Shares the link between swaps and the weights of a pass of `rows` that is about to be enqueued.
    pub(crate) fn share_link(&mut self, rows: Rows) -> Result<()> {
        let Engine { device, memory, plan, .. } = self;
        let memory = memory.as_mut().expect("loaded");
        let bytes = plan.placement.expected_streamed_bytes(rows.rows);
        Ok(memory.data.share_link(device, memory.text.copy_stream(), bytes)?)
    }

    /// Moves pages; after a failure of the device no step runs any more.
    fn swapping<T>(&mut self, work: impl FnOnce(&mut DataSegment, &D) -> djinn_vmu::Result<T>) -> Result<T> {
        let outcome = work(&mut self.memory.as_mut().expect("loaded").data, &self.device);
        if let Err(error @ djinn_vmu::Error::Device(_)) = &outcome {
            self.stopped = Some(error.to_string());
        }
        Ok(outcome?)
    }

    /// Parks a session if it is time to, where [`Options::force_park_every`](crate::Options::force_park_every) asks
    /// for it.
    pub(crate) fn park_if_due(&mut self, session: &mut Session) -> Result<()> {
        let Some(every) = self.force_park_every else { return Ok(()) };
        self.steps += 1;
        if self.steps.is_multiple_of(every.into()) {
            self.park_and_restore(session)?;
        }
        Ok(())
    }

    /// A session's keys and values as its pages hold them, those of its tokens alone: page by page
    /// `[layer][k|v][kv head][token][head dim]` in the cache's element type.
    ///
    /// # Errors
    /// A device that is out of memory or has failed.
    pub fn kv_bytes(&self, session: &Session) -> Result<Vec<u8>> {
        let data = &self.memory.as_ref().expect("loaded").data;
        let layout = data.layout();
        let row = layout.shape.head_dim as usize * layout.dtype.bytes() as usize;
        let slots = layout.page_tokens as usize;
        let page_bytes = layout.page_bytes();
        let host = self.device.alloc(Space::Host, page_bytes)?;
        let mut bytes = Vec::new();
        let mut left = session.sequence.tokens() as usize;
        let read = (|| {
            for &page in session.sequence.pages() {
                self.device.copy(self.compute, data.page(page), host.span())?;
                self.device.sync(self.compute)?;
                let used = left.min(slots) * row;
                self.device.read_host(host.span(), |page| {
                    page.chunks_exact(slots * row).for_each(|plane| bytes.extend_from_slice(&plane[..used]));
                });
                left -= left.min(slots);
            }
            Ok(())
        })();
        self.device.free(host);
        read.map(|()| bytes)
    }

    /// Computes again what a session lost of its keys and values.
    pub(crate) fn recompute(&mut self, session: &mut Session) -> Result<()> {
        let rows = self.chunk() as usize;
        let Session { sequence, tokens } = session;
        let held = sequence.tokens() as usize;
        for piece in tokens[held..].chunks(rows) {
            self.step(&mut [Entry::new(sequence, piece, Wanted::Nothing)])?;
        }
        Ok(())
    }

    /// How often a session was parked and came back.
    pub fn parkings(&self) -> u64 {
        self.parkings
    }

    /// What parking moved so far, of the copies that were seen to end.
    pub fn swap_stats(&self) -> SwapStats {
        self.memory.as_ref().expect("loaded").data.swap_stats()
    }
}
