//! The schema refuses rows that the statements never write.

use crate::support::{completion, granted};
use semel_core::{Completion, Resource, Store};
use semel_postgres::Postgres;
use semel_testkit::database::Database;
use tokio_postgres::error::SqlState;

#[tokio::test]
async fn the_schema_refuses_inconsistent_records() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = Postgres::open(&database.url).await.unwrap();
    let done = granted(&store, "done").await;
    store.complete(done, completion("answer")).await.unwrap();
    let _running = granted(&store, "running").await;

    let client = database.client().await;
    for (set, of) in [
        ("status = 'failed'", "done"),
        ("attempt = 0", "done"),
        ("fingerprint = '\\x00'", "done"),
        ("scope = 'global'", "done"),
        // Only a completed record has a response.
        ("status = 'completed'", "running"),
        ("response_status = NULL", "done"),
        ("response_headers = NULL", "done"),
        ("schema_version = NULL", "done"),
        ("expires_at = NULL", "done"),
        ("completed_at = NULL", "done"),
        ("status = 'in_progress'", "done"),
        ("status = 'unknown'", "done"),
        ("response_body = '\\x00'", "running"),
        ("response_status = 200", "running"),
        ("body_expires_at = 1, response_body = NULL", "done"),
        ("body_expires_at = 1", "running"),
        // An unknown record has a time to reconcile; a retryable one, a time to expire.
        ("status = 'unknown'", "running"),
        ("status = 'failed_retryable'", "running"),
        ("dead_lettered_at = 1", "running"),
        ("reconcile_after = 1", "running"),
        ("reconcile_attempts = 1", "running"),
        ("dead_lettered_at = 1", "done"),
        // Only a tombstone has a time to purge.
        ("status = 'expired'", "running"),
        ("purge_at = 1", "running"),
        ("purge_at = 1", "done"),
        ("recovery_point = 'charged'", "running"),
        ("resource_type = 'payment'", "done"),
        ("owner = NULL", "running"),
        ("locked_until = NULL", "running"),
        ("id = NULL", "running"),
        ("resume_us = -1", "running"),
    ] {
        let update = format!("UPDATE semel.operations SET {set} WHERE key = '{of}'");
        let error = client.execute(&update, &[]).await.expect_err(set);
        let code = error.code().unwrap();
        assert!(
            *code == SqlState::CHECK_VIOLATION || *code == SqlState::NOT_NULL_VIOLATION,
            "{set}: {error}"
        );
    }
    // The test can write a consistent row.
    let sound = "UPDATE semel.operations SET attempt = 2 WHERE key = 'done'";
    assert_eq!(client.execute(sound, &[]).await.unwrap(), 1);
}

/// A resource name may be longer than an index entry. The completion is still written, and names
/// with a common prefix are different.
#[tokio::test]
async fn a_resource_name_may_exceed_the_index_limit() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = Postgres::open(&database.url).await.unwrap();
    let long = |end: &str| "\u{10d}\u{e1}p".repeat(4000) + end;
    let mut made = Vec::new();
    for end in ["a", "b"] {
        let fence = granted(&store, end).await;
        let resource = Some(Resource {
            kind: "payment".into(),
            id: long(end).into(),
        });
        let completion = Completion {
            resource,
            ..completion("answer")
        };
        store.complete(fence, completion).await.unwrap();
        made.push((long(end), fence.id));
    }
    for (resource, id) in made {
        let found = store.find_resource(&resource).await.unwrap().unwrap();
        assert_eq!(found.id, id);
    }
    assert_eq!(store.find_resource(&long("c")).await.unwrap(), None);
}

/// The functions use the index in any session, also in an application's session with default
/// settings and a plan from when the table was empty.
#[tokio::test]
async fn the_functions_never_read_all_histories() {
    let Some(database) = Database::new().await else {
        return;
    };
    semel_postgres::migrate(&database.url).await.unwrap();
    let client = database.client().await;
    let calls = "SET plan_cache_mode = force_generic_plan;
        BEGIN;
        SELECT semel.tell(gen_random_uuid(), 1, 1, 'fenced', 'test', NULL, NULL, NULL);
        SELECT semel.forget_history(gen_random_uuid());";
    client.batch_execute(calls).await.unwrap();
    let seen = "SELECT seq_scan, idx_scan FROM pg_stat_xact_all_tables
        WHERE relid = 'semel.history'::regclass";
    let row = client.query_one(seen, &[]).await.unwrap();
    let (whole, by_index): (i64, i64) = (row.get(0), row.get(1));
    assert!(whole == 0 && by_index >= 2, "{whole} and {by_index}");
}
