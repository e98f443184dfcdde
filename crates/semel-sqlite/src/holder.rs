//! The writes of an attempt's holder. Each is one guarded statement; where it finds no row, the record
//! shows why.

use std::time::Duration;

use rusqlite::{OptionalExtension as _, Statement, params};
use semel_core::history::{EXECUTOR, EntryKind, Note};
use semel_core::transition::{self, Completion, Fenced, Held};
use semel_core::{Code, Event, Fence, RecoveryPoint, Resource, Timestamp, headers};

use crate::error::Failure;
use crate::queries::Statements;
use crate::writer::Command;
use crate::{history, row};

/// Writes the outcome.
pub(crate) struct Complete(pub(crate) Fence, pub(crate) Completion);

impl Command for Complete {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let (held, refused) = self.attempt(sql, now)?;
        if let Some(note) = refused {
            history::append(sql, self.0.id, note)?;
        }
        Ok(held)
    }
}

impl Complete {
    /// Writes the outcome. Returns the history entry of a refusal to the caller, who may have to roll
    /// back other writes first.
    pub(crate) fn attempt(
        &self,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> Result<(Held, Option<Note>), Failure> {
        let Self(fence, Completion { response, resource }) = self;
        let was_unknown = sql
            .complete
            .query_row(
                params![
                    fence.id.as_bytes(),
                    fence.attempt,
                    response.status,
                    &headers::encode(&response.headers)[..],
                    response.body.as_deref(),
                    response.schema_version,
                    resource.as_ref().map(|Resource { kind, .. }| kind),
                    resource.as_ref().map(|Resource { id, .. }| id),
                    now.as_micros(),
                ],
                |row| row.get::<_, bool>(0),
            )
            .optional()?;
        match was_unknown {
            Some(false) => return Ok((Held::Applied, None)),
            Some(true) => {
                let late = history::note(*fence, EntryKind::CompletedLate, EXECUTOR, None, now);
                history::append(sql, fence.id, late)?;
                return Ok((Held::Applied, None));
            }
            None => {}
        }
        // A repeated write, or one that comes too late: the pure function decides.
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        let event = Event::Complete(*fence, self.1.clone());
        let refused = record
            .as_ref()
            .and_then(|record| semel_core::history::fenced(record, &event, now));
        match transition::complete(record, *fence, self.1.clone(), now).answer {
            Held::Applied => Err(disagreement(*fence)),
            Held::Repeated => Ok((Held::Repeated, None)),
            held @ Held::Fenced(_) => Ok((held, refused)),
        }
    }
}

/// The attempt had no effect.
pub(crate) struct Release(pub(crate) Fence, pub(crate) Code);

impl Command for Release {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code) = self;
        let refused = || Event::Release(*fence, code.clone());
        release(sql, *fence, code, refused, now)
    }
}

/// The attempt had no effect, and its record is to be deleted.
pub(crate) struct Evict(pub(crate) Fence, pub(crate) Code);

impl Command for Evict {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code) = self;
        if sql
            .evict
            .execute(params![fence.id.as_bytes(), fence.attempt])?
            == 1
        {
            return Ok(Held::Applied);
        }
        // A later attempt, or a late owner, cannot evict the record: it releases it.
        let refused = || Event::Evict(*fence, code.clone());
        release(sql, *fence, code, refused, now)
    }
}

/// The attempt may have had an effect, and may have created this resource.
pub(crate) struct MarkUnknown(
    pub(crate) Fence,
    pub(crate) Code,
    pub(crate) Option<Resource>,
);

impl Command for MarkUnknown {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code, resource) = self;
        let changed = sql.mark_unknown.execute(params![
            fence.id.as_bytes(),
            fence.attempt,
            code.as_str(),
            now.as_micros(),
            resource.as_ref().map(|Resource { kind, .. }| kind),
            resource.as_ref().map(|Resource { id, .. }| id),
        ])?;
        if changed == 1 {
            let lost = history::note(
                *fence,
                EntryKind::Unknown,
                EXECUTOR,
                Some(code.clone()),
                now,
            );
            history::append(sql, fence.id, lost)?;
            return Ok(Held::Applied);
        }
        let refused = Event::MarkUnknown(*fence, code.clone(), resource.clone());
        fenced(sql, *fence, &refused, now)
    }
}

/// Renews the lease.
pub(crate) struct Heartbeat(pub(crate) Fence, pub(crate) Duration);

impl Command for Heartbeat {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, lease) = self;
        let changed = sql.heartbeat.execute(params![
            fence.id.as_bytes(),
            fence.attempt,
            now.saturating_add(*lease).as_micros(),
            now.as_micros()
        ])?;
        if changed == 1 {
            return Ok(Held::Applied);
        }
        fenced(sql, *fence, &Event::Heartbeat(*fence, *lease), now)
    }
}

/// A phase committed, and left this recovery point.
pub(crate) struct Advance(pub(crate) Fence, pub(crate) RecoveryPoint);

impl Command for Advance {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let (held, refused) = self.attempt(sql, now)?;
        if let Some(note) = refused {
            history::append(sql, self.0.id, note)?;
        }
        Ok(held)
    }
}

impl Advance {
    /// Writes the recovery point. Returns the history entry of a refusal, as [`Complete::attempt`].
    pub(crate) fn attempt(
        &self,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> Result<(Held, Option<Note>), Failure> {
        let Self(fence, RecoveryPoint { name, data }) = self;
        let changed = sql.advance.execute(params![
            fence.id.as_bytes(),
            fence.attempt,
            name,
            &data[..],
            now.as_micros()
        ])?;
        if changed == 1 {
            return Ok((Held::Applied, None));
        }
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        let event = Event::Advance(*fence, self.1.clone());
        let refused = record
            .as_ref()
            .and_then(|record| semel_core::history::fenced(record, &event, now));
        Ok((Held::Fenced(Fenced::by(record.as_ref())), refused))
    }
}

/// Runs a statement that changes the status of the record at `fence`, with a reason.
pub(crate) fn with_reason(
    statement: &mut Statement<'_>,
    fence: Fence,
    code: &Code,
    now: Timestamp,
) -> Result<usize, Failure> {
    Ok(statement.execute(params![
        fence.id.as_bytes(),
        fence.attempt,
        code.as_str(),
        now.as_micros()
    ])?)
}

/// Releases a record for another attempt.
fn release(
    sql: &mut Statements<'_>,
    fence: Fence,
    code: &Code,
    refused: impl FnOnce() -> Event,
    now: Timestamp,
) -> Result<Held, Failure> {
    if with_reason(&mut sql.release, fence, code, now)? == 1 {
        let released = history::note(
            fence,
            EntryKind::Released,
            EXECUTOR,
            Some(code.clone()),
            now,
        );
        history::append(sql, fence.id, released)?;
        return Ok(Held::Applied);
    }
    fenced(sql, fence, &refused(), now)
}

/// Answers a holder whose fence matched no row.
fn fenced(
    sql: &mut Statements<'_>,
    fence: Fence,
    event: &Event,
    now: Timestamp,
) -> Result<Held, Failure> {
    let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
    history::record_refusal(sql, record.as_ref(), event, now)?;
    Ok(Held::Fenced(Fenced::by(record.as_ref())))
}

/// The statement refused what the pure function allows.
pub(crate) fn disagreement(fence: Fence) -> Failure {
    let Fence { id, attempt } = fence;
    Failure::Corrupt(
        format!(
            "attempt {attempt} of {id} is allowed by the state machine, but not by the statement"
        )
        .into(),
    )
}
