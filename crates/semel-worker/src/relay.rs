//! The relay: events that an application wrote, on their way to a broker.
//!
//! `Outbox::claim_events → Sink::publish → (the broker confirms) → Outbox::mark_sent`
//!
//! An event is published at least once, under one id. Within an aggregate the next is handed to
//! the sink only after the one before was confirmed; aggregates do not wait for each other.
//!
//! **Invariant:** an event is removed only after the broker confirmed it, or a person is told.
//!
//! **Invariant:** a broker that is away is no event's fault: however long it takes, nothing is
//! counted and nothing is set aside.
//!
//! **Invariant:** nothing is handed to the sink later than half a lease after the claim that
//! returned it, and nothing is waited for longer than three quarters. So two relays do not
//! publish at once, unless one of them stands still for longer than the rest of its lease, in
//! the middle of handing over an event. What it can do then is repeat what it had claimed.
//!
//! ```
//! use std::sync::Arc;
//! use semel_core::outbox::{Event, Publishing, Sink};
//! use semel_core::{Chore as _, Memory, Outbox as _};
//! use semel_worker::Relay;
//!
//! /// Whatever is published to it is printed.
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
//! // A worker repeats this: `Worker::new(store).also(Arc::new(relay))`.
//! let relay = Relay::new(store.clone(), Arc::new(Console));
//! relay.round().await?;
//! assert_eq!(store.backlog().await?.waiting, 0);
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
use semel_core::{Backoff, Chore, OperationId, Outbox, Owner, Sink, chore};

pub use gauge::BacklogGauge;

/// What a relay is called in metrics and logs.
pub const RELAY: &str = "outbox_relay";

/// The shortest lease: its half must outlast a store that is slow for a moment.
pub const MIN_LEASE: Duration = Duration::from_secs(2);

/// Publishes what is in an outbox. Of all relays of one outbox one works, and the others stand by.
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
    /// Confirmed, and not removed because the store failed then: to be removed first of all.
    unmarked: Mutex<Vec<EventId>>,
    hasher: RandomState,
}

impl<S: Outbox> Relay<S> {
    /// From this outbox to that broker.
    pub fn new(store: S, sink: Arc<dyn Sink>) -> Self {
        Self {
            store,
            sink,
            owner: Owner::from(format!("relay-{}", OperationId::generate())),
            batch: MAX_BATCH,
            // A crashed relay is missed for as long.
            lease: Duration::from_secs(30),
            in_flight: 256,
            // With this backoff a refused event has its last try an hour after its first.
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

    /// What this relay is called in the store; a name of its own unless it is told. Two relays
    /// with one name publish at once, and out of order.
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

    /// How long another relay waits for this one after its last claim; at least [`MIN_LEASE`].
    /// Longer than twice what the sink takes to give up on one event.
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            lease: lease.max(MIN_LEASE),
            ..self
        }
    }

    /// The most events that wait for the broker's confirmation at once; at least 1.
    pub fn in_flight(self, in_flight: usize) -> Self {
        Self {
            in_flight: in_flight.max(1),
            ..self
        }
    }

    /// How often an event is refused before it is set aside; at least once.
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

    /// How long an event waits at most before an idle relay sees it.
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

impl<S: Outbox> Chore for Relay<S> {
    fn name(&self) -> &'static str {
        RELAY
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&self) -> chore::Round<'_> {
        Box::pin(round::run(self))
    }

    /// Hands the outbox over, so that nobody waits for the rest of the lease.
    fn stop(&self) -> chore::Stop<'_> {
        Box::pin(async {
            // Before anybody else may publish them again.
            let unmarked = self.take_unmarked();
            if !unmarked.is_empty()
                && let Err(error) = self.store.mark_sent(unmarked).await
            {
                tracing::warn!(%error, "published events could not be removed; they are published again");
            }
            if let Err(error) = self.store.stand_down(self.owner.clone()).await {
                tracing::warn!(%error, "the outbox could not be handed over; the next relay waits for the lease");
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

/// The broker's words as the error of a round: it is not the store that failed.
fn unavailable(refused: Refused) -> semel_core::Error {
    semel_core::Error::Unavailable {
        reason: refused.to_string().into(),
        source: Some(Box::new(refused)),
    }
}
