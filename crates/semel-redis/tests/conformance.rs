//! A cached store keeps every rule of the state machine, whatever Redis does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::sync::Arc;

use semel_core::Memory;
use semel_core::outbox::Event;
use semel_redis::{Cached, Options};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, failures};
use support::{Fake, LONG, NOBODY, prefix, redis_url};

async fn fixture(url: &str) -> Fixture<Cached<Memory>> {
    let clock = ManualClock::default();
    let store = Options::new(url)
        .prefix(prefix())
        // Or the next request would rarely find what this one left.
        .wait_for_fills()
        .lookup_patience(LONG)
        .open(Memory::new(Arc::new(clock.clone())))
        .await
        .unwrap();
    Fixture::new(store, clock)
}

/// In front of a real Redis. Where there is none the suite still runs, without.
struct RealRedis;

impl Harness for RealRedis {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        fixture(&redis_url().unwrap_or_else(|| NOBODY.into())).await
    }
}

/// In front of a Redis that is not there.
struct NoRedis;

impl Harness for NoRedis {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        fixture(NOBODY).await
    }
}

/// In front of a Redis that says to everybody what others once told it, whole and well-formed.
struct Parrot;

impl Harness for Parrot {
    type Store = Cached<Memory>;

    async fn fresh(&self) -> Fixture<Cached<Memory>> {
        let fake = Fake::start().await;
        fake.parrot();
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
    semel_testkit::histories::agree(&RealRedis, 256);
}

#[test]
fn random_histories_agree_where_redis_gives_the_wrong_answers() {
    semel_testkit::histories::agree(&Parrot, 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_without_redis() {
    assert_eq!(failures(NoRedis).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_where_redis_gives_the_wrong_answers() {
    assert_eq!(failures(Parrot).await, []);
}
