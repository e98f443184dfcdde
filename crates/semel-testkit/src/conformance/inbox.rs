//! Inbox: each message is new once, parked until it is settled, and known as long as its sender may
//! repeat it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use semel_core::Backoff;
use semel_core::inbox::{Handling, MAX_NAME_BYTES, Message, Parked, Receipt};
use semel_core::store::MAX_BATCH;

use super::fixture::{BACKOFF, TICK, together};
use super::{Fixture, Subject};

/// When most messages here are looked at.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// How long most messages here are remembered.
const REMEMBER: Duration = Duration::from_hours(24);

const HANDLING: Handling = Handling {
    look_after: LOOK_AFTER,
    remember: REMEMBER,
};

fn message(source: &str, id: &str) -> Message {
    Message {
        source: source.into(),
        id: id.into(),
        payload: Bytes::from(format!("{source} says {id}")),
    }
}

impl<S: Subject> Fixture<S> {
    async fn receive(&self, message: &Message) -> Receipt {
        self.receive_for(message, HANDLING).await
    }

    async fn receive_for(&self, message: &Message, handling: Handling) -> Receipt {
        let receipt = self.store.receive_message(message.clone(), handling).await;
        receipt.expect("receive")
    }

    async fn settle(&self, message: &Message) {
        let settled = self
            .store
            .settle_message(&message.source, &message.id)
            .await;
        settled.expect("settle");
    }

    async fn claim_parked(&self, limit: usize) -> Vec<Parked> {
        let claimed = self.store.claim_parked(BACKOFF, limit).await;
        claimed.expect("claim_parked")
    }

    async fn forget(&self, limit: usize) -> usize {
        self.store.forget_messages(limit).await.expect("forget")
    }
}

fn ids(parked: &[Parked]) -> Vec<&str> {
    parked.iter().map(|parked| &*parked.message.id).collect()
}

/// The first delivery is new; every other is a repetition and changes nothing.
pub async fn a_message_is_new_once<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    assert_eq!(f.receive(&first).await, Receipt::New);
    let received_at = f.now();
    f.clock.advance(TICK);
    let other = Message {
        payload: "something else".into(),
        ..first.clone()
    };
    assert_eq!(f.receive(&other).await, Receipt::Repeated);
    f.clock.advance(LOOK_AFTER - TICK);
    let expected = Parked {
        message: first,
        tries: 1,
        received_at,
    };
    assert_eq!(f.claim_parked(10).await, [expected]);
}

/// Of many concurrent deliveries, one is new.
pub async fn one_of_many_deliveries_is_new<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let same = message("stripe", &format!("evt_{round}"));
        let all = vec![same; f.scale.tasks];
        let receipts = together(&f.store, all, |store, message| async move {
            store
                .receive_message(message, HANDLING)
                .await
                .expect("receive")
        })
        .await;
        let new = receipts.iter().filter(|r| **r == Receipt::New).count();
        assert_eq!((new, receipts.len()), (1, f.scale.tasks));
    }
}

/// Two sources may use one id, and similar ids are different.
pub async fn a_message_is_identified_by_source_and_id<S: Subject>(f: Fixture<S>) {
    let all = [
        message("stripe", "evt_1"),
        message("adyen", "evt_1"),
        message("Stripe", "evt_1"),
        message("stripe", "EVT_1"),
        message("stripe", "evt_1 "),
        message("stripee", "vt_1"),
        message("stripe", "évt_1"),
    ];
    for message in &all {
        assert_eq!(f.receive(message).await, Receipt::New, "{message:?}");
    }
    f.settle(&all[0]).await;
    f.clock.advance(LOOK_AFTER);
    // One at a time: to claim one does not put off the others.
    let mut claimed = Vec::new();
    for _ in &all {
        claimed.extend(f.claim_parked(1).await);
    }
    assert_eq!(claimed.len(), all.len() - 1, "one was settled: {claimed:?}");
    for message in &all[1..] {
        assert!(claimed.iter().any(|parked| parked.message == *message));
    }
}

