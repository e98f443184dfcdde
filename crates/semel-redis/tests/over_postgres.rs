//! PostgreSQL behind Redis keeps every rule of the state machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code says what is wrong by panicking"
)]

use std::sync::Arc;

use semel_core::OperationId;
use semel_postgres::Postgres;
use semel_redis::{Cached, Options};
use semel_testkit::ManualClock;
use semel_testkit::conformance::{Fixture, Harness};
use semel_testkit::database::Database;

/// A database and a Redis of their own, as far as keys go.
struct Both;

impl Harness for Both {
    type Store = Cached<Postgres>;

    async fn fresh(&self) -> Fixture<Cached<Postgres>> {
        let database = Database::reused()
            .await
            .expect("a server: run `cargo xtask test`");
        let redis = std::env::var("SEMEL_TEST_REDIS_URL").expect("run `cargo xtask test`");
        let clock = ManualClock::default();
        let postgres = semel_postgres::Options::new(&database.url)
            .clock(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        let store = Options::new(redis)
            .prefix(format!("semel-test:{}:", OperationId::generate()))
            // Or the next request would rarely find what this one left.
            .wait_for_fills()
            .open(postgres)
            .await
            .unwrap();
        Fixture::new(store, clock).on(database)
    }
}

semel_testkit::conformance_suite!(Both);

#[test]
fn random_histories_agree_with_the_pure_function() {
    semel_testkit::histories::agree(&Both, 32);
}
