//! The SQLite store keeps every rule of the state machine.

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_sqlite::{Options, Sqlite};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness};

/// A new file for every case.
struct OnDisk;

impl Harness for OnDisk {
    type Store = Sqlite;

    async fn fresh(&self) -> Fixture<Sqlite> {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let store = Options::new(directory.path().join("semel.db"))
            .clock(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        Fixture::new(store, clock).on(directory)
    }
}

impl Publisher for OnDisk {
    async fn publish(&self, store: &Sqlite, event: Event) {
        let outbox = store.outbox();
        let published = store.write(move |connection| outbox.publish(connection, &event));
        published.await.unwrap();
    }
}

semel_testkit::conformance_suite!(OnDisk);

semel_testkit::outbox_suite!(OnDisk);

#[test]
fn random_histories_agree_with_the_pure_function() {
    semel_testkit::histories::assert_agrees_with_model(&OnDisk, 64);
}