/// A settled message is not claimed any more, and a repetition is recognized.
pub async fn a_settled_message_is_not_claimed_and_stays_known<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    f.receive(&first).await;
    f.settle(&first).await;
    f.settle(&first).await;
    f.clock.advance(LOOK_AFTER);
    assert_eq!(f.claim_parked(10).await, []);
    assert_eq!(f.receive(&first).await, Receipt::Repeated);
    f.clock.advance(REMEMBER - LOOK_AFTER - TICK);
    assert_eq!(f.receive(&first).await, Receipt::Repeated);
    assert_eq!(f.claim_parked(10).await, []);
}

/// Settling an unreceived message is not an error, and does not make it known.
pub async fn an_unreceived_message_can_be_settled<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    f.settle(&first).await;
    assert_eq!(f.receive(&first).await, Receipt::New);
}

/// A claimed message can be settled, and is not claimed again.
pub async fn a_claimed_message_can_be_settled<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    f.receive(&first).await;
    f.clock.advance(LOOK_AFTER);
    assert_eq!(f.claim_parked(10).await.len(), 1);
    f.settle(&first).await;
    f.clock.advance(BACKOFF.max_every);
    assert_eq!(f.claim_parked(10).await, []);
}

/// A message is due at its exact time, not before.
pub async fn a_message_is_due_exactly_on_time<S: Subject>(f: Fixture<S>) {
    f.receive(&message("stripe", "evt_1")).await;
    f.clock.advance(LOOK_AFTER - TICK);
    assert_eq!(f.claim_parked(10).await, []);
    f.clock.advance(TICK);
    assert_eq!(f.claim_parked(10).await.len(), 1);
}

/// The longest due message comes first, up to the limit.
pub async fn the_longest_due_message_comes_first<S: Subject>(f: Fixture<S>) {
    // Received in one order, due in the other, with names in neither.
    for (place, id) in (1..).zip(["c", "e", "a", "d", "b"]) {
        let handling = Handling {
            look_after: LOOK_AFTER * (6 - place),
            ..HANDLING
        };
        f.receive_for(&message("stripe", id), handling).await;
    }
    f.clock.advance(LOOK_AFTER * 5);
    assert_eq!(f.claim_parked(0).await, []);
    assert_eq!(ids(&f.claim_parked(2).await), ["b", "d"]);
    assert_eq!(ids(&f.claim_parked(MAX_BATCH + 1).await), ["a", "e", "c"]);
    assert_eq!(f.claim_parked(10).await, []);
}

/// Each claim schedules the next one by the backoff, to the microsecond, and is counted.
pub async fn claim_parked_follows_the_backoff<S: Subject>(f: Fixture<S>) {
    let backoff = Backoff {
        every: Duration::from_secs(7),
        max_every: Duration::from_mins(1),
    };
    let first = message("stripe", "evt_1");
    f.receive(&first).await;
    let received_at = f.now();
    f.clock.advance(LOOK_AFTER);
    for tries in 1..=8 {
        let claimed = f.store.claim_parked(backoff, 10).await;
        let expected = Parked {
            message: first.clone(),
            tries,
            received_at,
        };
        assert_eq!(claimed.expect("claim_parked"), [expected]);
        f.clock.advance(backoff.spread(first.seed(), tries) - TICK);
        assert_eq!(f.claim_parked(10).await, [], "try {tries}");
        f.clock.advance(TICK);
    }
}

/// Concurrent workers: each due message goes to exactly one of them.
pub async fn claim_parked_gives_each_message_to_one_claimer<S: Subject>(f: Fixture<S>) {
    let all: Vec<_> = (0..40).map(|n| message("stripe", &n.to_string())).collect();
    together(&f.store, all, |store, message| async move {
        store
            .receive_message(message, HANDLING)
            .await
            .expect("receive");
    })
    .await;
    f.clock.advance(LOOK_AFTER);
    let claimed = together(&f.store, (0..8).collect(), |store, _: u8| async move {
        let mut mine = Vec::new();
        // Bounded, since a store that hands out the same again would never be done.
        for _ in 0..40 {
            let some = store.claim_parked(BACKOFF, 3).await.expect("claim_parked");
            mine.extend(some.into_iter().map(|parked| parked.message.id));
        }
        mine
    })
    .await;
    let claimed: Vec<_> = claimed.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 40, "claimed twice, or not at all");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>().len(), 40);
}

