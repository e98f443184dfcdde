//! From a silent owner to a known outcome, or to a person.

use std::time::Duration;

use semel_core::history::What;
use semel_core::transition::Fenced;
use semel_core::{Decision, Held, Maintain as _, Status, Store as _};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::reconcilers::Error;
use semel_worker::{Asked, Finding, Reconciled, Reconcilers, Schedule, Worker};

use crate::support::{
    Behind, Buggy, LEASE, PAY, SECOND, Script, World, absent, completion, identity, operator, paid,
    unclear,
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
async fn a_silent_owner_is_swept_asked_about_and_its_answer_replayed() {
    let world = World::new();
    let provider = Script::of([unclear(), absent(), paid()]);
    let worker = world.asking(Schedule::default(), provider.clone());
    let fence = world.begin(PAY, "k").await;

    assert_eq!(worker.sweep_once().await.unwrap().swept, 0);
    world.clock.advance(LEASE);
    assert_eq!(worker.sweep_once().await.unwrap().swept, 1);
    assert_eq!(world.status(fence).await, Status::Unknown);

    for (wait, looks) in [(0, 1), (3, 1), (2, 2), (7, 2), (3, 3)] {
        world.clock.advance(wait * SECOND);
        worker.reconcile_once().await.unwrap();
        assert_eq!(provider.asked().len(), looks, "after {wait} s");
    }
    match world.decide(identity(PAY, "k")).await {
        Decision::Replay(replay) => assert_eq!(replay.response, completion("paid").response),
        other => panic!("{other:?}"),
    }
    let told: Vec<_> = world.told(fence).await;
    let told: Vec<_> = told
        .iter()
        .map(|(what, who, code, seen)| (*what, who.as_str(), code.as_str(), seen.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            (What::Unknown, "sweeper", "in_progress_lock_expired", ""),
            (What::Asked, "reconciler", "provider_failed", "503"),
            (What::Asked, "reconciler", "not_found", "404"),
            (What::ResolvedCompleted, "reconciler", "", "it is paid"),
        ]
    );
    world.clock.advance(600 * SECOND);
    assert_eq!(
        worker.reconcile_once().await.unwrap(),
        Reconciled::default()
    );
}

#[tokio::test]
async fn absence_is_no_proof() {
    let world = World::new();
    let worker = world.asking(Schedule::default(), Script::of([absent()]));
    let fence = world.unknown(PAY, "k").await;
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.still_unknown, round.released), (1, 0));
    assert_eq!(world.status(fence).await, Status::Unknown);
    assert_eq!(world.told(fence).await.last().unwrap().3, "404");
}

#[tokio::test]
async fn absence_releases_where_a_late_arrival_would_be_the_same_call() {
    let world = World::new();
    let worker = world.asking(IDEMPOTENT, Script::of([absent()]));
    let fence = world.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().released, 1);
    assert_eq!(world.status(fence).await, Status::FailedRetryable);
    assert_eq!(world.begin(PAY, "k").await.attempt, 2);
}

#[tokio::test]
async fn proof_releases_anywhere() {
    let world = World::new();
    let proof = Finding::NeverCreated("provider_refused_it".into()).seen("refused");
    let worker = world.asking(Schedule::default(), Script::of([proof]));
    let fence = world.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().released, 1);
    assert_eq!(world.status(fence).await, Status::FailedRetryable);
}

#[tokio::test]
async fn after_the_last_look_a_person_is_asked_and_shown_every_answer() {
    let world = World::new();
    let schedule = Schedule {
        attempts: 3,
        ..Schedule::default()
    };
    let provider = Script::of([absent(), unclear(), absent()]);
    let worker = world.asking(schedule, provider.clone());
    let fence = world.unknown(PAY, "k").await;
    for dead_lettered in [0, 0, 1, 0, 0] {
        let round = worker.reconcile_once().await.unwrap();
        assert_eq!(round.dead_lettered, dead_lettered);
        world.clock.advance(600 * SECOND);
    }
    assert!(world.is_dead_letter(fence).await);
    assert_eq!(provider.asked().len(), 3);
    let told = world.told(fence).await;
    let seen: Vec<_> = told.iter().map(|told| told.3.as_str()).collect();
    assert_eq!(seen, ["", "404", "503", "404", ""]);
    assert_eq!(told[4].0, What::DeadLettered);
    assert_eq!(told[4].2, "reconcile_attempts_exhausted");
}

