//! Clients that retry until the answer is final, and the assertions about every key afterwards.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::TEST_TIMEOUT;
use super::http::{Message, ask, payment};
use super::shop::Shop;

/// How long a client waits between two attempts.
const BACKOFF: Duration = Duration::from_millis(20);

/// Enough attempts for the longest outage of these tests, including the lease.
const MAX_ATTEMPTS: usize = 3000;

/// One key, and the final response to its client: the stored answer, or an unknown outcome.
#[derive(Debug)]
pub(crate) struct FinalResponse {
    pub(crate) key: String,
    pub(crate) response: Message,
    pub(crate) attempts: usize,
}

impl FinalResponse {
    pub(crate) fn is_unknown(&self) -> bool {
        self.response.status() == 409
    }
}

/// Pays under one key, at one gateway after the other, until the answer is final.
pub(crate) async fn pay(gateways: &[SocketAddr], key: String) -> FinalResponse {
    for attempts in 1..=MAX_ATTEMPTS {
        let gateway = gateways[attempts % gateways.len()];
        let answer = timeout(TEST_TIMEOUT, ask(gateway, &payment(&key))).await;
        // The client retries after a closed connection; a timeout is a failure.
        if let Ok(response) = answer.unwrap_or_else(|_| panic!("{key}: no answer")) {
            match (response.status(), &*response.code()) {
                (201, _) | (409, "idempotency_outcome_unknown") => {
                    return FinalResponse {
                        key,
                        response,
                        attempts,
                    };
                }
                (409, "idempotency_key_in_progress") => {}
                // Not executed; or executed, and the completion is not written yet.
                (503, "idempotency_store_unavailable" | "idempotency_outcome_pending") => {
                    assert!(
                        response.header("retry-after").is_some(),
                        "{key}: {response:?}"
                    );
                }
                _ => panic!("{key}: {response:?}"),
            }
        }
        sleep(BACKOFF).await; // sleeps because clients wait before a retry
    }
    panic!("{key} is stuck after {MAX_ATTEMPTS} attempts");
}

/// The outcomes of many keys.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) keys: usize,
    /// Keys whose client sent more than one request.
    pub(crate) retried: usize,
    /// Keys whose final response was an unknown outcome.
    pub(crate) unknown: usize,
    /// Of these, how many were charged.
    pub(crate) unknown_charged: usize,
    /// Of these, how many were completed later by the late owner.
    pub(crate) unknown_completed_later: usize,
}

impl Tally {
    /// Retries every key at every gateway, and asserts that no key was charged twice, that every
    /// acknowledged answer is replayed exactly, and that no record is in progress.
    pub(crate) async fn verify(
        sent: &[FinalResponse],
        gateways: &[SocketAddr],
        shop: &Shop,
    ) -> Self {
        let mut tally = Self::default();
        let mut ids = HashSet::new();
        for sent in sent {
            let key = &sent.key;
            let charged = shop.charges(key);
            let mut known = 0;
            for gateway in gateways {
                let answer = pay(&[*gateway], key.clone()).await.response;
                if answer.status() == 409 {
                    assert!(
                        sent.is_unknown(),
                        "{key} was {:?}: {answer:?}",
                        sent.response
                    );
                    assert_eq!(answer.code(), "idempotency_outcome_unknown", "{key}");
                } else {
                    known += 1;
                    assert!(answer.is_replay(), "{key}: {answer:?}");
                    assert_eq!(answer.member("reference").as_ref(), Some(key));
                }
                if !sent.is_unknown() {
                    assert_eq!(
                        replayed_parts(&answer),
                        replayed_parts(&sent.response),
                        "{key}"
                    );
                }
            }
            if sent.is_unknown() {
                assert!(charged <= 1, "{key} was charged {charged} times");
                tally.unknown += 1;
                tally.unknown_charged += charged;
                tally.unknown_completed_later += usize::from(known == gateways.len());
            } else {
                assert_eq!(charged, 1, "{key} was acknowledged");
                let id = sent.response.member("id").unwrap();
                assert!(ids.insert(id), "{key} got the answer of another key");
            }
            assert_eq!(shop.charges(key), charged, "{key} was executed by a retry");
            tally.keys += 1;
            tally.retried += usize::from(sent.attempts > 1);
        }
        tally
    }
}

/// The parts of a response that a replay repeats.
pub(crate) fn replayed_parts(answer: &Message) -> (u16, &[u8], Option<&str>, Option<&str>) {
    (
        answer.status(),
        &answer.body,
        answer.header("content-type"),
        answer.header("location"),
    )
}
