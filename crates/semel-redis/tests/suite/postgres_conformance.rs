//! PostgreSQL behind Redis passes the conformance suite.

use std::sync::Arc;

use semel_core::OperationId;
use semel_postgres::Postgres;
use semel_redis::{Cached, Options};
use semel_testkit::ManualClock;
use semel_testkit::conformance::{Fixture, Harness};
use semel_testkit::database::Database;

/// A new database, and a prefix of its own in a shared Redis.
struct PostgresBehindRedis;

impl Harness for PostgresBehindRedis {
    type Store = Cached<Postgres>;

    async fn fresh(&self) -> Fixture<Cached<Postgres>> {
        let database = Database::pooled(&semel_postgres::schema())
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
            // Otherwise the next request would rarely find the entry of this one.
            .wait_for_fills()
            .open(postgres)
            .await
            .unwrap();
        Fixture::new(store, clock).on(database)
    }
}

semel_testkit::conformance_suite!(PostgresBehindRedis);

#[test]
fn random_histories_agree_with_the_pure_function() {
    semel_testkit::histories::assert_agrees_with_model(&PostgresBehindRedis, 32);
}
