//! The consumer loop: passes each message to a handler, and acknowledges, retries or dead-letters it.

use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use semel_core::Backoff;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// The maximum number of messages that one consumer handles concurrently.
pub const MAX_IN_FLIGHT: usize = 4096;

/// A message, as the handler receives it. `Debug` shows the length of the payload, not its content.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The id of the event, by which an inbox detects duplicates.
    pub id: Box<str>,
    /// The kind of the event. The subject or routing key, if the message has no kind.
    pub kind: Box<str>,
    /// The aggregate of the event, if the message has one.
    pub aggregate: Option<Box<str>>,
    /// The body of the message.
    pub payload: Bytes,
    /// The number of deliveries so far, including this one, as counted by the broker.
    pub tries: u32,
}

/// The retry policy of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The delays between tries.
    pub backoff: Backoff,
    /// The number of failed tries after which a message becomes a dead letter.
    pub max_tries: u32,
}

impl Default for Retries {
    /// Twenty tries within about 15 minutes: longer than a database takes to restart, and shorter
    /// than RabbitMQ waits for an acknowledgement.
    fn default() -> Self {
        Self {
            backoff: Backoff {
                every: Duration::from_secs(1),
                max_every: Duration::from_mins(1),
            },
            max_tries: 20,
        }
    }
}

/// A source of messages: [`nats::Subscription`](crate::nats::Subscription) or
/// [`rabbitmq::Subscription`](crate::rabbitmq::Subscription).
pub trait Subscription: sealed::Run {}

pub(crate) mod sealed {
    use std::future::Future;

    use tokio_util::sync::CancellationToken;

    use super::MessageHandler;
    use crate::Error;

    /// The consumer loop of one broker.
    pub trait Run: Send + 'static {
        /// Runs until `shutdown` is cancelled, then waits for the handlers that are running.
        fn run(
            self,
            handler: MessageHandler,
            shutdown: CancellationToken,
        ) -> impl Future<Output = Result<(), Error>> + Send;
    }
}

/// Passes every message to `handler` until `shutdown` is cancelled, then waits for the handlers
/// that are running.
///
/// A message is acknowledged after the handler has returned `Ok`, so the handler commits its
/// transaction first. If the handler returns `Err` or panics, the message is delivered again after
/// a delay that grows with each try. After [`Retries::max_tries`] it becomes a dead letter. A
/// message without an id becomes a dead letter at once, because an inbox could not detect its
/// duplicates.
///
/// Messages are delivered at least once, concurrently, and **in no guaranteed order**: a message
/// that failed is delivered after later ones, even of the same aggregate.
///
/// ```no_run
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "nats")] {
/// use semel_brokers::{CancellationToken, Delivery, consume, nats};
///
/// let subscription = nats::Subscription::new("nats://127.0.0.1", "events", "ledger");
/// let shutdown = CancellationToken::new();
/// consume(
///     subscription,
///     async |message: Delivery| {
///         // Begin a transaction, call `inbox.once(…)`, write, commit. Then return `Ok`.
///         println!("{} for {:?}", message.kind, message.aggregate);
///         Ok::<_, std::io::Error>(())
///     },
///     shutdown,
/// )
/// .await?;
/// # }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error`] if the settings are invalid, before any message is consumed. An unreachable broker is
/// not an error: it is logged, and the connection is retried.
///
/// # Cancellation
/// Dropping the future drops the handlers that are running. Their messages are delivered again.
pub async fn consume<S, H, F, E>(
    subscription: S,
    handler: H,
    shutdown: CancellationToken,
) -> Result<(), Error>
where
    S: Subscription,
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display,
{
    let handler = Arc::new(handler);
    let handler = MessageHandler {
        call: Arc::new(move |delivery| {
            let handler = Arc::clone(&handler);
            // Called inside the future, so that a panic before the first await is caught as well.
            Box::pin(async move {
                let effect = handler(delivery);
                effect.await.map_err(|error| error.to_string())
            })
        }),
    };
    subscription.run(handler, shutdown).await
}

type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The application's handler, with its type erased.
#[derive(Clone)]
pub struct MessageHandler {
    call: Arc<dyn Fn(Delivery) -> HandlerFuture + Send + Sync>,
}

/// A delivered message that is not acknowledged yet. If a method cannot reach the broker, it logs a
/// warning, and the broker delivers the message again.
pub(crate) trait Message: Send + 'static {
    /// Keeps the broker from redelivering the message, for as long as the future is polled.
    fn keep_alive(&self) -> impl Future<Output = Infallible> + Send;

    /// Acknowledges the message.
    fn ack(self) -> impl Future<Output = ()> + Send;

    /// Schedules the next try after `delay`.
    fn retry(&self, delay: Duration) -> impl Future<Output = NextTry> + Send;

    /// Makes the message a dead letter.
    fn dead_letter(self, reason: &str) -> impl Future<Output = ()> + Send;
}

