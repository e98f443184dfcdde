//! The application's rows and the completion commit together, or neither does.

use std::sync::Arc;

use crate::support::shop::{DRIVERS, Shop};
use crate::support::{completion, granted, request};
use semel_core::history::{self, EntryKind};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Decision, Fenced};
use semel_core::{Error, Fence, Held, State, Status, Store, Transaction};
use semel_postgres::transaction::{OpenTransaction, Sqlx};

async fn finish(
    transaction: Box<dyn Transaction>,
    fence: Fence,
    body: &'static str,
) -> Result<Finished, Error> {
    transaction
        .finish(
            fence,
            Box::new(move |_| Some(TransactionWrite::Complete(completion(body)))),
        )
        .await
}

#[tokio::test]
async fn rows_and_completion_commit_together() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let key = format!("{driver:?}");
        let fence = granted(&shop.store, &key).await;
        let before = shop.payments().await;
        let transaction = shop.pay(driver, &key).await;
        let finished = finish(transaction, fence, "paid").await.unwrap();
        assert_eq!(finished, Finished::Held(Held::Applied), "{driver:?}");
        assert_eq!(shop.payments().await, before + 1);
        let Decision::Replay(replay) = shop.store.reserve(request(&key)).await.unwrap() else {
            panic!("{driver:?}: not completed");
        };
        assert_eq!(replay.response, completion("paid").response);
    }
}

#[tokio::test]
async fn a_rollback_leaves_neither() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let fence = granted(&shop.store, &format!("{driver:?}")).await;
        drop(shop.pay(driver, "dropped").await);
        let nothing = shop.pay(driver, "nothing").await;
        let finished = nothing.finish(fence, Box::new(|_| None)).await.unwrap();
        assert_eq!(finished, Finished::RolledBack);
        assert_eq!(shop.payments().await, 0, "{driver:?}");
        assert_eq!(shop.status(fence).await, Status::InProgress, "{driver:?}");
    }
}

/// Another attempt is current: the rows are rolled back as well.
#[tokio::test]
async fn a_fenced_completion_rolls_the_rows_back() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let key = format!("{driver:?}");
        let fence = granted(&shop.store, &key).await;
        let transaction = shop.pay(driver, &key).await;
        shop.store.release(fence, "x".into()).await.unwrap();
        let second = granted(&shop.store, &key).await;
        let finished = finish(transaction, fence, "late").await.unwrap();
        let found = Some((Status::InProgress, second.attempt));
        let fenced = Finished::Held(Held::Fenced(Fenced { found }));
        assert_eq!(finished, fenced, "{driver:?}");
        assert_eq!(shop.payments().await, 0, "{driver:?}");
        assert_eq!(shop.status(fence).await, Status::InProgress);
    }
}

#[tokio::test]
async fn a_refused_commit_is_reported_as_rolled_back() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let fence = granted(&shop.store, "k").await;
    let begun = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    // The deferred constraint fails at the commit.
    let dangling = "INSERT INTO checked VALUES ('unknown')";
    begun.batch_execute(dangling).await.unwrap();
    let ended = finish(Box::new(begun), fence, "x").await;
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    let mut transaction = shop.pool.begin().await.unwrap();
    let query = sqlx::query(dangling).execute(&mut *transaction);
    query.await.unwrap();
    let ended = finish(Box::new(Sqlx(transaction)), fence, "x").await;
    assert!(matches!(ended, Err(Error::Unavailable { .. })), "{ended:?}");
    assert_eq!(shop.status(fence).await, Status::InProgress);
}

/// A long transaction of the application does not block other records, and no other caller decides
/// its record before it commits.
#[tokio::test]
async fn a_long_transaction_does_not_block_others() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let mut policy = request("held");
    // The lease expires at once: the next request would make the record unknown.
    policy.policy.lease = std::time::Duration::ZERO;
    let fence = crate::support::grant(&shop.store, policy).await.fence;
    let open = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    let complete = "SELECT semel_complete($1, 1, 201, NULL, 'done'::bytea)";
    let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
    open.query(complete, &[&id]).await.unwrap();

    let (held, free) = tokio::join!(shop.store.reserve(request("held")), async {
        for nth in 0..20 {
            granted(&shop.store, &format!("free-{nth}")).await;
        }
    });
    let () = free;
    assert!(matches!(held, Ok(Decision::InProgress(_))), "{held:?}");
    // A write of another caller does not overrule the transaction either.
    let marked = shop.store.mark_unknown(fence, "x".into(), None).await;
    assert!(
        matches!(marked, Err(Error::Unavailable { .. })),
        "{marked:?}"
    );
    open.batch_execute("COMMIT").await.unwrap();
    let decision = shop.store.reserve(request("held")).await.unwrap();
    assert!(matches!(decision, Decision::Replay(_)), "{decision:?}");
    let marked = shop
        .store
        .mark_unknown(fence, "x".into(), None)
        .await
        .unwrap();
    let found = Some((Status::Completed, 1));
    assert_eq!(marked, Held::Fenced(Fenced { found }));
}

