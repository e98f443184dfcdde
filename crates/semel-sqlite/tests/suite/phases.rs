//! A phase's rows and its recovery point commit together, or neither does; statements without an
//! operation commit together, or not at all.

use std::error::Error as _;
use std::time::Duration;

use crate::support::{File, granted, insert};
use rusqlite::Connection;
use semel_core::history::EntryKind;
use semel_core::store::Result;
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Decision, Fenced, Held};
use semel_core::{
    Completion, Error, Fence, LocalPhase, Policy, RecoveryPoint, Reserve, Response, Stale, Status,
    Store as _,
};

const APPLIED: Finished = Finished::Held(Held::Applied);

fn point(name: &str, data: impl Into<Vec<u8>>) -> RecoveryPoint {
    RecoveryPoint {
        name: name.into(),
        data: data.into().into(),
    }
}

/// A phase that adds a row and returns its name.
fn adding(file: &File, name: &'static str) -> LocalPhase<&'static str> {
    file.store.work(move |connection| {
        insert(connection, name)?;
        Ok::<_, rusqlite::Error>(name)
    })
}

/// Commits the phase at the point `name`, with its result as data.
async fn advance(
    phase: LocalPhase<&'static str>,
    fence: Fence,
    name: &'static str,
) -> Result<Finished> {
    let (transaction, found) = phase.into_parts();
    let conclude = move |answer: Option<Response>| {
        assert_eq!(answer, None, "a phase has no answer");
        let found = found()?;
        Some(TransactionWrite::Advance(point(name, found.as_bytes())))
    };
    transaction.finish(fence, Box::new(conclude)).await
}

async fn recovery(file: &File, fence: Fence) -> Option<RecoveryPoint> {
    let record = file.store.find(fence.id).await.unwrap().unwrap();
    record.recovery
}

#[tokio::test]
async fn rows_and_recovery_point_commit_together() {
    let file = File::new().await;
    let fence = granted(&file.store, "a").await;
    let path = file.path.clone();
    let phase = file.store.work(move |inside| {
        insert(inside, "first")?;
        // Other connections see nothing of it while it runs.
        let outside = Connection::open(path)?;
        let count = "SELECT count(*) FROM rows";
        let count = |of: &Connection| of.query_row(count, [], |row| row.get::<_, u32>(0));
        assert_eq!((count(&outside)?, count(inside)?), (0, 1));
        Ok::<_, rusqlite::Error>("found")
    });
    assert_eq!(advance(phase, fence, "created").await.unwrap(), APPLIED);
    assert_eq!(file.rows(), ["first"]);
    let created = point("created", "found");
    assert_eq!(recovery(&file, fence).await, Some(created));
    // A second phase commits, and the record is still in progress.
    let phase = adding(&file, "second");
    assert_eq!(advance(phase, fence, "charged").await.unwrap(), APPLIED);
    assert_eq!(file.rows(), ["first", "second"]);
    let charged = point("charged", "second");
    assert_eq!(recovery(&file, fence).await, Some(charged));
    let record = file.store.find(fence.id).await.unwrap().unwrap();
    assert_eq!(record.state.status(), Status::InProgress);
}

/// The last phase of an operation may return the data of the response.
#[tokio::test]
async fn the_result_of_a_phase_can_be_the_response() {
    let file = File::new().await;
    let fence = granted(&file.store, "a").await;
    let (transaction, found) = adding(&file, "paid").into_parts();
    let conclude = move |_: Option<Response>| {
        let completion = crate::support::completion(found()?, 4);
        Some(TransactionWrite::Complete(completion))
    };
    let finished = transaction.finish(fence, Box::new(conclude)).await.unwrap();
    assert_eq!((finished, file.rows()), (APPLIED, vec!["paid".to_owned()]));
    let answer = crate::support::completion("paid", 4);
    let again = file.store.complete(fence, answer).await.unwrap();
    assert_eq!(again, Held::Repeated);
}

#[tokio::test]
async fn a_failed_phase_leaves_neither_rows_nor_point() {
    let file = File::new().await;
    let fence = granted(&file.store, "a").await;
    let failing = |fail: fn(&Connection) -> rusqlite::Result<()>| {
        file.store.work(move |connection| {
            insert(connection, "half")?;
            fail(connection).map(|()| "found")
        })
    };
    for phase in [
        failing(|_| Err(rusqlite::Error::InvalidQuery)),
        failing(|_| panic!("on purpose")),
    ] {
        let finished = advance(phase, fence, "created").await;
        assert!(matches!(finished, Err(Error::Unavailable { .. })));
    }
    // The caller writes no outcome.
    let (transaction, _) = adding(&file, "half").into_parts();
    let finished = transaction.finish(fence, Box::new(|_| None)).await.unwrap();
    assert_eq!(finished, Finished::RolledBack);
    assert_eq!(file.rows(), [""; 0]);
    assert_eq!(recovery(&file, fence).await, None);
    // The failures do not affect the next phase.
    let phase = adding(&file, "whole");
    assert_eq!(advance(phase, fence, "created").await.unwrap(), APPLIED);
    assert_eq!(file.rows(), ["whole"]);
}

fn resumable(key: &str) -> Reserve {
    let policy = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..Policy::default()
    };
    Reserve {
        policy,
        ..crate::support::request(key)
    }
}