/// Where the next try of a message takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTry {
    /// In this task, now: the delay has passed.
    #[cfg_attr(
        not(any(feature = "rabbitmq", test)),
        expect(dead_code, reason = "NATS redelivers failed messages itself")
    )]
    InProcess,
    /// In the consumer to which the broker delivers the message again.
    Redelivered,
}

impl MessageHandler {
    /// Handles one message until it is acknowledged, dead-lettered, or left to the broker.
    pub(crate) async fn process(
        self,
        message: impl Message,
        mut delivery: Delivery,
        retries: Retries,
    ) {
        if delivery.id.is_empty() {
            let reason = "the message has no id, so duplicates cannot be detected";
            tracing::error!(kind = &*delivery.kind, "message dead-lettered: {reason}");
            return message.dead_letter(reason).await;
        }
        loop {
            // A message that crashes the process never reports a failure; only the count grows.
            if delivery.tries > retries.max_tries {
                let reason = format!(
                    "delivered {} times without an acknowledgement",
                    delivery.tries
                );
                tracing::error!(
                    id = &*delivery.id,
                    kind = &*delivery.kind,
                    "message dead-lettered: {reason}"
                );
                return message.dead_letter(&reason).await;
            }
            let handled = tokio::select! {
                handled = self.call(delivery.clone()) => handled,
                never = message.keep_alive() => match never {},
            };
            let Err(reason) = handled else {
                return message.ack().await;
            };
            let (id, kind, tries) = (&*delivery.id, &*delivery.kind, delivery.tries);
            if tries >= retries.max_tries {
                tracing::error!(id, kind, tries, "message dead-lettered: {reason}");
                return message.dead_letter(&reason).await;
            }
            let delay = retries.backoff.spread(jitter_seed(id), tries);
            tracing::warn!(
                id,
                kind,
                tries,
                ?delay,
                "message handler failed, retrying: {reason}"
            );
            match message.retry(delay).await {
                NextTry::InProcess => delivery.tries += 1,
                NextTry::Redelivered => return,
            }
        }
    }

    async fn call(&self, delivery: Delivery) -> Result<(), String> {
        AssertUnwindSafe((self.call)(delivery))
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| {
                Err(format!("the handler panicked: {}", panic_message(&*panic)))
            })
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A hash of the id (FNV-1a), so that messages that failed together are not retried together.
fn jitter_seed(id: &str) -> u32 {
    id.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Checks the settings that all consumers have.
pub(crate) fn check_limits(in_flight: usize, retries: Retries) -> Result<(), Error> {
    let check = |setting, max: u64, value: u64| {
        if (1..=max).contains(&value) {
            return Ok(());
        }
        Err(Error::Bounds {
            setting,
            min: 1,
            max,
            value,
        })
    };
    check("in_flight", MAX_IN_FLIGHT as u64, in_flight as u64)?;
    check("max_tries", u32::MAX.into(), retries.max_tries.into())
}

/// The delays between attempts to reconnect to a broker.
pub(crate) const RECONNECT: Backoff = Backoff {
    every: Duration::from_millis(100),
    max_every: Duration::from_secs(5),
};

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            kind,
            aggregate,
            payload,
            tries,
        } = self;
        let aggregate = aggregate.as_deref().unwrap_or("no aggregate");
        let bytes = payload.len();
        write!(f, "{kind} {id} of {aggregate} ({bytes} bytes, try {tries})")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The calls that a message received, in order.
    #[derive(Clone, Default)]
    struct CallLog(Arc<Mutex<Vec<String>>>);

