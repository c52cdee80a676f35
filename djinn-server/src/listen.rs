//! Connections: accepting, serving and ending them.

mod timed;

use crate::error::{Error, Result};
use crate::routes;
use crate::server::{Limits, Server};
use crate::write_times::counted;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::Duration;
use timed::Timed;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

/// Threads of the web layer: translating is little work, and the device needs the cores.
const THREADS: usize = 2;
/// Headers of a request, and bytes of what is read ahead of a connection.
const MOST_HEADERS: usize = 100;
const READ_AHEAD: usize = 64 << 10;
/// After a connection could not be accepted: the process may be out of descriptors for a moment.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// For the first bytes of a connection to come, once the server is to end.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Between two looks for sessions whose time is over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Between two looks for devices that are lost: models come and go.
const LOST_EVERY: Duration = Duration::from_millis(100);
/// What a client gets that finds too many connections.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

fn cannot_listen(source: std::io::Error) -> Error {
    Error::Io { what: "cannot listen".to_owned(), source }
}

pub(crate) fn listen(address: impl ToSocketAddrs) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(cannot_listen)
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
    asked: Arc<watch::Sender<Option<Ending>>>,
}

/// How a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// For good.
    Stop,
    /// Another one goes on at its address.
    Renew,
}

impl Stop {
    /// Tells it. May be called from any thread, and again.
    pub fn stop(&self) {
        self.asked.send_replace(Some(Ending::Stop));
    }

    /// Tells it to end so that another one goes on at its address: see [`BoundServer::run_or_renew`]. A server that was
    /// told to stop stops.
    pub fn renew(&self) {
        self.asked.send_if_modified(|asked| asked.replace(asked.unwrap_or(Ending::Renew)).is_none());
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
        server.distinct_models().iter().for_each(|(_, model)| model.reload(server.limits.drain_time));
    }
}

impl BoundServer {
    pub(crate) fn new(server: Arc<Server>, listener: TcpListener, address: SocketAddr) -> Self {
        BoundServer { server, listener, address, stop: Stop { asked: Arc::default() } }
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
        self.on_threads(|server| server.end(false)).map(drop)
    }

    /// [`run`](Self::run) that also ends where a model's device is lost in a way that this process cannot mend, as a CUDA
    /// context after an illegal access. Then, or after [`Stop::renew`], it gives the listener back: clients that connect
    /// to it meanwhile wait for the next [`Server::at`] it, in this process or in another one.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_or_renew(self) -> Result<Option<TcpListener>> {
        self.on_threads(|server| server.end(true))
    }

    fn on_threads<T, F: Future<Output = Result<T>>>(self, work: impl FnOnce(Self) -> F) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("djinn-http")
            .enable_io()
            .enable_time()
            .build();
        let runtime =
            runtime.map_err(|source| Error::Io { what: "cannot start threads".to_owned(), source })?;
        let served = runtime.block_on(work(self));
        // Work on texts that is left has no reader any more.
        runtime.shutdown_background();
        served
    }

    /// [`run`](Self::run) within a runtime of the caller's.
    ///
    /// # Errors
    /// [`Error::Io`] if the runtime does no I/O.
    pub async fn serve(self) -> Result<()> {
        self.end(false).await.map(drop)
    }

    /// Serves; whether it ends when a device is lost. The listener, if another server is to go on there.
    async fn end(self, when_lost: bool) -> Result<Option<TcpListener>> {
        let BoundServer { server, listener, stop, .. } = self;
        listener.set_nonblocking(true).map_err(cannot_listen)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot_listen)?;
        let (limits, routes) = (server.limits, routes::router(&server));
        let connections = Arc::new(Semaphore::new(limits.connections));
        // Disconnects when the last connection has ended.
        let (alive, mut ended) = mpsc::channel::<Infallible>(1);
        let mut stopped = stop.asked.subscribe();
        let swept = Arc::clone(&server);
        let sweeper = tokio::spawn(async move {
            loop {
                sleep(SWEEP_EVERY).await;
                swept.sweep_sessions();
            }
        });
        let watched = Arc::clone(&server);
        let lost = async move {
            while !watched.has_lost_device() {
                sleep(LOST_EVERY).await;
            }
        };
        let mut lost = std::pin::pin!(lost);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(Option::is_some) => break,
                () = &mut lost, if when_lost => {
                    stop.renew();
                    break;
                }
            };
            let Ok((stream, _)) = accepted else {
                sleep(AFTER_FAILURE).await;
                continue;
            };
            // Events are small, and are not to wait for each other.
            let _ = stream.set_nodelay(true);
            match Arc::clone(&connections).try_acquire_owned() {
                Ok(permit) => {
                    let connection = connection(stream, routes.clone(), limits, stop.asked.subscribe());
                    let connection = counted(Arc::clone(&server.metrics.writes), connection);
                    let alive = alive.clone();
                    tokio::spawn(async move {
                        connection.await;
                        drop((permit, alive));
                    });
                }
                Err(_) => refuse(stream),
            }
        }
        let renews = || *stopped.borrow() == Some(Ending::Renew);
        // Clients are refused at once where no other server goes on.
        let listener = renews().then(|| listener.into_std()).transpose().map_err(cannot_listen)?;
        server.drain();
        drop(alive);
        tokio::select! {
            _ = ended.recv() => {}
            () = sleep(limits.drain_time) => {}
        }
        sweeper.abort();
        #[cfg(feature = "otel")]
        server.flush_spans().await;
        Ok(listener.filter(|_| renews()))
    }
}

async fn connection(
    stream: TcpStream,
    routes: Router,
    limits: Limits,
    mut ending: watch::Receiver<Option<Ending>>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_time);
    builder.max_headers(MOST_HEADERS).max_buf_size(READ_AHEAD);
    let stream = Timed::new(stream, limits.write_time);
    let begun = stream.begun();
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = std::pin::pin!(connection);
    // Clients that leave, or send no HTTP, are no failure of the server.
    tokio::select! {
        _ = &mut connection => return,
        _ = ending.wait_for(Option::is_some) => {}
    }
    // Who has just connected is not left without an answer.
    tokio::select! {
        _ = &mut connection => return,
        () = begun.notified() => {}
        () = sleep(FIRST_REQUEST) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

fn refuse(mut stream: TcpStream) {
    tokio::spawn(async move {
        // It may be gone.
        let _ = timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
    });
}