/// A replaced attempt writes neither rows nor a recovery point. The history records the refusal.
#[tokio::test]
async fn a_phase_of_a_replaced_attempt_leaves_neither_rows_nor_point() {
    let file = File::new().await;
    let decision = file.store.reserve(resumable("a")).await.unwrap();
    let Decision::Execute(grant) = decision else {
        panic!("{decision:?}");
    };
    let first = grant.fence;
    assert_eq!(
        advance(adding(&file, "first"), first, "created")
            .await
            .unwrap(),
        APPLIED
    );
    file.clock.advance(Policy::default().lease);
    let claimed =
        file.store
            .claim_abandoned("create_payment", "completer".into(), Duration::MAX, 10);
    let claimed = claimed.await.unwrap();
    let second = claimed[0].fence();
    assert_eq!(
        second,
        Fence {
            attempt: 2,
            ..first
        }
    );

    let fenced = Finished::Held(Held::Fenced(Fenced {
        found: Some((Status::InProgress, 2)),
    }));
    let late = advance(adding(&file, "late"), first, "charged").await;
    assert_eq!(late.unwrap(), fenced);
    assert_eq!(file.rows(), ["first"]);
    let created = point("created", "first");
    assert_eq!(recovery(&file, first).await, Some(created));
    let next = advance(adding(&file, "second"), second, "charged").await;
    assert_eq!(next.unwrap(), APPLIED);
    assert_eq!(file.rows(), ["first", "second"]);

    let record = file.store.find(first.id).await.unwrap().unwrap();
    let entries = file.store.history(first.id).await.unwrap();
    assert_eq!(semel_core::history::verify(&record, &entries), Ok(()));
    let kinds: Vec<_> = entries.iter().map(|entry| entry.note.what).collect();
    assert_eq!(kinds, [EntryKind::Resumed, EntryKind::Fenced]);
}

/// A completed record accepts no recovery point.
#[tokio::test]
async fn a_phase_after_completion_leaves_neither_rows_nor_point() {
    let file = File::new().await;
    let fence = granted(&file.store, "a").await;
    let end = Completion {
        resource: None,
        ..crate::support::completion("x", 1)
    };
    file.store.complete(fence, end).await.unwrap();
    let fenced = Finished::Held(Held::Fenced(Fenced {
        found: Some((Status::Completed, 1)),
    }));
    let late = advance(adding(&file, "late"), fence, "charged").await;
    assert_eq!(late.unwrap(), fenced);
    assert_eq!(file.rows(), [""; 0]);
    assert_eq!(recovery(&file, fence).await, None);
}

/// The application's own error.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{cents} cents are missing")]
struct Declined {
    cents: u32,
}

#[tokio::test]
async fn statements_without_an_operation_commit_together() {
    let file = File::new().await;
    let written = file.store.write(|connection| {
        insert(connection, "a")?;
        insert(connection, "b")?;
        connection.query_row("SELECT count(*) FROM rows", [], |row| row.get::<_, u32>(0))
    });
    assert_eq!(written.await.unwrap(), 2);
    assert_eq!(file.rows(), ["a", "b"]);
}

#[tokio::test]
async fn failed_statements_are_rolled_back_and_return_their_error() {
    let file = File::new().await;
    let declined = file.store.write(|connection| {
        insert(connection, "half").unwrap();
        Err::<(), _>(Declined { cents: 5 })
    });
    let error = declined.await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<Declined>());
    assert_eq!(source, Some(&Declined { cents: 5 }));

    let panicked = file.store.write(|connection| {
        insert(connection, "half").unwrap();
        let nothing: rusqlite::Result<()> = Ok(());
        assert!(nothing.is_err(), "on purpose");
        nothing
    });
    assert!(matches!(
        panicked.await.unwrap_err(),
        Error::Unavailable { .. }
    ));
    let ending = file.store.write(|connection| {
        insert(connection, "half")?;
        connection.execute_batch("COMMIT")
    });
    assert!(ending.await.is_err());
    assert_eq!(file.rows(), [""; 0]);
    let written = file.store.write(|connection| insert(connection, "whole"));
    written.await.unwrap();
    assert_eq!(file.rows(), ["whole"]);
}
