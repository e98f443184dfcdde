//! One round of the relay: claims, publishes and marks events concurrently.
//!
//! Events are published concurrently. Store calls run one at a time beside that, in batches, so an
//! answer is never older than the last write.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use semel_core::outbox::{EventId, Refused, Waiting};
use semel_core::store::{MAX_BATCH, Result};
use semel_core::{Error, Sink, Store};
use tokio::time::Instant;

use super::lanes::{LaneId, Lanes};
use super::{Relay, unavailable};
use crate::meters::{RelayMeters, names};

/// How long a round goes on claiming. A stopping process waits for the end of the round.
const CLAIM_FOR: Duration = Duration::from_secs(1);

/// Confirmed events are marked in batches of this size while others are in flight.
const MARK_CHUNK: usize = 256;

/// Smaller batches are marked after this time: unmarked events are published again after a crash.
const MARK_WITHIN: Duration = Duration::from_millis(100);

/// One store call.
type Call<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// The result of a store call.
enum CallResult {
    Claimed(Instant, Result<Vec<Waiting>>),
    Marked(Vec<EventId>, Result<()>),
    Refused(RefusedEvent, Result<()>),
}

/// An event that the broker refused.
struct RefusedEvent {
    lane: LaneId,
    event: EventId,
    reason: Box<str>,
    last: bool,
}

/// The result of publishing one event.
struct Published {
    lane: LaneId,
    waiting: Waiting,
    took: Duration,
    result: std::result::Result<(), Refused>,
}

/// The state of a round.
struct Round<'a, S> {
    relay: &'a Relay<S>,
    meters: RelayMeters,
    lanes: Lanes<'a>,
    /// Events in flight, and those whose result is not yet written to the store.
    busy: HashSet<EventId>,
    in_flight: usize,
    sent: Vec<EventId>,
    mark_at: Option<Instant>,
    refused: VecDeque<RefusedEvent>,
    claim_until: Instant,
    /// When the last claim started.
    claimed_at: Option<Instant>,
    /// Whether the last claim left some behind.
    more: bool,
    store_failed: bool,
    /// The first failure: no event or claim is started after it.
    failed: Option<Error>,
}

pub(super) async fn run<S: Store>(relay: &Relay<S>) -> Result<bool> {
    let mut round = Round::new(relay);
    let mut publishing = FuturesUnordered::new();
    let mut call: Option<Call<'_>> = None;
    loop {
        while let Some((lane, waiting)) = round.next_event() {
            publishing.push(publish(&*relay.sink, lane, waiting));
        }
        if call.is_none() {
            call = round.next_call();
        }
        if call.is_none() && publishing.is_empty() {
            return round.end();
        }
        let wake = round.wake_at(call.is_some());
        tokio::select! {
            biased;
            result = call_result(&mut call) => {
                call = None;
                round.apply(result);
            }
            Some(published) = publishing.next() => round.record_published(published),
            () = sleep_until(wake) => {
                if round.out_of_time() {
                    publishing.clear();
                    round.give_up();
                }
            }
        }
    }
}

