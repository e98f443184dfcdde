//! Reservations: clients ask to execute.
//!
//! One statement decides for a batch of requests, by its guards: the database compares the
//! fingerprint, the status and the time. Where it grants nothing it returns the record, and the pure
//! function decides what that means.

use semel_core::identity::IdentityHash;
use semel_core::store::Result;
use semel_core::time::micros;
use semel_core::transition::{self, Decision, Grant, InProgress, Unknown};
use semel_core::{
    Fence, Fingerprint, Identity, OnExpired, OperationId, Record, Reserve, State, Timestamp,
};
use tokio::sync::oneshot;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::connection::Session;
use crate::connection_worker::Workload;
use crate::error::{Failure, unavailable};
use crate::row::{self, uuid};
use crate::time::Time;

/// Where the columns of the record begin in a row of `reserve.sql`.
const RECORD: usize = 4;

/// How often a locked row is tried again before its lock is taken for the owner's, who is about to
/// write the outcome: other requests lock a row for a few milliseconds.
const LOCKED_TRIES: u32 = 12;

/// A request that waits for its answer.
pub(crate) struct Reservation {
    pub(crate) hash: IdentityHash,
    pub(crate) request: Reserve,
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
        let sent = time.sending();
        let rows = query(session, time, batch).await?;
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(batch.len(), || None);
        for row in &rows {
            let reserved = ReservedRow::read(row)?;
            time.heard(sent, reserved.now.as_micros());
            reserved.answer(row, batch, &mut answers)?;
        }
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

/// What the statement decided for a request.
enum Answer {
    Decided(Decision),
    /// The identity in the row is not the request's.
    Collided,
    /// Another request was faster, or the row is locked: to be retried. The expired lease, where
    /// there is one.
    Retry(Option<InProgress>),
}

/// Runs the statement for a batch.
async fn query(
    session: &Session,
    time: &Time,
    batch: &[Reservation],
) -> std::result::Result<Vec<Row>, Failure> {
    let requests = || batch.iter().map(|call| &call.request);
    let hashes: Vec<_> = batch
        .iter()
        .map(|call| Uuid::from_bytes(call.hash.0))
        .collect();
    let ids: Vec<_> = requests().map(|request| uuid(request.id)).collect();
    let identities = || requests().map(|request| &request.identity);
    let scopes: Vec<_> = identities()
        .map(|identity| identity.scope().as_str())
        .collect();
    let tenants: Vec<_> = identities().map(Identity::tenant).collect();
    let operations: Vec<_> = identities().map(Identity::operation).collect();
    let keys: Vec<_> = identities()
        .map(|identity| identity.key().as_str())
        .collect();
    let newest = || requests().map(|request| request.fingerprints.newest());
    let digests: Vec<_> = newest().map(|fingerprint| *fingerprint.digest()).collect();
    let digests: Vec<&[u8]> = digests.iter().map(|digest| &digest[..]).collect();
    let versions: Vec<_> = newest()
        .map(|fingerprint| i32::from(fingerprint.version()))
        .collect();
    let rules: Vec<_> = newest().map(|fingerprint| fingerprint.rules().0).collect();
    let owners: Vec<_> = requests().map(|request| request.owner.as_str()).collect();
    let policies = || requests().map(|request| &request.policy);
    let leases: Vec<_> = policies().map(|policy| micros(policy.lease)).collect();
    let windows: Vec<_> = policies()
        .map(|policy| policy.windows.as_micros())
        .collect();
    let replays: Vec<_> = windows.iter().map(|(replay, ..)| *replay).collect();
    let bodies: Vec<_> = windows.iter().map(|(_, body, _)| *body).collect();
    let tombstones: Vec<_> = windows.iter().map(|(.., tombstone)| *tombstone).collect();
    let resumes: Vec<_> = policies()
        .map(|policy| policy.resumes_within().map(micros))
        .collect();
    let anew: Vec<_> = policies()
        .map(|policy| policy.on_expired == OnExpired::Execute)
        .collect();
    let older: Vec<(i64, Fingerprint)> = batch
        .iter()
        .zip(1..)
        .flat_map(|(call, nth)| {
            let fingerprints = call.request.fingerprints.iter();
            fingerprints.skip(1).map(move |older| (nth, older))
        })
        .collect();
    let older_nths: Vec<_> = older.iter().map(|(nth, _)| *nth).collect();
    let older = || older.iter().map(|(_, older)| older);
    let older_digests: Vec<&[u8]> = older().map(|older| &older.digest()[..]).collect();
    let older_versions: Vec<_> = older().map(|older| i32::from(older.version())).collect();
    let older_rules: Vec<_> = older().map(|older| older.rules().0).collect();
    let rows = session
        .client
        .query(
            &session.sql.reserve,
            &[
                &time.given(),
                &hashes,
                &ids,
                &scopes,
                &tenants,
                &operations,
                &keys,
                &digests,
                &versions,
                &owners,
                &leases,
                &replays,
                &bodies,
                &tombstones,
                &resumes,
                &anew,
                &older_nths,
                &older_digests,
                &older_versions,
                &rules,
                &older_rules,
            ],
        )
        .await?;
    Ok(rows)
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
            "begun" | "anew" => *known = Some(Answer::Decided(self.first_attempt(request))),
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
                *known = Some(if record.identity.names_same_record(&request.identity) {
                    decide(record, request, self.now)
                } else {
                    Answer::Collided
                });
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

    fn first_attempt(&self, request: &Reserve) -> Decision {
        let fence = Fence {
            id: request.id,
            attempt: 1,
        };
        Decision::Execute(Grant {
            fence,
            locked_until: self.now.saturating_add(request.policy.lease),
            recovery: None,
        })
    }
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
