//! One round of the relay: claims, publishes and marks, all at once.
//!
//! Events are published side by side. The store is asked for one thing at a time beside that, in
//! batches, so what it answers is never older than what it was last told.

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
use semel_core::{Error, Outbox, Sink};
use tokio::time::Instant;

use super::lanes::{LaneId, Lanes};
use super::{Relay, unavailable};
use crate::meters::{RelayMeters, names};

/// How long a round goes on claiming. A round is what a stopping process waits for.
const CLAIM_FOR: Duration = Duration::from_secs(1);

/// This many confirmed events are worth a call of the store, while others are on their way.
const MARK_CHUNK: usize = 256;

/// Fewer are, too, after this: what is confirmed and not marked is repeated after a crash.
const MARK_WITHIN: Duration = Duration::from_millis(100);

/// One call of the store.
type Call<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// What the store said.
enum Answer {
    Claimed(Instant, Result<Vec<Waiting>>),
    Marked(Vec<EventId>, Result<()>),
    Told(Trouble, Result<()>),
}

/// An event that the broker does not want.
struct Trouble {
    lane: LaneId,
    event: EventId,
    reason: Box<str>,
    last: bool,
}

/// How the publication of an event ended.
struct Landed {
    lane: LaneId,
    waiting: Waiting,
    took: Duration,
    result: std::result::Result<(), Refused>,
}

/// What a round knows.
struct Round<'a, S> {
    relay: &'a Relay<S>,
    meters: RelayMeters,
    lanes: Lanes<'a>,
    /// Events on their way, and those that the store has not been told about.
    busy: HashSet<EventId>,
    flying: usize,
    sent: Vec<EventId>,
    mark_at: Option<Instant>,
    troubles: VecDeque<Trouble>,
    claim_until: Instant,
    /// When the last claim was asked for.
    claimed_at: Option<Instant>,
    /// Whether the last claim left some behind.
    more: bool,
    store_failed: bool,
    /// Why nothing more is begun.
    failed: Option<Error>,
}

pub(super) async fn run<S: Outbox>(relay: &Relay<S>) -> Result<bool> {
    let mut round = Round::new(relay);
    let mut flights = FuturesUnordered::new();
    let mut call: Option<Call<'_>> = None;
    loop {
        while let Some((lane, waiting)) = round.hand_out() {
            flights.push(fly(&*relay.sink, lane, waiting));
        }
        if call.is_none() {
            call = round.ask();
        }
        if call.is_none() && flights.is_empty() {
            return round.end();
        }
        let wake = round.wake_at(call.is_some());
        tokio::select! {
            biased;
            answer = answer(&mut call) => {
                call = None;
                round.hear(answer);
            }
            Some(landed) = flights.next() => round.land(landed),
            () = sleep_until(wake) => {
                if round.out_of_time() {
                    flights.clear();
                    round.give_up();
                }
            }
        }
    }
}

