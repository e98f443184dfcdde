//! Rows that the statements never write are refused.

use crate::support::{completion, granted, request};
use semel_core::{Completion, Resource, Store};
use semel_postgres::Postgres;
use semel_testkit::database::Database;
use tokio_postgres::error::SqlState;

/// The schema refuses what would lose a record or its response; the store refuses the rest when it
/// reads the record.
#[tokio::test]
async fn inconsistent_records_are_refused() {
    let Some(database) = Database::new().await else {
        return;
    };
    let store = Postgres::open(&database.url).await.unwrap();
    let done = granted(&store, "done").await;
    store.complete(done, completion("answer")).await.unwrap();
    let running = granted(&store, "running").await;
    let client = database.client().await;
    let save = "CREATE TABLE saved AS TABLE semel.operations";
    client.batch_execute(save).await.unwrap();
    let restore = "TRUNCATE semel.operations; INSERT INTO semel.operations TABLE saved";
    for (set, of, by_schema) in [
        ("status = 'completed'", "running", true),
        ("response_status = 200", "running", true),
        ("response_status = NULL", "done", true),
        ("status = 'in_progress'", "done", true),
        ("status = 'unknown'", "done", true),
        ("status = 'expired'", "running", true),
        ("purge_at = 1", "running", true),
        ("purge_at = 1", "done", true),
        ("owner = NULL", "running", true),
        ("locked_until = NULL", "running", true),
        ("id = NULL", "running", true),
        ("resume_us = -1", "running", true),
        ("status = 'failed'", "running", false),
        ("attempt = 0", "done", false),
        ("fingerprint = '\\x00'", "done", false),
        ("scope = 'global'", "done", false),
        ("response_headers = NULL", "done", false),
        ("schema_version = NULL", "done", false),
        ("expires_at = NULL", "done", false),
        ("completed_at = NULL", "done", false),
        ("status = 'unknown'", "running", false),
        ("status = 'failed_retryable'", "running", false),
        ("recovery_point = 'charged'", "running", false),
        ("resource_type = 'payment'", "done", false),
    ] {
        let update = format!("UPDATE semel.operations SET {set} WHERE key = '{of}'");
        let updated = client.execute(&update, &[]).await;
        if by_schema {
            let error = updated.expect_err(set);
            let code = error.code().unwrap();
            assert!(
                *code == SqlState::CHECK_VIOLATION || *code == SqlState::NOT_NULL_VIOLATION,
                "{set}: {error}"
            );
            continue;
        }
        assert_eq!(updated.unwrap(), 1, "{set}");
        let fence = if of == "done" { done } else { running };
        store.find(fence.id).await.expect_err(set);
        store.reserve(request(of)).await.expect_err(set);
        client.batch_execute(restore).await.unwrap();
    }
    // The test can write a consistent row.
    let sound = "UPDATE semel.operations SET attempt = 2 WHERE key = 'done'";
    assert_eq!(client.execute(sound, &[]).await.unwrap(), 1);
    store.find(done.id).await.unwrap();
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