#[tokio::test]
async fn what_nobody_can_be_asked_about_waits_for_a_person_at_once() {
    let world = World::new();
    let worker = world.asking(Schedule::default(), Script::default());
    let fence = world.unknown("refund", "k").await;
    let other = world.unknown(PAY, "k").await;
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.claimed, round.dead_lettered), (2, 1));
    assert!(world.is_dead_letter(fence).await);
    assert!(!world.is_dead_letter(other).await);
    assert_eq!(world.told(fence).await[1].2, "no_way_to_find_out");
}

#[tokio::test]
async fn what_another_application_can_find_out_is_left_to_it() {
    let world = World::new();
    let worker = world.asking(Schedule::default(), Script::default());
    let fence = world.unknown("refund", "k").await;
    let round = worker.leave_others().reconcile_once().await.unwrap();
    assert_eq!(round, Reconciled::default());
    assert!(!world.is_dead_letter(fence).await);
}

#[tokio::test]
async fn an_event_is_waited_for_as_long_as_the_schedule_says() {
    let world = World::new();
    let reconcilers = Reconcilers::new(world.store.clone());
    let reconcilers = reconcilers.by_webhook(PAY, TWO_TRIES).unwrap();
    let worker = Worker::new(world.store.clone()).reconcilers(reconcilers.clone());
    let fence = world.unknown(PAY, "k").await;
    let record = world.record(fence).await;
    let asked = reconcilers.ask(&record, operator()).await.unwrap();
    assert_eq!(asked, Asked::NoWay);
    // At once, after 5 seconds, after 10 more.
    for (wait, dead_lettered) in [(0, 0), (5, 0), (10, 1)] {
        world.clock.advance(wait * SECOND);
        let round = worker.reconcile_once().await.unwrap();
        assert_eq!(round.dead_lettered, dead_lettered, "after {wait} s");
    }
    assert!(world.is_dead_letter(fence).await);
}

#[tokio::test]
async fn an_owner_that_ends_during_a_look_is_believed() {
    let world = World::new();
    let gate = Gate::closed();
    let worker = world.asking(Schedule::default(), Behind(gate.clone()));
    let fence = world.unknown(PAY, "k").await;
    let round = tokio::spawn(async move { worker.reconcile_once().await });
    gate.reached().await;
    let held = world.store.complete(fence, completion("by its owner"));
    assert_eq!(held.await.unwrap(), Held::Applied);
    let before = world.record(fence).await;
    gate.open();
    let round = round.await.unwrap().unwrap();
    assert_eq!((round.overtaken, round.completed), (1, 0));
    assert_eq!(world.record(fence).await, before);
    assert_eq!(
        world.told(fence).await.last().unwrap().0,
        What::CompletedLate
    );
}

#[tokio::test]
async fn a_verdict_on_one_attempt_says_nothing_about_the_next() {
    let world = World::new();
    let gate = Gate::closed();
    let worker = world.asking(Schedule::default(), Behind(gate.clone()));
    let first = world.unknown(PAY, "k").await;
    let round = tokio::spawn(async move { worker.reconcile_once().await });
    gate.reached().await;
    let release = semel_core::Resolve {
        fence: first,
        verdict: semel_core::Verdict::NotExecuted("proven".into()),
        by: operator(),
        evidence: None,
    };
    world.store.resolve(release).await.unwrap();
    let second = world.begin(PAY, "k").await;
    world.lose(second).await;
    gate.open();
    assert_eq!(round.await.unwrap().unwrap().overtaken, 1);
    assert_eq!(world.status(second).await, Status::Unknown);
}

