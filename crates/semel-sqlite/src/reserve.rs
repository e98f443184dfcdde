//! Reservations: a client asks to execute.
//!
//! The statements decide by their guards: the database compares the fingerprint, the status and the
//! time, in one transaction. Where none of them grants an attempt, the record is read and the pure
//! function decides.

use std::sync::Arc;

use rusqlite::{Statement, params};
use semel_core::history::{CLIENT, EntryKind};
use semel_core::identity::IdentityHash;
use semel_core::transition::{self, Decision, Grant, Unknown};
use semel_core::{
    Code, Fence, Fingerprint, Identity, OnExpired, Policy, Record, Reserve, Timestamp, time,
};

use crate::error::Failure;
use crate::queries::Statements;
use crate::writer::Command;
use crate::{history, row};

/// One reservation.
pub(crate) struct Reservation {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Arc<Reserve>,
}

impl Command for Reservation {
    type Answer = Decision;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Decision, Failure> {
        if let Some(grant) = self.begin(sql, now)? {
            return Ok(Decision::Execute(grant));
        }
        // The key exists. `record` checks that the row has this identity, not only its hash.
        let fence = self.record(sql)?.fence();
        if let Some(grant) = self.start_over(sql, now)? {
            return Ok(Decision::Execute(grant));
        }
        for fingerprint in self.request.fingerprints.iter() {
            if let Some(decision) = self.take_over(sql, fence, fingerprint, now)? {
                return Ok(decision);
            }
        }
        self.answer(sql, now)
    }
}

impl Reservation {
    /// Grants the first attempt, if there is no record under the key.
    fn begin(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Option<Grant>, Failure> {
        let Reserve {
            id,
            identity,
            fingerprints,
            owner,
            policy,
        } = &*self.request;
        let locked_until = now.saturating_add(policy.lease);
        let (replay, body, tombstone) = policy.windows.as_micros();
        let fingerprint = fingerprints.newest();
        let inserted = sql.reserve.execute(params![
            self.hash.0,
            id.as_bytes(),
            identity.scope().as_str(),
            identity.tenant(),
            identity.operation(),
            identity.key().as_str(),
            fingerprint.digest(),
            fingerprint.version(),
            fingerprint.rules().0,
            owner.as_str(),
            locked_until.as_micros(),
            replay,
            body,
            tombstone,
            now.as_micros(),
            resume_us(policy),
        ])?;
        let fence = Fence {
            id: *id,
            attempt: 1,
        };
        Ok((inserted == 1).then_some(Grant {
            fence,
            locked_until,
            recovery: None,
        }))
    }

    /// Grants a further attempt of a record with this fingerprint, or marks it unknown, where it allows
    /// that. The record is at `fence`.
    fn take_over(
        &self,
        sql: &mut Statements<'_>,
        fence: Fence,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Result<Option<Decision>, Failure> {
        if let Some(grant) = self.grant(&mut sql.reserve_again, fingerprint, now)? {
            let again = history::note(grant.fence, EntryKind::Reattempted, CLIENT, None, now);
            history::append(sql, grant.fence.id, again)?;
            return Ok(Some(Decision::Execute(grant)));
        }
        let policy = &self.request.policy;
        if policy.resumes_within().is_some() {
            let resumed = self.grant(&mut sql.reserve_resume, fingerprint, now)?;
            if let Some(grant) = resumed {
                let on = history::note(grant.fence, EntryKind::Resumed, CLIENT, None, now);
                history::append(sql, grant.fence.id, on)?;
                return Ok(Some(Decision::Resume(grant)));
            }
        } else if self.mark_unknown(sql, fingerprint, now)? {
            let code = Some(Code::LEASE_EXPIRED);
            let lost = history::note(fence, EntryKind::Unknown, CLIENT, code, now);
            history::append(sql, fence.id, lost)?;
            return Ok(Some(Decision::Unknown(Unknown {
                id: fence.id,
                reconcile_after: now,
                dead_lettered: false,
                lease_expired: true,
            })));
        }
        Ok(None)
    }

    /// Starts a new record under a key whose replay window ended, where the policy says so. The
    /// fingerprint is not compared: the key starts over with any request.
    fn start_over(
        &self,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> Result<Option<Grant>, Failure> {
        let deleted = self.request.policy.on_expired == OnExpired::Execute
            && sql
                .reserve_delete_expired
                .execute(params![self.hash.0, now.as_micros()])?
                == 1;
        if deleted {
            self.begin(sql, now)
        } else {
            Ok(None)
        }
    }

    /// Runs a statement that grants the next attempt.
    fn grant(
        &self,
        statement: &mut Statement<'_>,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Result<Option<Grant>, Failure> {
        let Reserve { owner, policy, .. } = &*self.request;
        let locked_until = now.saturating_add(policy.lease);
        let (replay, body, tombstone) = policy.windows.as_micros();
        let mut rows = statement.query(params![
            self.hash.0,
            fingerprint.digest(),
            fingerprint.version(),
            fingerprint.rules().0,
            owner.as_str(),
            locked_until.as_micros(),
            replay,
            body,
            tombstone,
            now.as_micros(),
            resume_us(policy),
        ])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let (fence, recovery) = row::granted(row)?;
        Ok(Some(Grant {
            fence,
            locked_until,
            recovery,
        }))
    }

    /// Marks the record unknown if its lease expired; returns whether it did.
    fn mark_unknown(
        &self,
        sql: &mut Statements<'_>,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Result<bool, Failure> {
        let marked = sql.reserve_mark_unknown.execute(params![
            self.hash.0,
            fingerprint.digest(),
            fingerprint.version(),
            fingerprint.rules().0,
            now.as_micros(),
        ])?;
        Ok(marked == 1)
    }

    /// The record under the key, which exists.
    fn record(&self, sql: &mut Statements<'_>) -> Result<Record, Failure> {
        find(&mut sql.find_identity, self.hash, &self.request.identity)?
            .ok_or_else(|| Failure::Corrupt("a key exists, but its record does not".into()))
    }

    /// Decides for a request that was granted nothing.
    fn answer(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Decision, Failure> {
        let record = self.record(sql)?;
        let id = record.id;
        match transition::reserve(Some(record), Reserve::clone(&self.request), now).answer {
            // The statements just refused to grant this. As they disagree, no request executes.
            Decision::Execute(_) | Decision::Resume(_) => Err(Failure::Corrupt(
                format!("record {id} is granted by the state machine, but not by the statements")
                    .into(),
            )),
            decision @ (Decision::Replay(_)
            | Decision::InProgress(_)
            | Decision::Unknown(_)
            | Decision::KeyMisuse { .. }
            | Decision::OtherRules { .. }
            | Decision::Expired(_)) => Ok(decision),
        }
    }
}

/// How long an attempt under this policy can be resumed, as it is stored.
fn resume_us(policy: &Policy) -> Option<i64> {
    policy.resumes_within().map(time::micros)
}

/// The record of an identity. A row with its hash and another identity is an error.
pub(crate) fn find(
    find_identity: &mut Statement<'_>,
    hash: IdentityHash,
    identity: &Identity,
) -> Result<Option<Record>, Failure> {
    let record = row::find(find_identity, &hash.0)?;
    match &record {
        Some(found) if !found.identity.names_same_record(identity) => {
            Err(Failure::Corrupt("two identities have one hash".into()))
        }
        Some(_) | None => Ok(record),
    }
}
