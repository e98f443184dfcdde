//! A cluster of three servers whose leader changes while stores write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{completion, request};
use semel_core::transition::Decision;
use semel_core::{Held, Store};
use semel_postgres::Postgres;
use semel_testkit::cluster::Cluster;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How many keys are in use at a time.
const WRITERS: u64 = 4;
/// How many writes show that the stores work again.
const ENOUGH: u64 = 50;
/// Twice as long as the cluster needs to elect a leader.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Two stores that compete for each key.
struct Load {
    stores: [Postgres; 2],
    next: AtomicU64,
    acknowledged: watch::Sender<Vec<u64>>,
}

impl Load {
    async fn work(&self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let [one, other] = &self.stores;
            let written = tokio::join!(write(one, number), write(other, number));
            assert!(
                !matches!(written, (Granted::Yes(_), Granted::Yes(_))),
                "key {number} was granted twice"
            );
            if matches!(written, (Granted::Yes(true), _) | (_, Granted::Yes(true))) {
                self.acknowledged.send_modify(|all| all.push(number));
            }
            // sleeps because a store without a server refuses at once.
            sleep(PAUSE).await;
        }
    }

    /// Waits until this many more writes were acknowledged.
    async fn wait_for_writes(&self, more: u64) {
        let mut acknowledged = self.acknowledged.subscribe();
        let enough = acknowledged.borrow().len() as u64 + more;
        let enough = acknowledged.wait_for(|all| all.len() as u64 >= enough);
        let waited = timeout(PATIENCE, enough).await;
        waited.expect("the stores do not write again").unwrap();
    }
}

/// Whether a store was granted a key, and whether its completion was acknowledged.
enum Granted {
    Yes(bool),
    No,
}

async fn write(store: &Postgres, number: u64) -> Granted {
    let Ok(Decision::Execute(grant)) = store.reserve(request(&number.to_string())).await else {
        return Granted::No;
    };
    let written = store.complete(grant.fence, completion("{}")).await;
    Granted::Yes(matches!(written, Ok(Held::Applied | Held::Repeated)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switchover_and_a_killed_leader_lose_nothing_and_grant_no_key_twice() {
    let Some(cluster) = Cluster::start_or_skip().await else {
        return;
    };
    let url = cluster.url();
    let load = Arc::new(Load {
        stores: [
            Postgres::open(&url).await.unwrap(),
            Postgres::open(&url).await.unwrap(),
        ],
        next: AtomicU64::new(0),
        acknowledged: watch::Sender::default(),
    });
    let mut working = JoinSet::new();
    for _ in 0..WRITERS {
        let load = Arc::clone(&load);
        working.spawn(async move { load.work().await });
    }
    load.wait_for_writes(ENOUGH).await;

    let leader = cluster.switch_over().await.unwrap();
    load.wait_for_writes(ENOUGH).await;

    // Without a synchronous standby nothing could take over.
    cluster.wait_until_whole().await;
    cluster.kill(leader).await;
    cluster.wait_for_other_leader(leader).await;
    load.wait_for_writes(ENOUGH).await;

    working.abort_all();
    while let Some(ended) = working.join_next().await {
        assert!(ended.unwrap_err().is_cancelled(), "a writer failed");
    }
    let store = Postgres::open(&url).await.unwrap();
    let acknowledged = load.acknowledged.borrow().clone();
    for number in acknowledged {
        let found = store.reserve(request(&number.to_string())).await.unwrap();
        assert!(matches!(found, Decision::Replay(_)), "{number}: {found:?}");
    }
}
