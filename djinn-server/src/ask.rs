//! A question to an engine's thread, and its answer.

use crate::blocking;
use tokio::sync::oneshot;

/// Passes `tell` a function that takes the engine's answer, and waits for it. `None`: the engine dropped the function,
/// since it or the session is gone. The request keeps its place until then, also if its client leaves.
pub(crate) async fn ask<T: Send + 'static>(tell: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let place = blocking::place();
    tell(Box::new(move |told| {
        let _place = place;
        // The client may have left.
        drop(answer.send(told));
    }));
    answered.await.ok()
}