async fn call_result(call: &mut Option<Call<'_>>) -> CallResult {
    match call {
        Some(call) => call.await,
        None => pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

/// Publishes one event. A sink that panics has rejected the event; the others continue.
async fn publish(sink: &dyn Sink, lane: LaneId, waiting: Waiting) -> Published {
    let began = Instant::now();
    let attempt = async { sink.publish(&waiting.event).await };
    let result = AssertUnwindSafe(attempt).catch_unwind().await;
    let result = result.unwrap_or_else(|panic| {
        let message = panic_message(&*panic);
        tracing::error!(event = %waiting.event.id, message, "the sink panicked on an event");
        Err(Refused::Rejected(
            format!("the sink panicked: {message}").into(),
        ))
    });
    Published {
        lane,
        waiting,
        took: began.elapsed(),
        result,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)")
}

impl<'a, S: Store> Round<'a, S> {
    fn new(relay: &'a Relay<S>) -> Self {
        Self {
            relay,
            meters: RelayMeters::new(),
            lanes: Lanes::new(&relay.hasher),
            busy: HashSet::new(),
            in_flight: 0,
            sent: relay.take_unmarked(),
            mark_at: None,
            refused: VecDeque::new(),
            claim_until: Instant::now() + CLAIM_FOR,
            claimed_at: None,
            more: true,
            store_failed: false,
            failed: None,
        }
    }

    /// The next event for the sink, unless the round failed or half of the lease is over.
    fn next_event(&mut self) -> Option<(LaneId, Waiting)> {
        if self.in_flight >= self.relay.in_flight || self.lanes.queued() == 0 {
            return None;
        }
        if self.failed.is_some() || !self.lease_is_young() {
            self.lanes.clear();
            return None;
        }
        let (lane, waiting) = self.lanes.next()?;
        self.busy.insert(waiting.event.id);
        self.in_flight += 1;
        Some((lane, waiting))
    }

    /// Whether half of the lease is left.
    fn lease_is_young(&self) -> bool {
        let half = self.relay.lease / 2;
        self.claimed_at.is_some_and(|at| at.elapsed() < half)
    }

    /// The next store call. Confirmed events go first: marking an event lifts the hold on its
    /// aggregate, and must not lift a later hold.
    fn next_call(&mut self) -> Option<Call<'a>> {
        if self.store_failed {
            return None;
        }
        let store = &self.relay.store;
        let call: Call<'a> = if self.mark_is_due() {
            let count = self.sent.len().min(MAX_BATCH);
            let events: Vec<_> = self.sent.drain(..count).collect();
            Box::pin(async move {
                let marked = store.mark_sent(events.clone()).await;
                CallResult::Marked(events, marked)
            })
        } else if let Some(refused) = self.refused.pop_front() {
            let backoff = self.relay.backoff;
            Box::pin(async move {
                let written = if refused.last {
                    store
                        .dead_letter_event(refused.event, &refused.reason)
                        .await
                } else {
                    store
                        .hold_back(refused.event, &refused.reason, backoff)
                        .await
                };
                CallResult::Refused(refused, written)
            })
        } else if self.claim_is_due() {
            let relay = self.relay;
            let at = Instant::now();
            Box::pin(async move {
                let claim = store.claim_events(relay.owner.clone(), relay.lease, relay.batch);
                CallResult::Claimed(at, claim.await)
            })
        } else {
            return None;
        };
        Some(call)
    }

    fn mark_is_due(&self) -> bool {
        let waited = self.mark_at.is_none_or(|at| at <= Instant::now());
        let due = self.sent.len() >= MARK_CHUNK
            || self.in_flight == 0
            || !self.refused.is_empty()
            || waited;
        due && !self.sent.is_empty()
    }

    /// The next batch is claimed while the last events of the current one are in flight. Not
    /// after half of the lease: another relay may have published by the time the store answers.
    fn claim_is_due(&self) -> bool {
        let few = self.busy.len() + self.lanes.queued() <= self.relay.batch / 4;
        let first = self.claimed_at.is_none();
        let next = self.lease_is_young() && Instant::now() < self.claim_until;
        self.failed.is_none() && self.more && few && (first || next)
    }

    fn apply(&mut self, result: CallResult) {
        let applied = match result {
            CallResult::Claimed(at, Ok(claimed)) => {
                self.claimed_at = Some(at);
                self.more = claimed.len() >= self.relay.batch;
                self.lanes.refill(claimed, &self.busy);
                Ok(())
            }
            CallResult::Marked(events, Ok(())) => {
                for event in &events {
                    self.busy.remove(event);
                }
                Ok(())
            }
            CallResult::Marked(mut events, Err(error)) => {
                // Marking them again later is correct even if another relay published them meanwhile.
                events.append(&mut self.sent);
                self.sent = events;
                Err(error)
            }
            CallResult::Refused(refused, Ok(())) => {
                self.busy.remove(&refused.event);
                self.lanes.open(refused.lane);
                Ok(())
            }
            CallResult::Claimed(_, Err(error)) | CallResult::Refused(_, Err(error)) => Err(error),
        };
        if let Err(error) = applied {
            self.store_failed = true;
            self.failed.get_or_insert(error);
        }
    }

    fn record_published(&mut self, published: Published) {
        self.in_flight -= 1;
        self.meters.publish.record(published.took.as_secs_f64());
        let event = published.waiting.event.id;
        match published.result {
            Ok(()) => {
                self.meters.published.increment(1);
                if self.sent.is_empty() {
                    self.mark_at = Some(Instant::now() + MARK_WITHIN);
                }
                self.sent.push(event);
                self.lanes.open(published.lane);
            }
            Err(Refused::Rejected(reason)) => {
                let tries = published.waiting.tries.saturating_add(1);
                let last = tries >= self.relay.max_tries;
                metrics::counter!(names::OUTBOX_REFUSED, "why" => "rejected").increment(1);
                let kind = &*published.waiting.event.kind;
                if last {
                    metrics::counter!(names::OUTBOX_DEAD).increment(1);
                    tracing::error!(%event, kind, tries, %reason, "the broker refused an event for the last time; it is set aside for an operator");
                } else {
                    tracing::warn!(%event, kind, tries, %reason, "the broker refused an event; its aggregate is held back");
                }
                self.lanes.shut(published.lane);
                self.refused.push_back(RefusedEvent {
                    lane: published.lane,
                    event,
                    reason,
                    last,
                });
            }
            Err(refused @ Refused::Unavailable(_)) => {
                metrics::counter!(names::OUTBOX_REFUSED, "why" => "unavailable").increment(1);
                self.busy.remove(&event);
                self.failed.get_or_insert_with(|| unavailable(refused));
            }
        }
    }

    /// When to wake up without a result.
    fn wake_at(&self, calling: bool) -> Option<Instant> {
        let unmarked = !self.sent.is_empty() && !calling && !self.store_failed;
        let mark = self.mark_at.filter(|_| unmarked);
        let give_up = self.give_up_at().filter(|_| self.in_flight > 0);
        mark.into_iter().chain(give_up).min()
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.claimed_at.map(|at| at + self.relay.lease * 3 / 4)
    }

    fn out_of_time(&self) -> bool {
        self.give_up_at().is_some_and(|at| at <= Instant::now()) && self.in_flight > 0
    }

    /// Abandons unconfirmed events; the next claim returns them.
    fn give_up(&mut self) {
        self.in_flight = 0;
        let late = "it did not confirm an event within the relay's lease".into();
        self.failed
            .get_or_insert_with(|| unavailable(Refused::Unavailable(late)));
    }

    fn end(self) -> Result<bool> {
        self.relay.keep_unmarked(self.sent);
        self.failed.map_or(Ok(self.more), Err)
    }
}
