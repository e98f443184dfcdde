//! Outbox: events in order within an aggregate, claimed by one relay at a time, and removed only
//! after they are sent.
//!
//! Each store writes events in its own way, so the harness does it: see [`Publisher`]. That an event
//! is stored exactly if its transaction committed is for each store's own tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel_core::outbox::{
    Backlog, DeadEvent, Event, EventId, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, MAX_REASON_BYTES,
    Waiting,
};
use semel_core::store::MAX_BATCH;
use semel_core::{Backoff, Clock, Store};

use super::fixture::{BACKOFF, TICK, together};
use super::{Fixture, Harness};

mod holds;
mod list;
mod relays;
mod run;

pub use holds::*;
pub use relays::*;
pub use run::{cases, check, failures};

/// How to get at a store of one kind, and how to write an event there.
pub trait Publisher: Harness<Store: Store> {
    /// Writes the event in a transaction of its own, and commits it.
    fn publish(&self, store: &Self::Store, event: Event) -> impl Future<Output = ()> + Send;
}

/// A store under test whose events go out.
pub struct Outgoing<H: Harness> {
    fixture: Fixture<H::Store>,
    harness: Arc<H>,
}

/// The lease of a relay in most cases.
const RELAY_LEASE: Duration = Duration::from_secs(20);

const RELAY: &str = "relay-1";

/// A new event of an aggregate.
fn event(aggregate: &str, text: &str) -> Event {
    let payload = format!("{{\"word\":\"{text}\"}}");
    Event::new("payment.created", aggregate, payload).expect("an event")
}

/// Events of one aggregate in the order of their writing, which is not that of their names.
fn events<const N: usize>(aggregate: &str) -> [Event; N] {
    let mut all = std::array::from_fn(|_| event(aggregate, "some"));
    all.reverse();
    all
}

fn ids(waiting: &[Waiting]) -> Vec<EventId> {
    waiting.iter().map(|waiting| waiting.event.id).collect()
}

impl<H: Publisher> Outgoing<H> {
    async fn publish(&self, event: &Event) {
        let store = &self.fixture.store;
        self.harness.publish(store, event.clone()).await;
    }

    async fn publish_all(&self, events: &[Event]) {
        for event in events {
            self.publish(event).await;
        }
    }

    /// Claims events as the default relay.
    async fn claim(&self, limit: usize) -> Vec<Waiting> {
        self.claim_as(RELAY, limit).await
    }

    async fn claim_as(&self, relay: &str, limit: usize) -> Vec<Waiting> {
        let store = &self.fixture.store;
        let claimed = store.claim_events(relay.into(), RELAY_LEASE, limit).await;
        claimed.expect("claim_events")
    }

    async fn mark_sent(&self, events: &[&Event]) {
        let sent = events.iter().map(|event| event.id).collect();
        let marked = self.fixture.store.mark_sent(sent).await;
        marked.expect("mark_sent");
    }

    async fn hold_back(&self, event: &Event) {
        let store = &self.fixture.store;
        let held = store.hold_back(event.id, "no such stream", BACKOFF).await;
        held.expect("hold_back");
    }

    async fn dead_letter_event(&self, event: &Event, reason: &str) {
        let aside = self.fixture.store.dead_letter_event(event.id, reason).await;
        aside.expect("dead_letter_event");
    }

    async fn dead(&self, limit: usize) -> Vec<DeadEvent> {
        let dead = self.fixture.store.dead_events(limit).await;
        dead.expect("dead_events")
    }

    async fn revive_event(&self, event: &Event) -> bool {
        self.fixture
            .store
            .revive_event(event.id)
            .await
            .expect("revive")
    }

    async fn outbox_backlog(&self) -> Backlog {
        self.fixture.store.outbox_backlog().await.expect("backlog")
    }

    async fn release_relay(&self, relay: &str) {
        let down = self.fixture.store.release_relay(relay.into()).await;
        down.expect("stand_down");
    }

