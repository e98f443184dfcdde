//! A running worker: concurrent with others, during outages, and on shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Handling, Message};
use semel_core::{State, Status, Store as _};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::{
    CancellationToken, Notice, NoticeTarget, NoticeVerdict, Pace, Retained, Schedule, Worker,
};
use tokio::task::JoinHandle;

use crate::support::{
    Fixture, GatedProvider, LEASE, PAY, PanickingProvider, SECOND, ScriptedProvider, Store,
    completion, paid, settle,
};

/// A running worker and its shutdown token.
struct RunningWorker {
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn start(worker: Worker<Store>) -> RunningWorker {
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(worker.run(shutdown.clone()));
    RunningWorker { shutdown, task }
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_performs_every_job() {
    let fixture = Fixture::new();
    let silent = fixture.begin(PAY, "silent").await;
    let lost = fixture.unknown("refund", "lost").await;
    let done = fixture.begin(PAY, "done").await;
    let end = fixture.store.complete(done, completion("done"));
    end.await.unwrap();
    let early = fixture.unknown(PAY, "early").await;
    let event = Notice {
        target: NoticeTarget::Operation(early.id),
        verdict: NoticeVerdict::NotExecuted,
        evidence: Bytes::new(),
    };
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: event.to_bytes(),
    };
    let handling = Handling {
        look_after: Duration::ZERO,
        remember: Duration::from_hours(72),
    };
    fixture
        .store
        .receive_message(message, handling)
        .await
        .unwrap();

    let provider = ScriptedProvider::of([]);
    let running = start(fixture.worker_with(Schedule::default(), provider.clone()));
    fixture.pass(2 * SECOND).await;
    assert!(fixture.is_dead_letter(lost).await);
    assert_eq!(fixture.status(early).await, Status::FailedRetryable);
    assert_eq!(fixture.status(silent).await, Status::InProgress);
    fixture.pass(LEASE).await;
    assert_eq!(fixture.status(silent).await, Status::Unknown);
    assert!(provider.lookups().contains(&silent.id));
    fixture.clock.advance(Duration::from_hours(25));
    fixture.pass(11 * SECOND).await;
    assert_eq!(fixture.status(done).await, Status::Expired);

    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_workers_look_up_each_due_record_once_per_round() {
    const DUE: usize = 500;
    let fixture = Fixture::new();
    let mut fences = Vec::new();
    for key in 0..DUE {
        fences.push(fixture.unknown(PAY, &format!("k{key}")).await);
    }
    let provider = ScriptedProvider::default();
    let workers: Vec<_> = (0..10)
        .map(|_| fixture.worker_with(Schedule::default(), provider.clone()))
        .collect();
    for round in 1..=3 {
        let mut tasks = Vec::new();
        for worker in workers.clone() {
            tasks.push(tokio::spawn(async move {
                let mut claimed = 0;
                loop {
                    match worker.reconcile_once().await.unwrap().claimed {
                        0 => return claimed,
                        more => claimed += more,
                    }
                }
            }));
        }
        let mut claimed = 0;
        for task in tasks {
            claimed += task.await.unwrap();
        }
        assert_eq!(claimed, DUE, "round {round}");
        let mut looks = BTreeMap::new();
        for id in provider.lookups() {
            *looks.entry(id).or_insert(0) += 1;
        }
        assert_eq!(looks.len(), DUE);
        assert!(looks.values().all(|looks| *looks == round));
        fixture.clock.advance(Duration::from_mins(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_is_followed_by_the_next_at_once() {
    let fixture = Fixture::new();
    for key in 0..1000 {
        fixture.begin(PAY, &format!("k{key}")).await;
    }
    fixture.clock.advance(LEASE);
    let running = start(fixture.worker_with(Schedule::default(), ScriptedProvider::default()));
    // Less than a second passes: ten batches, with a hundred yields each.
    for _ in 0..20 {
        settle().await;
    }
    let standing = fixture.store.count_unfinished().await.unwrap();
    assert_eq!(standing[0].in_progress.count, 0);
    assert_eq!(standing[0].unknown.count, 1000);
    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_job_survives_an_outage() {
    let verbs = [
        Verb::Sweep,
        Verb::ClaimDue,
        Verb::Resolve,
        Verb::DeadLetter,
        Verb::ClaimParked,
        Verb::Expire,
        Verb::DropBodies,
        Verb::Purge,
        Verb::ForgetMessages,
        Verb::CountUnfinished,
        Verb::Find,
    ];
    for broken in verbs {
        let fixture = Fixture::new();
        let down = Arc::new(AtomicBool::new(true));
        let calls = Arc::new(std::sync::Mutex::new(0));
        let (is_down, count) = (Arc::clone(&down), Arc::clone(&calls));
        fixture.store.when(move |verb, _| {
            let fails = verb == broken && is_down.load(Ordering::SeqCst);
            *count.lock().unwrap() += u32::from(fails);
            fails.then_some(Fault::FailBefore)
        });
        let silent = fixture.begin(PAY, "silent").await;
        let lost = fixture.unknown("refund", "lost").await;
        let done = fixture.begin(PAY, "done").await;
        let end = fixture.store.complete(done, completion("done"));
        end.await.unwrap();
        fixture.clock.advance(Duration::from_hours(25));
        let often = Schedule {
            max_every: 10 * SECOND,
            attempts: 1000,
            ..Schedule::default()
        };
        let running = start(fixture.worker_with(often, PanickingProvider::default()));
        fixture.pass(120 * SECOND).await;
        let failed = *calls.lock().unwrap();
        // The job was retried, with growing pauses.
        assert!((1..60).contains(&failed), "{broken:?}: {failed}");
        down.store(false, Ordering::SeqCst);
        fixture.pass(60 * SECOND).await;
        assert_eq!(
            fixture.status(silent).await,
            Status::Completed,
            "{broken:?}"
        );
        assert!(fixture.is_dead_letter(lost).await, "{broken:?}");
        assert_eq!(fixture.status(done).await, Status::Expired, "{broken:?}");
        running.shutdown.cancel();
        running.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_job_stops_neither_it_nor_the_others() {
    let fixture = Fixture::new();
    let mut first = true;
    fixture.store.when(move |verb, _| {
        assert!(
            verb != Verb::Sweep || !std::mem::take(&mut first),
            "a bug of the store"
        );
        None
    });
    let silent = fixture.begin(PAY, "silent").await;
    fixture.clock.advance(LEASE);
    let lost = fixture.unknown("refund", "lost").await;
    let running = start(fixture.worker_with(Schedule::default(), ScriptedProvider::of([paid()])));
    settle().await;
    assert!(fixture.is_dead_letter(lost).await);
    assert_eq!(fixture.status(silent).await, Status::InProgress);
    fixture.pass(5 * SECOND).await;
    assert_eq!(fixture.status(silent).await, Status::Completed);
    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_running_lookup_is_finished_on_shutdown() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    let fence = fixture.unknown(PAY, "k").await;
    let running = start(fixture.worker_with(Schedule::default(), GatedProvider(gate.clone())));
    gate.reached().await;
    running.shutdown.cancel();
    fixture.pass(SECOND).await;
    assert!(!running.task.is_finished());
    gate.open();
    running.task.await.unwrap();
    assert_eq!(fixture.status(fence).await, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_lookup_past_the_shutdown_timeout_is_abandoned_and_comes_due_again() {
    let fixture = Fixture::new();
    let gate = Gate::closed();
    let fence = fixture.unknown(PAY, "k").await;
    let running = start(fixture.worker_with(Schedule::default(), GatedProvider(gate.clone())));
    gate.reached().await;
    running.shutdown.cancel();
    let began = tokio::time::Instant::now();
    // Paused time advances by itself while all tasks wait.
    running.task.await.unwrap();
    assert!(began.elapsed() <= Pace::default().shutdown_timeout + SECOND);
    gate.open();
    settle().await;
    assert_eq!(fixture.status(fence).await, Status::Unknown);
    fixture.clock.advance(5 * SECOND);
    let next = fixture.worker_with(Schedule::default(), ScriptedProvider::of([paid()]));
    assert_eq!(next.reconcile_once().await.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn retention_never_removes_unfinished_records() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone());
    let running = fixture.begin(PAY, "running").await;
    let lost = fixture.unknown(PAY, "lost").await;
    let dead = fixture.unknown(PAY, "dead").await;
    let dead_lettered = fixture.store.dead_letter(dead, "exhausted".into());
    dead_lettered.await.unwrap();
    let done = fixture.begin(PAY, "done").await;
    let end = fixture.store.complete(done, completion("done"));
    end.await.unwrap();
    let mut before = Vec::new();
    for fence in [running, lost, dead] {
        before.push(fixture.record(fence).await);
    }
    fixture.clock.advance(Duration::from_hours(24 * 365));
    let round = worker.retain_once().await.unwrap();
    assert_eq!((round.expired, round.tombstones), (1, 0));
    fixture.clock.advance(Duration::from_hours(24 * 365 * 10));
    assert_eq!(worker.retain_once().await.unwrap().tombstones, 1);
    assert_eq!(worker.retain_once().await.unwrap(), Retained::default());
    assert!(fixture.store.find(done.id).await.unwrap().is_none());
    for before in before {
        let after = fixture.store.find(before.id).await.unwrap();
        assert_eq!(after, Some(before));
    }
}

#[tokio::test(start_paused = true)]
async fn expired_bodies_and_messages_are_removed() {
    let fixture = Fixture::new();
    let worker = Worker::new(fixture.store.clone());
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: Bytes::new(),
    };
    let handling = Handling {
        look_after: SECOND,
        remember: Duration::from_hours(72),
    };
    fixture
        .store
        .receive_message(message, handling)
        .await
        .unwrap();
    let fence = fixture.begin(PAY, "k").await;
    let end = fixture.store.complete(fence, completion("done"));
    end.await.unwrap();
    assert_eq!(worker.retain_once().await.unwrap(), Retained::default());
    fixture.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.retain_once().await.unwrap().bodies, 1);
    match fixture.record(fence).await.state {
        State::Completed(completed) => assert_eq!(completed.response.body, None),
        other => panic!("{other:?}"),
    }
    fixture.clock.advance(Duration::from_hours(72));
    let round = worker.retain_once().await.unwrap();
    assert_eq!((round.expired, round.messages), (1, 1));
}

/// At most a fifth of the store's time goes into retention, and a slow store gets small batches.
#[tokio::test(start_paused = true)]
async fn retention_takes_at_most_a_fifth_of_the_stores_time() {
    let fixture = Fixture::new();
    for key in 0..1000 {
        let fence = fixture.begin(PAY, &format!("k{key}")).await;
        let end = fixture.store.complete(fence, completion("done"));
        end.await.unwrap();
    }
    fixture.clock.advance(Duration::from_hours(25));
    let slow = Gate::closed();
    fixture
        .store
        .next(Verb::Expire, Fault::HoldAfter(slow.clone()));
    let worker = Worker::new(fixture.store.clone());
    let round = tokio::spawn({
        let worker = worker.clone();
        async move { worker.retain_once().await.unwrap() }
    });
    slow.reached().await;
    let began = tokio::time::Instant::now();
    tokio::time::advance(Duration::from_millis(100)).await;
    slow.open();
    let first = round.await.unwrap();
    assert_eq!((first.expired, first.more), (200, true));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(500), "{took:?}");
    // The batch is halved, then doubled after each fast round.
    for expired in [100, 200, 200] {
        assert_eq!(worker.retain_once().await.unwrap().expired, expired);
    }
}
