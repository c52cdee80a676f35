//! Captures a pass when its shape occurs for the second time.

use super::batch::RowRuns;
use super::passes::Passes;
use super::replay::Key;
use crate::hooks::Pending;
use crate::parts::Parts;
use crate::{Error, Result, Runtime};
use djinn_device::Ops;

impl Passes {
    /// Captures a pass and replays it. If there is no room for the capture, the pass is enqueued, and no more captures are
    /// kept than there are now.
    pub(super) fn capture<D: Ops>(
        &mut self,
        runtime: &Runtime<D>,
        parts: &mut Parts,
        key: Key,
        runs: &RowRuns,
    ) -> Result<()> {
        let Runtime { device, compute, .. } = runtime;
        let streams = parts.streams(*compute);
        let hooks = Pending(&key.hooks);
        let replays = self.replays.as_mut().expect("a pass is captured to be replayed");
        if let Some(oldest) = replays.make_room() {
            device.sync(*compute)?;
            device.free_capture(oldest);
        }
        let captured = device.capture(&streams, || self.enqueue(runtime, parts, None, key.rows, runs, hooks));
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                parts.text.streamer.withdrawn(key.position);
                self.replays.take_if(|replays| !replays.refused());
                return self.enqueue(runtime, parts, None, key.rows, runs, hooks);
            }
            captured => captured?,
        };
        if let Some(replays) = &mut self.replays {
            replays.keep(key, capture, parts.text.streamer.position());
        }
        Ok(device.replay(capture)?)
    }
}