async fn answer(call: &mut Option<Call<'_>>) -> Answer {
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

/// One event on its way. A sink that panics does not want it, and the others go on.
async fn fly(sink: &dyn Sink, lane: LaneId, waiting: Waiting) -> Landed {
    let began = Instant::now();
    let publishing = async { sink.publish(&waiting.event).await };
    let published = AssertUnwindSafe(publishing).catch_unwind().await;
    let result = published.unwrap_or_else(|panic| {
        let said = said(&*panic);
        tracing::error!(event = %waiting.event.id, said, "the sink panicked over an event");
        Err(Refused::Rejected(
            format!("the sink panicked: {said}").into(),
        ))
    });
    Landed {
        lane,
        waiting,
        took: began.elapsed(),
        result,
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)")
}

impl<'a, S: Outbox> Round<'a, S> {
    fn new(relay: &'a Relay<S>) -> Self {
        Self {
            relay,
            meters: RelayMeters::new(),
            lanes: Lanes::new(&relay.hasher),
            busy: HashSet::new(),
            flying: 0,
            sent: relay.take_unmarked(),
            mark_at: None,
            troubles: VecDeque::new(),
            claim_until: Instant::now() + CLAIM_FOR,
            claimed_at: None,
            more: true,
            store_failed: false,
            failed: None,
        }
    }

    /// The next event for the sink, unless it is too late for any.
    fn hand_out(&mut self) -> Option<(LaneId, Waiting)> {
        if self.flying >= self.relay.in_flight || self.lanes.queued() == 0 {
            return None;
        }
        if self.failed.is_some() || !self.lease_is_young() {
            self.lanes.clear();
            return None;
        }
        let (lane, waiting) = self.lanes.next()?;
        self.busy.insert(waiting.event.id);
        self.flying += 1;
        Some((lane, waiting))
    }

    /// Whether half of the lease is left.
    fn lease_is_young(&self) -> bool {
        let half = self.relay.lease / 2;
        self.claimed_at.is_some_and(|at| at.elapsed() < half)
    }

    /// What the store is to be asked next. What was confirmed goes first: marking an event also
    /// lifts the hold on its aggregate, and must not lift one that comes after it.
    fn ask(&mut self) -> Option<Call<'a>> {
        if self.store_failed {
            return None;
        }
        let store = &self.relay.store;
        let call: Call<'a> = if self.mark_is_due() {
            let count = self.sent.len().min(MAX_BATCH);
            let events: Vec<_> = self.sent.drain(..count).collect();
            Box::pin(async move {
                let marked = store.mark_sent(events.clone()).await;
                Answer::Marked(events, marked)
            })
        } else if let Some(trouble) = self.troubles.pop_front() {
            let backoff = self.relay.backoff;
            Box::pin(async move {
                let told = if trouble.last {
                    store.set_aside(trouble.event, &trouble.reason).await
                } else {
                    store
                        .hold_back(trouble.event, &trouble.reason, backoff)
                        .await
                };
                Answer::Told(trouble, told)
            })
        } else if self.claim_is_due() {
            let relay = self.relay;
            let at = Instant::now();
            Box::pin(async move {
                let claim = store.claim_events(relay.owner.clone(), relay.lease, relay.batch);
                Answer::Claimed(at, claim.await)
            })
        } else {
            return None;
        };
        Some(call)
    }

    fn mark_is_due(&self) -> bool {
        let waited = self.mark_at.is_none_or(|at| at <= Instant::now());
        let due = self.sent.len() >= MARK_CHUNK
            || self.flying == 0
            || !self.troubles.is_empty()
            || waited;
        due && !self.sent.is_empty()
    }

    /// While the last of a batch are on their way the next is claimed. Not after half of the
    /// lease: somebody else may have worked in between by the time that the store answers.
    fn claim_is_due(&self) -> bool {
        let few = self.busy.len() + self.lanes.queued() <= self.relay.batch / 4;
        let first = self.claimed_at.is_none();
        let next = self.lease_is_young() && Instant::now() < self.claim_until;
        self.failed.is_none() && self.more && few && (first || next)
    }

    fn hear(&mut self, answer: Answer) {
        let heard = match answer {
            Answer::Claimed(at, Ok(claimed)) => {
                self.claimed_at = Some(at);
                self.more = claimed.len() >= self.relay.batch;
                self.lanes.refill(claimed, &self.busy);
                Ok(())
            }
            Answer::Marked(events, Ok(())) => {
                for event in &events {
                    self.busy.remove(event);
                }
                Ok(())
            }
            Answer::Marked(mut events, Err(error)) => {
                // Marking them again later is right, whoever published them meanwhile.
                events.append(&mut self.sent);
                self.sent = events;
                Err(error)
            }
            Answer::Told(trouble, Ok(())) => {
                self.busy.remove(&trouble.event);
                self.lanes.open(trouble.lane);
                Ok(())
            }
            Answer::Claimed(_, Err(error)) | Answer::Told(_, Err(error)) => Err(error),
        };
        if let Err(error) = heard {
            self.store_failed = true;
            self.failed.get_or_insert(error);
        }
    }

    fn land(&mut self, landed: Landed) {
        self.flying -= 1;
        self.meters.publish.record(landed.took.as_secs_f64());
        let event = landed.waiting.event.id;
        match landed.result {
            Ok(()) => {
                self.meters.published.increment(1);
                if self.sent.is_empty() {
                    self.mark_at = Some(Instant::now() + MARK_WITHIN);
                }
                self.sent.push(event);
                self.lanes.open(landed.lane);
            }
            Err(Refused::Rejected(reason)) => {
                let tries = landed.waiting.tries.saturating_add(1);
                let last = tries >= self.relay.max_tries;
                metrics::counter!(names::OUTBOX_REFUSED, "why" => "rejected").increment(1);
                let kind = &*landed.waiting.event.kind;
                if last {
                    metrics::counter!(names::OUTBOX_DEAD).increment(1);
                    tracing::error!(%event, kind, tries, %reason, "no broker takes an event; it waits for a person");
                } else {
                    tracing::warn!(%event, kind, tries, %reason, "the broker refused an event; its aggregate is held back");
                }
                self.lanes.shut(landed.lane);
                self.troubles.push_back(Trouble {
                    lane: landed.lane,
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

    /// When something is to be done although nothing happened.
    fn wake_at(&self, calling: bool) -> Option<Instant> {
        let unmarked = !self.sent.is_empty() && !calling && !self.store_failed;
        let mark = self.mark_at.filter(|_| unmarked);
        let give_up = self.give_up_at().filter(|_| self.flying > 0);
        mark.into_iter().chain(give_up).min()
    }

    fn give_up_at(&self) -> Option<Instant> {
        self.claimed_at.map(|at| at + self.relay.lease * 3 / 4)
    }

    fn out_of_time(&self) -> bool {
        self.give_up_at().is_some_and(|at| at <= Instant::now()) && self.flying > 0
    }

    /// What has not been confirmed until now belongs to whoever claims next.
    fn give_up(&mut self) {
        self.flying = 0;
        let late = "it did not confirm an event within the relay's lease".into();
        self.failed
            .get_or_insert_with(|| unavailable(Refused::Unavailable(late)));
    }

    fn end(self) -> Result<bool> {
        self.relay.keep_unmarked(self.sent);
        self.failed.map_or(Ok(self.more), Err)
    }
}
