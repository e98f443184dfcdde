//! Messages, each handed to a function until it says that it is done.

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

/// The most messages that one consumer treats at once.
pub const MAX_IN_FLIGHT: usize = 4096;

/// A message, as the handler sees it. `Debug` shows how long it is, not what it says.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The name of the event, by which an inbox knows it again.
    pub id: Box<str>,
    /// What happened; the subject or routing key, where the sender did not say.
    pub kind: Box<str>,
    /// To what, where the sender said so.
    pub aggregate: Option<Box<str>>,
    /// All else.
    pub payload: Bytes,
    /// How often it was delivered, this time included, as far as the broker knows.
    pub tries: u32,
}

/// How often a message is tried, and how long after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The pauses between tries.
    pub backoff: Backoff,
    /// The tries after which a message is dead.
    pub max_tries: u32,
}

impl Default for Retries {
    /// Twenty tries in about a quarter of an hour: longer than a database restarts, shorter than
    /// RabbitMQ waits for an acknowledgement.
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

/// Where messages come from: [`nats::Subscription`](crate::nats::Subscription) or
/// [`rabbitmq::Subscription`](crate::rabbitmq::Subscription).
pub trait Subscription: sealed::Run {}

pub(crate) mod sealed {
    use std::future::Future;

    use tokio_util::sync::CancellationToken;

    use super::Treatment;
    use crate::Error;

    /// The loop of one broker.
    pub trait Run: Send + 'static {
        /// Runs until it is told to stop, and finishes what is under way.
        fn run(
            self,
            treatment: Treatment,
            shutdown: CancellationToken,
        ) -> impl Future<Output = Result<(), Error>> + Send;
    }
}

/// Hands every message to `handler` until `shutdown`, then finishes what is under way.
///
/// A message is acknowledged once the handler returns `Ok`, and not before: the handler commits
/// first. On `Err`, and if it panics, the message comes again after a pause that grows; after
/// [`Retries::max_tries`] it goes where the broker keeps dead letters. A message without an id goes
/// there at once, since nobody could tell whether it came before.
///
/// Messages arrive at least once, many at a time, and **in no order that could be relied on**: one
/// that failed comes after those that followed it, of the same aggregate too.
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
///         // Begin, `inbox.once(…)`, write, commit; and only then:
///         println!("{} happened to {:?}", message.kind, message.aggregate);
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
/// [`Error`], before anything is consumed, where the settings make no sense. A broker that is away
/// is warned about and tried again.
///
/// # Cancellation
/// Dropped, it drops the handlers that are under way; their messages are delivered again.
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
    let treatment = Treatment {
        handler: Arc::new(move |delivery| {
            let handler = Arc::clone(&handler);
            // Called within, so that a panic before the first await is caught like any other.
            Box::pin(async move {
                let handling = handler(delivery);
                handling.await.map_err(|error| error.to_string())
            })
        }),
    };
    subscription.run(treatment, shutdown).await
}

type Handling = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// What is done with messages.
#[derive(Clone)]
pub struct Treatment {
    handler: Arc<dyn Fn(Delivery) -> Handling + Send + Sync>,
}

/// A message in the hands of its broker's loop. What cannot be told to the broker is told in the
/// log, and the broker delivers the message again.
pub(crate) trait Message: Send + 'static {
    /// Reassures the broker for as long as it is polled.
    fn keep_alive(&self) -> impl Future<Output = Infallible> + Send;

    /// It is done.
    fn ack(self) -> impl Future<Output = ()> + Send;

    /// It is to be tried again after `delay`.
    fn retry(&self, delay: Duration) -> impl Future<Output = Again> + Send;

    /// It goes to the dead letters.
    fn bury(self, reason: &str) -> impl Future<Output = ()> + Send;
}

/// Who tries a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// We do, now: the pause is over.
    #[cfg_attr(
        not(any(feature = "rabbitmq", test)),
        expect(dead_code, reason = "NATS delivers again by itself")
    )]
    Here,
    /// Whoever the broker delivers it to.
    Elsewhere,
}

impl Treatment {
    /// Treats one message to its end.
    pub(crate) async fn treat(
        self,
        message: impl Message,
        mut delivery: Delivery,
        retries: Retries,
    ) {
        if delivery.id.is_empty() {
            let reason = "it has no id, so nobody can tell whether it came before";
            tracing::error!(kind = &*delivery.kind, "a message is dead: {reason}");
            return message.bury(reason).await;
        }
        loop {
            // One that ends the process never comes back as a failure.
            if delivery.tries > retries.max_tries {
                let reason = format!("delivered {} times, and never done", delivery.tries);
                tracing::error!(
                    id = &*delivery.id,
                    kind = &*delivery.kind,
                    "a message is dead: {reason}"
                );
                return message.bury(&reason).await;
            }
            let handled = tokio::select! {
                handled = self.handle(delivery.clone()) => handled,
                never = message.keep_alive() => match never {},
            };
            let Err(reason) = handled else {
                return message.ack().await;
            };
            let (id, kind, tries) = (&*delivery.id, &*delivery.kind, delivery.tries);
            if tries >= retries.max_tries {
                tracing::error!(id, kind, tries, "a message is dead: {reason}");
                return message.bury(&reason).await;
            }
            let delay = retries.backoff.spread(seed(id), tries);
            tracing::warn!(
                id,
                kind,
                tries,
                ?delay,
                "a message is tried again: {reason}"
            );
            match message.retry(delay).await {
                Again::Here => delivery.tries += 1,
                Again::Elsewhere => return,
            }
        }
    }

