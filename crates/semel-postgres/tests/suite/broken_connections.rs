//! Connections that break between a commit and its answer.

use std::sync::Arc;

use crate::support::{completion, granted, request};
use semel_core::transaction::TransactionWrite;
use semel_core::transition::{Decision, Fenced};
use semel_core::{Error, Fence, Held, Status, Store, Transaction};
use semel_postgres::Postgres;
use semel_postgres::transaction::OpenTransaction;
use semel_testkit::database::{self, Database};
use semel_testkit::pg_proxy::{Proxy, Trigger};

/// A store whose connections can be cut, and one whose connections cannot.
struct Rig {
    proxy: Proxy,
    cut: Postgres,
    whole: Postgres,
    database: Database,
}

impl Rig {
    async fn new() -> Option<Self> {
        let database = Database::new().await?;
        let proxy = Proxy::in_front_of(&database.url).await;
        Some(Self {
            cut: Postgres::open(proxy.url()).await.unwrap(),
            whole: Postgres::open(&database.url).await.unwrap(),
            proxy,
            database,
        })
    }

    async fn status(&self, fence: Fence) -> Option<Status> {
        let record = self.whole.find(fence.id).await.unwrap();
        record.map(|record| record.state.status())
    }
}

/// A part of the text of each statement that occurs in no other statement.
const RESERVE: &str = "Reserves for many requests";
const COMPLETE: &str = "Writes the outcomes of attempts";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_whose_answer_was_lost_is_resolved_by_repeating_it() {
    let Some(rig) = Rig::new().await else { return };
    for round in 0..5 {
        let fence = granted(&rig.cut, &format!("after {round}")).await;
        let gate = rig.proxy.cut(Trigger::answered(COMPLETE));
        let lost = rig.cut.complete(fence, completion("{}")).await;
        assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
        gate.reached().await;
        assert_eq!(rig.status(fence).await, Some(Status::Completed));
        let again = rig.cut.complete(fence, completion("{}")).await.unwrap();
        assert_eq!(again, Held::Repeated);

        let fence = granted(&rig.cut, &format!("before {round}")).await;
        rig.proxy.cut(Trigger::before(COMPLETE));
        let lost = rig.cut.complete(fence, completion("{}")).await;
        assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
        assert_eq!(rig.status(fence).await, Some(Status::InProgress));
        let again = rig.cut.complete(fence, completion("{}")).await.unwrap();
        assert_eq!(again, Held::Applied);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_whose_answer_was_lost_can_be_evicted() {
    let Some(rig) = Rig::new().await else { return };
    for (name, when) in [
        ("after", Trigger::answered(RESERVE)),
        ("before", Trigger::before(RESERVE)),
    ] {
        let request = request(name);
        let fence = Fence {
            id: request.id,
            attempt: 1,
        };
        rig.proxy.cut(when);
        let lost = rig.cut.reserve(request.clone()).await;
        assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
        let expected = (name == "after").then_some(Status::InProgress);
        assert_eq!(rig.status(fence).await, expected, "{name}");
        let back = rig.cut.evict(fence, "not_started".into()).await.unwrap();
        let wanted = if name == "after" {
            Held::Applied
        } else {
            Held::Fenced(Fenced { found: None })
        };
        assert_eq!(back, wanted, "{name}");
        // No request is locked out.
        granted(&rig.cut, name).await;
    }
}

/// The server of a connection that broke may be gone without a word to the other connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_one_connection_breaks_the_idle_ones_are_opened_again() {
    let Some(database) = Database::new().await else {
        return;
    };
    let one = Proxy::in_front_of(&database.url).await;
    let other = Proxy::in_front_of(&database.url).await;
    let (user, first) = one.url().rsplit_once('@').unwrap();
    let (first, _) = first.split_once('/').unwrap();
    let (_, second) = other.url().rsplit_once('@').unwrap();
    let url = format!("{user}@{first},{second}");
    let store = Postgres::open(&url).await.unwrap();
    let fence = granted(&store, "before").await;
    // Opens the connection that completes.
    let written = store.complete(fence, completion("{}")).await.unwrap();
    assert_eq!(written, Held::Applied);
    let fence = granted(&store, "meanwhile").await;
    one.cut(Trigger::before(RESERVE));
    store.reserve(request("broken")).await.unwrap_err();
    one.freeze();
    let written = store.complete(fence, completion("{}")).await;
    assert_eq!(written.unwrap(), Held::Applied);
}

/// A release decides a transaction in doubt: both cannot apply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_with_an_unanswered_commit_is_decided_by_a_release() {
    let Some(rig) = Rig::new().await else { return };
    let direct = rig.database.client().await;
    let table = "CREATE TABLE payments (id text PRIMARY KEY)";
    direct.batch_execute(table).await.unwrap();
    for (name, when) in [
        ("after", Trigger::committed()),
        ("before", Trigger::before("on the disk")),
    ] {
        let fence = granted(&rig.cut, name).await;
        let client = Arc::new(database::client(rig.proxy.url()).await);
        let begun = OpenTransaction::begin(client).await.unwrap();
        let pay = format!("INSERT INTO payments VALUES ('{name}')");
        begun.batch_execute(&pay).await.unwrap();
        rig.proxy.cut(when);
        let conclude =
            Box::new(|_: Option<_>| Some(TransactionWrite::Complete(completion("paid"))));
        let ended = Box::new(begun).finish(fence, conclude).await;
        assert!(matches!(ended, Err(Error::Ambiguous { .. })), "{ended:?}");
        // The server may not have noticed yet that the connection is gone.
        let released = loop {
            match rig.cut.release(fence, "commit_unanswered".into()).await {
                Err(Error::Unavailable { .. } | Error::Ambiguous { .. }) => {}
                released => break released.unwrap(),
            }
        };
        let count = format!("SELECT count(*) FROM payments WHERE id = '{name}'");
        let paid: i64 = direct.query_one(&count, &[]).await.unwrap().get(0);
        if name == "after" {
            let found = Some((Status::Completed, 1));
            assert_eq!(released, Held::Fenced(Fenced { found }));
            assert_eq!(paid, 1);
        } else {
            assert_eq!(released, Held::Applied);
            assert_eq!(paid, 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_grants_nothing_and_the_store_reconnects() {
    let Some(rig) = Rig::new().await else { return };
    let fence = granted(&rig.cut, "before").await;
    rig.proxy.refuse();
    rig.proxy.cut_all();
    let mut refused = Vec::new();
    for round in 0..3 {
        let key = format!("away {round}");
        match rig.cut.reserve(request(&key)).await {
            Err(Error::Unavailable { .. }) => refused.push(key),
            // Sent before the store noticed that the connection was closed.
            Err(Error::Ambiguous { .. }) => {}
            away => panic!("{away:?}"),
        }
        let away = rig.cut.complete(fence, completion("{}")).await;
        assert!(away.is_err(), "{away:?}");
        let away = rig.cut.find(fence.id).await;
        assert!(matches!(away, Err(Error::Unavailable { .. })), "{away:?}");
        assert!(rig.cut.sweep(10).await.is_err());
    }
    rig.proxy.heal();
    // A call that returned `Unavailable` wrote nothing.
    assert!(!refused.is_empty());
    for key in refused {
        let decision = loop {
            if let Ok(decision) = rig.cut.reserve(request(&key)).await {
                break decision;
            }
        };
        assert!(matches!(decision, Decision::Execute(_)), "{decision:?}");
    }
    let held = loop {
        if let Ok(held) = rig.cut.complete(fence, completion("{}")).await {
            break held;
        }
    };
    assert_eq!(held, Held::Applied);
}

/// A stuck worker delays only the calls of its own queue, and for a bounded time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_connection_does_not_block_the_others() {
    let Some(rig) = Rig::new().await else { return };
    granted(&rig.cut, "warm").await;
    let gate = rig.proxy.hold(Trigger::answered(RESERVE));
    let stuck = tokio::spawn({
        let store = rig.cut.clone();
        async move { store.reserve(request("stuck")).await }
    });
    gate.reached().await;
    granted(&rig.cut, "free").await;
    gate.open();
    let decision = stuck.await.unwrap().unwrap();
    assert!(matches!(decision, Decision::Execute(_)), "{decision:?}");
}
