//! Retries by `semel-client`, over the campaign's own connections: each request is spelled, sent and recorded as all
//! others are.

use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_campaign_checker::history::Outcome;
use semel_client::{
    Backoff, BoxFuture, Environment, Journal, Options, Profile, QuotaOptions, Received, Request,
    RetryAfter, System, Transport, TransportError,
};
use semel_core::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Client, LONGEST_PAUSE, PAUSE, TRIES};
use crate::answer::CallResult;
use crate::http::{Answer, SendMode};
use crate::operation::Operation;
use crate::random::Random;

/// What a retry takes from its quota.
const COST: f64 = 1.0;

impl Client {
    /// Retries with the operation's key until a response is final for a client, for a few tries, or until it is time to
    /// stop. Returns the outcome of the last request.
    pub(super) async fn retry(&mut self, operation: &Operation, until: Instant) -> Outcome {
        let left = until.saturating_duration_since(Instant::now());
        let mut beside = Self::new(self.shared.clone(), self.random.fork());
        beside.connections = self.connections.beside();
        let recorded = Recorded(Arc::new(State {
            client: Mutex::new(beside),
            operation: operation.clone(),
            last: Lock::new(Outcome::Indeterminate),
        }));
        let client = semel_client::Client::builder(Journal::memory())
            .options(options(left))
            .environment(Arc::new(Seeded(Lock::new(self.random.fork()))))
            .build_with(recorded.clone());
        let request = Request::post("http://gateway.invalid/payments").map(|mut request| {
            if let Ok(key) = operation.key().parse() {
                request.headers.insert("idempotency-key", key);
            }
            request
        });
        if let Ok(request) = request {
            // How it ended for the client; what each response says of the operation is recorded.
            let _ = client.send(request).await;
        }
        *recorded
            .0
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Short delays, so that retries meet the end of leases and of outages.
fn options(left: Duration) -> Options {
    let backoff = Backoff {
        base: PAUSE,
        cap: LONGEST_PAUSE,
        fixed: 0.5,
        floor: Duration::ZERO,
    };
    Options {
        profile: Profile {
            retry_after: RetryAfter::UpTo(PAUSE),
            backoff,
            slow: backoff,
            ..Profile::ietf()
        },
        deadline: left.min(LONGEST_PAUSE * TRIES),
        // The connections have their own patience.
        attempt_timeout: left.max(Duration::from_mins(1)),
        quota: QuotaOptions {
            capacity: f64::from(TRIES) * COST,
            cost: COST,
            refill_per_second: 0.0,
        },
        ..Options::default()
    }
}

/// Sends as the campaign's clients do.
#[derive(Clone)]
struct Recorded(Arc<State>);

struct State {
    client: Mutex<Client>,
    operation: Operation,
    last: Lock<Outcome>,
}

impl Transport for Recorded {
    /// The operation's request instead of `request`: its headers have many spellings.
    fn send(&self, _: http::Request<Bytes>) -> BoxFuture<'_, Result<Received, TransportError>> {
        let state = Arc::clone(&self.0);
        // Goes on where the client gives up at its deadline: a request that is not in the history would
        // look like an execution without a cause.
        let attempt = tokio::spawn(async move {
            let mut client = state.client.lock().await;
            let operation = &state.operation;
            let result = client.attempt(operation, None, SendMode::Normal).await;
            *state.last.lock().unwrap_or_else(PoisonError::into_inner) = result.outcome;
            result
        });
        Box::pin(async move {
            let ended = attempt.await;
            received(ended.map_err(|error| TransportError::Failed(error.to_string()))?)
        })
    }
}

fn received(result: CallResult) -> Result<Received, TransportError> {
    let answer = result.answer;
    let answer = answer.ok_or_else(|| TransportError::Failed("no answer".to_owned()))?;
    response(answer).map_err(|error| TransportError::Failed(error.to_string()))
}

fn response(answer: Answer) -> http::Result<Received> {
    let mut response = http::Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(answer.body.into())
}

/// The campaign's random numbers: a seed repeats its schedule.
struct Seeded(Lock<Random>);

impl Environment for Seeded {
    fn now(&self) -> Timestamp {
        System.now()
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()> {
        System.sleep(delay)
    }

    fn random(&self) -> f64 {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f64::from(u32::try_from(random.below(1 << 20)).unwrap_or_default()) / f64::from(1 << 20)
    }
}