/// The retry of a key that this process has seen is answered by a read: nothing that holds up writes
/// holds it up.
#[tokio::test]
async fn a_retry_is_answered_while_nothing_can_be_written() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let fence = granted(&shop.store, "done").await;
    let completed = shop.store.complete(fence, completion("paid")).await;
    assert_eq!(completed.unwrap(), Held::Applied);
    // Opens the connection, which begins with a write of its own.
    let decision = shop.store.reserve(request("done")).await.unwrap();
    assert!(matches!(decision, Decision::Replay(_)), "{decision:?}");
    let open = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    let lock = "LOCK TABLE semel.operations IN SHARE MODE";
    open.batch_execute(lock).await.unwrap();
    let refused = shop.store.reserve(request("new")).await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
    let decision = shop.store.reserve(request("done")).await.unwrap();
    assert!(matches!(decision, Decision::Replay(_)), "{decision:?}");
    open.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn the_sql_function_is_fenced_and_idempotent() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let client = &shop.client;
    let fence = granted(&shop.store, "k").await;
    let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
    let complete = "SELECT semel_complete($1, $2, $3, $4::text::jsonb, $5)";
    let headers = r#"{"Content-Type": "text/plain", "Set-Cookie": "a=b", "Date": "today",
                      "Link": ["</1>", "</2>"], "X-Count": 7}"#;
    let body: &[u8] = b"\x00\xffdone";
    let call = |attempt: i32, status: i32, headers: &'static str, body: &'static [u8]| async move {
        client
            .query(complete, &[&id, &attempt, &status, &headers, &body])
            .await
    };
    for (attempt, status, headers, code) in [
        (2, 201, "{}", "SEM01"),
        (1, 99, "{}", "SEM02"),
        (1, 201, "[]", "SEM02"),
        (1, 201, r#"{"a b": "c"}"#, "SEM02"),
        (1, 201, r#"{"a": "b\r\nc: d"}"#, "SEM02"),
    ] {
        let error = call(attempt, status, headers, b"").await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), code, "{error:?}");
        assert_eq!(shop.status(fence).await, Status::InProgress);
    }
    // Nor does the function below it write a record that the store could not read.
    for arguments in [
        "201, ''::bytea, ''::bytea, NULL, NULL, NULL",
        "201, NULL, ''::bytea, 0, NULL, NULL",
        "NULL, ''::bytea, ''::bytea, 0, NULL, NULL",
        "201, ''::bytea, ''::bytea, 0, 'payment', NULL",
    ] {
        let complete = format!("SELECT semel.complete($1, 1, {arguments})");
        let error = client.query(&complete, &[&id]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "SEM02", "{error:?}");
    }
    call(1, 201, headers, body).await.unwrap();
    // Repeating the same completion succeeds; a different one is refused.
    call(1, 201, headers, body).await.unwrap();
    let error = call(1, 200, headers, body).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "SEM01");
    assert!(
        error
            .as_db_error()
            .unwrap()
            .message()
            .contains("completed, attempt 1")
    );

    let record = shop.store.find(fence.id).await.unwrap().unwrap();
    let State::Completed(completed) = record.state else {
        panic!("{:?}", record.state);
    };
    let response = completed.response;
    let lines: Vec<(&str, &[u8])> = response
        .headers
        .iter()
        .map(|(name, value)| (&**name, &value[..]))
        .collect();
    assert_eq!(
        lines,
        [
            ("content-type", &b"text/plain"[..]),
            ("link", b"</1>"),
            ("link", b"</2>"),
            ("x-count", b"7"),
        ]
    );
    assert_eq!(
        (response.status, response.body.as_deref()),
        (201, Some(body))
    );
    let expected = completed.completed_at.saturating_add(record.windows.replay);
    assert_eq!(completed.expires_at, expected);
}

/// An application's role needs no rights on Semel's tables.
#[tokio::test]
async fn the_sql_function_works_without_table_permissions() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let fence = granted(&shop.store, "k").await;
    let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
    let role = format!("semel_test_app_{}", std::process::id());
    let client = &shop.client;
    client
        .batch_execute(&format!("CREATE ROLE {role}; SET ROLE {role}"))
        .await
        .unwrap();
    let peek = client.query("SELECT * FROM semel.operations", &[]).await;
    assert!(peek.is_err());
    let complete = "SELECT semel_complete($1, 1, 201, NULL, NULL)";
    client.query(complete, &[&id]).await.unwrap();
    client
        .batch_execute(&format!("RESET ROLE; DROP ROLE {role}"))
        .await
        .unwrap();
    assert_eq!(shop.status(fence).await, Status::Completed);
}

