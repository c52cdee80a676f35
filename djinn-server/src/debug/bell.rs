//! Rings when a session is opened or paused, or its turn ends. The engine has one listener per session, however many
//! clients wait.

use crate::sessions::EngineSession;
use djinn_engine::SessionId;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Notifies waiting clients of a change in a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bell {
    rings: watch::Sender<()>,
    /// The session of the engine that will ring.
    listens: Arc<Mutex<Option<SessionId>>>,
}

impl Bell {
    /// Waits for rings from now on.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.rings.subscribe()
    }

    pub(crate) fn ring(&self) {
        self.rings.send_replace(());
    }

    /// Rings when this session of the engine is paused (at once if it is), and when it ends.
    pub(crate) fn ring_at_pause(&self, session: &EngineSession) {
        let id = session.id;
        let before = self.listens.lock().unwrap_or_else(PoisonError::into_inner).replace(id);
        if before == Some(id) {
            return;
        }
        let ringing = Ringing { bell: self.clone(), id };
        session.client.begin_debug(move |debugger| debugger.on_pause(id, Box::new(move |_| drop(ringing))));
    }
}

/// Rings when it is dropped.
struct Ringing {
    bell: Bell,
    id: SessionId,
}

impl Drop for Ringing {
    fn drop(&mut self) {
        let mut listens = self.bell.listens.lock().unwrap_or_else(PoisonError::into_inner);
        listens.take_if(|id| *id == self.id);
        drop(listens);
        self.bell.ring();
    }
}
