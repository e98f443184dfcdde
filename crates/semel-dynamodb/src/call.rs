//! One request to DynamoDB: how often it is tried, and what its errors mean.
//!
//! The SDK's own retries are off. A write whose answer was lost may have been made, and only this
//! module's callers know how to settle that: they write the same again, and recognise their own
//! write by its [version](crate::item::Version).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use semel_core::Timestamp;
use semel_core::store::{Error, Source};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::error::chain;
use crate::skew::Skew;

tokio::task_local! {
    /// When the request under way was sent, by this machine's clock.
    pub(crate) static SENT: Timestamp;
}

/// Most requests that one process has under way. The SDK opens a connection for each.
const MAX_CONCURRENT: usize = 256;
/// Most calls that wait for one of these. More would only time out later.
const MAX_WAITING: usize = 4096;
/// How long a call waits for one of these. A client of HTTP has given up by then.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// How often a throttled request is tried: for three seconds, about as long as a client waits.
const MAX_THROTTLED: u32 = 8;
/// How often a request without an answer is sent again.
const MAX_UNANSWERED: u32 = 3;
/// The first delay after a throttled request.
const BACKOFF: Duration = Duration::from_millis(25);
/// The longest delay.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The condition does not hold. Nothing was written.
    Condition,
    /// DynamoDB refused the request because of its rate. Nothing was written.
    Throttled(Source),
    /// DynamoDB refused the request, or it was not sent. Nothing was written.
    Refused(Source),
    /// No answer that says whether it was written.
    Unanswered(Source),
}

/// The result of a request that was sent until it had an answer.
pub(crate) struct SendResult<T> {
    pub(crate) outcome: Result<T, Fault>,
    /// Whether an earlier try had no answer: that one may have been performed.
    pub(crate) unanswered: bool,
}

/// The limit of requests under way.
pub(crate) struct Limit {
    /// Says when a request is sent.
    skew: Arc<Skew>,
    permits: Semaphore,
    waiting: AtomicUsize,
}

/// Counts a waiting call as long as it waits, also if it is cancelled.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limit {
    pub(crate) fn new(skew: Arc<Skew>) -> Self {
        Self {
            skew,
            permits: Semaphore::new(MAX_CONCURRENT),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Sends a request until it has an answer that more tries would not change.
    pub(crate) async fn send<T, E, F>(&self, request: impl Fn() -> F) -> SendResult<T>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let (mut throttled, mut unanswered) = (0, 0);
        loop {
            let fault = match self.send_once(&request).await {
                Ok(answer) => {
                    return SendResult {
                        outcome: Ok(answer),
                        unanswered: unanswered > 0,
                    };
                }
                Err(fault) => fault,
            };
            let tries = match &fault {
                Fault::Throttled(_) if throttled + 1 < MAX_THROTTLED => {
                    throttled += 1;
                    throttled
                }
                Fault::Unanswered(_) if unanswered + 1 < MAX_UNANSWERED => {
                    unanswered += 1;
                    unanswered
                }
                Fault::Condition
                | Fault::Refused(_)
                | Fault::Throttled(_)
                | Fault::Unanswered(_) => {
                    return SendResult {
                        outcome: Err(fault),
                        unanswered: unanswered > 0,
                    };
                }
            };
            tokio::time::sleep(backoff(tries)).await;
        }
    }

    async fn send_once<T, E, F>(&self, request: &impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let permit = if let Ok(permit) = self.permits.try_acquire() {
            permit
        } else {
            let before = self.waiting.fetch_add(1, Ordering::Relaxed);
            let _waiting = Waiting(&self.waiting);
            if before >= MAX_WAITING {
                return Err(Fault::Refused("too many calls wait for DynamoDB".into()));
            }
            let permit = timeout(MAX_WAIT, self.permits.acquire()).await;
            let permit = permit.map_err(|late| Fault::Refused(late.into()))?;
            permit.map_err(|closed| Fault::Refused(closed.into()))?
        };
        let answer = SENT.scope(self.skew.now(), request()).await;
        drop(permit);
        answer.map_err(classify)
    }
}

/// What DynamoDB leaves over of a batch where it is throttled: the answer is not an error then.
#[derive(Default)]
pub(crate) struct Rest {
    tries: u32,
}

impl Rest {
    /// Waits before the `left` requests of a batch of `sent` are sent again, longer while none of
    /// them is performed.
    pub(crate) async fn wait(&mut self, left: usize, sent: usize) -> Result<(), Error> {
        self.tries = if left < sent { 1 } else { self.tries + 1 };
        if left > 0 {
            if self.tries >= MAX_THROTTLED {
                return Err(unavailable(THROTTLED, None));
            }
            tokio::time::sleep(backoff(self.tries)).await;
        }
        Ok(())
    }
}

