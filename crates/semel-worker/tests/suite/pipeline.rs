//! From an expired lease to a resolved record, or to a dead letter.

use std::time::Duration;

use semel_core::history::EntryKind;
use semel_core::transition::Fenced;
use semel_core::{Decision, Held, Status, Store as _};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::reconcilers::Error;
use semel_worker::{LookupResult, ReconcileOutcome, Reconciled, Reconcilers, Schedule, Worker};

use crate::support::{
    Fixture, GatedProvider, LEASE, PAY, PanickingProvider, SECOND, ScriptedProvider, absent,
    completion, identity, operator, paid, unclear,
};

const IDEMPOTENT: Schedule = Schedule {
    every: Duration::from_secs(5),
    max_every: Duration::from_mins(10),
    attempts: 12,
    downstream_idempotent: true,
};

const TWO_TRIES: Schedule = Schedule {
    attempts: 2,
    downstream_idempotent: false,
    ..IDEMPOTENT
};

#[tokio::test]
async fn an_expired_lease_is_swept_reconciled_and_replayed() {
    let fixture = Fixture::new();
    let provider = ScriptedProvider::of([unclear(), absent(), paid()]);
    let worker = fixture.worker_with(Schedule::default(), provider.clone());
    let fence = fixture.begin(PAY, "k").await;

    assert_eq!(worker.sweep_once().await.unwrap().swept, 0);
    fixture.clock.advance(LEASE);
    assert_eq!(worker.sweep_once().await.unwrap().swept, 1);
    assert_eq!(fixture.status(fence).await, Status::Unknown);

    for (wait, lookups) in [(0, 1), (3, 1), (2, 2), (7, 2), (3, 3)] {
        fixture.clock.advance(wait * SECOND);
        worker.reconcile_once().await.unwrap();
        assert_eq!(provider.lookups().len(), lookups, "after {wait} s");
    }
    match fixture.decide(identity(PAY, "k")).await {
        Decision::Replay(replay) => assert_eq!(replay.response, completion("paid").response),
        other => panic!("{other:?}"),
    }
    let history: Vec<_> = fixture.history(fence).await;
    let history: Vec<_> = history
        .iter()
        .map(|(what, who, code, seen)| (*what, who.as_str(), code.as_str(), seen.as_str()))
        .collect();
    assert_eq!(
        history,
        [
            (
                EntryKind::Unknown,
                "sweeper",
                "in_progress_lock_expired",
                ""
            ),
            (EntryKind::Asked, "reconciler", "provider_failed", "503"),
            (EntryKind::Asked, "reconciler", "not_found", "404"),
            (EntryKind::ResolvedCompleted, "reconciler", "", "it is paid"),
        ]
    );
    fixture.clock.advance(600 * SECOND);
    assert_eq!(
        worker.reconcile_once().await.unwrap(),
        Reconciled::default()
    );
}

#[tokio::test]
async fn absence_without_downstream_idempotency_stays_unknown() {
    let fixture = Fixture::new();
    let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::of([absent()]));
    let fence = fixture.unknown(PAY, "k").await;
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.still_unknown, round.released), (1, 0));
    assert_eq!(fixture.status(fence).await, Status::Unknown);
    assert_eq!(fixture.history(fence).await.last().unwrap().3, "404");
}

#[tokio::test]
async fn absence_with_downstream_idempotency_releases() {
    let fixture = Fixture::new();
    let worker = fixture.worker_with(IDEMPOTENT, ScriptedProvider::of([absent()]));
    let fence = fixture.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().released, 1);
    assert_eq!(fixture.status(fence).await, Status::FailedRetryable);
    assert_eq!(fixture.begin(PAY, "k").await.attempt, 2);
}

#[tokio::test]
async fn never_created_always_releases() {
    let fixture = Fixture::new();
    let proof = LookupResult::NeverCreated("provider_refused_it".into()).seen("refused");
    let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::of([proof]));
    let fence = fixture.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().released, 1);
    assert_eq!(fixture.status(fence).await, Status::FailedRetryable);
}

#[tokio::test]
async fn the_last_lookup_dead_letters_with_the_evidence_of_every_lookup() {
    let fixture = Fixture::new();
    let schedule = Schedule {
        attempts: 3,
        ..Schedule::default()
    };
    let provider = ScriptedProvider::of([absent(), unclear(), absent()]);
    let worker = fixture.worker_with(schedule, provider.clone());
    let fence = fixture.unknown(PAY, "k").await;
    for dead_lettered in [0, 0, 1, 0, 0] {
        let round = worker.reconcile_once().await.unwrap();
        assert_eq!(round.dead_lettered, dead_lettered);
        fixture.clock.advance(600 * SECOND);
    }
    assert!(fixture.is_dead_letter(fence).await);
    assert_eq!(provider.lookups().len(), 3);
    let history = fixture.history(fence).await;
    let seen: Vec<_> = history.iter().map(|entry| entry.3.as_str()).collect();
    assert_eq!(seen, ["", "404", "503", "404", ""]);
    assert_eq!(history[4].0, EntryKind::DeadLettered);
    assert_eq!(history[4].2, "reconcile_attempts_exhausted");
}