    fn pass(&self, time: Duration) {
        self.fixture.clock.advance(time);
    }
}

/// Every claim returns an event as it was written until it is marked sent.
pub async fn an_event_is_claimed_until_it_is_marked_sent<H: Publisher>(f: Outgoing<H>) {
    assert_eq!(f.claim(10).await, []);
    let first = event("payment/1", "paid");
    let written_at = f.fixture.clock.now();
    f.publish(&first).await;
    f.pass(TICK);
    let expected = Waiting {
        event: first.clone(),
        tries: 0,
        written_at,
    };
    for _ in 0..2 {
        assert_eq!(f.claim(10).await, std::slice::from_ref(&expected));
    }
    f.mark_sent(&[&first]).await;
    assert_eq!(f.claim(10).await, []);
    assert_eq!(f.dead(10).await, []);
}

/// The oldest event comes first, whatever its name and the limit.
pub async fn the_oldest_event_comes_first<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2, a3] = events("payment/a");
    let [b1, b2] = events("payment/b");
    let all = [&b1, &a1, &a2, &b2, &a3].map(Clone::clone);
    f.publish_all(&all).await;
    let expected = all.each_ref().map(|event| event.id);
    assert_eq!(f.claim(0).await, []);
    assert_eq!(ids(&f.claim(2).await), expected[..2]);
    assert_eq!(ids(&f.claim(MAX_BATCH + 1).await), expected);
    // Events sent in any order leave the rest in order.
    f.mark_sent(&[&a1, &b1]).await;
    assert_eq!(ids(&f.claim(10).await), expected[2..]);
}

/// No claim returns more than the bound, whatever the limit.
pub async fn a_relay_claims_a_bounded_batch<H: Publisher>(f: Outgoing<H>) {
    let harness = Arc::clone(&f.harness);
    let places = (0..=MAX_BATCH).collect();
    together(&f.fixture.store, places, move |store, place: usize| {
        let harness = Arc::clone(&harness);
        async move {
            let event = event(&format!("payment/{place}"), "paid");
            harness.publish(&store, event).await;
        }
    })
    .await;
    let claimed = f.claim(usize::MAX).await;
    assert_eq!(claimed.len(), MAX_BATCH);
    let sent = ids(&claimed);
    f.fixture.store.mark_sent(sent).await.expect("mark_sent");
    assert_eq!(f.claim(usize::MAX).await.len(), 1);
}

/// A refused event holds back its own aggregate for its backoff.
pub async fn a_refused_event_holds_back_its_aggregate<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    let [b1, b2] = events("payment/b");
    for event in [&a1, &b1, &a2, &b2] {
        f.publish(event).await;
    }
    for tries in 1..=8 {
        f.hold_back(&a1).await;
        // Events that are held back do not use up the limit either.
        assert_eq!(ids(&f.claim(2).await), [b1.id, b2.id], "try {tries}");
        f.pass(BACKOFF.spread(a1.id.seed(), tries) - TICK);
        assert_eq!(ids(&f.claim(10).await), [b1.id, b2.id], "try {tries}");
        f.pass(TICK);
        let claimed = f.claim(10).await;
        assert_eq!(ids(&claimed), [a1.id, b1.id, a2.id, b2.id], "try {tries}");
        let counted: Vec<_> = claimed.iter().map(|waiting| waiting.tries).collect();
        assert_eq!(counted, [tries, 0, 0, 0], "each has its own tries");
    }
}

/// The hold follows the caller's backoff.
pub async fn a_hold_follows_the_given_backoff<H: Publisher>(f: Outgoing<H>) {
    let first = event("payment/a", "paid");
    f.publish(&first).await;
    let forever = Backoff {
        every: Duration::MAX,
        max_every: Duration::MAX,
    };
    let held = f.fixture.store.hold_back(first.id, "", forever).await;
    held.expect("hold_back");
    f.pass(Duration::from_hours(24 * 365 * 100));
    assert_eq!(f.claim(10).await, []);
    let at_once = Backoff {
        every: Duration::ZERO,
        max_every: Duration::ZERO,
    };
    let held = f.fixture.store.hold_back(first.id, "", at_once).await;
    held.expect("hold_back");
    assert_eq!(f.claim(10).await[0].tries, 2);
}

