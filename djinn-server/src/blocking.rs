//! Work of requests that blocks, on threads of its own.
//!
//! Such work goes on when its client leaves. It keeps the request's place among those that are served until it ends,
//! so that clients that leave early cannot start more of it than others.

use std::future::Future;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// A place among the requests that are served. It is free again when the last copy is dropped.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

tokio::task_local! {
    static PLACE: Option<Place>;
}

/// Serves a request that has this place.
pub(crate) async fn at<F: Future>(place: Option<Place>, serve: F) -> F::Output {
    PLACE.scope(place, serve).await
}

/// The place of the present task's request, if it has one.
pub(crate) fn place() -> Option<Place> {
    PLACE.try_with(Clone::clone).ok().flatten()
}

/// Begins work of the present task's request, and waits for its result. `None` if it panicked.
pub(crate) fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Option<T>> + Send + 'static {
    let place = place();
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        work()
    });
    async { done.await.ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use crate::fields::CHAT;
    use crate::server::ApiRequest;
    use std::time::Duration;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    #[test]
    fn work_keeps_its_request_s_place_and_room_when_the_client_leaves() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let body = format!("{{\"messages\":[{}0]}}", "{},".repeat(1 << 20));
            let server = Arc::new(Server::new());
            let room = server.parsing.take(body.as_bytes(), Duration::ZERO).await.unwrap();
            assert!(room.is_some());
            let request = ApiRequest {
                server: Arc::clone(&server),
                tenant: None,
                headers: Default::default(),
                body: body.clone().into(),
                room,
            };
            let places = Arc::new(Semaphore::new(1));
            let place = Arc::new(Arc::clone(&places).try_acquire_owned().unwrap());
            let (begin, begun) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let serve = at(Some(place), async move {
                let fields = request.fields(&CHAT).unwrap();
                run(move || drop((begin.send(()), ended.recv(), fields))).await
            });
            assert!(timeout(Duration::from_millis(1), serve).await.is_err(), "its client left");
            begun.recv().unwrap();
            assert_eq!(places.available_permits(), 0);
            assert!(server.parsing.take(body.as_bytes(), Duration::ZERO).await.is_err());
            end.send(()).unwrap();
            let _place = places.acquire().await.unwrap();
            assert!(server.parsing.take(body.as_bytes(), Duration::from_secs(60)).await.is_ok());
        });
    }
}