#[tokio::test]
async fn an_operation_without_a_strategy_is_left_alone() {
    let fixture = Fixture::new();
    let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
    let fence = fixture.unknown("void", "k").await;
    let before = fixture.record(fence).await;
    for _ in 0..3 {
        fixture.clock.advance(Duration::from_hours(24));
        let round = worker.reconcile_once().await.unwrap();
        assert_eq!(round, Reconciled::default());
        let round = worker.dead_letter_unreconciled_once().await.unwrap();
        assert_eq!(round, Reconciled::default());
    }
    // Not even claimed: another process finds it due.
    assert_eq!(fixture.record(fence).await, before);
}

#[tokio::test]
async fn an_operation_left_to_an_operator_is_dead_lettered_at_once() {
    let fixture = Fixture::new();
    let reconcilers = Reconcilers::new(fixture.store.clone());
    let reconcilers = reconcilers.leave_to_operator("refund").unwrap();
    assert!(!reconcilers.can_look_up("refund"));
    let worker = Worker::new(fixture.store.clone()).reconcilers(reconcilers);
    let fence = fixture.unknown("refund", "k").await;
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.claimed, round.dead_lettered), (1, 1));
    assert!(fixture.is_dead_letter(fence).await);
    assert_eq!(fixture.history(fence).await[1].2, "no_way_to_find_out");
}

#[tokio::test]
async fn wait_for_webhook_dead_letters_after_the_scheduled_intervals() {
    let fixture = Fixture::new();
    let reconcilers = Reconcilers::new(fixture.store.clone());
    let reconcilers = reconcilers.wait_for_webhook(PAY, TWO_TRIES).unwrap();
    let worker = Worker::new(fixture.store.clone()).reconcilers(reconcilers.clone());
    let fence = fixture.unknown(PAY, "k").await;
    let record = fixture.record(fence).await;
    let outcome = reconcilers.reconcile(&record, operator()).await.unwrap();
    assert_eq!(outcome, ReconcileOutcome::NoStrategy);
    // At once, after 5 seconds, after 10 more.
    for (wait, dead_lettered) in [(0, 0), (5, 0), (10, 1)] {
        fixture.clock.advance(wait * SECOND);
        let round = worker.reconcile_once().await.unwrap();
        assert_eq!(round.dead_lettered, dead_lettered, "after {wait} s");
    }
    assert!(fixture.is_dead_letter(fence).await);
}

#[tokio::test]
async fn a_completion_during_a_lookup_wins() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    let worker = fixture.worker_with(Schedule::default(), GatedProvider(gate.clone()));
    let fence = fixture.unknown(PAY, "k").await;
    let round = tokio::spawn(async move { worker.reconcile_once().await });
    gate.reached().await;
    let held = fixture.store.complete(fence, completion("by its owner"));
    assert_eq!(held.await.unwrap(), Held::Applied);
    let before = fixture.record(fence).await;
    gate.open();
    let round = round.await.unwrap().unwrap();
    assert_eq!((round.overtaken, round.completed), (1, 0));
    assert_eq!(fixture.record(fence).await, before);
    assert_eq!(
        fixture.history(fence).await.last().unwrap().0,
        EntryKind::CompletedLate
    );
}

#[tokio::test]
async fn a_verdict_on_one_attempt_does_not_apply_to_the_next() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    let worker = fixture.worker_with(Schedule::default(), GatedProvider(gate.clone()));
    let first = fixture.unknown(PAY, "k").await;
    let round = tokio::spawn(async move { worker.reconcile_once().await });
    gate.reached().await;
    let release = semel_core::Resolve {
        fence: first,
        verdict: semel_core::Verdict::NotExecuted("proven".into()),
        by: operator(),
        evidence: None,
    };
    fixture.store.resolve(release).await.unwrap();
    let second = fixture.begin(PAY, "k").await;
    fixture.lose(second).await;
    gate.open();
    assert_eq!(round.await.unwrap().unwrap().overtaken, 1);
    assert_eq!(fixture.status(second).await, Status::Unknown);
}

#[tokio::test]
async fn a_lookup_that_panics_is_unclear() {
    let fixture = Fixture::new();
    let buggy = PanickingProvider {
        bugs: 1,
        ..PanickingProvider::default()
    };
    let worker = fixture.worker_with(Schedule::default(), buggy);
    let fence = fixture.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().still_unknown, 1);
    let history = fixture.history(fence).await;
    assert_eq!(history[1].2, "reconcile_panicked");
    assert!(
        history[1].3.contains("a bug of the application"),
        "{history:?}"
    );
    fixture.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_that_hangs_times_out_and_does_not_delay_other_operations() {
    let fixture = Fixture::new();
    let reconcilers = Reconcilers::new(fixture.store.clone())
        .poll_with(PAY, TWO_TRIES, GatedProvider(Gate::closed()))
        .unwrap()
        .poll_with("refund", TWO_TRIES, ScriptedProvider::of([paid()]))
        .unwrap();
    let worker = Worker::new(fixture.store.clone()).reconcilers(reconcilers);
    let hanging = fixture.unknown(PAY, "k").await;
    let other = fixture.unknown("refund", "k").await;
    // Paused time advances by itself while all tasks wait.
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.still_unknown, round.completed), (1, 1));
    assert_eq!(fixture.status(other).await, Status::Completed);
    let history = fixture.history(hanging).await;
    assert_eq!(history[1].2, "reconcile_timed_out");
    assert_eq!(history[1].3, "no answer within 10s");
    fixture.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().dead_lettered, 1);
    assert!(fixture.is_dead_letter(hanging).await);
}