    async fn handle(&self, delivery: Delivery) -> Result<(), String> {
        AssertUnwindSafe((self.handler)(delivery))
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| Err(format!("the handler panicked: {}", words(&*panic))))
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a word")
}

/// Spreads messages that failed together over time (FNV-1a).
fn seed(id: &str) -> u32 {
    id.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Checks what every consumer has.
pub(crate) fn check(in_flight: usize, retries: Retries) -> Result<(), Error> {
    let bounds = |what, most: u64, found: u64| {
        if (1..=most).contains(&found) {
            return Ok(());
        }
        Err(Error::Bounds {
            what,
            least: 1,
            most,
            found,
        })
    };
    bounds("in_flight", MAX_IN_FLIGHT as u64, in_flight as u64)?;
    bounds("max_tries", u32::MAX.into(), retries.max_tries.into())
}

/// When a loop that lost its broker tries again.
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
        let of = aggregate.as_deref().unwrap_or("nothing in particular");
        let bytes = payload.len();
        write!(f, "{kind} {id} of {of} ({bytes} bytes, try {tries})")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What a broker was told of a message.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    struct Fake {
        told: Told,
        again: Again,
    }

    impl Told {
        fn note(&self, what: impl Into<String>) {
            self.0.lock().unwrap().push(what.into());
        }

        fn all(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    impl Message for Fake {
        async fn keep_alive(&self) -> Infallible {
            std::future::pending().await
        }

        async fn ack(self) {
            self.told.note("ack");
        }

        async fn retry(&self, delay: Duration) -> Again {
            self.told.note(format!("retry {}", delay.as_secs()));
            self.again
        }

        async fn bury(self, reason: &str) {
            self.told.note(format!("bury: {reason}"));
        }
    }

    const RETRIES: Retries = Retries {
        backoff: Backoff {
            every: Duration::from_secs(100),
            max_every: Duration::from_secs(1000),
        },
        max_tries: 3,
    };

    async fn told<F>(
        again: Again,
        id: &str,
        tries: u32,
        handler: impl Fn(Delivery) -> F + Send + Sync + 'static,
    ) -> Vec<String>
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let told = Told::default();
        let delivery = Delivery {
            id: id.into(),
            kind: "k".into(),
            aggregate: None,
            payload: Bytes::new(),
            tries,
        };
        let handler = Arc::new(handler);
        let treatment = Treatment {
            handler: Arc::new(move |delivery| {
                let handler = Arc::clone(&handler);
                Box::pin(async move { handler(delivery).await })
            }),
        };
        let fake = Fake {
            told: told.clone(),
            again,
        };
        treatment.treat(fake, delivery, RETRIES).await;
        told.all()
    }

    #[tokio::test]
    async fn what_is_done_is_acknowledged() {
        assert_eq!(told(Again::Here, "1", 1, async |_| Ok(())).await, ["ack"]);
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_after_growing_pauses_and_then_buried() {
        let told = told(Again::Here, "1", 1, async |_| Err("no".to_owned())).await;
        let pause = |told: &str| told.strip_prefix("retry ").unwrap().parse::<u64>().unwrap();
        assert!((75..=100).contains(&pause(&told[0])), "{told:?}");
        assert!((150..=200).contains(&pause(&told[1])), "{told:?}");
        assert_eq!(told[2..], ["bury: no"]);
    }

    #[tokio::test]
    async fn what_the_broker_delivers_again_is_left_to_it() {
        let told = told(Again::Elsewhere, "1", 1, async |_| Err("no".to_owned())).await;
        assert_eq!(told.len(), 1);
    }

    #[tokio::test]
    async fn a_panic_is_a_failure() {
        let told = told(Again::Here, "1", 3, |_| -> std::future::Ready<_> {
            panic!("at once")
        })
        .await;
        assert_eq!(told, ["bury: the handler panicked: at once"]);
    }

    #[tokio::test]
    async fn what_never_came_to_an_end_is_buried_unseen() {
        let told = told(Again::Here, "1", 4, async |_| panic!("seen")).await;
        assert_eq!(told, ["bury: delivered 4 times, and never done"]);
    }

    #[tokio::test]
    async fn what_has_no_id_is_buried_unseen() {
        let told = told(Again::Here, "", 1, async |_| panic!("seen")).await;
        assert!(told[0].starts_with("bury: it has no id"), "{told:?}");
    }

    #[test]
    fn settings_have_bounds() {
        assert_eq!(check(1, RETRIES), Ok(()));
        assert!(check(0, RETRIES).is_err());
        assert!(check(MAX_IN_FLIGHT + 1, RETRIES).is_err());
        let never = Retries {
            max_tries: 0,
            ..RETRIES
        };
        assert!(check(1, never).is_err());
    }
}
