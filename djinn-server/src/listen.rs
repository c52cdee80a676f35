//! Connections: accepting, serving and ending them.

mod timed;

use crate::error::{Error, Result};
use crate::routes;
use crate::server::{Limits, Server};
use crate::write_times::counted;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Duration;
use timed::Timed;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Threads of the web layer: translating is little work, and the device needs the cores.
const THREADS: usize = 2;
/// Headers of a request, and bytes of what is read ahead of a connection.
const MOST_HEADERS: usize = 100;
const READ_AHEAD: usize = 64 << 10;
/// After a connection could not be accepted: the process may be out of descriptors for a moment.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// Between two looks for sessions whose time is over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// What a client gets that finds too many connections.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

pub(crate) fn listen(address: impl ToSocketAddrs) -> Result<(TcpListener, SocketAddr)> {
    let failed = |source| Error::Io { what: "cannot listen".to_owned(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// A server at its address.
#[derive(Debug)]
pub struct BoundServer {
    server: Arc<Server>,
    listener: TcpListener,
    address: SocketAddr,
    stop: Stop,
}

/// Tells a server to end: it accepts nothing more, and lets its requests end first.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<watch::Sender<bool>>,
}

impl Stop {
    /// Tells it. May be called from any thread, and again.
    pub fn stop(&self) {
        self.asked.send_replace(true);
    }
}

/// Tells a server to load its models again.
#[derive(Clone, Debug)]
pub struct Reload {
    server: Weak<Server>,
}

impl Reload {
    /// [Reloads](crate::ServedModel::reload) every model, within the limits' time to drain. Returns at once; may be called
    /// from any thread, and again.
    pub fn reload(&self) {
        let Some(server) = self.server.upgrade() else { return };
        server.distinct_models().for_each(|(_, model)| model.reload(server.limits.drain_time));
    }
}

impl BoundServer {
    pub(crate) fn new(server: Arc<Server>, listener: TcpListener, address: SocketAddr) -> Self {
        BoundServer { server, listener, address, stop: Stop { asked: Arc::new(watch::Sender::new(false)) } }
    }

    /// Where it listens; with its port, where that was left open.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server from elsewhere.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Reloads the models from elsewhere, while it serves.
    pub fn reload(&self) -> Reload {
        Reload { server: Arc::downgrade(&self.server) }
    }

    /// Serves until it is told to stop and its requests have ended. Call it outside of an asynchronous runtime: it has its
    /// own.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no threads for it.
    pub fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("djinn-http")
            .enable_io()
            .enable_time()
            .build();
        let runtime =
            runtime.map_err(|source| Error::Io { what: "cannot start threads".to_owned(), source })?;
        let served = runtime.block_on(self.serve());
        // Work on texts that is left has no reader any more.
        runtime.shutdown_background();
        served
    }

    /// [`run`](Self::run) within a runtime of the caller's.
    ///
    /// # Errors
    /// [`Error::Io`] if the runtime does no I/O.
    pub async fn serve(self) -> Result<()> {
        let BoundServer { server, listener, stop, .. } = self;
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.map_err(|source| Error::Io { what: "cannot listen".to_owned(), source })?;
        let (limits, routes) = (server.limits, routes::router(&server));
        let connections = Arc::new(Semaphore::new(limits.connections));
        let graceful = GracefulShutdown::new();
        let mut stopped = stop.asked.subscribe();
        let swept = Arc::clone(&server);
        let sweeper = tokio::spawn(async move {
            loop {
                sleep(SWEEP_EVERY).await;
                swept.sweep_sessions();
            }
        });
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            let Ok((stream, _)) = accepted else {
                sleep(AFTER_FAILURE).await;
                continue;
            };
            // Events are small, and are not to wait for each other.
            let _ = stream.set_nodelay(true);
            match Arc::clone(&connections).try_acquire_owned() {
                Ok(permit) => {
                    let connection = connection(stream, routes.clone(), limits, graceful.watcher());
                    let connection = counted(Arc::clone(&server.metrics.writes), connection);
                    tokio::spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(_) => refuse(stream),
            }
        }
        drop(listener);
        server.drain();
        tokio::select! {
            () = graceful.shutdown() => {}
            () = sleep(limits.drain_time) => {}
        }
        sweeper.abort();
        Ok(())
    }
}

async fn connection(stream: TcpStream, routes: Router, limits: Limits, watcher: Watcher) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_time);
    builder.max_headers(MOST_HEADERS).max_buf_size(READ_AHEAD);
    let stream = TokioIo::new(Timed::new(stream, limits.write_time));
    let connection = builder.serve_connection(stream, TowerToHyperService::new(routes));
    // Clients that leave, or send no HTTP, are no failure of the server.
    let _ = watcher.watch(connection).await;
}

fn refuse(mut stream: TcpStream) {
    tokio::spawn(async move {
        // It may be gone.
        let _ = timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
    });
}
