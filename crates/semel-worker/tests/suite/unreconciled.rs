//! Operations that no process reconciles: how they are found, and the rule that dead-letters them.

use std::time::Duration;

use semel_core::{Backend as _, Clock as _, Status, Store as _};
use semel_worker::unreconciled::{self, OVERDUE, Unreconciled};
use semel_worker::{Pace, Schedule, Worker};

use crate::support::{Fixture, PAY, SECOND, ScriptedProvider, Store};

const HOUR: Duration = Duration::from_hours(1);

async fn unreconciled(fixture: &Fixture) -> Vec<(String, u64)> {
    let counts = fixture.store.count_unfinished().await.unwrap();
    let now = fixture.store.clock().now();
    let found = unreconciled::find(&fixture.store, &counts, now).await;
    let pair = |found: Unreconciled| (found.operation.into(), found.count);
    found.unwrap().into_iter().map(pair).collect()
}

/// A worker that knows no operation, with the rule.
fn worker(fixture: &Fixture) -> Worker<Store> {
    Worker::new(fixture.store.clone()).dead_letter_unreconciled(HOUR)
}

#[tokio::test]
async fn an_operation_counts_as_unreconciled_when_its_oldest_record_is_overdue() {
    let fixture = Fixture::new();
    let old = fixture.unknown("refund", "1").await;
    fixture.clock.advance(OVERDUE.checked_sub(SECOND).unwrap());
    fixture.unknown("refund", "2").await;
    assert_eq!(unreconciled(&fixture).await, []);
    fixture.clock.advance(SECOND);
    assert_eq!(unreconciled(&fixture).await, [("refund".to_owned(), 2)]);
    // A dead letter is not overdue, and not counted.
    let dead = fixture.store.dead_letter(old, "exhausted".into());
    dead.await.unwrap();
    assert_eq!(unreconciled(&fixture).await, []);
    fixture.clock.advance(OVERDUE);
    assert_eq!(unreconciled(&fixture).await, [("refund".to_owned(), 1)]);
}

#[tokio::test]
async fn an_operation_that_a_process_reconciles_is_not_reported() {
    let fixture = Fixture::new();
    let reconciling = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
    let fence = fixture.unknown(PAY, "k").await;
    for _ in 0..11 {
        reconciling.reconcile_once().await.unwrap();
        assert_eq!(unreconciled(&fixture).await, []);
        // Due, and the worker is late.
        let due_at = fixture.unresolved(fence).await.reconcile_after.as_micros();
        let wait = due_at - fixture.clock.now().as_micros();
        let wait = Duration::from_micros(wait.try_into().unwrap());
        fixture.clock.advance(wait + Duration::from_mins(4));
        assert_eq!(unreconciled(&fixture).await, []);
    }
    assert_eq!(fixture.unresolved(fence).await.reconcile_attempts, 11);
}

#[tokio::test]
async fn the_rule_dead_letters_what_no_process_has_claimed_for_that_long() {
    let fixture = Fixture::new();
    let worker = worker(&fixture);
    let fence = fixture.unknown("refund", "k").await;
    fixture.clock.advance(HOUR.checked_sub(SECOND).unwrap());
    let round = worker.dead_letter_unreconciled_once().await.unwrap();
    assert_eq!(round.dead_lettered, 0);
    fixture.clock.advance(SECOND);
    let round = worker.dead_letter_unreconciled_once().await.unwrap();
    assert_eq!(round.dead_lettered, 1);
    assert!(fixture.is_dead_letter(fence).await);
    let history = fixture.history(fence).await;
    assert_eq!(history[1].2, "no_way_to_find_out");
    assert_eq!(history.len(), 2);
}

#[tokio::test]
async fn the_rule_spares_what_another_process_reconciles() {
    let fixture = Fixture::new();
    let other = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
    let worker = worker(&fixture);
    let fence = fixture.unknown(PAY, "k").await;
    // Ten lookups within two hours; the twelfth would dead-letter the record.
    for _ in 0..10 {
        other.reconcile_once().await.unwrap();
        fixture.clock.advance(Duration::from_mins(12));
        worker.dead_letter_unreconciled_once().await.unwrap();
        assert!(!fixture.is_dead_letter(fence).await);
    }
    assert_eq!(fixture.unresolved(fence).await.reconcile_attempts, 10);
}

#[tokio::test]
async fn the_rule_spares_operations_with_a_strategy_here() {
    let fixture = Fixture::new();
    let worker = fixture
        .worker_with(Schedule::default(), ScriptedProvider::default())
        .dead_letter_unreconciled(HOUR);
    let fence = fixture.unknown(PAY, "k").await;
    fixture.clock.advance(2 * HOUR);
    let round = worker.dead_letter_unreconciled_once().await.unwrap();
    assert_eq!(round.dead_lettered, 0);
    assert!(!fixture.is_dead_letter(fence).await);
}

#[tokio::test]
async fn the_rule_reaches_records_behind_the_first_page() {
    let fixture = Fixture::new();
    let reconcilers = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
    let worker = reconcilers.dead_letter_unreconciled(HOUR).pace(Pace {
        sweep_batch: 2,
        ..Pace::default()
    });
    // Known here, so these stay and fill the first pages.
    for number in 0..5 {
        fixture.unknown(PAY, &format!("k{number}")).await;
    }
    let last = fixture.unknown("void", "k").await;
    fixture.clock.advance(HOUR);
    let mut rounds = 0;
    while !fixture.is_dead_letter(last).await {
        worker.dead_letter_unreconciled_once().await.unwrap();
        rounds += 1;
        assert!(rounds <= 3, "three pages of two");
    }
    // It begins again at the first page.
    let next = fixture.unknown("capture", "k").await;
    fixture.clock.advance(HOUR);
    for _ in 0..4 {
        worker.dead_letter_unreconciled_once().await.unwrap();
    }
    assert!(fixture.is_dead_letter(next).await);
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_applies_the_rule() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone()).dead_letter_unreconciled(10 * SECOND);
    let fence = fixture.unknown("refund", "k").await;
    let shutdown = semel_worker::CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    fixture.pass(5 * SECOND).await;
    assert!(!fixture.is_dead_letter(fence).await);
    fixture.pass(20 * SECOND).await;
    assert!(fixture.is_dead_letter(fence).await);
    assert_eq!(fixture.status(fence).await, Status::Unknown);
    shutdown.cancel();
    running.await.unwrap();
}