/// A dead event keeps its reason, and the rest of its aggregate continues.
pub async fn a_dead_event_does_not_hold_back_its_aggregate<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    f.publish(&a1).await;
    let written_at = f.fixture.clock.now();
    f.pass(TICK);
    f.publish(&a2).await;
    f.hold_back(&a1).await;
    f.pass(TICK);
    f.dead_letter_event(&a1, "too large: ✗").await;
    let expected = DeadEvent {
        event: a1.clone(),
        written_at,
        dead_at: f.fixture.clock.now(),
        reason: "too large: ✗".into(),
    };
    assert_eq!(ids(&f.claim(10).await), [a2.id]);
    assert_eq!(f.claim(10).await[0].tries, 0);
    assert_eq!(f.dead(10).await, std::slice::from_ref(&expected));
    f.pass(TICK);
    // It stays dead-lettered, even if a relay still marks it.
    f.dead_letter_event(&a1, "again").await;
    f.hold_back(&a1).await;
    f.mark_sent(&[&a1]).await;
    assert_eq!(f.dead(10).await, [expected]);
    assert_eq!(ids(&f.claim(10).await), [a2.id]);
}

/// A long reason is cut between characters.
pub async fn a_reason_is_bounded<H: Publisher>(f: Outgoing<H>) {
    let first = event("payment/a", "paid");
    f.publish(&first).await;
    let long = format!("a{}", "é".repeat(10_000));
    let held = f.fixture.store.hold_back(first.id, &long, BACKOFF).await;
    held.expect("hold_back");
    f.dead_letter_event(&first, &long).await;
    let reason = &f.dead(1).await[0].reason;
    assert_eq!(reason.len(), MAX_REASON_BYTES - 1);
    assert_eq!(reason.chars().last(), Some('é'));
}

/// The oldest dead event comes first, up to the limit.
pub async fn the_oldest_dead_event_comes_first<H: Publisher>(f: Outgoing<H>) {
    let all: [Event; 3] = events("payment/a");
    f.publish_all(&all).await;
    // Dead-lettered in another order than written.
    for event in all.iter().rev() {
        f.dead_letter_event(event, "no").await;
        f.pass(TICK);
    }
    let dead = |dead: Vec<DeadEvent>| dead.into_iter().map(|dead| dead.event.id);
    let expected = all.each_ref().map(|event| event.id);
    assert_eq!(f.dead(0).await, []);
    assert!(dead(f.dead(2).await).eq(expected[..2].iter().copied()));
    assert!(dead(f.dead(MAX_BATCH + 1).await).eq(expected));
}

/// An operator revives an event once; it returns to its place without earlier tries.
pub async fn a_dead_event_is_revived_once<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    f.publish_all(&[a1.clone(), a2.clone()]).await;
    let written_at = f.fixture.clock.now();
    f.pass(TICK);
    assert!(!f.revive_event(&a1).await, "it is not dead");
    assert!(!f.revive_event(&event("payment/a", "unused")).await);
    f.hold_back(&a1).await;
    f.dead_letter_event(&a1, "no").await;
    assert!(f.revive_event(&a1).await);
    assert!(!f.revive_event(&a1).await);
    assert_eq!(f.dead(10).await, []);
    let claimed = f.claim(10).await;
    assert_eq!(ids(&claimed), [a1.id, a2.id]);
    assert_eq!((claimed[0].tries, claimed[0].written_at), (0, written_at));
    f.dead_letter_event(&a1, "still no").await;
    assert_eq!(&*f.dead(10).await[0].reason, "still no");
}

