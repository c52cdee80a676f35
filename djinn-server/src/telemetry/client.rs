//! Sends spans over HTTP on the SDK's thread, and logs a failure once.

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::Agent;

/// The most bytes of a collector's answer.
const LONGEST_ANSWER: u64 = 1 << 20;

/// A connection to a collector.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Host and port, for messages.
    place: String,
    /// Whether the latest spans were refused.
    fails: AtomicBool,
}

impl Client {
    /// `time`: for the collector to take a batch.
    pub(super) fn new(place: String, time: Duration) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(time))
            .http_status_as_error(false)
            .max_redirects(0)
            // A collector is addressed directly, without a proxy.
            .proxy(None);
        Client { agent: config.build().into(), place, fails: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let mut answer = self.agent.run(Request::from_parts(head, &*body))?;
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec()?;
        Ok(answer.map(|_| Bytes::from(body)))
    }

    fn note(&self, sent: &Result<Response<Bytes>, HttpError>) {
        let failure = match sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers with status {}", answer.status().as_u16())),
            Err(error) => Some(error.to_string()),
        };
        let failed = self.fails.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(why) if !failed => {
                log::warn!(target: "djinn::server", "no spans reach the collector at {}: {why}", self.place);
            }
            None if failed => {
                log::info!(target: "djinn::server", "spans reach the collector at {}", self.place)
            }
            _ => {}
        }
    }
}

impl HttpClient for Client {
    /// It blocks: the SDK calls it on a thread of its own.
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let sent = self.send(request);
            self.note(&sent);
            sent
        })
    }
}
