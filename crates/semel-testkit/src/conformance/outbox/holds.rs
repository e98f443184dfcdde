//! Holds: which aggregates a refused event delays.

use super::super::fixture::{BACKOFF, TICK};
use super::{Outgoing, Publisher, event, events, ids};

/// An event of one aggregate does not end the hold of another.
pub async fn a_hold_ends_with_its_own_aggregate_only<H: Publisher>(f: Outgoing<H>) {
    let sent = event("payment/a", "paid");
    let refused = event("payment/b", "paid");
    let held = event("payment/c", "paid");
    for event in [&sent, &refused, &held] {
        f.publish(event).await;
        f.hold_back(event).await;
    }
    f.pass(TICK);
    f.mark_sent(&[&sent]).await;
    assert_eq!(f.claim(10).await, []);
    f.dead_letter_event(&refused, "too large").await;
    assert_eq!(f.claim(10).await, []);
    f.mark_sent(&[&held]).await;
    let next = event("payment/c", "refunded");
    f.publish(&next).await;
    assert_eq!(ids(&f.claim(10).await), [next.id]);
}

/// A sent event releases its aggregate at once, and the next event starts without tries.
pub async fn a_sent_event_ends_a_hold<H: Publisher>(f: Outgoing<H>) {
    let [a1, a2] = events("payment/a");
    f.publish_all(&[a1.clone(), a2.clone()]).await;
    f.hold_back(&a1).await;
    f.hold_back(&a1).await;
    assert_eq!(f.claim(10).await, []);
    f.mark_sent(&[&a1]).await;
    let claimed = f.claim(10).await;
    assert_eq!((ids(&claimed), claimed[0].tries), (vec![a2.id], 0));
    f.hold_back(&a2).await;
    f.pass(BACKOFF.spread(a2.id.seed(), 1) - TICK);
    assert_eq!(f.claim(10).await, []);
    f.pass(TICK);
    assert_eq!(f.claim(10).await[0].tries, 1);
}
