//! Background jobs, in bounded batches, and verdicts.

use std::time::Duration;

use rusqlite::{Statement, params};
use semel_core::history::{COMPLETER, EntryKind, SWEEPER, WORKER};
use semel_core::store::{MAX_BATCH, OperationFilter};
use semel_core::transition::{self, Answer, Completion, Resolution, Resolve, Transition, Verdict};
use semel_core::{
    Actor, Backoff, Code, Event, Fence, OperationId, Owner, Record, Resource, State, Timestamp,
    headers,
};

use crate::error::Failure;
use crate::holder::{disagreement, with_reason};
use crate::queries::Statements;
use crate::writer::Command;
use crate::{history, row};

/// Marks records whose lease expired as unknown.
pub(crate) struct Sweep(pub(crate) usize);

impl Command for Sweep {
    type Answer = Vec<Fence>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Fence>, Failure> {
        let mut swept = Vec::new();
        {
            let mut rows = sql.sweep.query([now.as_micros(), bounded(self.0)])?;
            while let Some(row) = rows.next()? {
                swept.push(row::fence(row)?);
            }
        }
        for fence in &swept {
            let code = Some(Code::LEASE_EXPIRED);
            let lost = history::note(*fence, EntryKind::Unknown, SWEEPER, code, now);
            history::append(sql, fence.id, lost)?;
        }
        Ok(swept)
    }
}

/// Hands resumable records whose lease expired to one completer.
pub(crate) struct ClaimAbandoned {
    pub(crate) operation: Box<str>,
    pub(crate) owner: Owner,
    pub(crate) lease: Duration,
    pub(crate) limit: usize,
}

impl Command for ClaimAbandoned {
    type Answer = Vec<Record>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Record>, Failure> {
        let mut claimed = Vec::new();
        {
            let limit = bounded(self.limit);
            let mut rows =
                sql.claim_abandoned
                    .query(params![now.as_micros(), self.operation, limit])?;
            while let Some(row) = rows.next()? {
                claimed.push(row::record(row)?);
            }
        }
        claimed
            .into_iter()
            .map(|record| self.take_over(record, sql, now))
            .collect()
    }
}

impl ClaimAbandoned {
    /// Starts the next attempt, as the pure function decides.
    fn take_over(
        &self,
        record: Record,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> Result<Record, Failure> {
        let before = record.fence();
        let after = transition::claim_abandoned(Some(record), self.owner.clone(), self.lease, now);
        let (Some(record), true) = (after.record, after.answer) else {
            return Err(disagreement(before));
        };
        let State::InProgress(lease) = &record.state else {
            return Err(disagreement(before));
        };
        sql.resume_claimed.execute(params![
            record.id.as_bytes(),
            record.attempt,
            record.owner.as_str(),
            lease.locked_until.as_micros(),
            now.as_micros(),
        ])?;
        let on = history::note(record.fence(), EntryKind::Resumed, COMPLETER, None, now);
        history::append(sql, record.id, on)?;
        Ok(record)
    }
}

/// Hands unknown records that are due to one worker.
pub(crate) struct ClaimDue {
    pub(crate) which: OperationFilter,
    pub(crate) backoff: Backoff,
    pub(crate) limit: usize,
}

impl Command for ClaimDue {
    type Answer = Vec<Record>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Record>, Failure> {
        let Self {
            which,
            backoff,
            limit,
        } = self;
        let (only, all_but) = match which {
            OperationFilter::All => (None, None),
            OperationFilter::Only(operation) => (Some(operation), None),
            OperationFilter::AllBut(others) => (None, Some(array(others))),
        };
        let mut claimed = Vec::new();
        {
            let mut rows =
                sql.claim_due
                    .query(params![now.as_micros(), only, bounded(*limit), all_but])?;
            while let Some(row) = rows.next()? {
                claimed.push(row::record(row)?);
            }
        }
        claimed
            .into_iter()
            .map(|record| claim(record, *backoff, sql, now))
            .collect()
    }
}

/// Schedules the next reconciliation. The pure function computes the delay from the record.
fn claim(
    record: Record,
    backoff: Backoff,
    sql: &mut Statements<'_>,
    now: Timestamp,
) -> Result<Record, Failure> {
    let fence = record.fence();
    let after = transition::claim_due(Some(record), backoff, now).record;
    let Some(Record {
        state: State::Unknown(unresolved),
        ..
    }) = &after
    else {
        return Err(disagreement(fence));
    };
    sql.schedule_claimed.execute(params![
        fence.id.as_bytes(),
        unresolved.reconcile_after.as_micros(),
        unresolved.reconcile_attempts,
        now.as_micros(),
    ])?;
    after.ok_or_else(|| disagreement(fence))
}

/// Applies a verdict to an unknown record.
pub(crate) struct ApplyVerdict(pub(crate) Resolve);

impl Command for ApplyVerdict {
    type Answer = Resolution;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Resolution, Failure> {
        let Self(Resolve {
            fence, verdict, by, ..
        }) = self;
        let before = row::find(&mut sql.find, &fence.id.as_bytes())?;
        let event = Event::Resolve(self.0.clone());
        let after = transition::apply(before.clone(), event.clone(), now);
        let (id, attempt, now_micros) = (fence.id.as_bytes(), fence.attempt, now.as_micros());
        let changed = match verdict {
            Verdict::Completed(Completion { response, resource }) => {
                sql.resolve_completed.execute(params![
                    id,
                    attempt,
                    response.status,
                    &headers::encode(&response.headers)[..],
                    response.body.as_deref(),
                    response.schema_version,
                    resource.as_ref().map(|Resource { kind, .. }| kind),
                    resource.as_ref().map(|Resource { id, .. }| id),
                    now_micros,
                    by.who,
                ])?
            }
            Verdict::NotExecuted(code) => sql.resolve_not_executed.execute(params![
                id,
                attempt,
                code.as_str(),
                now_micros,
                by.who
            ])?,
            Verdict::StillUnknown(code, reconcile_after) => {
                sql.resolve_still_unknown.execute(params![
                    id,
                    attempt,
                    code.as_str(),
                    reconcile_after.as_micros(),
                    now_micros
                ])?
            }
        };
        // The statement and the pure function must agree.
        match (changed, &after.answer) {
            (1, Answer::Resolution(Resolution::Applied)) => {
                history::record_transition(sql, before.as_ref(), &event, &after, now)?;
                Ok(Resolution::Applied)
            }
            (0, Answer::Resolution(refused @ Resolution::Fenced(_))) => Ok(*refused),
            (
                _,
                Answer::Resolution(_) | Answer::Decision(_) | Answer::Held(_) | Answer::Applied(_),
            ) => Err(disagreement(*fence)),
        }
    }
}

/// Dead-letters an unknown record.
pub(crate) struct DeadLetter(pub(crate) Fence, pub(crate) Code);

impl Command for DeadLetter {
    type Answer = Resolution;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Resolution, Failure> {
        let Self(fence, code) = self;
        let changed = with_reason(&mut sql.dead_letter, *fence, code, now)?;
        if changed == 1 {
            let code = Some(code.clone());
            let dead_lettered = history::note(*fence, EntryKind::DeadLettered, WORKER, code, now);
            history::append(sql, fence.id, dead_lettered)?;
            return Ok(Resolution::Applied);
        }
        // Dead-lettered before, or another attempt is current.
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        Ok(transition::dead_letter(record, *fence, code.clone(), now).answer)
    }
}

/// Ends replay windows.
pub(crate) struct Expire(pub(crate) usize);

impl Command for Expire {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        // Both statements see the same batch: the first deletes the records without a tombstone, and
        // the second finds exactly the rest.
        let deleted = batch(&mut sql.expire_delete, self.0, now)?;
        let buried = batch(&mut sql.expire, self.0.min(MAX_BATCH) - deleted, now)?;
        Ok(deleted + buried)
    }
}

