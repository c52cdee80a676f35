//! Streams whose answers may be long in coming to begin: their model is loaded first, or comes back to its device. Their headers
//! go out all the same, since clients do not wait for them as long as a model may take.

use crate::reply::{self, Answered, EventSource, Frames};
use crate::time_up::TimeUp;
use crate::{Answers, ApiError, GenerateRequest, ServedModel};
use serde_json::Value;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// An answer that begins within this time may be refused with a status; a later one in its stream.
const SOON: Duration = Duration::from_secs(3);
/// Between two events that tell how far a model is.
const TELLS_EVERY: Duration = Duration::from_millis(500);

/// How an API tells of an answer that has not begun.
pub(crate) struct EarlyEvents {
    /// Writes the event that says the answer will not begin.
    pub(crate) failure: fn(&ApiError, &mut Frames),
    /// How far its model is, if the API has an event for that.
    pub(crate) progress: fn(&ServedModel) -> Option<Value>,
}

impl EarlyEvents {
    /// As OpenAI's streams tell it.
    pub(crate) const OPENAI: EarlyEvents =
        EarlyEvents { failure: |error, events| events.error(error), progress: |_| None };
}

type Begin = Pin<Box<dyn Future<Output = Result<Answers, ApiError>> + Send>>;
type Progress = Box<dyn Fn() -> Option<Value> + Send>;

/// Begins a generation; its stream is what `make` makes of it.
///
/// # Errors
/// As [`Answers::begin`], if that fails soon.
pub(crate) async fn events<S: EventSource>(
    model: Arc<ServedModel>,
    generate: GenerateRequest,
    early: EarlyEvents,
    make: impl FnOnce(Answers) -> S + Send + 'static,
) -> Answered {
    let (begun, mut time_up) = (Answers::begin(Arc::clone(&model), generate), TimeUp::current());
    let mut begin: Begin = Box::pin(async move { time_up.within(begun).await? });
    match timeout(SOON, begin.as_mut()).await {
        Ok(answers) => Ok(reply::events(make(answers?))),
        Err(_) => {
            let EarlyEvents { failure, progress } = early;
            let progress: Progress = Box::new(move || progress(&model));
            Ok(reply::events(Late::Waits { begin, failure, progress, make: Some(Box::new(make)) }))
        }
    }
}

/// A stream that may not have begun.
enum Late<S> {
    Waits {
        begin: Begin,
        failure: fn(&ApiError, &mut Frames),
        progress: Progress,
        make: Option<Box<dyn FnOnce(Answers) -> S + Send>>,
    },
    Begun(S),
}

impl<S: EventSource> EventSource for Late<S> {
    async fn next(&mut self, events: &mut Frames) -> bool {
        if let Late::Waits { begin, failure, progress, make } = self {
            match timeout(TELLS_EVERY, begin.as_mut()).await {
                Err(_) => {
                    if let Some(progress) = progress() {
                        events.data(&progress);
                    }
                    return true;
                }
                Ok(Err(error)) => {
                    failure(&error, events);
                    return false;
                }
                Ok(Ok(answers)) => match make.take() {
                    Some(make) => *self = Late::Begun(make(answers)),
                    None => return false,
                },
            }
        }
        match self {
            Late::Begun(source) => source.next(events).await,
            Late::Waits { .. } => false,
        }
    }

    fn still_here(&mut self, events: &mut Frames) {
        match self {
            Late::Begun(source) => source.still_here(events),
            Late::Waits { .. } => events.comment(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::future::pending;

    /// What never begins.
    struct Never;

    impl EventSource for Never {
        async fn next(&mut self, _: &mut Frames) -> bool {
            true
        }

        fn still_here(&mut self, _: &mut Frames) {}
    }

    fn late(begin: Begin) -> Late<Never> {
        let progress: Progress = Box::new(|| Some(json!({ "loading": 1 })));
        Late::Waits { begin, failure: EarlyEvents::OPENAI.failure, progress, make: Some(Box::new(|_| Never)) }
    }

    #[test]
    fn a_stream_that_waits_tells_how_far_its_model_is_and_why_it_fails() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut events = Frames::default();
            let mut waits = late(Box::pin(pending()));
            assert!(waits.next(&mut events).await);
            waits.still_here(&mut events);
            let mut fails = late(Box::pin(async { Err(ApiError::busy("no room")) }));
            assert!(!fails.next(&mut events).await);
            let text = String::from_utf8(events.take().unwrap().to_vec()).unwrap();
            let (progress, failure) = text.split_once(":\n\n").unwrap();
            assert_eq!(progress, "data: {\"loading\":1}\n\n");
            assert!(failure.starts_with("data: {\"error\":") && failure.contains("no room"), "{failure}");
        });
    }
}
