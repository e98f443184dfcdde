//! Reservations: clients ask to execute.
//!
//! Most requests have a new key: one statement inserts a batch of them. For the others the pure function
//! decides by the record. Where that may be granted, a statement with guards decides: the database
//! compares the fingerprint, the status and the time.

mod columns;

use std::collections::HashMap;
use std::sync::Arc;

use semel_core::identity::IdentityHash;
use semel_core::store::Result;
use semel_core::transition::{self, Decision, Grant, InProgress, Unknown};
use semel_core::{Fence, OperationId, Record, Reserve, State, Timestamp};
use tokio::sync::oneshot;
use tokio_postgres::{Row, error::SqlState};
use uuid::Uuid;

use self::columns::{Columns, first_of_each_key, hashes};
use crate::connection::Session;
use crate::connection_worker::Workload;
use crate::error::{Failure, unavailable};
use crate::row;
use crate::time::Time;

/// Where the columns of the record begin in a row of `reserve.sql`.
const RECORD: usize = 4;

/// The same in a row of `reserve_existing.sql`, after the hash and the time.
const RECORD_UNDER_HASH: usize = 2;

/// How many of the parameters of `reserve.sql` `reserve_new.sql` has: all that a new record has.
const PARAMETERS_OF_NEW: usize = 16;

/// How often a locked row is tried again before its lock is taken for the owner's, who is about to
/// write the outcome: other requests lock a row for a few milliseconds.
const LOCKED_TRIES: u32 = 12;

/// A request that waits for its answer.
pub(crate) struct Reservation {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Arc<Reserve>,
    pub(crate) reply: oneshot::Sender<Result<Decision>>,
    pub(crate) tries: u32,
}

/// The workload of the workers that reserve.
pub(crate) struct Reservations;

impl Workload for Reservations {
    type Call = Reservation;

    /// Enough to make the commit cheap, and few enough that the first call does not wait for the
    /// last.
    const MAX_BATCH: usize = 256;

    /// All of them, in the order in which every statement takes its locks.
    fn batch(waiting: &mut Vec<Reservation>) -> Vec<Reservation> {
        waiting.sort_unstable_by_key(|call| call.hash.0);
        std::mem::take(waiting)
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Reservation>,
    ) -> std::result::Result<(), Failure> {
        insert_new(session, time, batch).await?;
        if batch.is_empty() {
            return Ok(());
        }
        let answers = read_existing(session, time, batch).await?;
        answer_decided(batch, answers);
        if batch.is_empty() {
            return Ok(());
        }
        let answers = change_existing(session, time, batch).await?;
        session.check_replicated()?;
        answer_decided(batch, answers);
        Ok(())
    }

    fn tries(call: &mut Reservation) -> &mut u32 {
        &mut call.tries
    }

    fn fail(call: Reservation, failure: Failure) {
        // The caller may have been dropped.
        let _ = call.reply.send(Err(failure.of_write()));
    }

    fn refuse(call: Reservation, reason: &str) {
        let _ = call.reply.send(Err(unavailable(reason, None)));
    }
}

/// The workload of the worker that reads the records of keys seen lately: a retry does not wait for the
/// commits of new keys. It drops a call that is not decided by that, and the caller reserves.
pub(crate) struct Lookups;

impl Workload for Lookups {
    type Call = Reservation;

    /// As for reservations.
    const MAX_BATCH: usize = Reservations::MAX_BATCH;

    fn batch(waiting: &mut Vec<Reservation>) -> Vec<Reservation> {
        std::mem::take(waiting)
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Reservation>,
    ) -> std::result::Result<(), Failure> {
        let answers = read_existing(session, time, batch).await?;
        for (call, answer) in batch.drain(..).zip(answers) {
            if let Some(Answer::Decided(decision)) = answer {
                // The caller may have been dropped.
                let _ = call.reply.send(Ok(decision));
            }
        }
        Ok(())
    }

    fn tries(call: &mut Reservation) -> &mut u32 {
        &mut call.tries
    }

    /// Nothing was written: another connection may answer.
    fn fail(_: Reservation, _: Failure) {}

    fn refuse(call: Reservation, reason: &str) {
        Reservations::refuse(call, reason);
    }
}

