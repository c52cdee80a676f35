//! The end of the time that requests have once the server is ending: they are answered that they were not finished.

use crate::ApiError;
use std::future::{Future, pending};
use tokio::sync::watch;

tokio::task_local! {
    static TIME_UP: TimeUp;
}

/// Tells when the server waits no longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeUp(Option<watch::Receiver<bool>>);

impl TimeUp {
    pub(crate) fn new(is_up: watch::Receiver<bool>) -> Self {
        TimeUp(Some(is_up))
    }

    /// That of the present task's request, or one that never comes.
    pub(crate) fn current() -> Self {
        TIME_UP.try_with(Self::clone).unwrap_or_default()
    }

    /// Serves a request, for which this is the [current](Self::current) one.
    ///
    /// # Errors
    /// As [`within`](Self::within).
    pub(crate) async fn serve<F: Future>(mut self, request: F) -> Result<F::Output, ApiError> {
        let served = TIME_UP.scope(self.clone(), request);
        self.within(served).await
    }

    /// What `work` comes to, unless the time is up before.
    ///
    /// # Errors
    /// 503.
    pub(crate) async fn within<F: Future>(&mut self, work: F) -> Result<F::Output, ApiError> {
        let ended = || ApiError::unavailable("the server has ended before this request");
        if self.0.as_ref().is_some_and(|is_up| *is_up.borrow()) {
            return Err(ended());
        }
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.comes() => Err(ended()),
        }
    }

    async fn comes(&mut self) {
        if let Some(is_up) = &mut self.0
            && is_up.wait_for(|is_up| *is_up).await.is_ok()
        {
            return;
        }
        // The server is gone, and tells nothing.
        pending().await
    }
}
