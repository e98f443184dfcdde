//! The application's rows and the completion of its record commit together, or neither does, and
//! the rest of the group is not affected.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::{completion, granted};
use rusqlite::Connection;
use rusqlite::hooks::{AuthContext, Authorization};
use semel_core::history::EntryKind;
use semel_core::store::{Result, Source};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Fenced, Held};
use semel_core::{
    Clock, Completion, Error, Fence, Response, State, Status, Store, SystemClock, Timestamp,
    Transaction,
};
use semel_sqlite::{Options, Sqlite, Work};
use tempfile::TempDir;

const APPLIED: Finished = Finished::Held(Held::Applied);

/// A store in the application's own file.
struct Fixture {
    store: Sqlite,
    path: PathBuf,
    _directory: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock)).await
    }

    async fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("semel.db");
        let store = Options::new(&path).clock(clock).open().await.unwrap();
        let application = Connection::open(&path).unwrap();
        application
            .execute_batch(
                "CREATE TABLE payments (key TEXT PRIMARY KEY ON CONFLICT ROLLBACK);
                 CREATE TABLE refunds (
                     payment TEXT REFERENCES payments (key) DEFERRABLE INITIALLY DEFERRED
                 );",
            )
            .unwrap();
        Self {
            store,
            path,
            _directory: directory,
        }
    }

    /// Inserts a payment and returns a response.
    fn pay(&self, key: &str) -> Work {
        let key = key.to_owned();
        self.store.transaction(move |connection| {
            insert(connection, &key)?;
            Ok::<_, rusqlite::Error>(created())
        })
    }

    /// Inserts a payment, and then calls the given function.
    fn pay_and(
        &self,
        key: &str,
        then: impl FnOnce(&Connection) -> std::result::Result<Response, Source> + Send + 'static,
    ) -> Work {
        let key = key.to_owned();
        self.store.transaction(move |connection| {
            insert(connection, &key)?;
            then(connection)
        })
    }

    /// All that was paid, as another connection sees it.
    fn paid(&self) -> BTreeSet<String> {
        let application = Connection::open(&self.path).unwrap();
        let mut keys = application.prepare("SELECT key FROM payments").unwrap();
        let keys = keys.query_map([], |row| row.get(0)).unwrap();
        keys.map(std::result::Result::unwrap).collect()
    }

    /// The kinds of the history entries; the chain must be valid.
    async fn history_kinds(&self, fence: Fence) -> Vec<EntryKind> {
        let record = self.store.find(fence.id).await.unwrap().unwrap();
        let entries = self.store.history(fence.id).await.unwrap();
        assert_eq!(semel_core::history::verify(&record, &entries), Ok(()));
        entries.iter().map(|entry| entry.note.what).collect()
    }

    async fn status(&self, fence: Fence) -> Status {
        let record = self.store.find(fence.id).await.unwrap().unwrap();
        record.state.status()
    }
}

fn insert(connection: &Connection, key: &str) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT INTO payments (key) VALUES (?1)")?;
    insert.execute([key]).map(|_| ())
}

fn created() -> Response {
    completion("created", 8).response
}

fn conclude(found: Option<Response>) -> Option<TransactionWrite> {
    found.map(|response| {
        TransactionWrite::Complete(Completion {
            response,
            resource: None,
        })
    })
}

async fn finish(work: Work, fence: Fence) -> Result<Finished> {
    Box::new(work).finish(fence, Box::new(conclude)).await
}

#[track_caller]
fn is_rolled_back(finished: &Result<Finished>) {
    assert!(
        matches!(finished, Err(Error::Unavailable { .. })),
        "{finished:?}"
    );
}