#[tokio::test]
async fn the_sql_function_takes_a_schema_version_and_a_resource() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let fence = granted(&shop.store, "k").await;
    let id = uuid::Uuid::from_bytes(*fence.id.as_bytes());
    for wrong in [
        "schema_version => 65536",
        "schema_version => -1",
        "resource_type => 'payment'",
        "resource_id => 'pay_789'",
        "resource_type => '', resource_id => 'pay_789'",
        "resource_type => 'payment', resource_id => repeat('x', 256)",
    ] {
        let complete = format!("SELECT semel_complete($1, 1, 201, NULL, 'done', {wrong})");
        let error = shop.client.query(&complete, &[&id]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "SEM02", "{wrong}: {error:?}");
        assert_eq!(shop.status(fence).await, Status::InProgress);
    }
    let complete = "SELECT semel_complete($1, 1, 201, '{\"Semel-Schema-Version\": \"9\"}', 'done',
                    3, 'payment', 'pay_789')";
    for _ in 0..2 {
        shop.client.query(complete, &[&id]).await.unwrap();
    }
    // With another version it is another response.
    let other = complete.replace("3, 'payment'", "4, 'payment'");
    let error = shop.client.query(&other, &[&id]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "SEM01");
    let record = shop.store.find(fence.id).await.unwrap().unwrap();
    let resource = record.resource.unwrap();
    assert_eq!((&*resource.kind, &*resource.id), ("payment", "pay_789"));
    let State::Completed(completed) = record.state else {
        panic!("{:?}", record.state)
    };
    assert_eq!(completed.response.schema_version, 3);
    assert_eq!(completed.response.headers, []);
}

/// sqlx 0.9.0 gave back a connection with an open transaction when `begin` was dropped, and the
/// next write vanished with the process. Ours must not.
#[tokio::test]
async fn a_dropped_begin_leaves_no_open_transaction() {
    use std::future::Future;
    use std::task::{Context, Waker};

    let Some(shop) = Shop::new().await else {
        return;
    };
    for polls in 0..3 {
        let mut client = Arc::new(shop.database.client().await);
        {
            let mut begin = Box::pin(OpenTransaction::begin(Arc::clone(&client)));
            for _ in 0..polls {
                let mut context = Context::from_waker(Waker::noop());
                let _ = begin.as_mut().poll(&mut context);
                tokio::task::yield_now().await;
            }
        }
        let insert = format!("INSERT INTO payments VALUES ('begun {polls}')");
        client.batch_execute(&insert).await.unwrap();
        // A transaction of the driver, as the store's connection workers use it.
        while Arc::get_mut(&mut client).is_none() {
            tokio::task::yield_now().await;
        }
        let own = Arc::get_mut(&mut client).unwrap();
        {
            let mut begin = Box::pin(own.transaction());
            for _ in 0..polls {
                let mut context = Context::from_waker(Waker::noop());
                let _ = begin.as_mut().poll(&mut context);
                tokio::task::yield_now().await;
            }
        }
        let insert = format!("INSERT INTO payments VALUES ('own {polls}')");
        client.batch_execute(&insert).await.unwrap();
        // The process ends: uncommitted rows are gone.
        drop(client);
        assert_eq!(shop.payments().await, 2 * (polls + 1));
    }
}

/// The history of late and timely completions in a transaction equals that of the store.
#[tokio::test]
async fn a_late_completion_is_recorded_in_its_transaction() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let key = format!("{driver:?}");
        let fence = granted(&shop.store, &key).await;
        let marked = shop.store.mark_unknown(fence, "timeout".into(), None).await;
        assert_eq!(marked.unwrap(), Held::Applied);
        let transaction = shop.pay(driver, &key).await;
        let finished = finish(transaction, fence, "paid").await.unwrap();
        assert_eq!(finished, Finished::Held(Held::Applied), "{driver:?}");
        let entries = shop.store.history(fence.id).await.unwrap();
        let kinds: Vec<EntryKind> = entries.iter().map(|entry| entry.note.what).collect();
        assert_eq!(
            kinds,
            [EntryKind::Unknown, EntryKind::CompletedLate],
            "{driver:?}"
        );
        let record = shop.store.find(fence.id).await.unwrap().unwrap();
        assert_eq!(history::verify(&record, &entries), Ok(()));
        // In time, at a later attempt.
        let key = format!("{driver:?} in time");
        let first = granted(&shop.store, &key).await;
        shop.store.release(first, "refused".into()).await.unwrap();
        let second = granted(&shop.store, &key).await;
        let transaction = shop.pay(driver, &key).await;
        finish(transaction, second, "paid").await.unwrap();
        let entries = shop.store.history(first.id).await.unwrap();
        let kinds: Vec<EntryKind> = entries.iter().map(|entry| entry.note.what).collect();
        assert_eq!(
            kinds,
            [EntryKind::Released, EntryKind::Reattempted],
            "{driver:?}"
        );
    }
}
