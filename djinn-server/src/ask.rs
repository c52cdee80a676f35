//! A question to an engine's thread, and its answer.

use tokio::sync::oneshot;

/// Passes `tell` a function that takes the engine's answer, and waits for it. `None`: the engine dropped the function,
/// since it or the session is gone.
pub(crate) async fn ask<T: Send + 'static>(tell: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    // The client may have left.
    tell(Box::new(|told| drop(answer.send(told))));
    answered.await.ok()
}
