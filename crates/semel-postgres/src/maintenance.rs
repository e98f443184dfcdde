//! Background jobs and verdicts: guarded statements, over a bounded batch where there are many rows.
//! They skip rows that another worker has locked.

use std::time::Duration;

use semel_core::history::{cut_evidence, cut_reason};
use semel_core::store::{MAX_BATCH, OperationFilter};
use semel_core::time::micros;
use semel_core::transition::{self, Completion, Resolution, Resolve, Verdict};
use semel_core::{
    Actor, Backoff, Code, Fence, OperationId, Owner, Record, State, Timestamp, headers,
};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::holder;
use crate::row::{self, uuid};
use crate::time::Time;

/// Marks records whose lease expired as unknown.
pub(crate) struct Sweep(pub(crate) usize);

impl Command for Sweep {
    type Answer = Vec<Fence>;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Vec<Fence>, Failure> {
        let parameters: [&(dyn ToSql + Sync); 2] = [&time.given(), &bounded(self.0)];
        let rows = session
            .client
            .query(&session.sql.sweep, &parameters)
            .await?;
        rows.iter().map(row::fence).collect()
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
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Vec<Record>, Failure> {
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &time.given(),
            &&*self.operation,
            &self.owner.as_str(),
            &micros(self.lease),
            &bounded(self.limit),
        ];
        let rows = session
            .client
            .query(&session.sql.claim_abandoned, &parameters)
            .await?;
        rows.iter().map(row::record).collect()
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
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Vec<Record>, Failure> {
        let Session { client, sql, .. } = session;
        let transaction = client.transaction().await?;
        let now = time.ask(&transaction, &sql.now).await?;
        let (only, others): (Option<&str>, Vec<&str>) = match &self.which {
            OperationFilter::All => (None, Vec::new()),
            OperationFilter::Only(operation) => (Some(operation), Vec::new()),
            OperationFilter::AllBut(others) => {
                (None, others.iter().map(|other| &**other).collect())
            }
        };
        let rows = transaction
            .query(
                &sql.claim_due,
                &[&now, &only, &others, &bounded(self.limit)],
            )
            .await?;
        let now = Timestamp::from_micros(now);
        let mut claimed = Claimed::default();
        for row in &rows {
            claimed.add(row::record(row)?, self.backoff, now)?;
        }
        transaction
            .execute(
                &sql.schedule_claimed,
                &[
                    &now.as_micros(),
                    &claimed.ids,
                    &claimed.next,
                    &claimed.tries,
                ],
            )
            .await?;
        transaction.commit().await?;
        Ok(claimed.records)
    }
}

#[derive(Default)]
struct Claimed {
    records: Vec<Record>,
    ids: Vec<Uuid>,
    next: Vec<i64>,
    tries: Vec<i64>,
}

impl Claimed {
    /// Schedules the next reconciliation. The pure function computes the delay from the record.
    fn add(&mut self, record: Record, backoff: Backoff, now: Timestamp) -> Result<(), Failure> {
        let fence = record.fence();
        let after = transition::claim_due(Some(record), backoff, now).record;
        let Some(record) = after else {
            return Err(disagreement(fence));
        };
        let State::Unknown(unresolved) = &record.state else {
            return Err(disagreement(fence));
        };
        self.ids.push(uuid(fence.id));
        self.next.push(unresolved.reconcile_after.as_micros());
        self.tries.push(unresolved.reconcile_attempts.into());
        self.records.push(record);
        Ok(())
    }
}

/// Applies a verdict to an unknown record.
pub(crate) struct ApplyVerdict(pub(crate) Resolve);

impl Command for ApplyVerdict {
    type Answer = Resolution;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Resolution, Failure> {
        let Self(Resolve {
            fence,
            verdict,
            by,
            evidence,
        }) = self;
        let (now, id, attempt) = (time.given(), uuid(fence.id), i64::from(fence.attempt));
        let (client, sql) = (&session.client, &session.sql);
        let (by, why) = actor(by);
        let evidence = evidence.as_deref().map(cut_evidence);
        let rows = match verdict {
            Verdict::Completed(Completion { response, resource }) => {
                let kind = resource.as_ref().map(|resource| &*resource.kind);
                let resource = resource.as_ref().map(|resource| &*resource.id);
                let lines = headers::encode(&response.headers);
                client
                    .query(
                        &sql.resolve_completed,
                        &[
                            &now,
                            &id,
                            &attempt,
                            &i32::from(response.status),
                            &&lines[..],
                            &response.body.as_deref(),
                            &i32::from(response.schema_version),
                            &kind,
                            &resource,
                            &by,
                            &why,
                            &evidence,
                        ],
                    )
                    .await?
            }
            Verdict::NotExecuted(code) => {
                let statement = &sql.resolve_not_executed;
                client
                    .query(
                        statement,
                        &[&now, &id, &attempt, &code.as_str(), &by, &why, &evidence],
                    )
                    .await?
            }
            Verdict::StillUnknown(code, after) => {
                let statement = &sql.resolve_still_unknown;
                let after = after.as_micros();
                client
                    .query(
                        statement,
                        &[
                            &now,
                            &id,
                            &attempt,
                            &code.as_str(),
                            &after,
                            &by,
                            &why,
                            &evidence,
                        ],
                    )
                    .await?
            }
        };
        if !rows.is_empty() {
            return Ok(Resolution::Applied);
        }
        let record = holder::find(session, [fence.id].into_iter()).await?;
        let record = record.into_values().next();
        let now = Timestamp::from_micros(0);
        match transition::resolve(record, self.0.clone(), now).answer {
            // The record became unknown in between: a retry succeeds.
            Resolution::Applied => Err(Failure::Contended),
            refused @ Resolution::Fenced(_) => Ok(refused),
        }
    }
}

/// Dead-letters an unknown record.
pub(crate) struct DeadLetter(pub(crate) Fence, pub(crate) Code);

impl Command for DeadLetter {
    type Answer = Resolution;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Resolution, Failure> {
        let Self(fence, code) = self;
        let rows = session
            .client
            .query(
                &session.sql.dead_letter,
                &[
                    &time.given(),
                    &uuid(fence.id),
                    &i64::from(fence.attempt),
                    &code.as_str(),
                ],
            )
            .await?;
        if !rows.is_empty() {
            return Ok(Resolution::Applied);
        }
        // Dead-lettered before, or another attempt is current.
        let record = holder::find(session, [fence.id].into_iter()).await?;
        let record = record.into_values().next();
        let now = Timestamp::from_micros(0);
        Ok(transition::dead_letter(record, *fence, code.clone(), now).answer)
    }
}

/// Ends replay windows.
pub(crate) struct Expire(pub(crate) usize);

impl Command for Expire {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<usize, Failure> {
        batch(session, &session.sql.expire, self.0, time).await
    }
}

/// Removes bodies whose retention ended.
pub(crate) struct DropBodies(pub(crate) usize);

impl Command for DropBodies {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<usize, Failure> {
        batch(session, &session.sql.drop_bodies, self.0, time).await
    }
}

/// Deletes tombstones whose retention ended.
pub(crate) struct Purge(pub(crate) usize);

impl Command for Purge {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<usize, Failure> {
        batch(session, &session.sql.purge, self.0, time).await
    }
}

/// Erases a person's data. Returns the new erasure epoch.
pub(crate) struct Erase(pub(crate) OperationId, pub(crate) Actor);

impl Command for Erase {
    type Answer = Option<i64>;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Self::Answer, Failure> {
        let Self(id, by) = self;
        let (by, why) = actor(by);
        let row = session
            .client
            .query_opt(&session.sql.erase, &[&time.given(), &uuid(*id), &by, &why])
            .await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }
}

/// Records that a person is about to see a stored response. Returns whether the record is completed.
pub(crate) struct AuditReveal(pub(crate) OperationId, pub(crate) Actor);

impl Command for AuditReveal {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<bool, Failure> {
        let Self(id, by) = self;
        let (by, why) = actor(by);
        let parameters: [&(dyn ToSql + Sync); 4] = [&time.given(), &uuid(*id), &by, &why];
        let recorded = session
            .client
            .query(&session.sql.audit_reveal, &parameters)
            .await?;
        Ok(!recorded.is_empty())
    }
}

/// Asks for a notification when an attempt ends.
pub(crate) struct Watch(pub(crate) Fence);

impl Command for Watch {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<(), Failure> {
        let Self(Fence { id, attempt }) = self;
        let parameters: [&(dyn ToSql + Sync); 2] = [&uuid(*id), &i64::from(*attempt)];
        session
            .client
            .execute(&session.sql.watch, &parameters)
            .await?;
        Ok(())
    }
}

pub(crate) async fn batch(
    session: &Session,
    statement: &Statement,
    limit: usize,
    time: &Time,
) -> Result<usize, Failure> {
    let parameters: [&(dyn ToSql + Sync); 2] = [&time.given(), &bounded(limit)];
    Ok(session.client.query(statement, &parameters).await?.len())
}

pub(crate) fn bounded(limit: usize) -> i64 {
    i64::try_from(limit.min(MAX_BATCH)).unwrap_or(i64::MAX)
}

/// Actor and reason, as the history stores them.
fn actor(by: &Actor) -> (&str, Option<&str>) {
    let why = by.why.as_deref();
    (&by.who, why.map(cut_reason))
}

/// The statement chose a record that the pure function refuses.
fn disagreement(fence: Fence) -> Failure {
    let Fence { id, attempt } = fence;
    Failure::Corrupt(
        format!("attempt {attempt} of {id} is due by the statement, but not by the state machine")
            .into(),
    )
}
