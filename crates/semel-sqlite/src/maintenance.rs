//! What happens out of band, in bounded batches.

use std::time::Duration;

use rusqlite::{Statement, params};
use semel_core::history::{COMPLETER, SWEEPER, WORKER, What};
use semel_core::store::{MAX_BATCH, Which};
use semel_core::transition::{self, Answer, Completion, Resolution, Resolve, Transition, Verdict};
use semel_core::{
    Backoff, By, Code, Event, Fence, OperationId, Owner, Record, Resource, State, Timestamp,
    headers,
};

use crate::error::Failure;
use crate::holder::{one_rule_only, with_reason};
use crate::queries::Statements;
use crate::writer::Command;
use crate::{history, row};

/// Leases that are over become unknowns.
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
            let lost = history::line(*fence, What::Unknown, SWEEPER, code, now);
            history::append(sql, fence.id, lost)?;
        }
        Ok(swept)
    }
}

/// Abandoned executions are handed to one completer.
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
    /// The next attempt, as the pure function makes it.
    fn take_over(
        &self,
        record: Record,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> Result<Record, Failure> {
        let before = record.fence();
        let after = transition::claim_abandoned(Some(record), self.owner.clone(), self.lease, now);
        let (Some(record), true) = (after.record, after.answer) else {
            return Err(one_rule_only(before));
        };
        let State::InProgress(lease) = &record.state else {
            return Err(one_rule_only(before));
        };
        sql.take_over.execute(params![
            record.id.as_bytes(),
            record.attempt,
            lease.owner.as_str(),
            lease.locked_until.as_micros(),
            now.as_micros(),
        ])?;
        let on = history::line(record.fence(), What::Resumed, COMPLETER, None, now);
        history::append(sql, record.id, on)?;
        Ok(record)
    }
}

/// Due unknowns are handed to one worker.
pub(crate) struct ClaimDue {
    pub(crate) which: Which,
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
            Which::All => (None, None),
            Which::Only(operation) => (Some(operation), None),
            Which::AllBut(others) => (None, Some(array(others))),
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

/// Schedules the next look. The delay is the pure function's: it depends on the record.
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
        return Err(one_rule_only(fence));
    };
    sql.claim.execute(params![
        fence.id.as_bytes(),
        unresolved.reconcile_after.as_micros(),
        unresolved.reconcile_attempts,
        now.as_micros(),
    ])?;
    after.ok_or_else(|| one_rule_only(fence))
}

/// A verdict on an unknown operation.
pub(crate) struct Judge(pub(crate) Resolve);

impl Command for Judge {
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
        // The statement and the pure function must agree, or nobody may build on either.
        match (changed, &after.answer) {
            (1, Answer::Resolution(Resolution::Applied)) => {
                history::tell(sql, before.as_ref(), &event, &after, now)?;
                Ok(Resolution::Applied)
            }
            (0, Answer::Resolution(refused @ Resolution::Fenced(_))) => Ok(*refused),
            (
                _,
                Answer::Resolution(_) | Answer::Decision(_) | Answer::Held(_) | Answer::Applied(_),
            ) => Err(one_rule_only(*fence)),
        }
    }
}

/// An unknown operation is set aside for a person.
pub(crate) struct DeadLetter(pub(crate) Fence, pub(crate) Code);

impl Command for DeadLetter {
    type Answer = Resolution;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Resolution, Failure> {
        let Self(fence, code) = self;
        let changed = with_reason(&mut sql.dead_letter, *fence, code, now)?;
        if changed == 1 {
            let code = Some(code.clone());
            let set_aside = history::line(*fence, What::DeadLettered, WORKER, code, now);
            history::append(sql, fence.id, set_aside)?;
            return Ok(Resolution::Applied);
        }
        // Set aside before, or not this attempt's to set aside.
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        Ok(transition::dead_letter(record, *fence, code.clone(), now).answer)
    }
}

/// Replay windows that are over end.
pub(crate) struct Expire(pub(crate) usize);

impl Command for Expire {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        // Both statements see the same batch: the first takes those that leave nothing, and
        // what then comes first is exactly the rest.
        let deleted = batch(&mut sql.expire_delete, self.0, now)?;
        let buried = batch(&mut sql.expire, self.0.min(MAX_BATCH) - deleted, now)?;
        Ok(deleted + buried)
    }
}

/// Bodies whose time is over go.
pub(crate) struct DropBodies(pub(crate) usize);

impl Command for DropBodies {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.drop_bodies, self.0, now)
    }
}

/// Tombstones whose time is over go.
pub(crate) struct Purge(pub(crate) usize);

impl Command for Purge {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.purge, self.0, now)
    }
}

/// A person's data is removed, by somebody.
pub(crate) struct Erase(pub(crate) OperationId, pub(crate) By);

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
        history::tell(sql, None, &event, &after, now)?;
        Ok(true)
    }
}

/// A person is about to be shown a stored response.
pub(crate) struct Reveal(pub(crate) OperationId, pub(crate) By);

impl Command for Reveal {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<bool, Failure> {
        let Self(id, by) = self;
        let before = row::find(&mut sql.find, &id.as_bytes())?;
        let event = Event::Reveal(by.clone());
        // The record stays as it is, so there is no statement that would decide again.
        let after = transition::apply(before.clone(), event.clone(), now);
        history::tell(sql, before.as_ref(), &event, &after, now)?;
        Ok(after.answer == Answer::Applied(true))
    }
}

/// Text that `json_each` reads as these.
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
