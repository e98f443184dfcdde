//! The worker as it runs: beside others, through outages, until it is stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Handling, Message};
use semel_core::{Inbox as _, Inspect as _, Maintain as _, State, Status, Store as _};
use semel_testkit::faulty::{Fault, Gate, Verb};
use semel_worker::{About, CancellationToken, Notice, Pace, Retained, Says, Schedule, Worker};
use tokio::task::JoinHandle;

use crate::support::{
    Behind, Buggy, LEASE, PAY, SECOND, Script, Store, World, completion, paid, settle,
};

/// A worker that runs, and the way to stop it.
struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn start(worker: Worker<Store>) -> Running {
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(worker.run(shutdown.clone()));
    Running { shutdown, task }
}

#[tokio::test(start_paused = true)]
async fn everything_is_done_without_anybody_asking() {
    let world = World::new();
    let silent = world.begin(PAY, "silent").await;
    let lost = world.unknown("refund", "lost").await;
    let done = world.begin(PAY, "done").await;
    let end = world.store.complete(done, completion("done"));
    end.await.unwrap();
    let early = world.unknown(PAY, "early").await;
    let event = Notice {
        about: About::Operation(early.id),
        says: Says::NotExecuted,
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
    world.store.receive(message, handling).await.unwrap();

    let provider = Script::of([]);
    let running = start(world.asking(Schedule::default(), provider.clone()));
    world.pass(2 * SECOND).await;
    assert!(world.is_dead_letter(lost).await);
    assert_eq!(world.status(early).await, Status::FailedRetryable);
    assert_eq!(world.status(silent).await, Status::InProgress);
    world.pass(LEASE).await;
    assert_eq!(world.status(silent).await, Status::Unknown);
    assert!(provider.asked().contains(&silent.id));
    world.clock.advance(Duration::from_hours(25));
    world.pass(11 * SECOND).await;
    assert_eq!(world.status(done).await, Status::Expired);

    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_workers_look_at_each_due_record_once_a_round() {
    const DUE: usize = 500;
    let world = World::new();
    let mut fences = Vec::new();
    for key in 0..DUE {
        fences.push(world.unknown(PAY, &format!("k{key}")).await);
    }
    let provider = Script::default();
    let workers: Vec<_> = (0..10)
        .map(|_| world.asking(Schedule::default(), provider.clone()))
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
        for id in provider.asked() {
            *looks.entry(id).or_insert(0) += 1;
        }
        assert_eq!(looks.len(), DUE);
        assert!(looks.values().all(|looks| *looks == round));
        world.clock.advance(Duration::from_mins(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_is_followed_by_the_next_at_once() {
    let world = World::new();
    for key in 0..1000 {
        world.begin(PAY, &format!("k{key}")).await;
    }
    world.clock.advance(LEASE);
    let running = start(world.asking(Schedule::default(), Script::default()));
    // Not a second passes: ten batches, and a hundred yields for each.
    for _ in 0..20 {
        settle().await;
    }
    let standing = world.store.standing().await.unwrap();
    assert_eq!(standing[0].in_progress.count, 0);
    assert_eq!(standing[0].unknown.count, 1000);
    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_job_outlives_an_outage() {
    let verbs = [
        Verb::Sweep,
        Verb::ClaimDue,
        Verb::Resolve,
        Verb::DeadLetter,
        Verb::ClaimParked,
        Verb::Expire,
        Verb::DropBodies,
        Verb::Purge,
        Verb::Forget,
        Verb::Standing,
        Verb::Find,
    ];
    for broken in verbs {
        let world = World::new();
        let down = Arc::new(AtomicBool::new(true));
        let calls = Arc::new(std::sync::Mutex::new(0));
        let (is_down, count) = (Arc::clone(&down), Arc::clone(&calls));
        world.store.when(move |verb, _| {
            let fails = verb == broken && is_down.load(Ordering::SeqCst);
            *count.lock().unwrap() += u32::from(fails);
            fails.then_some(Fault::FailBefore)
        });
        let silent = world.begin(PAY, "silent").await;
        let lost = world.unknown("refund", "lost").await;
        let done = world.begin(PAY, "done").await;
        let end = world.store.complete(done, completion("done"));
        end.await.unwrap();
        world.clock.advance(Duration::from_hours(25));
        let often = Schedule {
            max_every: 10 * SECOND,
            attempts: 1000,
            ..Schedule::default()
        };
        let running = start(world.asking(often, Buggy::default()));
        world.pass(120 * SECOND).await;
        let failed = *calls.lock().unwrap();
        // It was tried, again and again, but not every second.
        assert!((1..60).contains(&failed), "{broken:?}: {failed}");
        down.store(false, Ordering::SeqCst);
        world.pass(60 * SECOND).await;
        assert_eq!(world.status(silent).await, Status::Completed, "{broken:?}");
        assert!(world.is_dead_letter(lost).await, "{broken:?}");
        assert_eq!(world.status(done).await, Status::Expired, "{broken:?}");
        running.shutdown.cancel();
        running.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_job_stops_neither_it_nor_the_others() {
    let world = World::new();
    let mut first = true;
    world.store.when(move |verb, _| {
        assert!(
            verb != Verb::Sweep || !std::mem::take(&mut first),
            "a bug of the store"
        );
        None
    });
    let silent = world.begin(PAY, "silent").await;
    world.clock.advance(LEASE);
    let lost = world.unknown("refund", "lost").await;
    let running = start(world.asking(Schedule::default(), Script::of([paid()])));
    settle().await;
    assert!(world.is_dead_letter(lost).await);
    assert_eq!(world.status(silent).await, Status::InProgress);
    world.pass(5 * SECOND).await;
    assert_eq!(world.status(silent).await, Status::Completed);
    running.shutdown.cancel();
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_under_way_is_finished_when_the_process_stops() {
    let world = World::new();
    let gate = Gate::closed();
    let fence = world.unknown(PAY, "k").await;
    let running = start(world.asking(Schedule::default(), Behind(gate.clone())));
    gate.reached().await;
    running.shutdown.cancel();
    world.pass(SECOND).await;
    assert!(!running.task.is_finished());
    gate.open();
    running.task.await.unwrap();
    assert_eq!(world.status(fence).await, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_takes_too_long_then_is_given_up_and_comes_due_again() {
    let world = World::new();
    let gate = Gate::closed();
    let fence = world.unknown(PAY, "k").await;
    let running = start(world.asking(Schedule::default(), Behind(gate.clone())));
    gate.reached().await;
    running.shutdown.cancel();
    let began = tokio::time::Instant::now();
    // Time goes on by itself where nothing else can be done.
    running.task.await.unwrap();
    assert!(began.elapsed() <= Pace::default().patience + SECOND);
    gate.open();
    settle().await;
    assert_eq!(world.status(fence).await, Status::Unknown);
    world.clock.advance(5 * SECOND);
    let next = world.asking(Schedule::default(), Script::of([paid()]));
    assert_eq!(next.reconcile_once().await.unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_unfinished_is_never_let_go_of() {
    let world = World::new();
    let worker = Worker::new(world.store.clone());
    let running = world.begin(PAY, "running").await;
    let lost = world.unknown(PAY, "lost").await;
    let dead = world.unknown(PAY, "dead").await;
    let set_aside = world.store.dead_letter(dead, "exhausted".into());
    set_aside.await.unwrap();
    let done = world.begin(PAY, "done").await;
    let end = world.store.complete(done, completion("done"));
    end.await.unwrap();
    let mut before = Vec::new();
    for fence in [running, lost, dead] {
        before.push(world.record(fence).await);
    }
    world.clock.advance(Duration::from_hours(24 * 365));
    let round = worker.retain_once().await.unwrap();
    assert_eq!((round.expired, round.tombstones), (1, 0));
    world.clock.advance(Duration::from_hours(24 * 365 * 10));
    assert_eq!(worker.retain_once().await.unwrap().tombstones, 1);
    assert_eq!(worker.retain_once().await.unwrap(), Retained::default());
    assert!(world.store.find(done.id).await.unwrap().is_none());
    for before in before {
        let after = world.store.find(before.id).await.unwrap();
        assert_eq!(after, Some(before));
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_and_messages_go_when_their_time_is_over() {
    let world = World::new();
    let worker = Worker::new(world.store.clone());
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: Bytes::new(),
    };
    let handling = Handling {
        look_after: SECOND,
        remember: Duration::from_hours(72),
    };
    world.store.receive(message, handling).await.unwrap();
    let fence = world.begin(PAY, "k").await;
    let end = world.store.complete(fence, completion("done"));
    end.await.unwrap();
    assert_eq!(worker.retain_once().await.unwrap(), Retained::default());
    world.clock.advance(Duration::from_hours(1));
    assert_eq!(worker.retain_once().await.unwrap().bodies, 1);
    match world.record(fence).await.state {
        State::Completed(completed) => assert_eq!(completed.response.body, None),
        other => panic!("{other:?}"),
    }
    world.clock.advance(Duration::from_hours(72));
    let round = worker.retain_once().await.unwrap();
    assert_eq!((round.expired, round.messages), (1, 1));
}

/// At most a fifth of the store's time goes into retention, and a slow store gets small batches.
#[tokio::test(start_paused = true)]
async fn retention_gives_way() {
    let world = World::new();
    for key in 0..1000 {
        let fence = world.begin(PAY, &format!("k{key}")).await;
        let end = world.store.complete(fence, completion("done"));
        end.await.unwrap();
    }
    world.clock.advance(Duration::from_hours(25));
    let slow = Gate::closed();
    world
        .store
        .next(Verb::Expire, Fault::HoldAfter(slow.clone()));
    let worker = Worker::new(world.store.clone());
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
    // Half, and then twice as much again each time that it goes well.
    for expired in [100, 200, 200] {
        assert_eq!(worker.retain_once().await.unwrap().expired, expired);
    }
}
