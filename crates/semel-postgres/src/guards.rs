//! Every guard in the statements is needed: without any one of them the suite fails.

use std::sync::Arc;

use semel_core::Identity;
use semel_core::outbox::Event;
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness, Scale, first_failure};
use semel_testkit::database::{Database, server};
use semel_testkit::guards::{Guards, Hash, Statement};

use crate::queries::Queries;
use crate::{Options, Postgres};

const DETECTORS: &str = include_str!("guards/detectors.txt");

/// Fewer would mean that the marks are not found any more.
const GUARDS_AT_LEAST: usize = 98;

/// A store with these statements.
struct Altered {
    queries: Queries,
    identity_hash: Hash,
}

impl Harness for Altered {
    type Store = Postgres;

    async fn fresh(&self) -> Fixture<Postgres> {
        let database = Database::pooled(&crate::schema()).await.unwrap();
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
        if let Some((changed, instead)) = change {
            if name == changed {
                *text = instead;
            }
            // Usually only a request that lost a race needs the guards of `reserve.sql`; here all do.
            if changed == "reserve" {
                *text = match name {
                    "reserve_new" => text
                        .replace("WHERE (SELECT", "WHERE false AND (SELECT")
                        .leak(),
                    "reserve_existing" => format!("{text} AND false").leak(),
                    _ => text,
                };
            }
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
        detectors: DETECTORS,
        alter: altered,
    }
}

fn check(statement: &str) {
    if server().is_some() {
        guards().check(statement);
    }
}

#[test]
fn the_suite_passes_with_every_guard() {
    if server().is_some() {
        guards().check_detectors();
    }
}

/// Where `reserve.sql` decides alone, the detectors of its guards find nothing with every guard in place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_the_guards_of_reserve_alone() {
    if server().is_some() {
        let change = ("reserve", Queries::default().reserve);
        let harness = altered(Some(change), Identity::hash);
        let mut detectors = DETECTORS
            .lines()
            .filter(|line| line.starts_with("reserve "));
        let failure = first_failure(harness, |case| {
            detectors
                .clone()
                .any(|line| line.ends_with(case))
                .then_some(0)
        });
        assert_eq!(failure.await, None);
        assert!(detectors.next().is_some());
    }
}

/// As if another connection inserted each key between the look and the insertion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_if_every_insertion_of_a_used_key_collides() {
    if server().is_some() {
        let looking = Queries::default().reserve_new;
        let blind = looking.replace("WHERE (SELECT", "WHERE true OR (SELECT");
        assert_ne!(blind, looking);
        let harness = altered(Some(("reserve_new", blind.leak())), Identity::hash);
        let failure = first_failure(harness, |case| {
            (case.starts_with("reserve::") || case.starts_with("races::")).then_some(0)
        });
        assert_eq!(failure.await, None);
    }
}

#[test]
fn every_guard_has_a_test_and_a_detector() {
    guards().check_tables(WITH_GUARDS, GUARDS_AT_LEAST);
}

semel_testkit::guard_tests! {
    check:
    reserve list list_unknown list_unknown_oldest list_in_progress history complete release evict mark_unknown
    heartbeat advance record_refusal sweep claim_abandoned claim_due resolve_completed
    resolve_not_executed resolve_still_unknown dead_letter expire drop_bodies purge erase
    audit_reveal publish_contracts count_records settle claim_parked forget acquire_relay_lease claim_events mark_sent hold_back dead_letter_event
    dead_events revive release_relay_lease activity forget_activity forget_misuses scan_records acquire_scan_lease
    publish_record_counts
}