/// An event that is written again while it waits keeps its first content and place.
pub async fn an_event_written_twice_is_stored_once<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    f.publish_all(&[a1.clone(), a2.clone()]).await;
    f.hold_back(&a1).await;
    f.pass(BACKOFF.spread(a1.id.seed(), 1));
    f.publish(&event("payment/b", "other").with_id(a1.id)).await;
    let claimed = f.claim(10).await;
    assert_eq!(ids(&claimed), [a1.id, a2.id]);
    assert_eq!((&claimed[0].event, claimed[0].tries), (&a1, 1));
    // Also while it is a dead letter.
    f.dead_letter_event(&a1, "no").await;
    f.publish(&a1).await;
    assert_eq!(ids(&f.claim(10).await), [a2.id]);
    assert_eq!(f.dead(10).await.len(), 1);
}

/// Marks for events that do not exist change nothing.
pub async fn marking_an_unknown_event_changes_nothing<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    f.publish_all(&[a1.clone(), a2.clone()]).await;
    f.mark_sent(&[]).await;
    f.mark_sent(&[&a1, &a1]).await;
    f.mark_sent(&[&a1]).await;
    for gone in [&a1, &event("payment/a", "unused")] {
        f.hold_back(gone).await;
        f.dead_letter_event(gone, "no").await;
        assert!(!f.revive_event(gone).await);
    }
    assert_eq!(ids(&f.claim(10).await), [a2.id]);
    assert_eq!(f.dead(10).await, []);
    // One that is there among others that are not.
    f.mark_sent(&[&a1, &a2, &event("payment/a", "unused")])
        .await;
    assert_eq!(f.claim(10).await, []);
}

/// The backlog counts waiting events, held back or not, and dead ones.
pub async fn the_backlog_is_counted<H: Publisher>(f: Outgoing<H>) {
    assert_eq!(f.outbox_backlog().await, Backlog::default());
    let oldest = f.fixture.clock.now();
    let all: [Event; 4] = events("payment/a");
    for event in &all {
        f.publish(event).await;
        f.pass(TICK);
    }
    let backlog = |waiting, oldest, dead| Backlog {
        waiting,
        oldest,
        dead,
    };
    f.hold_back(&all[0]).await;
    assert_eq!(f.outbox_backlog().await, backlog(4, Some(oldest), 0));
    f.dead_letter_event(&all[0], "no").await;
    let next = oldest.saturating_add(TICK);
    assert_eq!(f.outbox_backlog().await, backlog(3, Some(next), 1));
    f.mark_sent(&[&all[1], &all[2], &all[3]]).await;
    assert_eq!(f.outbox_backlog().await, backlog(0, None, 1));
}

/// Names and payloads come back unchanged: the longest names, any script, any bytes and none.
pub async fn events_come_back_unchanged<H: Publisher>(f: Outgoing<H>) {
    let long = |last: &str| format!("{}{last}", "é".repeat(MAX_NAME_BYTES / 2));
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let all = [
        Event::new(long("a"), long("b"), bytes),
        Event::new(long("b"), long("a"), ""),
        Event::new("k", "a", vec![b'1'; MAX_PAYLOAD_BYTES]),
    ]
    .map(|event| event.expect("an event"));
    f.publish_all(&all).await;
    let claimed = f.claim(10).await;
    let found: Vec<_> = claimed.into_iter().map(|waiting| waiting.event).collect();
    assert_eq!(found, all);
}

/// Aggregate names are compared byte for byte.
pub async fn aggregates_with_similar_names_are_separate<H: Publisher>(f: Outgoing<H>) {
    let all = ["pay/1", "Pay/1", "pay/1é", "pay/11", "pay"].map(|name| event(name, "paid"));
    f.publish_all(&all).await;
    f.hold_back(&all[0]).await;
    let expected: Vec<_> = all[1..].iter().map(|event| event.id).collect();
    assert_eq!(ids(&f.claim(10).await), expected);
}