#[tokio::test]
async fn rows_and_completion_commit_together() {
    let fixture = Fixture::new().await;
    let fence = granted(&fixture.store, "a").await;
    let path = fixture.path.clone();
    let work = fixture.pay_and("a", move |inside| {
        // Other connections see nothing of it while it runs.
        let outside = Connection::open(path)?;
        let unseen = |connection: &Connection| {
            connection.query_row(
                "SELECT (SELECT count(*) FROM payments), status FROM semel_operations",
                [],
                |row| Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?)),
            )
        };
        assert_eq!(unseen(&outside)?, (0, "in_progress".to_owned()));
        assert_eq!(unseen(inside)?, (1, "in_progress".to_owned()));
        Ok(created())
    });
    assert_eq!(finish(work, fence).await.unwrap(), APPLIED);
    assert_eq!(fixture.paid(), BTreeSet::from(["a".to_owned()]));
    let record = fixture.store.find(fence.id).await.unwrap().unwrap();
    let State::Completed(completed) = record.state else {
        panic!("{record:?}");
    };
    assert_eq!(completed.response, created());
}

#[tokio::test]
async fn failed_work_leaves_neither_rows_nor_completion() {
    let fixture = Fixture::new().await;
    let fence = granted(&fixture.store, "a").await;
    for work in [
        fixture.pay_and("a", |_| Err("insufficient courage".into())),
        fixture.pay_and("a", |_| panic!("on purpose")),
        fixture.pay_and("a", |connection| {
            connection.execute("INSERT INTO nowhere DEFAULT VALUES", [])?;
            Ok(created())
        }),
    ] {
        let finished = finish(work, fence).await;
        is_rolled_back(&finished);
        assert_eq!(fixture.status(fence).await, Status::InProgress);
    }
    // A response that does not complete the record.
    let work = Box::new(fixture.pay("a"));
    let finished = work.finish(fence, Box::new(|_| None)).await.unwrap();
    assert_eq!(finished, Finished::RolledBack);
    let work = Box::new(fixture.pay("a"));
    let judge = Box::new(|_| panic!("on purpose"));
    is_rolled_back(&work.finish(fence, judge).await);
    // Work that is dropped never ran.
    drop(fixture.pay("a"));

    assert_eq!(fixture.status(fence).await, Status::InProgress);
    assert_eq!(fixture.paid(), BTreeSet::new());
    // The failures do not affect the next work.
    assert_eq!(finish(fixture.pay("a"), fence).await.unwrap(), APPLIED);
    assert_eq!(fixture.paid().len(), 1);
}

