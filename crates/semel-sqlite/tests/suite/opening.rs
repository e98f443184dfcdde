//! A file that cannot be used is refused with a reason, and left as it is.

use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::support::{completion, granted, request};
use semel_core::transition::{Decision, Held, Resolve, Verdict};
use semel_core::{Actor, Fence, Store, Timestamp};
use semel_sqlite::{Error, Options, Sqlite};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("semel.db");
    (directory, path)
}

/// A short busy timeout, so that a test that waits for a lock is short.
fn impatient(path: &Path) -> Options {
    Options::new(path).busy_timeout(Duration::from_millis(50))
}

#[tokio::test]
async fn a_completion_is_replayed_after_reopening() {
    let (_directory, path) = place();
    let store = Sqlite::open(&path).await.unwrap();
    let fence = granted(&store, "key-1").await;
    store
        .complete(fence, completion("answer", 5000))
        .await
        .unwrap();
    drop(store);
    assert!(
        !path.with_extension("db-wal").exists(),
        "closing leaves no log behind"
    );

    let store = Sqlite::open(&path).await.unwrap();
    match store.reserve(request("key-1")).await.unwrap() {
        Decision::Replay(replay) => {
            assert_eq!(replay.response, completion("answer", 5000).response);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused_and_unchanged() {
    let (_directory, path) = place();
    let text = "this is a diary, not a database\n".repeat(500);
    fs::write(&path, &text).unwrap();
    let error = Sqlite::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert!(
        error.to_string().contains("not a SQLite database"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[tokio::test]
async fn a_damaged_schema_is_refused() {
    let (_directory, path) = place();
    drop(Sqlite::open(&path).await.unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..2000].fill(0x5a);
    fs::write(&path, &bytes).unwrap();
    let error = Sqlite::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn a_damaged_page_fails_reserve_and_never_grants() {
    let (_directory, path) = place();
    let store = Sqlite::open(&path).await.unwrap();
    for number in 0..50 {
        let fence = granted(&store, &format!("key-{number}")).await;
        store
            .complete(fence, completion("answer", 1000))
            .await
            .unwrap();
    }
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    // All but the schema: tables and indexes.
    let schema = 4096 * 2;
    bytes[schema..].fill(0x5a);
    fs::write(&path, bytes).unwrap();

    let Ok(store) = Sqlite::open(&path).await else {
        return;
    };
    for number in 0..50 {
        let answer = store.reserve(request(&format!("key-{number}"))).await;
        let error = answer.expect_err("nothing may be granted from a damaged file");
        assert!(!error.may_have_written(), "{error}");
    }
}

/// Reverts all migrations after the first.
const BACK_TO_THE_FIRST_STEP: &str = "
    DROP TABLE semel_contracts;
    ALTER TABLE semel_operations DROP COLUMN fingerprint_rules;
    DROP TABLE semel_activity;
    DROP TABLE semel_misuse;
    DROP TABLE semel_callers;
    DROP TABLE semel_census_taken;
    DROP TABLE semel_census_taker;
    DROP TABLE semel_census;
    DROP TRIGGER semel_operations_gone;
    DROP TABLE semel_history;
    DROP TABLE semel_inbox;
    DROP INDEX semel_operations_resource;
    DROP INDEX semel_operations_unknown;
    DROP TABLE semel_outbox;
    DROP TABLE semel_outbox_held;
    DROP TABLE semel_outbox_relay;
    DROP INDEX semel_operations_abandoned;
    DROP INDEX semel_operations_leases;
    ALTER TABLE semel_operations DROP COLUMN resume_us;
    CREATE INDEX semel_operations_leases ON semel_operations (locked_until)
        WHERE status = 'in_progress';
    DELETE FROM semel_migrations WHERE version >= 2;
    -- As the first version left an attempt that followed a lost one.
    UPDATE semel_operations SET attempt = 2, reconcile_after = 1, reconcile_attempts = 3
    WHERE key = 'under way';
";

#[tokio::test]
async fn a_file_of_schema_version_1_is_migrated() {
    let (_directory, path) = place();
    let store = Sqlite::open(&path).await.unwrap();
    let done = granted(&store, "done").await;
    let end = completion("answer", 10);
    store.complete(done, end.clone()).await.unwrap();
    let under_way = Fence {
        attempt: 2,
        ..granted(&store, "under way").await
    };
    drop(store);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(BACK_TO_THE_FIRST_STEP).unwrap();
    drop(connection);

    let store = Sqlite::open(&path).await.unwrap();
    assert_eq!(
        store.complete(done, end.clone()).await.unwrap(),
        Held::Repeated
    );
    assert_eq!(store.complete(under_way, end).await.unwrap(), Held::Applied);
    let entries = store.history(under_way.id).await.unwrap();
    assert_eq!(entries, [], "it ended in time");
}

/// The schema as the third step left it.
const THE_FIRST_THREE_STEPS: [&str; 4] = [
    include_str!("../../migrations/0000_migrations.sql"),
    include_str!("../../migrations/0001_operations.sql"),
    include_str!("../../migrations/0002_history_and_inbox.sql"),
    include_str!("../../migrations/0003_resuming_and_outbox.sql"),
];

/// The migration moves histories into a new table. It keeps every entry, and deleting a record
/// still deletes its history.
#[tokio::test]
async fn migration_from_schema_version_3_keeps_histories() {
    let (directory, path) = place();
    let newer = directory.path().join("newer.db");
    let store = Sqlite::open(&newer).await.unwrap();
    let late = granted(&store, "late").await;
    let reason = semel_core::Code::new("timeout");
    store
        .mark_unknown(late, reason.clone(), None)
        .await
        .unwrap();
    let end = completion("answer", 10);
    store.complete(late, end).await.unwrap();
    let lost = granted(&store, "lost").await;
    store
        .mark_unknown(lost, reason.clone(), None)
        .await
        .unwrap();
    let asked = Resolve {
        fence: lost,
        verdict: Verdict::StillUnknown(reason, Timestamp::from_micros(7)),
        by: Actor::person("ada", "looked it up"),
        evidence: Some("404".into()),
    };
    store.resolve(asked).await.unwrap();
    let mut before = Vec::new();
    for fence in [late, lost] {
        before.push(store.history(fence.id).await.unwrap());
    }
    drop(store);

    let connection = rusqlite::Connection::open(&path).unwrap();
    for step in THE_FIRST_THREE_STEPS {
        connection.execute_batch(step).unwrap();
    }
    let attach = format!("ATTACH '{}' AS newer", newer.display());
    connection.execute_batch(&attach).unwrap();
    connection
        .execute_batch(
            "INSERT INTO semel_migrations VALUES (1, 0), (2, 0), (3, 0);
             ALTER TABLE newer.semel_operations DROP COLUMN fingerprint_rules;
             INSERT INTO semel_operations SELECT * FROM newer.semel_operations;
             INSERT INTO semel_history SELECT * FROM newer.semel_history;
             -- The file may be an application's, which looks at histories, or tried to.
             CREATE VIEW entries AS SELECT what FROM semel_history;
             CREATE VIEW broken AS SELECT what FROM elsewhere;",
        )
        .unwrap();
    let revealed = "UPDATE semel_history SET what = 'revealed'";
    assert!(connection.execute(revealed, []).is_err(), "not known yet");
    drop(connection);

    let store = Sqlite::open(&path).await.unwrap();
    let verify = async |fence: Fence| {
        let record = store.find(fence.id).await.unwrap().unwrap();
        let entries = store.history(fence.id).await.unwrap();
        assert_eq!(semel_core::history::verify(&record, &entries), Ok(()));
        entries
    };
    assert_eq!(verify(late).await, before[0]);
    assert_eq!(verify(lost).await, before[1]);
    assert!(store.audit_reveal(late.id, "ada".into()).await.unwrap());
    assert_eq!(verify(late).await.len(), before[0].len() + 1);

    let connection = rusqlite::Connection::open(&path).unwrap();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(number("SELECT count(*) FROM entries"), Ok(5));
    let aside = "SELECT count(*) FROM sqlite_schema WHERE name = 'semel_history_aside'";
    assert_eq!(number(aside), Ok(0));
    connection
        .execute("DELETE FROM semel_operations WHERE key = 'late'", [])
        .unwrap();
    assert_eq!(store.history(late.id).await.unwrap(), []);
    assert_eq!(verify(lost).await, before[1]);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_unchanged() {
    let (_directory, path) = place();
    drop(Sqlite::open(&path).await.unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute("INSERT INTO semel_migrations VALUES (99, 0)", [])
        .unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();
    let error = Sqlite::open(&path).await.unwrap_err();
    assert!(
        matches!(error, Error::NewerSchema { found: 99, .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("run the newer version"),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let (directory, _) = place();
    let error = Sqlite::open(directory.path().join("nowhere/semel.db"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere/semel.db"), "{error}");
}

#[tokio::test]
async fn a_locked_file_is_refused_in_bounded_time() {
    let (_directory, path) = place();
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let error = impatient(&path).open().await.unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error:?}");
}

#[tokio::test]
async fn a_foreign_lock_fails_writes_until_it_is_released() {
    let (_directory, path) = place();
    let store = impatient(&path).open().await.unwrap();
    let fence = granted(&store, "key-1").await;
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();

    let error = store
        .complete(fence, completion("answer", 10))
        .await
        .unwrap_err();
    assert!(!error.may_have_written(), "{error}");
    assert!(
        error.to_string().contains("another process has locked"),
        "{error}"
    );
    // Reads still work.
    assert!(store.find(fence.id).await.unwrap().is_some());

    holder.execute_batch("ROLLBACK").unwrap();
    store
        .complete(fence, completion("answer", 10))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_disk_refuses_new_work_and_loses_nothing() {
    let (_directory, path) = place();
    let bound = NonZeroU64::new(512 * 1024).unwrap();
    let store = Options::new(&path).max_bytes(bound).open().await.unwrap();
    let mut done = Vec::new();
    let error = loop {
        let key = format!("key-{}", done.len());
        let fence = match store.reserve(request(&key)).await {
            Ok(Decision::Execute(grant)) => grant.fence,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
        match store.complete(fence, completion(&key, 4000)).await {
            Ok(_) => done.push(key),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("full"), "{error}");
    assert!(done.len() > 20, "{} were stored", done.len());
    // Stored responses are still replayed, now and after space is available again.
    replays(&store, &done).await;
    drop(store);
    let store = Sqlite::open(&path).await.unwrap();
    replays(&store, &done).await;
    granted(&store, "after the disk was cleared").await;
}

async fn replays(store: &Sqlite, keys: &[String]) {
    for key in keys {
        match store.reserve(request(key)).await.unwrap() {
            Decision::Replay(replay) => {
                assert_eq!(replay.response, completion(key, 4000).response);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn concurrent_opens_of_a_new_file_share_it() {
    let (_directory, path) = place();
    let opening: Vec<_> = (0..10)
        .map(|_| tokio::spawn(Sqlite::open(path.clone())))
        .collect();
    let mut stores = Vec::new();
    for store in opening {
        stores.push(store.await.unwrap().unwrap());
    }
    let fence = granted(&stores[0], "key-1").await;
    for store in &stores {
        let answer = store.reserve(request("key-1")).await.unwrap();
        assert!(matches!(answer, Decision::InProgress(_)), "{answer:?}");
    }
    stores[9]
        .complete(fence, completion("answer", 10))
        .await
        .unwrap();
    for store in &stores {
        let answer = store.reserve(request("key-1")).await.unwrap();
        assert!(matches!(answer, Decision::Replay(_)), "{answer:?}");
    }
}

/// Gateways that start together open and close the file concurrently.
#[test]
fn concurrent_open_and_close_do_not_fail() {
    const OPENERS: usize = 4;
    const FILES: usize = 40;
    let (directory, _) = place();
    let together = Barrier::new(OPENERS);
    let open_all = || -> Vec<Error> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let open = |number| {
            together.wait();
            let path = directory.path().join(format!("{number}.db"));
            runtime.block_on(Sqlite::open(path)).err()
        };
        (0..FILES).chain(0..FILES).filter_map(open).collect()
    };
    thread::scope(|scope| {
        let openers = [(); OPENERS].map(|()| scope.spawn(open_all));
        let failed: Vec<Error> = openers
            .into_iter()
            .flat_map(|opener| opener.join().unwrap())
            .collect();
        assert!(failed.is_empty(), "{failed:?}");
    });
}

const READ_ONLY: &str = "SEMEL_READ_ONLY_TEST_DATABASE";

/// Permissions do not bind root, so a child process of another user opens the file.
#[test]
fn a_read_only_file_is_refused() {
    let (directory, path) = place();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { drop(Sqlite::open(&path).await.unwrap()) });
    // A copy that every user may run, next to a read-only file.
    let program = directory.path().join("opening");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for (path, mode) in [(&program, 0o755), (&path, 0o444)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();

    let mut child = Command::new(&program);
    child
        .args([
            "--exact",
            "opening::child_process_without_write_permission",
            "--nocapture",
        ])
        .env(READ_ONLY, &path);
    if unprivileged_opening_is_possible(&path) {
        // Only root can change the user; the permissions bind all others already.
        child.uid(65534).gid(65534);
    }
    let output = child.output().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("refused: "),
        "{output:?}"
    );
    assert!(printed.contains("must both be writable"), "{printed}");
}

/// Whether this process can write a read-only file, that is, whether it is root.
fn unprivileged_opening_is_possible(read_only: &Path) -> bool {
    fs::OpenOptions::new().append(true).open(read_only).is_ok()
}

/// Not a test: the body of the child process of the other user.
#[test]
fn child_process_without_write_permission() {
    let Some(path) = std::env::var_os(READ_ONLY) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(Sqlite::open(path)).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
    println!("refused: {error}");
}

#[tokio::test]
async fn the_files_are_private() {
    let (_directory, path) = place();
    let _store = Sqlite::open(&path).await.unwrap();
    for file in ["db", "db-wal", "db-shm"] {
        let file = path.with_extension(file);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

/// Records in a removed file are seen by no other process, and are gone at the end of this one.
#[tokio::test]
async fn a_file_that_was_removed_or_replaced_grants_nothing() {
    for extension in ["db", "db-wal"] {
        let (_directory, path) = place();
        let store = Sqlite::open(&path).await.unwrap();
        granted(&store, "key-1").await;
        let (file, kept) = (path.with_extension(extension), path.with_extension("kept"));

        fs::rename(&file, &kept).unwrap();
        let found = store
            .find(semel_core::OperationId::from_bytes([0; 16]))
            .await;
        assert!(matches!(found, Err(semel_core::Error::Unavailable { .. })));
        let refused = store.reserve(request("key-2")).await;
        assert!(matches!(
            refused,
            Err(semel_core::Error::Unavailable { .. })
        ));

        fs::copy(&kept, &file).unwrap();
        let refused = store.reserve(request("key-2")).await;
        assert!(matches!(
            refused,
            Err(semel_core::Error::Unavailable { .. })
        ));

        fs::rename(&kept, &file).unwrap();
        granted(&store, "key-2").await;
    }
}
