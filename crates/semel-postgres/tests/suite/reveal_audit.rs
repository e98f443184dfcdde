//! Showing a stored response to a person is recorded in the history first.

use crate::support::{completion, granted};
use semel_core::history::{self, EntryKind};
use semel_core::{Actor, Fence, Store};
use semel_postgres::Postgres;
use semel_testkit::database::Database;
use tokio_postgres::Client;

fn by() -> Actor {
    Actor {
        who: "alice".into(),
        why: Some("ticket 7".into()),
    }
}

async fn history_kinds(store: &Postgres, fence: Fence) -> Vec<EntryKind> {
    let entries = store.history(fence.id).await.unwrap();
    if let Some(record) = store.find(fence.id).await.unwrap() {
        history::verify(&record, &entries).unwrap();
    }
    entries.iter().map(|entry| entry.note.what).collect()
}

#[tokio::test]
async fn migration_from_schema_version_4_keeps_histories() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    for step in [
        include_str!("../../migrations/0000_migrations.sql"),
        include_str!("../../migrations/0001_operations.sql"),
        include_str!("../../migrations/0002_complete.sql"),
        include_str!("../../migrations/0003_history.sql"),
        include_str!("../../migrations/0004_outbox.sql"),
        "INSERT INTO semel.migrations (version) VALUES (1), (2), (3), (4)",
        // A late completion as the previous version wrote it.
        "INSERT INTO semel.operations (
             key_hash, id, scope, tenant, operation, key, fingerprint_version, fingerprint, status,
             attempt, owner, locked_until, error_code, reconcile_after, reconcile_attempts,
             replay_us, body_us, created_at, updated_at
         ) VALUES (
             gen_random_uuid(), '018f0000-0000-7000-8000-000000000001', 'operation', 'tenant-1',
             'create_payment', 'old', 1, decode(repeat('01', 32), 'hex'), 'unknown', 1, 'test', 1,
             'timeout', 1, 1, 1000000, 1000000, 1, 1
         );
         SELECT semel.tell('018f0000-0000-7000-8000-000000000001', 1, 1, 'unknown', 'executor', 'timeout', NULL, NULL);
         SELECT semel.semel_complete('018f0000-0000-7000-8000-000000000001', 1, 201, NULL, '{}')",
    ] {
        client.batch_execute(step).await.unwrap();
    }
    let id = "018f0000-0000-7000-8000-000000000001".parse().unwrap();
    let fence = Fence { id, attempt: 1 };
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 5);
    let store = Postgres::open(&database.url).await.unwrap();
    let before = [EntryKind::Unknown, EntryKind::CompletedLate];
    assert_eq!(history_kinds(&store, fence).await, before);
    let record = store.find(id).await.unwrap();
    for _ in 0..2 {
        assert!(store.audit_reveal(id, by()).await.unwrap());
    }
    let after = [before, [EntryKind::Revealed; 2]].concat();
    assert_eq!(history_kinds(&store, fence).await, after);
    assert_eq!(store.find(id).await.unwrap(), record, "nothing changes");
    let last = store.history(id).await.unwrap().pop().unwrap();
    assert_eq!(
        (&*last.note.actor, last.note.reason.as_deref()),
        ("alice", Some("ticket 7"))
    );

    let running = granted(&store, "running").await;
    assert!(!store.audit_reveal(running.id, by()).await.unwrap());
    assert_eq!(history_kinds(&store, running).await, []);
}

/// Waits until a statement of the store waits for a lock.
async fn blocked(client: &Client) {
    let waits = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'semel' AND wait_event_type = 'Lock'";
    for _ in 0..10_000 {
        if client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            return;
        }
    }
    panic!("no session waits for a lock");
}

/// A record that ends during a reveal is either recorded and shown, or neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reveal_that_races_with_expiry_is_recorded_only_if_shown() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = Postgres::open(&database.url).await.unwrap();
    let fence = granted(&store, "k").await;
    store.complete(fence, completion("answer")).await.unwrap();
    let (mut other, watcher) = (database.client().await, database.client().await);
    for (end, refused) in [
        // The row is only updated: the waiting reveal continues.
        (
            "UPDATE semel.operations SET updated_at = updated_at + 1",
            false,
        ),
        (
            "UPDATE semel.operations SET status = 'expired', purge_at = 1, response_status = NULL,
                 response_headers = NULL, response_body = NULL, schema_version = NULL",
            true,
        ),
    ] {
        let transaction = other.transaction().await.unwrap();
        transaction.batch_execute(end).await.unwrap();
        let asking = {
            let store = store.clone();
            tokio::spawn(async move { store.audit_reveal(fence.id, by()).await })
        };
        blocked(&watcher).await;
        transaction.commit().await.unwrap();
        assert_eq!(asking.await.unwrap().unwrap(), !refused, "{end}");
        assert_eq!(
            history_kinds(&store, fence).await,
            [EntryKind::Revealed],
            "{end}"
        );
    }
}

/// A refused write waits for the removal of its record, and leaves no history entry without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_races_with_removal_leaves_no_history() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = Postgres::open(&database.url).await.unwrap();
    let fence = granted(&store, "k").await;
    store.complete(fence, completion("answer")).await.unwrap();
    let (mut other, watcher) = (database.client().await, database.client().await);
    let transaction = other.transaction().await.unwrap();
    let remove = "WITH gone AS (DELETE FROM semel.operations RETURNING id)
        SELECT semel.forget_history(id)::text FROM gone";
    transaction.query(remove, &[]).await.unwrap();
    let late = {
        let store = store.clone();
        tokio::spawn(async move { store.release(fence, "late".into()).await })
    };
    blocked(&watcher).await;
    transaction.commit().await.unwrap();
    // Refused or to be retried; the history is what counts.
    drop(late.await.unwrap());
    assert_eq!(history_kinds(&store, fence).await, []);
}