/// What the statement decided for a request.
enum Answer {
    Decided(Decision),
    /// The identity in the row is not the request's.
    Collided,
    /// Another request was faster, or the row is locked: to be retried. The expired lease, where
    /// there is one.
    Retry(Option<InProgress>),
}

/// Inserts the records of new keys, and answers their requests. The others stay in the batch.
async fn insert_new(
    session: &Session,
    time: &Time,
    batch: &mut Vec<Reservation>,
) -> std::result::Result<(), Failure> {
    let sent = time.sending();
    let columns = Columns::of(first_of_each_key(batch), time);
    let inserted = session
        .client
        .query(
            &session.sql.reserve_new,
            &columns.parameters()[..PARAMETERS_OF_NEW],
        )
        .await;
    let rows = match inserted {
        // Another connection inserted one of the keys in the same instant: nothing is inserted here.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(()),
        inserted => inserted?,
    };
    let mut begun = HashMap::with_capacity(rows.len());
    for row in &rows {
        let now: i64 = row.try_get(1)?;
        time.heard(sent, now);
        begun.insert(row::id(row)?, Timestamp::from_micros(now));
    }
    session.check_replicated()?;
    for call in std::mem::take(batch) {
        match begun.get(&call.request.id) {
            Some(now) => {
                let decision = first_attempt(&call.request, *now);
                // The caller may have been dropped.
                let _ = call.reply.send(Ok(decision));
            }
            None => batch.push(call),
        }
    }
    Ok(())
}

/// Decides by the records that exist, without changing them.
async fn read_existing(
    session: &Session,
    time: &Time,
    batch: &[Reservation],
) -> std::result::Result<Vec<Option<Answer>>, Failure> {
    let sent = time.sending();
    let hashes = hashes(batch);
    let rows = session
        .client
        .query(&session.sql.reserve_existing, &[&time.given(), &hashes])
        .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let now: i64 = row.try_get(1)?;
        time.heard(sent, now);
        let hash: Uuid = row.try_get(0)?;
        found.insert(hash, (row, Timestamp::from_micros(now)));
    }
    let answers = batch.iter().zip(hashes).map(|(call, hash)| {
        let Some((row, now)) = found.get(&hash) else {
            return Ok(None);
        };
        let record = row::record_from(row, RECORD_UNDER_HASH)?;
        Ok(Some(decide(record, &call.request, *now)))
    });
    answers.collect()
}

/// Changes the records that may be granted.
async fn change_existing(
    session: &Session,
    time: &Time,
    batch: &[Reservation],
) -> std::result::Result<Vec<Option<Answer>>, Failure> {
    let sent = time.sending();
    let columns = Columns::of(batch.iter(), time);
    let rows = session
        .client
        .query(&session.sql.reserve, &columns.parameters())
        .await?;
    let mut answers: Vec<Option<Answer>> = Vec::new();
    answers.resize_with(batch.len(), || None);
    for row in &rows {
        let reserved = ReservedRow::read(row)?;
        time.heard(sent, reserved.now.as_micros());
        reserved.answer(row, batch, &mut answers)?;
    }
    Ok(answers)
}

/// A row of `reserve.sql`, without the record.
struct ReservedRow<'r> {
    how: &'r str,
    nth: Option<i64>,
    begun: Option<Uuid>,
    now: Timestamp,
}

impl<'r> ReservedRow<'r> {
    fn read(row: &'r Row) -> std::result::Result<Self, Failure> {
        Ok(Self {
            how: row.try_get(0)?,
            nth: row.try_get(1)?,
            begun: row.try_get(2)?,
            now: Timestamp::from_micros(row.try_get(3)?),
        })
    }

