//! Clients that retry until they know, and what has to be true of every key afterwards.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::http::{Message, ask, payment};
use super::shop::Shop;

/// What a retrying client waits between two attempts.
const BACKOFF: Duration = Duration::from_millis(20);

/// More attempts than the longest outage here lasts, lease and all.
const MOST_ATTEMPTS: usize = 3000;

/// One key, and what its client was told in the end: the stored answer, or that it is unknown.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) key: String,
    pub(crate) told: Message,
    pub(crate) attempts: usize,
}

impl Sent {
    pub(crate) fn is_unknown(&self) -> bool {
        self.told.status() == 409
    }
}

/// Pays under one key, at one gateway after the other, until the answer is final.
pub(crate) async fn pay(gateways: &[SocketAddr], key: String) -> Sent {
    for attempts in 1..=MOST_ATTEMPTS {
        let gateway = gateways[attempts % gateways.len()];
        let answer = timeout(PATIENCE, ask(gateway, &payment(&key))).await;
        // A connection that ended says nothing; one that never answers is a fault.
        if let Ok(told) = answer.unwrap_or_else(|_| panic!("{key}: no answer")) {
            match (told.status(), &*told.code()) {
                (201, _) | (409, "idempotency_outcome_unknown") => {
                    return Sent {
                        key,
                        told,
                        attempts,
                    };
                }
                (409, "idempotency_key_in_progress") => {}
                // Nothing was executed; or it was, and the record is late.
                (503, "idempotency_store_unavailable" | "idempotency_outcome_pending") => {
                    assert!(told.header("retry-after").is_some(), "{key}: {told:?}");
                }
                _ => panic!("{key}: {told:?}"),
            }
        }
        sleep(BACKOFF).await; // sleeps because a client that is told to come back later does
    }
    panic!("{key} is stuck after {MOST_ATTEMPTS} attempts");
}

/// What came of many keys.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: usize,
    /// Keys whose client had to ask more than once.
    pub(crate) retried: usize,
    /// Keys whose client was told that nobody knows.
    pub(crate) unknown: usize,
    /// Of these, how many were charged.
    pub(crate) unknown_charged: usize,
    /// Of these, how many have an answer since then, from the late owner.
    pub(crate) unknown_no_more: usize,
}

impl Tally {
    /// Asks every gateway once more about every key: nothing was charged twice, what was
    /// acknowledged is replayed byte for byte, and nothing is in progress.
    pub(crate) async fn of(sent: &[Sent], gateways: &[SocketAddr], shop: &Shop) -> Self {
        let mut tally = Self::default();
        let mut ids = HashSet::new();
        for sent in sent {
            let key = &sent.key;
            let charged = shop.charges(key);
            let mut known = 0;
            for gateway in gateways {
                let answer = pay(&[*gateway], key.clone()).await.told;
                if answer.status() == 409 {
                    assert!(sent.is_unknown(), "{key} was {:?}: {answer:?}", sent.told);
                    assert_eq!(answer.code(), "idempotency_outcome_unknown", "{key}");
                } else {
                    known += 1;
                    assert!(answer.is_replay(), "{key}: {answer:?}");
                    assert_eq!(answer.member("reference").as_ref(), Some(key));
                }
                if !sent.is_unknown() {
                    assert_eq!(told(&answer), told(&sent.told), "{key}");
                }
            }
            if sent.is_unknown() {
                assert!(charged <= 1, "{key} was charged {charged} times");
                tally.unknown += 1;
                tally.unknown_charged += charged;
                tally.unknown_no_more += usize::from(known == gateways.len());
            } else {
                assert_eq!(charged, 1, "{key} was acknowledged");
                let id = sent.told.member("id").unwrap();
                assert!(ids.insert(id), "{key} was told another's answer");
            }
            assert_eq!(
                shop.charges(key),
                charged,
                "{key} was executed by a question"
            );
            tally.keys += 1;
            tally.retried += usize::from(sent.attempts > 1);
        }
        tally
    }
}

/// What a replay repeats.
pub(crate) fn told(answer: &Message) -> (u16, &[u8], Option<&str>, Option<&str>) {
    (
        answer.status(),
        &answer.body,
        answer.header("content-type"),
        answer.header("location"),
    )
}
