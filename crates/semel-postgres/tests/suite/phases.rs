//! The application's rows and the next recovery point commit together, or neither does.

use std::sync::Arc;
use std::time::Duration;

use crate::support::shop::{DRIVERS, Shop};
use crate::support::{completion, granted, request};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Decision, Fenced};
use semel_core::{
    Error, Fence, Held, Policy, RecoveryPoint, Reserve, Stale, Status, Store, Transaction,
};
use semel_postgres::transaction::OpenTransaction;

fn point(name: &str) -> RecoveryPoint {
    RecoveryPoint {
        name: name.into(),
        data: b"\x00\xff"[..].into(),
    }
}

async fn advance(
    transaction: Box<dyn Transaction>,
    fence: Fence,
    name: &str,
) -> Result<Finished, Error> {
    let write = TransactionWrite::Advance(point(name));
    transaction
        .finish(fence, Box::new(move |_| Some(write)))
        .await
}

/// An operation whose lease is over at once, and which can be resumed.
fn abandoned(key: &str) -> Reserve {
    let policy = Policy {
        lease: Duration::ZERO,
        stale: Stale::Resume,
        recovery_points: true,
        ..Policy::default()
    };
    Reserve {
        policy,
        ..request(key)
    }
}

#[tokio::test]
async fn rows_and_recovery_point_commit_together() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let key = format!("{driver:?}");
        let fence = granted(&shop.store, &key).await;
        let before = shop.payments().await;
        for (nth, name) in (1..).zip(["created", "charged"]) {
            let transaction = shop.pay(driver, &format!("{key} {name}")).await;
            let finished = advance(transaction, fence, name).await.unwrap();
            assert_eq!(finished, Finished::Held(Held::Applied), "{driver:?}");
            assert_eq!(shop.payments().await, before + nth);
            let record = shop.store.find(fence.id).await.unwrap().unwrap();
            assert_eq!(record.recovery, Some(point(name)));
            assert_eq!(
                (record.fence(), record.state.status()),
                (fence, Status::InProgress)
            );
        }
    }
}

#[tokio::test]
async fn a_rollback_leaves_neither() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let fence = granted(&shop.store, &format!("{driver:?}")).await;
        let nothing = shop.pay(driver, "nothing").await;
        let finished = nothing.finish(fence, Box::new(|_| None)).await.unwrap();
        assert_eq!(finished, Finished::RolledBack);
        drop(advance(shop.pay(driver, "dropped").await, fence, "x"));
        assert_eq!(shop.payments().await, 0, "{driver:?}");
        let record = shop.store.find(fence.id).await.unwrap().unwrap();
        assert_eq!(record.recovery, None, "{driver:?}");
    }
}

/// A phase of an attempt that is not current commits neither its rows nor its recovery point.
#[tokio::test]
async fn a_fenced_phase_rolls_the_rows_back() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        for taken in ["again", "unknown", "completed", "evicted"] {
            let key = format!("{driver:?} {taken}");
            let fence = granted(&shop.store, &key).await;
            let transaction = shop.pay(driver, &key).await;
            let found = match taken {
                "again" => {
                    shop.store.release(fence, "x".into()).await.unwrap();
                    granted(&shop.store, &key).await;
                    Some((Status::InProgress, 2))
                }
                "unknown" => {
                    let lost = shop.store.mark_unknown(fence, "x".into(), None).await;
                    lost.unwrap();
                    Some((Status::Unknown, 1))
                }
                "completed" => {
                    let done = shop.store.complete(fence, completion("paid")).await;
                    done.unwrap();
                    Some((Status::Completed, 1))
                }
                _ => {
                    shop.store.evict(fence, "x".into()).await.unwrap();
                    None
                }
            };
            let finished = advance(transaction, fence, "late").await.unwrap();
            let fenced = Finished::Held(Held::Fenced(Fenced { found }));
            assert_eq!(finished, fenced, "{key}");
            assert_eq!(shop.payments().await, 0, "{key}");
            let record = shop.store.find(fence.id).await.unwrap();
            assert_eq!(record.and_then(|record| record.recovery), None, "{key}");
        }
    }
}

