//! The Postgres store keeps every rule of the state machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code says what is wrong by panicking"
)]

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_postgres::{Options, Postgres};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness};
use semel_testkit::database::Database;

/// A new database for every case.
struct OnServer;

impl Harness for OnServer {
    type Store = Postgres;

    async fn fresh(&self) -> Fixture<Postgres> {
        let database = Database::reused()
            .await
            .expect("a server: run `cargo xtask test`");
        let clock = ManualClock::default();
        let store = Options::new(&database.url)
            .clock(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        Fixture::new(store, clock).on(database)
    }
}

impl Publisher for OnServer {
    async fn publish(&self, store: &Postgres, event: Event) {
        store.publish(event).await.unwrap();
    }
}

semel_testkit::conformance_suite!(OnServer);
semel_testkit::outbox_suite!(OnServer);

#[test]
fn random_histories_agree_with_the_pure_function() {
    semel_testkit::histories::agree(&OnServer, 64);
}
