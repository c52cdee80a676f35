//! A connection with a time limit for writes.

use crate::pace::Pace;
use crate::write_times;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

/// The least average rate of a client that the server waits for. Far more is usual where that happens at all.
const SLOWEST_BYTES_PER_S: u64 = 16 << 10;

/// A stream that fails once writes have waited for longer than `limit`, and what was written is not worth it. A client
/// that reads nothing, or next to nothing, would hold its request forever.
pub(super) struct Timed {
    stream: TcpStream,
    pace: Pace,
    /// Runs while a write waits, since this time.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    begun: Arc<Notify>,
}

impl Timed {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        Timed { stream, pace: Pace::new(limit, SLOWEST_BYTES_PER_S), waiting: None, begun: Arc::default() }
    }

    /// Notifies one waiter once something was read.
    pub(super) fn begun(&self) -> Arc<Notify> {
        Arc::clone(&self.begun)
    }

    /// What a write came to, within time.
    fn within(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = &polled {
            let waited = self.waiting.take().map_or(Duration::ZERO, |(since, _)| {
                write_times::taken();
                since.elapsed()
            });
            self.pace.took(waited, *written.as_ref().unwrap_or(&0));
            return polled;
        }
        let left = self.pace.left();
        let (_, waiting) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.begun.notify_one();
        }
        polled
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        let polled = self.within(context, polled);
        write_times::written();
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        let polled = self.within(context, polled);
        write_times::written();
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0);
        self.within(context, polled).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
