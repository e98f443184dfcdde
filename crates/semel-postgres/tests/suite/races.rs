//! Two stores on one database reserve the same new keys at once, as two gateways do.

use crate::support::request;
use futures_util::future::join_all;
use semel_core::{Decision, Store as _};
use semel_postgres::Postgres;
use semel_testkit::database::Database;

/// Each has new keys. In most rounds, insertions of both stores collide.
const ROUNDS: usize = 20;

const KEYS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_stores_that_reserve_the_same_keys_one_executes_each() {
    let Some(database) = Database::new().await else {
        return;
    };
    let stores = [
        Postgres::open(&database.url).await.unwrap(),
        Postgres::open(&database.url).await.unwrap(),
    ];
    for round in 0..ROUNDS {
        let racing = stores.iter().map(|store| {
            join_all((0..KEYS).map(move |key| store.reserve(request(&format!("{round}-{key}")))))
        });
        let decisions = join_all(racing).await;
        for (key, (one, other)) in decisions[0].iter().zip(&decisions[1]).enumerate() {
            let both = [one.as_ref().unwrap(), other.as_ref().unwrap()];
            let count = |wanted: fn(&Decision) -> bool| {
                both.iter().filter(|decision| wanted(decision)).count()
            };
            let executes = count(|decision| matches!(decision, Decision::Execute(_)));
            let waits = count(|decision| matches!(decision, Decision::InProgress(_)));
            assert_eq!(
                (executes, waits),
                (1, 1),
                "round {round}, key {key}: {both:?}"
            );
        }
    }
}