/// Longer after each try, with jitter: throttled processes must not come back together.
pub(crate) fn backoff(tries: u32) -> Duration {
    let longest = BACKOFF
        .saturating_mul(2_u32.saturating_pow(tries))
        .min(MAX_BACKOFF);
    let [a, b, ..] = *Uuid::new_v4().as_bytes();
    let part = f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX);
    longest / 2 + (longest / 2).mul_f64(part)
}

fn classify<E>(error: SdkError<E, HttpResponse>) -> Fault
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let code = error
        .as_service_error()
        .and_then(ProvideErrorMetadata::code);
    match (&error, code) {
        (_, Some("ConditionalCheckFailedException")) => Fault::Condition,
        (
            _,
            Some(
                "ProvisionedThroughputExceededException"
                | "ThrottlingException"
                | "RequestLimitExceeded"
                // Another writer of the same item, in a transaction or in another region.
                | "TransactionConflictException"
                | "TransactionInProgressException"
                | "ReplicatedWriteConflictException",
            ),
        ) => Fault::Throttled(error.into()),
        (SdkError::ConstructionFailure(_), _) => Fault::Refused(error.into()),
        (SdkError::DispatchFailure(failure), _) if failure.is_user() => {
            Fault::Refused(error.into())
        }
        (SdkError::DispatchFailure(_), _) if was_not_connected(&error) => {
            Fault::Refused(error.into())
        }
        // 4xx: DynamoDB refused it. 5xx: it may have written before it failed.
        (SdkError::ServiceError(found), _) if found.raw().status().is_client_error() => {
            Fault::Refused(error.into())
        }
        _ => Fault::Unanswered(error.into()),
    }
}

/// Whether there was no connection, so that nothing was sent.
fn was_not_connected(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(cause) = cause.downcast_ref::<std::io::Error>() {
            return cause.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        next = cause.source();
    }
    false
}

impl Fault {
    /// The error of a read: nothing is ambiguous about it.
    pub(crate) fn of_read(self) -> Error {
        match self {
            Self::Condition => unavailable("a condition failed on a read", None),
            Self::Throttled(cause) => unavailable(THROTTLED, Some(cause)),
            Self::Refused(cause) | Self::Unanswered(cause) => {
                let reason = format!("DynamoDB did not answer a read: {}", chain(&*cause));
                unavailable(reason, Some(cause))
            }
        }
    }

    /// The error of a write. `unanswered`: an earlier try may have been performed.
    pub(crate) fn of_write(self, unanswered: bool) -> Error {
        match self {
            Self::Unanswered(cause) => ambiguous(cause),
            Self::Throttled(cause) | Self::Refused(cause) if unanswered => ambiguous(cause),
            Self::Throttled(cause) => unavailable(THROTTLED, Some(cause)),
            Self::Refused(cause) => {
                let reason = format!("DynamoDB refused a write: {}", chain(&*cause));
                unavailable(reason, Some(cause))
            }
            Self::Condition => unavailable("other writers were faster", None),
        }
    }
}

const THROTTLED: &str = "DynamoDB throttles this table: raise its limits or lower the load";

/// Nothing was written.
pub(crate) fn unavailable(reason: impl Into<Box<str>>, source: Option<Source>) -> Error {
    Error::Unavailable {
        reason: reason.into(),
        source,
    }
}

fn ambiguous(source: Source) -> Error {
    Error::Ambiguous {
        reason: format!("DynamoDB did not answer a write: {}", chain(&*source)).into(),
        source: Some(source),
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::operation::get_item::GetItemError;

    use super::*;

    #[test]
    fn backoff_grows_to_its_bound_with_jitter() {
        for (tries, longest) in [(1, 50), (2, 100), (6, 1000), (u32::MAX, 1000)] {
            let (longest, delay) = (Duration::from_millis(longest), backoff(tries));
            assert!(
                delay <= longest && delay >= longest / 2,
                "{tries}: {delay:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_does_not_wait_for_its_turn_for_ever() {
        let skew = Arc::new(Skew::new(Arc::new(semel_core::SystemClock)));
        let limit = Limit::new(skew);
        let _taken = limit.permits.try_acquire_many(256).unwrap();
        let sent = limit.send(|| async { Ok::<(), SdkError<GetItemError, _>>(()) });
        let fault = sent.await.outcome.unwrap_err();
        assert!(matches!(fault, Fault::Refused(_)), "{fault:?}");
    }
}
