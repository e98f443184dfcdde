//! A cached store passes the conformance suite with a working, a missing and a wrong Redis.

use crate::support;

use std::sync::Arc;

use semel_core::Memory;
use semel_core::outbox::Event;
use semel_redis::{Cached, Options};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, failures};
use support::{FakeRedis, LONG_TIMEOUT, UNREACHABLE_URL, prefix, redis_url};

async fn fixture(url: &str) -> Fixture<Cached<Memory>> {
    let clock = ManualClock::default();
    let store = Options::new(url)
        .prefix(prefix())
        // Otherwise the next request would rarely find the entry of this one.
        .wait_for_fills()
        .lookup_timeout(LONG_TIMEOUT)
        .open(Memory::new(Arc::new(clock.clone())))
        .await
        .unwrap();
    Fixture::new(store, clock)
}

/// In front of a real Redis. If there is none, the suite runs against an unreachable address.
struct RealRedis;

impl Harness for RealRedis {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        fixture(&redis_url().unwrap_or_else(|| UNREACHABLE_URL.into())).await
    }
}

/// In front of an unreachable Redis.
struct NoRedis;

impl Harness for NoRedis {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        fixture(UNREACHABLE_URL).await
    }
}

/// In front of a Redis that returns well-formed values of other keys.
struct WrongValueRedis;

impl Harness for WrongValueRedis {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        let fake = FakeRedis::start().await;
        fake.return_wrong_values();
        fixture(&fake.url).await.on(fake)
    }
}

impl Publisher for RealRedis {
    async fn publish(&self, store: &Cached<Memory>, event: Event) {
        store.inner().publish(event);
    }
}

semel_testkit::conformance_suite!(RealRedis);
semel_testkit::outbox_suite!(RealRedis);

#[test]
fn random_histories_agree_with_the_pure_function() {
    semel_testkit::histories::assert_agrees_with_model(&RealRedis, 256);
}

#[test]
fn random_histories_agree_with_the_pure_function_when_redis_returns_wrong_values() {
    semel_testkit::histories::assert_agrees_with_model(&WrongValueRedis, 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_when_redis_is_unreachable() {
    assert_eq!(failures(NoRedis).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_when_redis_returns_wrong_values() {
    assert_eq!(failures(WrongValueRedis).await, []);
}