    struct FakeMessage {
        calls: CallLog,
        next_try: NextTry,
    }

    impl CallLog {
        fn record(&self, call: impl Into<String>) {
            self.0.lock().unwrap().push(call.into());
        }

        fn calls(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    impl Message for FakeMessage {
        async fn keep_alive(&self) -> Infallible {
            std::future::pending().await
        }

        async fn ack(self) {
            self.calls.record("ack");
        }

        async fn retry(&self, delay: Duration) -> NextTry {
            self.calls.record(format!("retry {}", delay.as_secs()));
            self.next_try
        }

        async fn dead_letter(self, reason: &str) {
            self.calls.record(format!("dead_letter: {reason}"));
        }
    }

    const RETRIES: Retries = Retries {
        backoff: Backoff {
            every: Duration::from_secs(100),
            max_every: Duration::from_secs(1000),
        },
        max_tries: 3,
    };

    async fn process_message<F>(
        next_try: NextTry,
        id: &str,
        tries: u32,
        handler: impl Fn(Delivery) -> F + Send + Sync + 'static,
    ) -> Vec<String>
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let calls = CallLog::default();
        let delivery = Delivery {
            id: id.into(),
            kind: "k".into(),
            aggregate: None,
            payload: Bytes::new(),
            tries,
        };
        let handler = Arc::new(handler);
        let handler = MessageHandler {
            call: Arc::new(move |delivery| {
                let handler = Arc::clone(&handler);
                Box::pin(async move { handler(delivery).await })
            }),
        };
        let message = FakeMessage {
            calls: calls.clone(),
            next_try,
        };
        handler.process(message, delivery, RETRIES).await;
        calls.calls()
    }

    #[tokio::test]
    async fn handler_success_acknowledges_the_message() {
        let calls = process_message(NextTry::InProcess, "1", 1, async |_| Ok(())).await;
        assert_eq!(calls, ["ack"]);
    }

    #[tokio::test]
    async fn failing_message_is_retried_with_backoff_then_dead_lettered() {
        let calls =
            process_message(NextTry::InProcess, "1", 1, async |_| Err("no".to_owned())).await;
        let delay = |call: &str| call.strip_prefix("retry ").unwrap().parse::<u64>().unwrap();
        assert!((75..=100).contains(&delay(&calls[0])), "{calls:?}");
        assert!((150..=200).contains(&delay(&calls[1])), "{calls:?}");
        assert_eq!(calls[2..], ["dead_letter: no"]);
    }

    #[tokio::test]
    async fn redelivered_message_is_not_retried_in_process() {
        let calls =
            process_message(NextTry::Redelivered, "1", 1, async |_| Err("no".to_owned())).await;
        assert_eq!(calls.len(), 1);
    }

    #[tokio::test]
    async fn handler_panic_counts_as_a_failure() {
        let calls = process_message(NextTry::InProcess, "1", 3, |_| -> std::future::Ready<_> {
            panic!("at once")
        })
        .await;
        assert_eq!(calls, ["dead_letter: the handler panicked: at once"]);
    }

    #[tokio::test]
    async fn message_delivered_too_often_is_dead_lettered_without_calling_the_handler() {
        let calls = process_message(NextTry::InProcess, "1", 4, async |_| panic!("called")).await;
        assert_eq!(
            calls,
            ["dead_letter: delivered 4 times without an acknowledgement"]
        );
    }

    #[tokio::test]
    async fn message_without_an_id_is_dead_lettered_without_calling_the_handler() {
        let calls = process_message(NextTry::InProcess, "", 1, async |_| panic!("called")).await;
        assert!(
            calls[0].starts_with("dead_letter: the message has no id"),
            "{calls:?}"
        );
    }

    #[test]
    fn settings_out_of_bounds_are_rejected() {
        assert_eq!(check_limits(1, RETRIES), Ok(()));
        assert!(check_limits(0, RETRIES).is_err());
        assert!(check_limits(MAX_IN_FLIGHT + 1, RETRIES).is_err());
        let no_tries = Retries {
            max_tries: 0,
            ..RETRIES
        };
        assert!(check_limits(1, no_tries).is_err());
    }
}