/// A pending commit of a phase decides where the next attempt resumes: the store grants no attempt
/// before it ends.
#[tokio::test]
async fn a_phase_that_commits_late_delays_the_next_attempt() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for commits in [true, false] {
        let claimed = format!("claimed {commits}");
        let reserved = format!("reserved {commits}");
        for key in [&claimed, &reserved] {
            let fence = crate::support::grant(&shop.store, abandoned(key))
                .await
                .fence;
            let open = OpenTransaction::begin(Arc::clone(&shop.client))
                .await
                .unwrap();
            let advance = "SELECT semel_advance($1, 1, 'charged', '\\x00ff'::bytea)";
            let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
            open.query(advance, &[&id]).await.unwrap();

            let held = shop.store.reserve(abandoned(key)).await.unwrap();
            assert!(matches!(held, Decision::InProgress(_)), "{held:?}");
            let claim = || {
                let owner = "completer".into();
                let lease = Duration::from_mins(1);
                shop.store
                    .claim_abandoned("create_payment", owner, lease, 10)
            };
            assert_eq!(claim().await.unwrap(), []);
            if commits {
                open.commit().await.unwrap();
            } else {
                open.batch_execute("ROLLBACK").await.unwrap();
            }
            let expected = commits.then(|| point("charged"));
            if *key == claimed {
                let [record] = &claim().await.unwrap()[..] else {
                    panic!("nothing is abandoned");
                };
                assert_eq!((record.id, record.attempt), (fence.id, 2));
                assert_eq!(record.recovery, expected);
            } else {
                let decision = shop.store.reserve(abandoned(key)).await.unwrap();
                let Decision::Resume(grant) = decision else {
                    panic!("{decision:?}");
                };
                assert_eq!((grant.fence.attempt, grant.recovery), (2, expected));
                shop.store.release(grant.fence, "x".into()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn the_sql_function_is_fenced() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let client = &shop.client;
    let fence = granted(&shop.store, "k").await;
    let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
    let call = |id: Option<uuid::Uuid>, attempt: i64, name: Option<&'static str>| async move {
        let advance = "SELECT semel_advance($1, $2, $3, NULL)";
        client.query(advance, &[&id, &attempt, &name]).await
    };
    for (id, attempt, name, code) in [
        (Some(id), 2, Some("charged"), "SEM01"),
        (Some(uuid::Uuid::nil()), 1, Some("charged"), "SEM01"),
        (None, 1, Some("charged"), "SEM02"),
        (Some(id), 1, None, "SEM02"),
        (Some(id), 1, Some(""), "SEM02"),
    ] {
        let error = call(id, attempt, name).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{error:?}");
        let record = shop.store.find(fence.id).await.unwrap().unwrap();
        assert_eq!(record.recovery, None);
    }
    let without_data = "SELECT semel.advance($1, 1, 'charged', NULL)";
    let error = client.query(without_data, &[&id]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "SEM02", "{error:?}");
    // An application's role needs no rights on Semel's tables.
    let role = format!("semel_test_phases_{}", std::process::id());
    let set = format!("CREATE ROLE {role}; SET ROLE {role}");
    client.batch_execute(&set).await.unwrap();
    call(Some(id), 1, Some("charged")).await.unwrap();
    call(Some(id), 1, Some("charged")).await.unwrap();
    let reset = format!("RESET ROLE; DROP ROLE {role}");
    client.batch_execute(&reset).await.unwrap();
    let record = shop.store.find(fence.id).await.unwrap().unwrap();
    let expected = RecoveryPoint {
        data: b""[..].into(),
        ..point("charged")
    };
    assert_eq!(record.recovery, Some(expected));
    // The function uses the index in any session.
    let calls = format!(
        "SET plan_cache_mode = force_generic_plan; BEGIN;
         SELECT semel_advance('{id}', 1, 'paid', NULL);"
    );
    client.batch_execute(&calls).await.unwrap();
    let seen = "SELECT seq_scan, idx_scan FROM pg_stat_xact_all_tables
        WHERE relid = 'semel.operations'::regclass";
    let row = client.query_one(seen, &[]).await.unwrap();
    let (whole, by_index): (i64, i64) = (row.get(0), row.get(1));
    assert!(whole == 0 && by_index >= 1, "{whole} and {by_index}");
}
