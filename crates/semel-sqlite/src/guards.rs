//! Every guard in the statements is needed: without any one of them the suite fails.
//!
//! Only the writer answers here: a reader decides by the pure function, and would hide a
//! statement that does not.

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, Scale};
use semel_testkit::guards::{self, Hash, Share, Statement};

use crate::queries::Queries;
use crate::{Options, Sqlite};

/// Fewer would mean that the marks are no longer found.
const GUARDS_AT_LEAST: usize = 96;

/// A store with these statements.
struct Altered {
    queries: Queries,
    identity_hash: Hash,
}

impl Harness for Altered {
    type Store = Sqlite;

    async fn fresh(&self) -> Fixture<Sqlite> {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let mut options =
            Options::new(directory.path().join("semel.db")).clock(Arc::new(clock.clone()));
        options.queries = self.queries.clone();
        options.identity_hash = self.identity_hash;
        options.answer_from_readers = false;
        Fixture::new(options.open().await.unwrap(), clock).on(directory)
    }

    fn scale(&self) -> Scale {
        Scale::QUICK
    }
}

impl Publisher for Altered {
    async fn publish(&self, store: &Sqlite, event: Event) {
        let outbox = store.outbox();
        let published = store.write(move |connection| outbox.publish(connection, &event));
        published.await.unwrap();
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
    let mut queries = Queries::default();
    let statements: Vec<_> = queries
        .each()
        .into_iter()
        .map(|(name, sql)| (name, *sql))
        .collect();
    let share = Share { nth, of: 2 };
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
}