#[tokio::test]
async fn work_of_a_replaced_attempt_leaves_no_rows() {
    let fixture = Fixture::new().await;
    let first = granted(&fixture.store, "a").await;
    fixture.store.release(first, "test".into()).await.unwrap();
    let second = granted(&fixture.store, "a").await;
    let fenced = |found| Finished::Held(Held::Fenced(Fenced { found: Some(found) }));
    assert_eq!(
        finish(fixture.pay("late"), first).await.unwrap(),
        fenced((Status::InProgress, 2))
    );
    assert_eq!(finish(fixture.pay("a"), second).await.unwrap(), APPLIED);
    assert_eq!(
        finish(fixture.pay("late"), first).await.unwrap(),
        fenced((Status::Completed, 2))
    );
    // Also if the record holds the same response already: the rows would be inserted twice.
    assert_eq!(
        finish(fixture.pay("again"), second).await.unwrap(),
        Finished::Held(Held::Repeated)
    );
    assert_eq!(fixture.paid(), BTreeSet::from(["a".to_owned()]));
    // The history entry of the refusal is not rolled back with the rows.
    let kinds = fixture.history_kinds(first).await;
    let expected = [
        EntryKind::Released,
        EntryKind::Reattempted,
        EntryKind::Fenced,
        EntryKind::Fenced,
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn work_that_ends_after_mark_unknown_is_recorded_as_late() {
    let fixture = Fixture::new().await;
    let in_time = granted(&fixture.store, "in time").await;
    assert_eq!(
        finish(fixture.pay("in time"), in_time).await.unwrap(),
        APPLIED
    );
    assert_eq!(fixture.history_kinds(in_time).await, []);
    let late = granted(&fixture.store, "late").await;
    let lost = fixture.store.mark_unknown(late, "timeout".into(), None);
    assert_eq!(lost.await.unwrap(), Held::Applied);
    assert_eq!(finish(fixture.pay("late"), late).await.unwrap(), APPLIED);
    assert_eq!(
        fixture.history_kinds(late).await,
        [EntryKind::Unknown, EntryKind::CompletedLate]
    );
    assert_eq!(fixture.paid().len(), 2);
}

#[tokio::test]
async fn the_application_cannot_end_the_group_or_touch_the_records() {
    let fixture = Fixture::new().await;
    for (number, statement) in [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "RELEASE semel_work",
        "ROLLBACK TO SEMEL_work",
        "SAVEPOINT semel_work",
        "SAVEPOINT semel_once",
        "RELEASE Semel_once",
        "ROLLBACK TO semel_once",
        "PRAGMA query_only = 1",
        "PRAGMA ignore_check_constraints = 1",
        "ATTACH ':memory:' AS other",
        "UPDATE semel_operations SET status = 'failed_retryable'",
        "DELETE FROM Semel_operations",
        "INSERT INTO semel_migrations DEFAULT VALUES",
        "INSERT INTO semel_outbox DEFAULT VALUES",
        "DELETE FROM semel_inbox",
        "INSERT INTO semel_outbox_relay VALUES (1, 'me', 0)",
        "DROP TABLE semel_operations",
        "DROP INDEX semel_operations_key",
        "CREATE TRIGGER t AFTER INSERT ON semel_operations BEGIN SELECT 1; END",
        "CREATE INDEX i ON semel_operations (tenant)",
        "ALTER TABLE semel_operations RENAME TO mine",
        "CREATE VIEW semel_view AS SELECT 1",
    ]
    .into_iter()
    .enumerate()
    {
        let key = number.to_string();
        let fence = granted(&fixture.store, &key).await;
        // It is refused; ignoring the error has no effect.
        let work = fixture.pay_and(&key, move |connection| {
            let refused = connection.execute_batch(statement).unwrap_err();
            let denied = rusqlite::ErrorCode::AuthorizationForStatementDenied;
            assert_eq!(refused.sqlite_error_code(), Some(denied), "{refused}");
            Ok(created())
        });
        let finished = finish(work, fence).await;
        assert_eq!(finished.unwrap(), APPLIED, "{statement}");
        assert!(fixture.paid().contains(&key), "{statement}");
        assert_eq!(
            fixture.status(fence).await,
            Status::Completed,
            "{statement}"
        );
    }
    // Statements that the application may run.
    let fence = granted(&fixture.store, "own").await;
    let work = fixture.pay_and("own", |connection| {
        connection.execute_batch(
            "SAVEPOINT mine; INSERT INTO payments VALUES ('taken back'); ROLLBACK TO mine;
             SAVEPOINT left_open; CREATE TABLE more (a); SELECT count(*) FROM semel_operations;",
        )?;
        Ok(created())
    });
    assert_eq!(finish(work, fence).await.unwrap(), APPLIED);
    assert!(!fixture.paid().contains("taken back"));
}

/// A clock that never returns the same time twice. A group reads it once, so the number of
/// different times is the number of commits.
#[derive(Debug, Default)]
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Lets all that `calls` does reach the writer before it may begin. One thread, so that every
/// spawned call has reached the store once it was yielded to.
async fn in_one_group<T>(fixture: &Fixture, calls: impl FnOnce() -> T) -> T {
    let holder = Connection::open(&fixture.path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    // The writer takes the first of them, and waits for the lock with it.
    let call = granted(&fixture.store, "the first");
    let mut first = std::pin::pin!(call);
    assert!(is_waiting(first.as_mut()).await);
    let made = calls();
    tokio::task::yield_now().await;
    holder.execute_batch("ROLLBACK").unwrap();
    first.await;
    made
}

/// Polls once, and returns whether the future is pending.
async fn is_waiting<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> bool {
    let mut future = future;
    std::future::poll_fn(move |context| {
        std::task::Poll::Ready(future.as_mut().poll(context).is_pending())
    })
    .await
}

#[tokio::test(flavor = "current_thread")]
async fn work_shares_a_commit() {
    let fixture = Fixture::with_clock(Arc::<Ticking>::default()).await;
    let mut fences = Vec::new();
    for number in 0..50 {
        fences.push(granted(&fixture.store, &number.to_string()).await);
    }
    let calls = in_one_group(&fixture, || {
        let pay = |(number, fence): (usize, &Fence)| {
            tokio::spawn(finish(fixture.pay(&number.to_string()), *fence))
        };
        fences.iter().enumerate().map(pay).collect::<Vec<_>>()
    })
    .await;
    let mut commits = BTreeSet::new();
    for (call, fence) in calls.into_iter().zip(fences) {
        assert_eq!(call.await.unwrap().unwrap(), APPLIED);
        let record = fixture.store.find(fence.id).await.unwrap().unwrap();
        commits.insert(record.updated_at);
    }
    assert_eq!(fixture.paid().len(), 50);
    // One commit for the calls that arrived before the writer started, and one for the rest.
    assert!(
        commits.len() <= 2,
        "50 works took {} commits",
        commits.len()
    );
}

#[tokio::test(flavor = "current_thread")]
async fn failing_work_does_not_fail_its_group() {
    let fixture = Fixture::new().await;
    let mut fences = Vec::new();
    for number in 0..20 {
        fences.push(granted(&fixture.store, &number.to_string()).await);
    }
    let calls = in_one_group(&fixture, || {
        let work = |(number, fence): (usize, &Fence)| {
            let key = number.to_string();
            let work = match number % 4 {
                0 => fixture.pay_and(&key, |_| Err("no".into())),
                1 => fixture.pay_and(&key, |_| panic!("on purpose")),
                2 => fixture.pay(&key),
                _ => {
                    let (store, fence) = (fixture.store.clone(), *fence);
                    return tokio::spawn(async move {
                        let held = store.complete(fence, completion("x", 8)).await?;
                        Ok(Finished::Held(held))
                    });
                }
            };
            tokio::spawn(finish(work, *fence))
        };
        fences.iter().enumerate().map(work).collect::<Vec<_>>()
    })
    .await;
    for (number, call) in calls.into_iter().enumerate() {
        let finished = call.await.unwrap();
        if number % 4 < 2 {
            is_rolled_back(&finished);
            assert_eq!(fixture.status(fences[number]).await, Status::InProgress);
        } else {
            assert_eq!(finished.unwrap(), APPLIED);
            assert_eq!(fixture.status(fences[number]).await, Status::Completed);
        }
    }
    let expected = (0..20).filter(|number| number % 4 == 2);
    assert_eq!(
        fixture.paid(),
        expected.map(|number| number.to_string()).collect()
    );
}

/// After a failing call the writer repeats its group one by one. Work cannot be repeated, so the
/// writer runs it after all calls that may fail.
#[tokio::test(flavor = "current_thread")]
async fn a_failing_call_does_not_fail_work_in_its_group() {
    let fixture = Fixture::new().await;
    let mut fences = Vec::new();
    for number in 0..10 {
        fences.push(granted(&fixture.store, &number.to_string()).await);
    }
    let taken = fences[0].id;
    let (calls, failing) = in_one_group(&fixture, || {
        let pay = |(number, fence): (usize, &Fence)| {
            tokio::spawn(finish(fixture.pay(&number.to_string()), *fence))
        };
        let calls: Vec<_> = fences.iter().enumerate().map(pay).collect();
        let store = fixture.store.clone();
        let failing = tokio::spawn(async move {
            let mut request = crate::support::request("another");
            // The id exists already, so the database refuses it.
            request.id = taken;
            store.reserve(request).await
        });
        (calls, failing)
    })
    .await;
    assert!(failing.await.unwrap().is_err());
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), APPLIED);
    }
    assert_eq!(fixture.paid().len(), 10);
}

