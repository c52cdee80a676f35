//! Parking: a session's keys and values leave for host memory, and come back.

use crate::{Engine, Entry, Result, Session, Wanted};
use djinn_device::{Ops, Space};
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
        self.transfers = self.poll_copies()?;
        let parked = match self.park(std::mem::take(sequence))? {
            Ok(parked) => parked,
            Err(not_moved) => {
                *sequence = not_moved.sequence;
                return Ok(false);
            }
        };
        // Its own pages may be the only ones that it could come back to.
        self.settle_copies()?;
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

    fn memory_and_device(&mut self) -> (&mut DataSegment, &D) {
        (&mut self.memory.as_mut().expect("loaded").data, &self.device)
    }

    /// Enqueues a sequence's way to host memory, as [`DataSegment::park`].
    pub(crate) fn park(&mut self, sequence: Sequence) -> Result<Result<Parked, NotMoved<Sequence>>> {
        let compute = self.compute;
        let (data, device) = self.memory_and_device();
        Ok(data.park(device, compute, sequence)?)
    }

    /// Enqueues its way back, as [`DataSegment::restore`].
    pub(crate) fn restore(&mut self, parked: Parked) -> Result<Result<Arriving, NotMoved<Parked>>> {
        let (data, device) = self.memory_and_device();
        Ok(data.restore(device, parked)?)
    }

    pub(crate) fn has_arrived(&self, arriving: &Arriving) -> bool {
        self.memory.as_ref().expect("loaded").data.has_arrived(arriving)
    }

    pub(crate) fn resume(&mut self, arriving: Arriving) -> Result<Sequence> {
        let compute = self.compute;
        let (data, device) = self.memory_and_device();
        Ok(data.resume(device, compute, arriving)?)
    }

    pub(crate) fn discard(&mut self, parked: Parked) {
        self.memory_and_device().0.discard(parked);
    }

    /// The copies of pages that ended since the last call, as [`DataSegment::poll`].
    pub(crate) fn poll_copies(&mut self) -> Result<Vec<Transfer>> {
        let (data, device) = self.memory_and_device();
        let ended = data.poll(device)?;
        let mut all = std::mem::take(&mut self.transfers);
        all.extend(ended);
        Ok(all)
    }

    /// Waits for the copies under way; what they did is told by the next poll.
    pub(crate) fn settle_copies(&mut self) -> Result<()> {
        let (data, device) = self.memory_and_device();
        let ended = data.settle(device)?;
        self.transfers.extend(ended);
        Ok(())
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
