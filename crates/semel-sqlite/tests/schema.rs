//! The schema refuses what the statements would never write.

mod support;

use rusqlite::Connection;
use semel_core::Store;
use semel_sqlite::Sqlite;
use support::{completion, granted};

#[tokio::test]
async fn a_record_that_makes_no_sense_cannot_be_written() {
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
        // An answer belongs to what is completed, and to nothing else.
        ("status = 'completed'", "running"),
        ("response_status = NULL", "done"),
        ("response_headers = NULL", "done"),
        ("expires_at = NULL", "done"),
        ("status = 'in_progress'", "done"),
        ("response_body = x'00'", "running"),
        ("body_expires_at = 1, response_body = NULL", "done"),
        // What is unknown has a time to be looked at; what is retryable, one to be forgotten.
        ("status = 'unknown'", "running"),
        ("status = 'failed_retryable'", "running"),
        ("dead_lettered_at = 1", "running"),
        // Only a tombstone is purged.
        ("status = 'expired'", "running"),
        ("purge_at = 1", "running"),
        ("recovery_point = 'charged'", "running"),
        ("resource_type = 'payment'", "done"),
        ("owner = NULL", "running"),
        ("locked_until = NULL", "running"),
    ] {
        let error = attempt(set, of).expect_err(set);
        assert_eq!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::ConstraintViolation),
            "{set}: {error}"
        );
    }
    // The test itself can write what makes sense.
    assert_eq!(attempt("attempt = 2", "done").unwrap(), 1);
}