/// Removes bodies whose retention ended.
pub(crate) struct DropBodies(pub(crate) usize);

impl Command for DropBodies {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.drop_bodies, self.0, now)
    }
}

/// Deletes tombstones whose retention ended.
pub(crate) struct Purge(pub(crate) usize);

impl Command for Purge {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.purge, self.0, now)
    }
}

/// Erases a person's data.
pub(crate) struct Erase(pub(crate) OperationId, pub(crate) Actor);

impl Command for Erase {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<bool, Failure> {
        let Self(id, by) = self;
        let changed = sql.erase.execute(params![id.as_bytes(), now.as_micros()])?;
        if changed == 0 {
            return Ok(false);
        }
        sql.history_erase.execute([id.as_bytes()])?;
        let event = Event::Erase(by.clone());
        let after = Transition {
            record: row::find(&mut sql.find, &id.as_bytes())?,
            answer: Answer::Applied(true),
        };
        history::record_transition(sql, None, &event, &after, now)?;
        Ok(true)
    }
}

/// Records that a person is about to see a stored response.
pub(crate) struct AuditReveal(pub(crate) OperationId, pub(crate) Actor);

impl Command for AuditReveal {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<bool, Failure> {
        let Self(id, by) = self;
        let before = row::find(&mut sql.find, &id.as_bytes())?;
        let event = Event::Reveal(by.clone());
        // The record does not change, so no statement repeats the decision.
        let after = transition::apply(before.clone(), event.clone(), now);
        history::record_transition(sql, before.as_ref(), &event, &after, now)?;
        Ok(after.answer == Answer::Applied(true))
    }
}

/// A JSON array for `json_each`.
fn array(all: &[Box<str>]) -> String {
    let all: serde_json::Value = all.iter().map(|one| &**one).collect();
    all.to_string()
}

pub(crate) fn batch(
    statement: &mut Statement<'_>,
    limit: usize,
    now: Timestamp,
) -> Result<usize, Failure> {
    Ok(statement.execute([now.as_micros(), bounded(limit)])?)
}

pub(crate) fn bounded(limit: usize) -> i64 {
    i64::try_from(limit.min(MAX_BATCH)).unwrap_or(i64::MAX)
}
