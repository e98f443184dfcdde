//! What happens out of band, in bounded batches.

use rusqlite::{Statement, params};
use semel_core::store::MAX_BATCH;
use semel_core::transition::{self, Completion, Resolution, Resolve, Verdict};
use semel_core::{Backoff, Code, Fence, OperationId, Record, Resource, State, Timestamp, headers};

use crate::error::Failure;
use crate::holder::{one_rule_only, with_reason};
use crate::queries::Statements;
use crate::row;
use crate::writer::Command;

/// Leases that are over become unknowns.
pub(crate) struct Sweep(pub(crate) usize);

impl Command for Sweep {
    type Answer = Vec<Fence>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Fence>, Failure> {
        let mut rows = sql.sweep.query([now.as_micros(), bounded(self.0)])?;
        let mut swept = Vec::new();
        while let Some(row) = rows.next()? {
            swept.push(row::fence(row)?);
        }
        Ok(swept)
    }
}

/// Due unknowns are handed to one worker.
pub(crate) struct ClaimDue {
    pub(crate) operation: Option<Box<str>>,
    pub(crate) backoff: Backoff,
    pub(crate) limit: usize,
}

impl Command for ClaimDue {
    type Answer = Vec<Record>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Record>, Failure> {
        let Self {
            operation,
            backoff,
            limit,
        } = self;
        let mut claimed = Vec::new();
        {
            let mut rows =
                sql.claim_due
                    .query(params![now.as_micros(), operation, bounded(*limit)])?;
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
        let Self(Resolve { fence, verdict, by }) = self;
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
                    by,
                ])?
            }
            Verdict::NotExecuted(code) => sql.resolve_not_executed.execute(params![
                id,
                attempt,
                code.as_str(),
                now_micros,
                by
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
        if changed == 1 {
            return Ok(Resolution::Applied);
        }
        let record = row::find(&mut sql.find, &id)?;
        match transition::resolve(record, self.0.clone(), now).answer {
            Resolution::Applied => Err(one_rule_only(*fence)),
            refused @ Resolution::Fenced(_) => Ok(refused),
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

/// A person's data is removed.
pub(crate) struct Erase(pub(crate) OperationId);

impl Command for Erase {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<bool, Failure> {
        Ok(sql
            .erase
            .execute(params![self.0.as_bytes(), now.as_micros()])?
            == 1)
    }
}

fn batch(statement: &mut Statement<'_>, limit: usize, now: Timestamp) -> Result<usize, Failure> {
    Ok(statement.execute([now.as_micros(), bounded(limit)])?)
}

fn bounded(limit: usize) -> i64 {
    i64::try_from(limit.min(MAX_BATCH)).unwrap_or(i64::MAX)
}
