//! Connections: accept, serve and end them.

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
use std::time::{Duration, Instant};
use timed::Timed;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

/// Threads of the web layer. Its work is little, and the device needs the cores.
const THREADS: usize = 2;
/// Headers of a request, and bytes of what is read ahead of a connection.
const MOST_HEADERS: usize = 100;
const READ_AHEAD: usize = 64 << 10;
/// The pause after a connection could not be accepted: the process may be out of descriptors for a moment.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// How long a new connection's first bytes may take once the server is ending.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How often expired sessions are searched.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often lost devices are searched.
const LOST_EVERY: Duration = Duration::from_millis(100);
/// How long responses and remaining work may take once the server has ended, and how long models may take to leave their devices.
const REST: Duration = Duration::from_secs(1);
const LEAVE: Duration = Duration::from_secs(10);
/// The response to a client beyond the limit of connections.
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

/// Tells a server to end: it accepts nothing more, and finishes its requests.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<watch::Sender<Option<Ending>>>,
}

/// How a server is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// For good.
    Stop,
    /// Another server takes over its address.
    Renew,
}

impl Stop {
    /// Ends the server. May be called from any thread, repeatedly.
    pub fn stop(&self) {
        self.asked.send_replace(Some(Ending::Stop));
    }

    /// Ends the server so that another one takes over its address: see [`BoundServer::run_or_renew`]. It does not
    /// override [`stop`](Self::stop).
    pub fn renew(&self) {
        self.asked.send_if_modified(|asked| asked.replace(asked.unwrap_or(Ending::Renew)).is_none());
    }

    fn renews(&self) -> bool {
        *self.asked.borrow() == Some(Ending::Renew)
    }
}

/// Tells a server to load its models again.
#[derive(Clone, Debug)]
pub struct Reload {
    server: Weak<Server>,
}

impl Reload {
    /// [Reloads](crate::ServedModel::reload) every model, within the limits' drain time. Returns at once; may be
    /// called from any thread, repeatedly.
    pub fn reload(&self) {
        let Some(server) = self.server.upgrade() else { return };
        server.distinct_models().iter().for_each(|(_, model)| model.reload(server.limits.drain_time));
    }
}

impl BoundServer {
    pub(crate) fn new(server: Arc<Server>, listener: TcpListener, address: SocketAddr) -> Self {
        BoundServer { server, listener, address, stop: Stop { asked: Arc::default() } }
    }

    /// Its address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that ends the server.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// A handle that reloads the models.
    pub fn reload(&self) -> Reload {
        Reload { server: Arc::downgrade(&self.server) }
    }

    /// Serves until it is told to stop, its requests have ended, and its models have left their devices, which may take
    /// ten seconds at most. Call it outside of an asynchronous runtime, since it has its own.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no threads for it.
    pub fn run(self) -> Result<()> {
        self.on_threads(|server| server.end(false)).map(drop)
    }

    /// As [`run`](Self::run), but also ends if a model's device is lost such that this process cannot recover, as a
    /// CUDA context after an illegal access. Then, or after [`Stop::renew`], it returns the listener. Clients that
    /// connect meanwhile wait for the next [`Server::at`] it, in this process or in another one.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_or_renew(self) -> Result<Option<TcpListener>> {
        let stop = self.stop();
        let listener = self.on_threads(|server| server.end(true))?;
        // It may have been told to stop while requests ended and models left their devices.
        Ok(listener.filter(|_| stop.renews()))
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
        let server = Arc::clone(&self.server);
        let served = runtime.block_on(work(self));
        let is_lost = server.has_lost_device();
        let devices: Vec<_> = server.distinct_models().iter().map(|(_, model)| model.device_end()).collect();
        drop(server);
        // No client reads the results of remaining work.
        runtime.shutdown_timeout(REST);
        // A process may end next, and must not take down a driver that still works for it. One without its device has
        // nothing to wait for.
        let until = Instant::now() + if is_lost { Duration::ZERO } else { LEAVE };
        for device_end in devices {
            let _ = device_end.recv_deadline(until);
        }
        served
    }

    /// As [`run`](Self::run), within the caller's runtime.
    ///
    /// # Errors
    /// [`Error::Io`] if the runtime has no I/O.
    pub async fn serve(self) -> Result<()> {
        self.end(false).await.map(drop)
    }

    /// Serves; `when_lost` says whether to end when a device is lost. Returns the listener if another server was to
    /// take over when this one began to end.
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
            // Events are small and must not wait for each other.
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
        // Clients are refused at once if no other server takes over.
        let listener = stop.renews().then(|| listener.into_std()).transpose().map_err(cannot_listen)?;
        server.drain();
        drop(alive);
        tokio::select! {
            _ = ended.recv() => {}
            () = sleep(limits.drain_time) => {
                server.end_requests();
                // Their clients are told.
                let _ = timeout(REST, ended.recv()).await;
            }
        }
        sweeper.abort();
        #[cfg(feature = "otel")]
        server.flush_spans().await;
        Ok(listener)
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
    // A client that leaves, or that does not speak HTTP, is not a failure of the server.
    tokio::select! {
        _ = &mut connection => return,
        _ = ending.wait_for(Option::is_some) => {}
    }
    // A client that has just connected gets an answer.
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
        // The client may have left.
        let _ = timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
    });
}
