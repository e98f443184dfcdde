//! Ten workers on one database, each with connections of its own, as ten processes have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::{
    Decision, Fingerprint, Identity, Key, OperationId, Policy, Record, Reserve, State, Store as _,
};
use semel_postgres::{Options, Postgres};
use semel_testkit::ManualClock;
use semel_testkit::database::Database;
use semel_worker::{Lookup, LookupResult, Reconcile, Reconcilers, Schedule, Worker};
use tokio::task::JoinSet;

const WORKERS: usize = 10;

/// More than one batch for every worker.
const UNKNOWNS: usize = 2000;

/// Counts the lookups of each record by all workers, and finds nothing.
#[derive(Clone, Default)]
struct Counting(Arc<Mutex<HashMap<OperationId, usize>>>);

impl Reconcile for Counting {
    async fn look_up(&self, operation: &Record) -> Lookup {
        *self.0.lock().unwrap().entry(operation.id).or_default() += 1;
        LookupResult::unclear("no_answer").seen("timed out")
    }
}

async fn unknowns(store: &Postgres) {
    let mut losing = JoinSet::new();
    for number in 0..UNKNOWNS {
        let store = store.clone();
        losing.spawn(async move {
            let key = Key::new(format!("key-{number}")).unwrap();
            let request = Reserve {
                id: OperationId::generate(),
                identity: Identity::new("tenant", "pay", key).unwrap(),
                fingerprints: Fingerprint::of(&number).unwrap().into(),
                owner: "test".into(),
                policy: Policy::default(),
            };
            let Decision::Execute(grant) = store.reserve(request).await.unwrap() else {
                panic!("a new key is not granted");
            };
            let lost = store
                .mark_unknown(grant.fence, "timeout".into(), None)
                .await;
            lost.unwrap();
        });
    }
    while let Some(lost) = losing.join_next().await {
        lost.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_workers_look_up_each_due_record_once_per_round() {
    let Some(database) = Database::new().await else {
        return;
    };
    let clock = ManualClock::default();
    let open = || async {
        let options = Options::new(&database.url).clock(Arc::new(clock.clone()));
        options.open().await.unwrap()
    };
    let first = open().await;
    unknowns(&first).await;
    let counting = Counting::default();
    let schedule = Schedule {
        every: Duration::from_hours(1),
        max_every: Duration::from_hours(1),
        attempts: 3,
        ..Schedule::default()
    };
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let store = open().await;
        let reconcilers = Reconcilers::new(store.clone())
            .poll_with("pay", schedule, counting.clone())
            .unwrap();
        workers.push(Arc::new(Worker::new(store).reconcilers(reconcilers)));
    }
    for round in 1..=3 {
        clock.advance(Duration::from_hours(1));
        let mut looking = JoinSet::new();
        for worker in &workers {
            let worker = Arc::clone(worker);
            looking.spawn(async move {
                let mut claimed = 0;
                loop {
                    let round = worker.reconcile_once().await.unwrap();
                    claimed += round.claimed;
                    if round.claimed == 0 {
                        return claimed;
                    }
                }
            });
        }
        let mut claimed = Vec::new();
        while let Some(looked) = looking.join_next().await {
            claimed.push(looked.unwrap());
        }
        assert_eq!(claimed.iter().sum::<usize>(), UNKNOWNS, "{claimed:?}");
        let busy = claimed.iter().filter(|claimed| **claimed > 0).count();
        assert!(busy > 1, "one worker had it all: {claimed:?}");
        let looks = counting.0.lock().unwrap();
        assert_eq!(looks.len(), UNKNOWNS);
        for (id, looks) in &*looks {
            assert_eq!(*looks, round, "{id} in round {round}");
        }
    }
    // The third lookup was the last: all records are dead letters, with evidence.
    let ids: Vec<_> = counting.0.lock().unwrap().keys().copied().collect();
    for id in ids.into_iter().take(20) {
        let record = first.find(id).await.unwrap().unwrap();
        let State::Unknown(unresolved) = &record.state else {
            panic!("{record:?}");
        };
        assert!(unresolved.dead_lettered_at.is_some(), "{record:?}");
        let history = first.history(id).await.unwrap();
        assert_eq!(history.len(), 5, "{history:?}");
        assert_eq!(semel_core::history::verify(&record, &history), Ok(()));
    }
}
