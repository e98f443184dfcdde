//! The schema refuses rows that the statements never write.

use std::time::Duration;

use crate::support::{completion, granted};
use rusqlite::Connection;
use semel_core::inbox::{Handling, Message};
use semel_core::outbox::Event;
use semel_core::statistics::{Activity, Caller, DecisionCounts, Misuse, RecordCount, RecordCounts};
use semel_core::{Backoff, KeyScope, OperationId, Status, Store, Timestamp};
use semel_sqlite::Sqlite;

#[tokio::test]
async fn the_schema_refuses_inconsistent_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Sqlite::open(&path).await.unwrap();
    let done = granted(&store, "done").await;
    store
        .complete(done, completion("answer", 10))
        .await
        .unwrap();
    let _running = granted(&store, "running").await;

    let connection = Connection::open(&path).unwrap();
    let attempt = |set: &str, of: &str| {
        connection.execute(
            &format!("UPDATE semel_operations SET {set} WHERE key = '{of}'"),
            [],
        )
    };
    for (set, of) in [
        ("status = 'failed'", "done"),
        ("attempt = 0", "done"),
        ("attempt = 'two'", "done"),
        ("key_hash = x'00'", "done"),
        ("id = x'00'", "done"),
        ("fingerprint = x'00'", "done"),
        ("scope = 'global'", "done"),
        // Only a completed record has a response.
        ("status = 'completed'", "running"),
        ("response_status = NULL", "done"),
        ("response_headers = NULL", "done"),
        ("expires_at = NULL", "done"),
        ("status = 'in_progress'", "done"),
        ("response_body = x'00'", "running"),
        ("body_expires_at = 1, response_body = NULL", "done"),
        // An unknown record has a time to reconcile; a retryable one, a time to expire.
        ("status = 'unknown'", "running"),
        ("status = 'failed_retryable'", "running"),
        ("dead_lettered_at = 1", "running"),
        // Only a tombstone has a time to purge.
        ("status = 'expired'", "running"),
        ("purge_at = 1", "running"),
        ("recovery_point = 'charged'", "running"),
        ("resource_type = 'payment'", "done"),
        ("owner = NULL", "running"),
        ("locked_until = NULL", "running"),
        ("resume_us = -1", "running"),
    ] {
        let error = attempt(set, of).expect_err(set);
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{set}: {error}"
        );
    }
    // The test can write a consistent row.
    assert_eq!(attempt("attempt = 2", "done").unwrap(), 1);
}

/// An entry of `lost`, and a parked message.
async fn a_file_with_entries(path: &std::path::Path) -> (Sqlite, semel_core::Fence) {
    let store = Sqlite::open(path).await.unwrap();
    let lost = granted(&store, "lost").await;
    let held = store.mark_unknown(lost, "timeout".into(), None).await;
    held.unwrap();
    let message = Message {
        source: "stripe".into(),
        id: "evt_1".into(),
        payload: "{}".into(),
    };
    let handling = Handling {
        look_after: Duration::from_secs(1),
        remember: Duration::from_hours(1),
    };
    store.receive_message(message, handling).await.unwrap();
    (store, lost)
}

#[tokio::test]
async fn the_schema_refuses_inconsistent_history_and_inbox_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let (_store, _) = a_file_with_entries(&path).await;
    let connection = Connection::open(&path).unwrap();
    let attempt =
        |table: &str, set: &str| connection.execute(&format!("UPDATE {table} SET {set}"), []);
    for (table, set) in [
        ("semel_history", "operation_id = x'00'"),
        ("semel_history", "seq = 0"),
        ("semel_history", "attempt = -1"),
        ("semel_history", "what = 'looked'"),
        ("semel_history", "actor = NULL"),
        ("semel_history", "at = 'now'"),
        ("semel_history", "hash = x'00'"),
        ("semel_history", "evidence_hash = x'00'"),
        // Evidence has a hash.
        ("semel_history", "evidence = x'00'"),
        ("semel_inbox", "tries = -1"),
        ("semel_inbox", "forget_at = NULL"),
        // A parked message has a payload and a due time; a settled one has neither.
        ("semel_inbox", "payload = NULL"),
        ("semel_inbox", "due_at = NULL"),
    ] {
        let error = attempt(table, set).expect_err(set);
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{set}: {error}"
        );
    }
    // The test can write a consistent row.
    assert_eq!(attempt("semel_history", "seq = 2").unwrap(), 1);
    assert_eq!(
        attempt("semel_inbox", "payload = NULL, due_at = NULL").unwrap(),
        1
    );
}

