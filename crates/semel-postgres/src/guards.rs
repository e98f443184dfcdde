//! Every guard in the statements is needed: without any one of them the suite fails.

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, Scale};
use semel_testkit::database::{Database, server};
use semel_testkit::guards::{self, Hash, Share, Statement};

use crate::queries::Queries;
use crate::{Options, Postgres};

/// Fewer would mean that the marks are no longer found.
const GUARDS_AT_LEAST: usize = 92;

/// A store with these statements.
struct Altered {
    queries: Queries,
    identity_hash: Hash,
}

impl Harness for Altered {
    type Store = Postgres;

    async fn fresh(&self) -> Fixture<Postgres> {
        let database = Database::reused().await.unwrap();
        let clock = ManualClock::default();
        let mut options = Options::new(&database.url).clock(Arc::new(clock.clone()));
        options.queries = self.queries.clone();
        options.identity_hash = self.identity_hash;
        Fixture::new(options.open().await.unwrap(), clock).on(database)
    }

    fn scale(&self) -> Scale {
        Scale::QUICK
    }
}

impl Publisher for Altered {
    async fn publish(&self, store: &Postgres, event: Event) {
        store.publish(event).await.unwrap();
    }
}

fn altered(change: Option<Statement>, identity_hash: Hash) -> Altered {
    let mut queries = Queries::default();
    for (name, text) in queries.each() {
        if let Some((changed, instead)) = change
            && name == changed
        {
            *text = instead;
        }
    }
    Altered {
        queries,
        identity_hash,
    }
}

/// Looks at one share of the statements.
async fn look_at(nth: usize) {
    if server().is_none() {
        return;
    }
    let mut queries = Queries::default();
    let statements: Vec<_> = queries
        .each()
        .into_iter()
        .map(|(name, sql)| (name, *sql))
        .collect();
    let share = Share { nth, of: 4 };
    guards::are_all_needed(&statements, share, GUARDS_AT_LEAST, altered).await;
}

mod the_suite_fails_without_any_one_guard {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_the_first_share() {
        super::look_at(0).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_the_second_share() {
        super::look_at(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_the_third_share() {
        super::look_at(2).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_the_fourth_share() {
        super::look_at(3).await;
    }
}
