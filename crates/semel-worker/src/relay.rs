//! The relay publishes the events of an outbox to a broker.
//!
//! `Outbox::claim_events → Sink::publish → (the broker confirms) → Outbox::mark_sent`
//!
//! An event is published at least once, under one id. Within an aggregate the next is handed to
//! the sink only after the one before was confirmed; aggregates do not wait for each other.
//!
//! **Invariant:** an event is removed only after the broker confirmed it; a refused event is set
//! aside for an operator.
//!
//! **Invariant:** while the broker is unavailable, no try is counted and no event is set aside.
//!
//! **Invariant:** nothing is handed to the sink later than half a lease after the claim that
//! returned it, and the relay waits for confirmations no longer than three quarters of it. So two
//! relays do not publish at once, unless one of them is paused for the rest of its lease while it
//! hands over an event; it then repeats events that it had claimed.
//!
//! ```
//! use std::sync::Arc;
//! use semel_core::outbox::{Event, Publishing, Sink};
//! use semel_core::{BackgroundJob as _, Memory, Store as _};
//! use semel_worker::Relay;
//!
//! /// Prints the events.
//! struct Console;
//!
//! impl Sink for Console {
//!     fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
//!         Box::pin(async move {
//!             println!("{} {}", event.id, event.kind);
//!             Ok(())
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Memory::default();
//! store.publish(Event::new("payment.created", "payment/pay_789", "{}")?);
//! // A worker repeats this: `Worker::new(store).with_job(Arc::new(relay))`.
//! let relay = Relay::new(store.clone(), Arc::new(Console));
//! relay.round().await?;
//! assert_eq!(store.outbox_backlog().await?.waiting, 0);
//! # Ok(())
//! # }
//! ```

mod gauge;
mod lanes;
mod round;

use std::fmt;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::outbox::{EventId, Refused};
use semel_core::store::MAX_BATCH;
use semel_core::{BackgroundJob, Backoff, OperationId, Owner, Sink, Store, background_job};

pub use gauge::BacklogGauge;

/// The job's name in metrics and logs.
pub const RELAY: &str = "outbox_relay";

/// The shortest lease: half of it must outlast a short delay of the store.
pub const MIN_LEASE: Duration = Duration::from_secs(2);

/// Publishes the events of an outbox. One relay per outbox holds the lease; the others stand by.
pub struct Relay<S> {
    store: S,
    sink: Arc<dyn Sink>,
    owner: Owner,
    batch: usize,
    lease: Duration,
    in_flight: usize,
    max_tries: u32,
    backoff: Backoff,
    every: Duration,
    /// Confirmed by the broker but not yet removed, because the store failed: removed first.
    unmarked: Mutex<Vec<EventId>>,
    hasher: RandomState,
}

impl<S: Store> Relay<S> {
    /// A relay from this outbox to this sink.
    pub fn new(store: S, sink: Arc<dyn Sink>) -> Self {
        Self {
            store,
            sink,
            owner: Owner::from(format!("relay-{}", OperationId::generate())),
            batch: MAX_BATCH,
            // Nothing is published for this long after a crash.
            lease: Duration::from_secs(30),
            in_flight: 256,
            // With this backoff the last try is an hour after the first.
            max_tries: 20,
            backoff: Backoff {
                every: Duration::from_secs(2),
                max_every: Duration::from_mins(5),
            },
            every: Duration::from_millis(250),
            unmarked: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// The lease owner in the store; a random name by default. Two relays with the same name
    /// publish at once, and out of order.
    pub fn owner(self, owner: impl Into<Owner>) -> Self {
        Self {
            owner: owner.into(),
            ..self
        }
    }

    /// The most events of one claim: at least 1, at most [`MAX_BATCH`].
    pub fn batch(self, batch: usize) -> Self {
        Self {
            batch: batch.clamp(1, MAX_BATCH),
            ..self
        }
    }

    /// How long other relays wait after the last claim of this one; at least [`MIN_LEASE`]. Set it
    /// longer than twice the sink's timeout.
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            lease: lease.max(MIN_LEASE),
            ..self
        }
    }

    /// The most unconfirmed events; at least 1.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self {
            in_flight: in_flight.max(1),
            ..self
        }
    }

    /// How often the broker may refuse an event before it is set aside; at least 1.
    pub fn max_tries(self, max_tries: u32) -> Self {
        Self {
            max_tries: max_tries.max(1),
            ..self
        }
    }

    /// How long the aggregate of a refused event is held back.
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff, ..self }
    }

    /// The polling interval of an idle relay.
    pub fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    fn take_unmarked(&self) -> Vec<EventId> {
        let mut unmarked = self.unmarked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut unmarked)
    }

    fn keep_unmarked(&self, events: Vec<EventId>) {
        *self.unmarked.lock().unwrap_or_else(PoisonError::into_inner) = events;
    }
}

impl<S: Store> BackgroundJob for Relay<S> {
    fn name(&self) -> &'static str {
        RELAY
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&self) -> background_job::Round<'_> {
        Box::pin(round::run(self))
    }

    /// Gives the lease back, so that the next relay starts at once.
    fn stop(&self) -> background_job::Stop<'_> {
        Box::pin(async {
            // First, because the next relay would publish them again.
            let unmarked = self.take_unmarked();
            if !unmarked.is_empty()
                && let Err(error) = self.store.mark_sent(unmarked).await
            {
                tracing::warn!(%error, "published events could not be removed; the next relay publishes them again");
            }
            if let Err(error) = self.store.release_relay(self.owner.clone()).await {
                tracing::warn!(%error, "the lease could not be given back; the next relay waits until it expires");
            }
        })
    }
}

impl<S> fmt::Debug for Relay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("owner", &self.owner)
            .field("batch", &self.batch)
            .field("lease", &self.lease)
            .field("in_flight", &self.in_flight)
            .field("max_tries", &self.max_tries)
            .field("backoff", &self.backoff)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}

/// The broker's error as the error of a round.
fn unavailable(refused: Refused) -> semel_core::Error {
    semel_core::Error::Unavailable {
        reason: refused.to_string().into(),
        source: Some(Box::new(refused)),
    }
}