/// A message is forgotten at its exact time, not before, and is new afterwards.
pub async fn a_message_is_forgotten_exactly_on_time<S: Subject>(f: Fixture<S>) {
    let (settled, parked) = (message("stripe", "settled"), message("stripe", "parked"));
    for message in [&settled, &parked] {
        f.receive(message).await;
    }
    f.settle(&settled).await;
    f.clock.advance(REMEMBER - TICK);
    assert_eq!(f.forget(10).await, 0);
    assert_eq!(f.receive(&settled).await, Receipt::Repeated);
    f.clock.advance(TICK);
    assert_eq!(f.forget(10).await, 2, "parked or not");
    assert_eq!(f.forget(10).await, 0);
    assert_eq!(f.claim_parked(10).await, []);
    for message in [&settled, &parked] {
        assert_eq!(f.receive(message).await, Receipt::New);
    }
}

/// A repetition is recognized until `forget_messages` removed the message.
pub async fn an_old_message_is_known_until_it_is_forgotten<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    f.receive(&first).await;
    f.clock.advance(REMEMBER * 2);
    assert_eq!(f.receive(&first).await, Receipt::Repeated);
}

/// `forget_messages` removes at most its limit.
pub async fn forget_respects_its_limit<S: Subject>(f: Fixture<S>) {
    for place in 0..5 {
        f.receive(&message("stripe", &place.to_string())).await;
    }
    f.clock.advance(REMEMBER);
    assert_eq!(f.forget(0).await, 0);
    assert_eq!(f.forget(2).await, 2);
    assert_eq!(f.forget(MAX_BATCH + 1).await, 3);
}

/// The longest durations do not overflow into the past.
pub async fn a_message_may_be_kept_for_ever<S: Subject>(f: Fixture<S>) {
    let first = message("stripe", "evt_1");
    let forever = Handling {
        look_after: Duration::MAX,
        remember: Duration::MAX,
    };
    assert_eq!(f.receive_for(&first, forever).await, Receipt::New);
    f.clock.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(f.forget(10).await, 0);
    assert_eq!(f.claim_parked(10).await, []);
    assert_eq!(f.receive(&first).await, Receipt::Repeated);
}

/// Payloads may contain any bytes, or none: an empty payload is not a settled message.
pub async fn binary_payloads_come_back_unchanged<S: Subject>(f: Fixture<S>) {
    let all = (0..=u8::MAX).collect::<Vec<_>>();
    let payloads = [Vec::new(), all.clone(), all.repeat(1024), b"\0".to_vec()];
    for (place, payload) in payloads.iter().enumerate() {
        let sent = Message {
            payload: payload.clone().into(),
            ..message("stripe", &place.to_string())
        };
        f.receive(&sent).await;
        f.clock.advance(LOOK_AFTER);
        let claimed = f.claim_parked(1).await;
        assert_eq!(claimed.len(), 1, "payload {place}");
        assert_eq!(claimed[0].message.payload, sent.payload, "payload {place}");
        f.settle(&sent).await;
    }
}

/// The longest names are stored completely, in any script, and every byte is compared.
pub async fn the_longest_message_names_are_not_truncated<S: Subject>(f: Fixture<S>) {
    let long = |last: &str| format!("{}{last}", "é".repeat(MAX_NAME_BYTES / 2));
    let all = [
        message(&long("a"), &long("a")),
        message(&long("a"), &long("b")),
        message(&long("b"), &long("a")),
    ];
    assert_eq!(all[0].id.len(), MAX_NAME_BYTES);
    for message in &all {
        assert_eq!(f.receive(message).await, Receipt::New);
        assert_eq!(f.receive(message).await, Receipt::Repeated);
    }
    f.clock.advance(LOOK_AFTER);
    let claimed = f.claim_parked(10).await;
    assert_eq!(claimed.len(), all.len());
    for message in &all {
        assert!(claimed.iter().any(|parked| parked.message == *message));
    }
}