/// Two ways to roll back the whole transaction: a conflict clause, and a constraint that is checked
/// by the commit. Rolled-back work gets an error; the writer repeats plain calls; and rows and
/// completions agree.
#[tokio::test(flavor = "current_thread")]
async fn work_that_rolls_back_the_group_loses_only_work() {
    for (at, statement) in [
        (
            5,
            "INSERT INTO payments VALUES ('0'); INSERT INTO payments VALUES ('0')",
        ),
        (5, "INSERT INTO refunds VALUES ('nothing')"),
    ] {
        let fixture = Fixture::new().await;
        let mut fences = Vec::new();
        for number in 0..10 {
            fences.push(granted(&fixture.store, &format!("key-{number}")).await);
        }
        let plain = granted(&fixture.store, "plain").await;
        let (calls, plain) = in_one_group(&fixture, || {
            let work = |(number, fence): (usize, &Fence)| {
                let key = format!("key-{number}");
                let work = fixture.pay_and(&key, move |connection| {
                    if number == at {
                        // The work may ignore the error.
                        let _ = connection.execute_batch(statement);
                    }
                    Ok(created())
                });
                tokio::spawn(finish(work, *fence))
            };
            let calls: Vec<_> = fences.iter().enumerate().map(work).collect();
            let store = fixture.store.clone();
            let completed = async move { store.complete(plain, completion("x", 8)).await };
            (calls, tokio::spawn(completed))
        })
        .await;
        assert_eq!(plain.await.unwrap().unwrap(), Held::Applied);
        for (number, call) in calls.into_iter().enumerate() {
            let finished = call.await.unwrap();
            let is_paid = fixture.paid().contains(&format!("key-{number}"));
            match fixture.status(fences[number]).await {
                Status::Completed => {
                    assert_eq!(finished.unwrap(), APPLIED);
                    assert!(is_paid, "{statement}: {number} is completed and not paid");
                    assert_ne!(number, at, "{statement}");
                }
                Status::InProgress => {
                    is_rolled_back(&finished);
                    assert!(!is_paid, "{statement}: {number} is paid and not completed");
                }
                other => panic!("{other:?}"),
            }
        }
        // The store still works.
        let fence = granted(&fixture.store, "after").await;
        assert_eq!(finish(fixture.pay("after"), fence).await.unwrap(), APPLIED);
    }
}