    fn answer(
        &self,
        row: &Row,
        batch: &[Reservation],
        answers: &mut [Option<Answer>],
    ) -> std::result::Result<(), Failure> {
        let at = match (self.nth, self.begun) {
            (Some(nth), _) => usize::try_from(nth - 1).ok(),
            (None, Some(id)) => {
                let id = OperationId::from_bytes(id.into_bytes());
                batch.iter().position(|call| call.request.id == id)
            }
            (None, None) => None,
        };
        let unasked =
            || Failure::Corrupt("reserve.sql answered a request that was not sent".into());
        let at = at.filter(|at| *at < batch.len()).ok_or_else(unasked)?;
        let request = &batch[at].request;
        let known = &mut answers[at];
        match self.how {
            "begun" | "anew" => *known = Some(Answer::Decided(first_attempt(request, self.now))),
            "again" => {
                let grant = grant(row::record_from(row, RECORD)?)?;
                *known = Some(Answer::Decided(Decision::Execute(grant)));
            }
            "resumed" => {
                let grant = grant(row::record_from(row, RECORD)?)?;
                *known = Some(Answer::Decided(Decision::Resume(grant)));
            }
            "lost" => {
                let unknown = lost(&row::record_from(row, RECORD)?)?;
                *known = Some(Answer::Decided(Decision::Unknown(unknown)));
            }
            // The statement also returns a row that it changed as it was before.
            "found" if known.is_none() => {
                let record = row::record_from(row, RECORD)?;
                *known = Some(decide(record, request, self.now));
            }
            "found" => {}
            other => {
                return Err(Failure::Corrupt(
                    format!("unknown answer {other:?} of reserve.sql").into(),
                ));
            }
        }
        Ok(())
    }
}

fn first_attempt(request: &Reserve, now: Timestamp) -> Decision {
    let fence = Fence {
        id: request.id,
        attempt: 1,
    };
    Decision::Execute(Grant {
        fence,
        locked_until: now.saturating_add(request.policy.lease),
        recovery: None,
    })
}

fn grant(record: Record) -> std::result::Result<Grant, Failure> {
    let fence = record.fence();
    let State::InProgress(lease) = record.state else {
        return Err(Failure::Corrupt(
            format!("operation {} was granted and is not in progress", record.id).into(),
        ));
    };
    Ok(Grant {
        fence,
        locked_until: lease.locked_until,
        recovery: record.recovery,
    })
}

/// A record that this statement made unknown.
fn lost(record: &Record) -> std::result::Result<Unknown, Failure> {
    let State::Unknown(unresolved) = &record.state else {
        return Err(Failure::Corrupt(
            format!("operation {} was lost and is not unknown", record.id).into(),
        ));
    };
    Ok(Unknown {
        id: record.id,
        reconcile_after: unresolved.reconcile_after,
        dead_lettered: false,
        lease_expired: true,
    })
}

/// Decides for a request that was granted nothing.
fn decide(record: Record, request: &Reserve, now: Timestamp) -> Answer {
    if !record.identity.names_same_record(&request.identity) {
        return Answer::Collided;
    }
    let lapsed = match &record.state {
        State::InProgress(lease) if lease.locked_until <= now => Some(InProgress {
            fence: record.fence(),
            locked_until: lease.locked_until,
        }),
        State::InProgress(_)
        | State::Completed(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    };
    match transition::reserve(Some(record), request.clone(), now).answer {
        // The statement grants these unless another request is in the way.
        Decision::Execute(_) | Decision::Resume(_) => Answer::Retry(lapsed),
        Decision::Unknown(_) if lapsed.is_some() => Answer::Retry(lapsed),
        decision @ (Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::OtherRules { .. }
        | Decision::Expired(_)) => Answer::Decided(decision),
    }
}

/// Answers the calls that are decided, and leaves the others in the batch to be retried.
fn answer_decided(batch: &mut Vec<Reservation>, answers: Vec<Option<Answer>>) {
    let calls = std::mem::take(batch);
    for (call, answer) in calls.into_iter().zip(answers) {
        let answer = match answer {
            Some(Answer::Decided(decision)) => Ok(decision),
            Some(Answer::Collided) => {
                Err(Failure::Corrupt("two identities have one hash".into()).of_write())
            }
            // The lease expired and the row is locked, most likely by its owner, who is writing the
            // outcome at this moment. That outcome decides.
            Some(Answer::Retry(Some(lapsed))) if call.tries >= LOCKED_TRIES => {
                Ok(Decision::InProgress(lapsed))
            }
            // Another request inserted between the statement's snapshot and its write.
            Some(Answer::Retry(_)) | None => {
                batch.push(call);
                continue;
            }
        };
        // The caller may have been dropped.
        let _ = call.reply.send(answer);
    }
}
