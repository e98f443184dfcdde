//! What the holder of an attempt says. Each is one guarded statement; where it finds no row,
//! the record tells why.

use std::time::Duration;

use rusqlite::{Statement, params};
use semel_core::transition::{self, Completion, Fenced, Held};
use semel_core::{Code, Fence, RecoveryPoint, Resource, Timestamp, headers};

use crate::error::Failure;
use crate::queries::Statements;
use crate::row;
use crate::writer::Command;

/// How it ended.
pub(crate) struct Complete(pub(crate) Fence, pub(crate) Completion);

impl Command for Complete {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, Completion { response, resource }) = self;
        let changed = sql.complete.execute(params![
            fence.id.as_bytes(),
            fence.attempt,
            response.status,
            &headers::encode(&response.headers)[..],
            response.body.as_deref(),
            response.schema_version,
            resource.as_ref().map(|Resource { kind, .. }| kind),
            resource.as_ref().map(|Resource { id, .. }| id),
            now.as_micros(),
        ])?;
        if changed == 1 {
            return Ok(Held::Applied);
        }
        // The same write again, or a write that comes too late: the pure function knows.
        let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
        match transition::complete(record, *fence, self.1.clone(), now).answer {
            Held::Applied => Err(one_rule_only(*fence)),
            held @ (Held::Repeated | Held::Fenced(_)) => Ok(held),
        }
    }
}

/// Nothing happened.
pub(crate) struct Release(pub(crate) Fence, pub(crate) Code);

impl Command for Release {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code) = self;
        let changed = with_reason(&mut sql.release, *fence, code, now)?;
        held(changed, sql, *fence)
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
        Release(*fence, code.clone()).perform(sql, now)
    }
}

/// It may have happened.
pub(crate) struct MarkUnknown(pub(crate) Fence, pub(crate) Code);

impl Command for MarkUnknown {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, code) = self;
        let changed = with_reason(&mut sql.mark_unknown, *fence, code, now)?;
        held(changed, sql, *fence)
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
        held(changed, sql, *fence)
    }
}

/// A phase committed.
pub(crate) struct Advance(pub(crate) Fence, pub(crate) RecoveryPoint);

impl Command for Advance {
    type Answer = Held;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Held, Failure> {
        let Self(fence, RecoveryPoint { name, data }) = self;
        let changed = sql.advance.execute(params![
            fence.id.as_bytes(),
            fence.attempt,
            name,
            &data[..],
            now.as_micros()
        ])?;
        held(changed, sql, *fence)
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

/// What a holder is told when `changed` rows had its fence.
fn held(changed: usize, sql: &mut Statements<'_>, fence: Fence) -> Result<Held, Failure> {
    if changed == 1 {
        return Ok(Held::Applied);
    }
    let record = row::find(&mut sql.find, &fence.id.as_bytes())?;
    Ok(Held::Fenced(Fenced::by(record.as_ref())))
}

/// A statement refused what the pure function allows. Nobody may build on either.
pub(crate) fn one_rule_only(fence: Fence) -> Failure {
    let Fence { id, attempt } = fence;
    Failure::Corrupt(format!("attempt {attempt} of {id} is allowed by one rule only").into())
}