#[tokio::test]
async fn a_reconciler_that_panics_has_found_nothing() {
    let world = World::new();
    let buggy = Buggy {
        bugs: 1,
        ..Buggy::default()
    };
    let worker = world.asking(Schedule::default(), buggy);
    let fence = world.unknown(PAY, "k").await;
    assert_eq!(worker.reconcile_once().await.unwrap().still_unknown, 1);
    let told = world.told(fence).await;
    assert_eq!(told[1].2, "reconcile_panicked");
    assert!(told[1].3.contains("a bug of the application"), "{told:?}");
    world.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_reconciler_that_hangs_has_found_nothing_and_holds_up_nobody() {
    let world = World::new();
    let reconcilers = Reconcilers::new(world.store.clone())
        .by_looking(PAY, TWO_TRIES, Behind(Gate::closed()))
        .unwrap()
        .by_looking("refund", TWO_TRIES, Script::of([paid()]))
        .unwrap();
    let worker = Worker::new(world.store.clone()).reconcilers(reconcilers);
    let hanging = world.unknown(PAY, "k").await;
    let other = world.unknown("refund", "k").await;
    // Time goes on by itself where nothing else can be done.
    let round = worker.reconcile_once().await.unwrap();
    assert_eq!((round.still_unknown, round.completed), (1, 1));
    assert_eq!(world.status(other).await, Status::Completed);
    let told = world.told(hanging).await;
    assert_eq!(told[1].2, "reconcile_timed_out");
    assert_eq!(told[1].3, "no answer within 10s");
    world.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().dead_lettered, 1);
    assert!(world.is_dead_letter(hanging).await);
}

#[tokio::test]
async fn an_operator_asks_about_a_dead_letter() {
    let world = World::new();
    let way = Script::of([unclear(), absent(), paid()]);
    let reconcilers = Reconcilers::new(world.store.clone())
        .by_looking(PAY, TWO_TRIES, way)
        .unwrap();
    let fence = world.unknown(PAY, "k").await;
    let dead = world.store.dead_letter(fence, "exhausted".into());
    dead.await.unwrap();
    let before = world.unresolved(fence).await;
    for code in ["provider_failed", "not_found"] {
        let record = world.record(fence).await;
        let asked = reconcilers.ask(&record, operator()).await.unwrap();
        assert_eq!(asked, Asked::StillUnknown(code.into()));
        // It stays a dead letter, and nobody but the operator looks.
        assert_eq!(world.unresolved(fence).await, before);
    }
    let record = world.record(fence).await;
    let asked = reconcilers.ask(&record, operator()).await.unwrap();
    assert_eq!(asked, Asked::Completed);
    let told = world.told(fence).await;
    assert_eq!(told.last().unwrap().0, What::ResolvedCompleted);
    assert_eq!(told.last().unwrap().1, "ops@example.com");
    // What is over needs no look.
    let record = world.record(fence).await;
    let found = Some((Status::Completed, 1));
    let asked = reconcilers.ask(&record, operator()).await.unwrap();
    assert_eq!(asked, Asked::Overtaken(Fenced { found }));
}

#[tokio::test]
async fn a_verdict_whose_answer_is_lost_stands_and_one_that_is_lost_comes_due_again() {
    for (fault, status) in [
        (Fault::FailAfter, Status::Completed),
        (Fault::FailBefore, Status::Unknown),
    ] {
        let world = World::new();
        let worker = world.asking(Schedule::default(), Script::of([paid(), paid()]));
        let fence = world.unknown(PAY, "k").await;
        world.store.next(Verb::Resolve, fault);
        assert!(worker.reconcile_once().await.is_err());
        assert_eq!(world.status(fence).await, status);
        world.clock.advance(5 * SECOND);
        worker.reconcile_once().await.unwrap();
        assert_eq!(world.status(fence).await, Status::Completed);
    }
}

#[tokio::test]
async fn a_dead_letter_that_could_not_be_written_is_written_after_one_more_look() {
    let world = World::new();
    let schedule = Schedule {
        attempts: 1,
        ..Schedule::default()
    };
    let worker = world.asking(schedule, Script::default());
    let fence = world.unknown(PAY, "k").await;
    world.store.next(Verb::DeadLetter, Fault::FailBefore);
    assert!(worker.reconcile_once().await.is_err());
    assert!(!world.is_dead_letter(fence).await);
    world.clock.advance(5 * SECOND);
    assert_eq!(worker.reconcile_once().await.unwrap().dead_lettered, 1);
}

#[test]
fn a_schedule_that_cannot_be_kept_is_refused() {
    let refused = |schedule: Schedule| {
        let reconcilers = Reconcilers::new(());
        reconcilers.by_webhook(PAY, schedule).unwrap_err()
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
    let once = Reconcilers::new(()).by_webhook(PAY, good).unwrap();
    assert_eq!(
        once.by_webhook(PAY, good).unwrap_err(),
        Error::Repeated(PAY.into())
    );
    let unnamed = Reconcilers::new(()).by_webhook("", good);
    assert_eq!(unnamed.unwrap_err(), Error::Unnamed);
}