#[tokio::test]
async fn the_schema_refuses_inconsistent_events() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Sqlite::open(&path).await.unwrap();
    let event = Event::new("payment.created", "payment/1", "{}").unwrap();
    let (outbox, id) = (store.outbox(), event.id);
    let published = store.write(move |connection| outbox.publish(connection, &event));
    published.await.unwrap();
    let lease = Duration::from_secs(1);
    store.claim_events("relay".into(), lease, 1).await.unwrap();
    let backoff = Backoff {
        every: lease,
        max_every: lease,
    };
    store.hold_back(id, "no", backoff).await.unwrap();

    let connection = Connection::open(&path).unwrap();
    let attempt =
        |table: &str, set: &str| connection.execute(&format!("UPDATE {table} SET {set}"), []);
    for (table, set) in [
        ("semel_outbox", "id = x'00'"),
        ("semel_outbox", "kind = ''"),
        ("semel_outbox", "aggregate = ''"),
        // Bytes, not characters.
        ("semel_outbox", "kind = printf('%.*c', 128, 'é')"),
        ("semel_outbox", "aggregate = printf('%.*c', 256, 'a')"),
        ("semel_outbox", "payload = zeroblob(1048577)"),
        ("semel_outbox", "payload = NULL"),
        ("semel_outbox", "tries = -1"),
        ("semel_outbox", "written_at = 'now'"),
        // Only a dead event has a time and a reason.
        ("semel_outbox", "dead_at = 1"),
        ("semel_outbox", "reason = 'no'"),
        (
            "semel_outbox",
            "dead_at = 1, reason = printf('%.*c', 1025, 'a')",
        ),
        ("semel_outbox_held", "aggregate = NULL"),
        ("semel_outbox_held", "until = NULL"),
        ("semel_outbox_held", "reason = printf('%.*c', 1025, 'a')"),
        ("semel_outbox_relay", "one = 2"),
        ("semel_outbox_relay", "owner = NULL"),
        ("semel_outbox_relay", "until = 'then'"),
    ] {
        let error = attempt(table, set).expect_err(set);
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{set}: {error}"
        );
    }
    // The test can write a consistent row.
    let set = "dead_at = 1, reason = 'no', payload = zeroblob(1048576)";
    assert_eq!(attempt("semel_outbox", set).unwrap(), 1);
    assert_eq!(attempt("semel_outbox_held", "until = 0").unwrap(), 1);
    assert_eq!(attempt("semel_outbox_relay", "until = 0").unwrap(), 1);
}

#[tokio::test]
async fn the_schema_refuses_inconsistent_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    let store = Sqlite::open(&path).await.unwrap();
    let (at, id) = (Timestamp::from_micros(0), OperationId::generate());
    let activity = Activity {
        at,
        operation: "pay".into(),
        decisions: DecisionCounts::default(),
    };
    let misuse = Misuse {
        tenant: "tenant-1".into(),
        operation: "pay".into(),
        count: 1,
        first_at: at,
        last_at: at,
        last_id: id,
    };
    store
        .add_counts(vec![activity], vec![misuse])
        .await
        .unwrap();
    let caller = Caller {
        scope: KeyScope::Operation,
        tenant: "tenant-1".into(),
        operation: "pay".into(),
    };
    store.record_callers(vec![caller]).await.unwrap();
    let count = RecordCount {
        operation: "pay".into(),
        status: Status::Unknown,
        count: 1,
    };
    let counts = RecordCounts {
        began_at: at,
        ended_at: at,
        counts: vec![count],
        all_callers: true,
    };
    store.publish_record_counts(counts).await.unwrap();

    let connection = Connection::open(&path).unwrap();
    let attempt =
        |table: &str, set: &str| connection.execute(&format!("UPDATE {table} SET {set}"), []);
    for (table, set) in [
        ("semel_activity", "at = NULL"),
        ("semel_activity", "operation = NULL"),
        ("semel_activity", "created = -1"),
        ("semel_activity", "replayed = -1"),
        ("semel_activity", "in_progress = -1"),
        ("semel_activity", "misuse = -1"),
        ("semel_activity", "retried = -1"),
        ("semel_activity", "unknown = -1"),
        ("semel_activity", "expired = -1"),
        ("semel_activity", "failed = -1"),
        ("semel_misuse", "count = -1"),
        ("semel_misuse", "last_at = 'now'"),
        ("semel_misuse", "last_id = x'00'"),
        ("semel_callers", "scope = 'global'"),
        ("semel_callers", "tenant = NULL"),
        ("semel_census_taken", "one = 2"),
        ("semel_census_taken", "ended_at = NULL"),
        ("semel_census_taken", "all_callers = 2"),
        ("semel_census", "status = 'failed'"),
        ("semel_census", "count = -1"),
    ] {
        let error = attempt(table, set).expect_err(set);
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{set}: {error}"
        );
    }
    // The test can write a consistent row.
    assert_eq!(attempt("semel_activity", "created = 1").unwrap(), 1);
    assert_eq!(attempt("semel_misuse", "count = 2").unwrap(), 1);
    assert_eq!(attempt("semel_callers", "scope = 'tenant'").unwrap(), 1);
    assert_eq!(attempt("semel_census_taken", "all_callers = 0").unwrap(), 1);
    assert_eq!(attempt("semel_census", "status = 'expired'").unwrap(), 1);
}

#[tokio::test]
async fn verify_detects_edited_and_removed_history_entries() {
    for edit in [
        "UPDATE semel_history SET actor = 'nobody'",
        "UPDATE semel_history SET at = at + 1",
        "UPDATE semel_history SET hash = zeroblob(32)",
        "DELETE FROM semel_history",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("semel.db");
        let (store, lost) = a_file_with_entries(&path).await;
        let record = store.find(lost.id).await.unwrap().unwrap();
        let verify = async || {
            let entries = store.history(lost.id).await.unwrap();
            semel_core::history::verify(&record, &entries)
        };
        assert_eq!(verify().await, Ok(()));
        let connection = Connection::open(&path).unwrap();
        connection.execute(edit, []).unwrap();
        assert!(verify().await.is_err(), "{edit}");
    }
}
