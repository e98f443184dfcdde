//! What the holder of an attempt says. Each is one guarded statement; where it finds no row,
//! the record tells why.

use std::time::Duration;

use rusqlite::{OptionalExtension as _, Statement, params};
use semel_core::history::{EXECUTOR, Note, What};
use semel_core::transition::{self, Completion, Fenced, Held};
use semel_core::{Code, Event, Fence, RecoveryPoint, Resource, Timestamp, headers};

use crate::error::Failure;
use crate::queries::Statements;
use crate::writer::Command;
use crate::{history, row};

/// How it ended.
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
    /// Does it. What is to be told of a refusal is left to the caller, who may have to take back
    /// other things first.
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
                let late = history::line(*fence, What::CompletedLate, EXECUTOR, None, now);
                history::append(sql, fence.id, late)?;
                return Ok((Held::Applied, None));
            }
            None => {}
        }
        // The same write again, or a write that comes too late: the pure function knows.
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        let event = Event::Complete(*fence, self.1.clone());
        let refused = record
            .as_ref()
            .and_then(|record| semel_core::history::fenced(record, &event, now));
        match transition::complete(record, *fence, self.1.clone(), now).answer {
            Held::Applied => Err(one_rule_only(*fence)),
            Held::Repeated => Ok((Held::Repeated, None)),
            held @ Held::Fenced(_) => Ok((held, refused)),
        }
    }
}

/// Nothing happened.
pub(crate) struct Release(pub(crate) Fence, pub(crate) Code);

impl Command for Release {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code) = self;
        let refused = || Event::Release(*fence, code.clone());
        hand_back(sql, *fence, code, refused, now)
    }
}

/// Nothing happened, and nothing is to be remembered.
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
        // What a later attempt cannot make forgotten, it hands back.
        let refused = || Event::Evict(*fence, code.clone());
        hand_back(sql, *fence, code, refused, now)
    }
}

/// It may have happened, and may have created this.
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
            let lost = history::line(*fence, What::Unknown, EXECUTOR, Some(code.clone()), now);
            history::append(sql, fence.id, lost)?;
            return Ok(Held::Applied);
        }
        let refused = Event::MarkUnknown(*fence, code.clone(), resource.clone());
        fenced(sql, *fence, &refused, now)
    }
}

/// The owner is alive.
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

/// A phase committed.
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
    /// Does it. What is to be told of a refusal is left to the caller, as by [`Complete::attempt`].
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

/// Runs a statement that leaves a record at `fence` somewhere else, and says why.
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

/// Frees a record for another attempt.
fn hand_back(
    sql: &mut Statements<'_>,
    fence: Fence,
    code: &Code,
    refused: impl FnOnce() -> Event,
    now: Timestamp,
) -> Result<Held, Failure> {
    if with_reason(&mut sql.release, fence, code, now)? == 1 {
        let released = history::line(fence, What::Released, EXECUTOR, Some(code.clone()), now);
        history::append(sql, fence.id, released)?;
        return Ok(Held::Applied);
    }
    fenced(sql, fence, &refused(), now)
}

/// What a holder is told whose fence no row had.
fn fenced(
    sql: &mut Statements<'_>,
    fence: Fence,
    event: &Event,
    now: Timestamp,
) -> Result<Held, Failure> {
    let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
    history::refuse(sql, record.as_ref(), event, now)?;
    Ok(Held::Fenced(Fenced::by(record.as_ref())))
}

/// A statement refused what the pure function allows. Nobody may build on either.
pub(crate) fn one_rule_only(fence: Fence) -> Failure {
    let Fence { id, attempt } = fence;
    Failure::Corrupt(format!("attempt {attempt} of {id} is allowed by one rule only").into())
}
