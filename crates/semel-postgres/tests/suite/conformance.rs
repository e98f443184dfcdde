//! The Postgres store keeps every rule of the state machine.

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_postgres::{Options, Postgres};
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{self as cases, Fixture, Harness};
use semel_testkit::database::Database;

/// An empty database for every case.
struct OnServer;

impl Harness for OnServer {
    type Store = Postgres;

    async fn fresh(&self) -> Fixture<Postgres> {
        let database = Database::pooled(&semel_postgres::schema())
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
    semel_testkit::histories::assert_agrees_with_model(&OnServer, 64);
}

/// An `UPDATE` returns its rows in the order of its join.
#[tokio::test]
async fn claimed_records_are_in_order_under_a_hash_join() {
    let Some(database) = Database::pooled(&semel_postgres::schema()).await else {
        return;
    };
    let separator = if database.url.contains('?') { '&' } else { '?' };
    let url = format!(
        "{}{separator}options=-c%20enable_nestloop%3Doff%20-c%20enable_mergejoin%3Doff",
        database.url
    );
    let clock = ManualClock::default();
    let options = Options::new(&url).clock(Arc::new(clock.clone()));
    let fixture = Fixture::new(options.open().await.unwrap(), clock).on(database);
    cases::table::every_verb_on_resumable_after_lease_expiry(fixture).await;
}
