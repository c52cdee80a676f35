//! Parking: a session's keys and values leave for host memory, and come back.

use crate::{Engine, Entry, Result, Session, Wanted};
use djinn_device::{Ops, Space};
use djinn_vmu::SwapStats;

impl<D: Ops> Engine<D> {
    /// Sends a session's keys and values to pinned host memory and takes them back; results do not change. Whether it
    /// did: without room on the host ([`Options::host_pages`](crate::Options::host_pages)) the session stays as it is,
    /// and one that cannot come back is computed again from its tokens before it goes on.
    ///
    /// # Errors
    /// A failure of the device, after which the engine runs no further step; in check mode, a page that came back with
    /// other bytes.
    pub fn park_and_restore(&mut self, session: &mut Session) -> Result<bool> {
        let moved = self.move_there_and_back(session);
        if let Err(error) = &moved {
            self.stopped = Some(error.to_string());
        }
        moved
    }

    fn move_there_and_back(&mut self, session: &mut Session) -> Result<bool> {
        let Engine { device, memory, compute, .. } = self;
        let data = &mut memory.as_mut().expect("loaded").data;
        data.poll(device)?;
        let sequence = std::mem::take(&mut session.sequence);
        let parked = match data.park(device, *compute, sequence)? {
            Ok(parked) => parked,
            Err(not_moved) => {
                session.sequence = not_moved.sequence;
                return Ok(false);
            }
        };
        // Its own pages may be the only ones that it could come back to.
        data.settle(device)?;
        match data.restore(device, parked)? {
            Ok(arriving) => {
                session.sequence = data.resume(device, *compute, arriving)?;
                self.parkings += 1;
                Ok(true)
            }
            Err(not_moved) => {
                data.discard(not_moved.sequence);
                Ok(false)
            }
        }
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
        let rows = self.plan().stack.rows.rows as usize;
        let Session { sequence, tokens } = session;
        let held = sequence.tokens() as usize;
        for piece in tokens[held..].chunks(rows) {
            let entry = Entry { sequence: &mut *sequence, tokens: piece, wanted: Wanted::Nothing };
            self.step(&mut [entry])?;
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