#[tokio::test]
async fn an_operator_can_reconcile_a_dead_letter() {
    let fixture = Fixture::new();
    let provider = ScriptedProvider::of([unclear(), absent(), paid()]);
    let reconcilers = Reconcilers::new(fixture.store.clone())
        .poll_with(PAY, TWO_TRIES, provider)
        .unwrap();
    let fence = fixture.unknown(PAY, "k").await;
    let dead = fixture.store.dead_letter(fence, "exhausted".into());
    dead.await.unwrap();
    let before = fixture.unresolved(fence).await;
    for code in ["provider_failed", "not_found"] {
        let record = fixture.record(fence).await;
        let outcome = reconcilers.reconcile(&record, operator()).await.unwrap();
        assert_eq!(outcome, ReconcileOutcome::StillUnknown(code.into()));
        // It stays a dead letter: only an operator looks it up.
        assert_eq!(fixture.unresolved(fence).await, before);
    }
    let record = fixture.record(fence).await;
    let outcome = reconcilers.reconcile(&record, operator()).await.unwrap();
    assert_eq!(outcome, ReconcileOutcome::Completed);
    let history = fixture.history(fence).await;
    assert_eq!(history.last().unwrap().0, EntryKind::ResolvedCompleted);
    assert_eq!(history.last().unwrap().1, "ops@example.com");
    // A settled record is not looked up.
    let record = fixture.record(fence).await;
    let found = Some((Status::Completed, 1));
    let outcome = reconcilers.reconcile(&record, operator()).await.unwrap();
    assert_eq!(outcome, ReconcileOutcome::Overtaken(Fenced { found }));
}

#[tokio::test]
async fn a_verdict_with_a_lost_reply_stands_and_a_lost_verdict_is_retried() {
    for (fault, status) in [
        (Fault::FailAfter, Status::Completed),
        (Fault::FailBefore, Status::Unknown),
    ] {
        let fixture = Fixture::new();
        let worker =
            fixture.worker_with(Schedule::default(), ScriptedProvider::of([paid(), paid()]));
        let fence = fixture.unknown(PAY, "k").await;
        fixture.store.next(Verb::Resolve, fault);
        assert!(worker.reconcile_once().await.is_err());
        assert_eq!(fixture.status(fence).await, status);
        fixture.clock.advance(5 * SECOND);
        worker.reconcile_once().await.unwrap();
        assert_eq!(fixture.status(fence).await, Status::Completed);
    }
}

#[tokio::test]
async fn a_dead_letter_that_could_not_be_written_is_written_after_one_more_lookup() {
    let fixture = Fixture::new();
    let schedule = Schedule {
        attempts: 1,
        ..Schedule::default()
    };
    let worker = fixture.worker_with(schedule, ScriptedProvider::default());
    let fence = fixture.unknown(PAY, "k").await;
    fixture.store.next(Verb::DeadLetter, Fault::FailBefore);
    assert!(worker.reconcile_once().await.is_err());
    assert!(!fixture.is_dead_letter(fence).await);
    fixture.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().dead_lettered, 1);
}

#[test]
fn an_invalid_schedule_is_refused() {
    let refused = |schedule: Schedule| {
        let reconcilers = Reconcilers::new(());
        reconcilers.wait_for_webhook(PAY, schedule).unwrap_err()
    };
    let good = Schedule::default();
    assert_eq!(
        refused(Schedule {
            attempts: 0,
            ..good
        }),
        Error::NoAttempts
    );
    assert_eq!(
        refused(Schedule {
            every: Duration::ZERO,
            ..good
        }),
        Error::NoPause
    );
    assert!(matches!(
        refused(Schedule {
            max_every: SECOND,
            ..good
        }),
        Error::Order { .. }
    ));
    let once = Reconcilers::new(()).wait_for_webhook(PAY, good).unwrap();
    assert_eq!(
        once.wait_for_webhook(PAY, good).unwrap_err(),
        Error::Repeated(PAY.into())
    );
    let unnamed = Reconcilers::new(()).wait_for_webhook("", good);
    assert_eq!(unnamed.unwrap_err(), Error::Unnamed);
    let once = Reconcilers::new(()).leave_to_operator(PAY).unwrap();
    assert_eq!(
        once.leave_to_operator(PAY).unwrap_err(),
        Error::Repeated(PAY.into())
    );
}