/// The authorizer denies such statements. If the application removes the authorizer, the commit
/// is refused: rows without their completion would be permanent.
#[tokio::test]
async fn work_that_bypasses_the_authorizer_cannot_commit() {
    let fixture = Fixture::new().await;
    for (key, statements) in [
        // Outside of a transaction, every statement would commit by itself.
        ("a", "INSERT INTO payments VALUES ('a')"),
        ("b", "COMMIT"),
        ("c", "COMMIT; BEGIN"),
        ("d", "ROLLBACK; BEGIN"),
    ] {
        let fence = granted(&fixture.store, key).await;
        let work = fixture.pay_and(key, move |connection| {
            connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
            let _ = connection.execute_batch(statements);
            let _ = insert(connection, "afterwards");
            Ok(created())
        });
        is_rolled_back(&finish(work, fence).await);
        assert_eq!(
            fixture.status(fence).await,
            Status::InProgress,
            "{statements}"
        );
        assert_eq!(fixture.paid(), BTreeSet::new(), "{statements}");
    }
}

/// The writer would otherwise wait for its own end.
#[tokio::test]
async fn work_may_hold_the_last_clone_of_the_store() {
    let fixture = Fixture::new().await;
    let fence = granted(&fixture.store, "a").await;
    let held = fixture.store.clone();
    let work = fixture.pay_and("a", move |_| {
        drop(held);
        Ok(created())
    });
    let Fixture {
        store,
        path,
        _directory,
    } = fixture;
    // Held up, so that the work's own clone is the last when it runs.
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut finishing = Box::new(work).finish(fence, Box::new(conclude));
    assert!(is_waiting(finishing.as_mut()).await);
    drop(store);
    holder.execute_batch("ROLLBACK").unwrap();
    assert_eq!(finishing.await.unwrap(), APPLIED);
    let store = Sqlite::open(&path).await.unwrap();
    let record = store.find(fence.id).await.unwrap().unwrap();
    assert_eq!(record.state.status(), Status::Completed);
}
