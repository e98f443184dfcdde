//! The relay lease, and concurrent publishers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::Store as _;
use semel_core::outbox::Event;

use super::super::fixture::{TICK, together};
use super::{Outgoing, Publisher, RELAY, RELAY_LEASE, event, ids};

/// Another relay gets nothing until the lease expires, to the tick.
pub async fn one_relay_holds_the_outbox_until_its_lease_expires<H: Publisher>(f: Outgoing<H>) {
    let first = event("payment/a", "paid");
    f.publish(&first).await;
    assert_eq!(f.claim_as("relay-1", 10).await.len(), 1);
    f.pass(RELAY_LEASE - TICK);
    assert_eq!(f.claim_as("relay-2", 10).await, []);
    // Each claim begins the lease anew, and a refused one does not.
    assert_eq!(f.claim_as("relay-1", 0).await, []);
    f.pass(RELAY_LEASE - TICK);
    assert_eq!(f.claim_as("relay-2", 10).await, []);
    f.pass(TICK);
    assert_eq!(f.claim_as("relay-2", 10).await.len(), 1);
    assert_eq!(f.claim_as("relay-1", 10).await, [], "it lost its lease");
    assert_eq!(f.claim_as("relay", 10).await, []);
    f.pass(RELAY_LEASE);
    assert_eq!(
        f.claim_as("relay-2", 10).await.len(),
        1,
        "no other relay claimed"
    );
}

/// Claiming from an empty outbox takes the lease as well.
pub async fn a_relay_that_claims_nothing_holds_the_outbox<H: Publisher>(f: Outgoing<H>) {
    assert_eq!(f.claim_as("relay-1", 10).await, []);
    f.publish(&event("payment/a", "paid")).await;
    assert_eq!(f.claim_as("relay-2", 10).await, []);
    assert_eq!(f.claim_as("relay-1", 10).await.len(), 1);
}

/// A relay that stops releases its lease; one without the lease releases nothing.
pub async fn a_relay_that_stands_down_hands_over_at_once<H: Publisher>(f: Outgoing<H>) {
    f.publish(&event("payment/a", "paid")).await;
    f.release_relay("relay-1").await;
    assert_eq!(f.claim_as("relay-1", 10).await.len(), 1);
    f.release_relay("relay-2").await;
    assert_eq!(f.claim_as("relay-2", 10).await, []);
    f.release_relay("relay-1").await;
    assert_eq!(f.claim_as("relay-2", 10).await.len(), 1);
    f.release_relay("relay-1").await;
    assert_eq!(f.claim_as("relay-1", 10).await, []);
}

/// The longest lease does not overflow into the past.
pub async fn a_relay_lease_of_the_longest_time_does_not_overflow<H: Publisher>(f: Outgoing<H>) {
    let store = &f.fixture.store;
    f.publish(&event("payment/a", "paid")).await;
    let claimed = store.claim_events(RELAY.into(), Duration::MAX, 1).await;
    assert_eq!(claimed.expect("claim_events").len(), 1);
    f.pass(Duration::from_hours(24 * 365 * 100));
    assert_eq!(f.claim_as("relay-2", 10).await, []);
}

/// Of many concurrent relays, one gets the lease.
pub async fn one_of_many_relays_holds_the_outbox<H: Publisher>(f: Outgoing<H>) {
    f.publish(&event("payment/a", "paid")).await;
    for _ in 0..f.fixture.scale.rounds {
        let all = (0..f.fixture.scale.tasks).collect();
        let handed = together(&f.fixture.store, all, |store, place: usize| async move {
            let relay = format!("relay-{place}").as_str().into();
            let claimed = store.claim_events(relay, RELAY_LEASE, 10).await;
            claimed.expect("claim_events").len()
        })
        .await;
        assert_eq!(handed.iter().sum::<usize>(), 1, "{handed:?}");
        f.pass(RELAY_LEASE);
    }
}

/// Many publishers and one relay: every event is claimed once, and each aggregate in order.
pub async fn events_of_many_publishers_are_claimed_once_each<H: Publisher>(f: Outgoing<H>) {
    const EACH: usize = 10;
    let publishers = f.fixture.scale.tasks;
    let harness = Arc::clone(&f.harness);
    let writing = together(
        &f.fixture.store,
        (0..publishers).collect(),
        move |store, publisher: usize| {
            let harness = Arc::clone(&harness);
            async move {
                for place in 0..EACH {
                    let event = event(&format!("payment/{publisher}"), &place.to_string());
                    harness.publish(&store, event).await;
                }
            }
        },
    );
    let relaying = async {
        let mut sent = BTreeMap::<Box<str>, Vec<Event>>::new();
        let mut count = 0;
        // Bounded by the time limit of a case: a lost event never arrives.
        while count < publishers * EACH {
            let claimed = f.claim(7).await;
            count += claimed.len();
            let ids = ids(&claimed);
            for waiting in claimed {
                let aggregate = waiting.event.aggregate.clone();
                sent.entry(aggregate).or_default().push(waiting.event);
            }
            f.fixture.store.mark_sent(ids).await.expect("mark_sent");
            tokio::task::yield_now().await;
        }
        sent
    };
    let (_, sent) = tokio::join!(writing, relaying);
    assert_eq!(f.claim(10).await, [], "something came twice");
    assert_eq!(sent.len(), publishers);
    for (aggregate, events) in sent {
        let expected = (0..EACH).map(|place| event(&aggregate, &place.to_string()).payload);
        let found = events.iter().map(|event| event.payload.clone());
        assert!(found.eq(expected), "{aggregate}: {events:?}");
    }
}
