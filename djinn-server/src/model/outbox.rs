//! What the engine tells requests, on its way from the engine's thread to their tasks.
//!
//! A step has a token for each of many requests. To wake each one's task from the engine's thread takes locks and system
//! calls, so the thread gathers what happened and passes it on once; a task of the web layer hands it out.

use djinn_engine::Happening;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What happened to an answer of a request, which the number tells from its others, and when the engine told it.
pub(crate) type Told = (usize, Happening, Instant);

/// What a request is to be told.
struct Letter {
    to: UnboundedSender<Told>,
    answer: usize,
    happening: Happening,
}

/// Letters that were passed on together.
type Batch = (Instant, Vec<Letter>);

/// Gathers what the engine tells.
pub(crate) struct Outbox {
    gathered: Mutex<Vec<Letter>>,
    batches: UnboundedSender<Batch>,
    /// Until the task that hands out has begun.
    arriving: Mutex<Option<UnboundedReceiver<Batch>>>,
}

impl Outbox {
    pub(super) fn new() -> Arc<Self> {
        let (batches, arriving) = unbounded_channel();
        Arc::new(Outbox { gathered: Mutex::default(), batches, arriving: Mutex::new(Some(arriving)) })
    }

    /// Keeps what happened to an answer until it is passed on; false if no request waits for it.
    pub(crate) fn put(&self, to: &UnboundedSender<Told>, answer: usize, happening: Happening) -> bool {
        if to.is_closed() {
            return false;
        }
        let letter = Letter { to: to.clone(), answer, happening };
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        true
    }

    /// Passes on what was gathered.
    pub(super) fn pass_on(&self) {
        let gathered = std::mem::take(&mut *self.gathered.lock().unwrap_or_else(PoisonError::into_inner));
        if gathered.is_empty() {
            return;
        }
        // Where the task has ended with its runtime, its requests may run in another one.
        if let Err(unsent) = self.batches.send((Instant::now(), gathered)) {
            hand_out(unsent.0);
        }
    }

    /// Hands out what is passed on, in a task of the runtime that this is called in first.
    pub(crate) fn deliver(&self) {
        let arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut arriving) = arriving {
            tokio::spawn(async move {
                while let Some(batch) = arriving.recv().await {
                    hand_out(batch);
                }
            });
        }
    }
}

fn hand_out((told, letters): Batch) {
    for Letter { to, answer, happening } in letters {
        // A client that has left reads nothing.
        let _ = to.send((answer, happening, told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn what_is_put_comes_in_order_and_a_receiver_that_left_is_noticed() {
        let (outbox, runtime) = (Outbox::new(), runtime());
        let (one, mut to_one) = unbounded_channel();
        let (other, to_other) = unbounded_channel();
        runtime.block_on(async {
            outbox.deliver();
            outbox.deliver();
            assert!(outbox.put(&one, 3, Happening::TurnEnded) && outbox.put(&one, 4, Happening::Expired));
            assert!(outbox.put(&other, 0, Happening::TurnEnded));
            drop(to_other);
            assert!(!outbox.put(&other, 0, Happening::TurnEnded));
            assert!(to_one.try_recv().is_err(), "it is not passed on yet");
            outbox.pass_on();
            drop(one);
            let told = [to_one.recv().await.unwrap(), to_one.recv().await.unwrap()];
            assert!(matches!(told, [(3, Happening::TurnEnded, _), (4, Happening::Expired, _)]));
            assert!(to_one.recv().await.is_none(), "nothing else holds the channel");
        });
        // The task went with its runtime.
        drop(runtime);
        let (late, mut to_late) = unbounded_channel();
        assert!(outbox.put(&late, 1, Happening::TurnEnded));
        outbox.pass_on();
        assert!(matches!(to_late.try_recv(), Ok((1, Happening::TurnEnded, _))));
    }
}
