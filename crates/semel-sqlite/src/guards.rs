//! Every guard in the statements is needed: without any one of them the suite fails.
//!
//! Only the writer answers here: a reader decides by the pure function, and would hide a
//! statement that does not.

use std::sync::Arc;

use semel_core::outbox::Event;
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, Scale};
use semel_testkit::guards::{Guards, Hash, Statement};

use crate::queries::Queries;
use crate::{Options, Sqlite};

/// Fewer would mean that the marks are not found any more.
const GUARDS_AT_LEAST: usize = 102;

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

fn guards() -> Guards<Altered> {
    let mut queries = Queries::default();
    let statements = queries.each().into_iter().map(|(name, sql)| (name, *sql));
    Guards {
        statements: statements.collect(),
        detectors: include_str!("guards/detectors.txt"),
        alter: altered,
    }
}

fn check(statement: &str) {
    guards().check(statement);
}

#[test]
fn the_suite_passes_with_every_guard() {
    guards().check_detectors();
}

#[test]
fn every_guard_has_a_test_and_a_detector() {
    guards().check_tables(WITH_GUARDS, GUARDS_AT_LEAST);
}

semel_testkit::guard_tests! {
    check:
    reserve_again reserve_resume reserve_mark_unknown reserve_delete_expired list list_floor list_unknown
    list_unknown_oldest
    list_in_progress count_in_progress count_unknown complete release evict mark_unknown
    heartbeat advance sweep claim_due claim_abandoned resolve_completed resolve_not_executed
    resolve_still_unknown dead_letter expire expire_delete drop_bodies purge erase
    publish_contracts count_records settle
    claim_parked schedule_parked forget acquire_relay_lease release_relay_lease claim_events mark_sent count_refusal
    dead_letter_event dead_events revive backlog activity forget_activity forget_misuses scan_records
    acquire_scan_lease publish_record_counts
}
