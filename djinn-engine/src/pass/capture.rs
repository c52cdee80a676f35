//! Captures a pass when its shape occurs for the second time.

use super::batch::RowRuns;
use super::passes::Passes;
use super::replay::Key;
use crate::hooks::Pending;
use crate::parts::Parts;
use crate::{Error, Result, Runtime};
use djinn_device::Ops;

impl Passes {
    /// Captures a pass and replays it. If there is no room for the capture, this pass and all later ones are enqueued.
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
        let captured = device.capture(&streams, || self.enqueue(runtime, parts, None, key.rows, runs, hooks));
        let replays = self.replays.as_mut().expect("a pass is captured to be replayed");
        let capture = match captured {
            Err(Error::Device(djinn_device::Error::Resource { .. })) => {
                parts.text.streamer.withdrawn(key.position);
                device.sync(*compute)?;
                replays.free(device);
                self.replays = None;
                return self.enqueue(runtime, parts, None, key.rows, runs, hooks);
            }
            captured => captured?,
        };
        if let Some(evicted) = replays.keep(key, capture, parts.text.streamer.position()) {
            device.sync(*compute)?;
            device.free_capture(evicted);
        }
        Ok(device.replay(capture)?)
    }
}
