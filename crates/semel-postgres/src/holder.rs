//! The writes of attempt holders. Each verb is one guarded statement for a batch of writes; where it
//! finds no row, the record shows why.

use std::collections::{HashMap, HashSet};
use std::mem::discriminant;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use semel_core::history::{self, Note};
use semel_core::store::Result;
use semel_core::time::micros;
use semel_core::transition::{self, Completion, Fenced, Held};
use semel_core::{
    Code, Event, Fence, OperationId, Record, RecoveryPoint, Resource, Status, Timestamp, headers,
};
use tokio::sync::oneshot;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement};
use uuid::Uuid;

use crate::connection::Session;
use crate::connection_worker::Workload;
use crate::error::{Failure, unavailable};
use crate::row::{self, uuid};
use crate::time::Time;

/// What a holder writes.
#[derive(Clone)]
pub(crate) enum Verb {
    /// The outcome.
    Complete(Completion),
    /// The attempt had no effect.
    Release(Code),
    /// The attempt had no effect, and its record is to be deleted.
    Evict(Code),
    /// The attempt may have had an effect, and may have created this resource.
    MarkUnknown(Code, Option<Resource>),
    /// Renews the lease.
    Heartbeat(Duration),
    /// A phase committed, and left this recovery point.
    Advance(RecoveryPoint),
}

/// A write that waits for its answer.
pub(crate) struct HolderWrite {
    pub(crate) fence: Fence,
    pub(crate) verb: Verb,
    pub(crate) reply: oneshot::Sender<Result<Held>>,
    pub(crate) tries: u32,
}

impl HolderWrite {
    /// The same as an event of the state machine.
    fn event(&self) -> Event {
        let fence = self.fence;
        match self.verb.clone() {
            Verb::Complete(completion) => Event::Complete(fence, completion),
            Verb::Release(code) => Event::Release(fence, code),
            Verb::Evict(code) => Event::Evict(fence, code),
            Verb::MarkUnknown(code, resource) => Event::MarkUnknown(fence, code, resource),
            Verb::Heartbeat(lease) => Event::Heartbeat(fence, lease),
            Verb::Advance(point) => Event::Advance(fence, point),
        }
    }
}

/// The workload of the workers that write for holders.
pub(crate) struct HolderWrites;

impl Workload for HolderWrites {
    type Call = HolderWrite;

    /// As for reservations.
    const MAX_BATCH: usize = 256;

    /// All with the verb of the first, one for each record: of two writes to one record the second
    /// must see the first. Sorted in the order in which every statement takes its locks.
    fn batch(waiting: &mut Vec<HolderWrite>) -> Vec<HolderWrite> {
        let Some(verb) = waiting.first().map(|write| discriminant(&write.verb)) else {
            return Vec::new();
        };
        let mut named = HashSet::new();
        let mut batch: Vec<_> = waiting
            .extract_if(.., |write| {
                discriminant(&write.verb) == verb && named.insert(write.fence.id)
            })
            .collect();
        batch.sort_unstable_by_key(|write| write.fence.id);
        batch
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<HolderWrite>,
    ) -> std::result::Result<(), Failure> {
        let done: HashSet<OperationId> = write(session, time, batch)
            .await?
            .iter()
            .map(row::id)
            .collect::<std::result::Result<_, _>>()?;
        session.check_replicated()?;
        let mut refused = Vec::new();
        for write in std::mem::take(batch) {
            if done.contains(&write.fence.id) {
                let _ = write.reply.send(Ok(Held::Applied));
            } else {
                refused.push(write);
            }
        }
        *batch = refused;
        explain(session, time, batch).await
    }

    fn tries(call: &mut HolderWrite) -> &mut u32 {
        &mut call.tries
    }

    fn fail(call: HolderWrite, failure: Failure) {
        // The caller may have been dropped.
        let _ = call.reply.send(Err(failure.of_write()));
    }

    fn refuse(call: HolderWrite, reason: &str) {
        let _ = call.reply.send(Err(unavailable(reason, None)));
    }
}

/// Writes a batch of one verb, and returns the rows that were written.
async fn write(
    session: &Session,
    time: &Time,
    batch: &[HolderWrite],
) -> std::result::Result<Vec<Row>, Failure> {
    let now = time.given();
    let sql = &session.sql;
    let ids: Vec<Uuid> = batch.iter().map(|write| uuid(write.fence.id)).collect();
    let attempts: Vec<i64> = batch
        .iter()
        .map(|write| i64::from(write.fence.attempt))
        .collect();
    let columns = Columns::of(batch);
    let (statement, parameters): (&Statement, &[&(dyn ToSql + Sync)]) =
        match batch.first().map(|write| &write.verb) {
            None => return Ok(Vec::new()),
            Some(Verb::Complete(_)) => (
                &sql.complete,
                &[
                    &now,
                    &ids,
                    &attempts,
                    &columns.statuses,
                    &columns.headers,
                    &columns.bodies,
                    &columns.schema_versions,
                    &columns.resource_types,
                    &columns.resource_ids,
                ],
            ),
            Some(Verb::Release(_)) => (&sql.release, &[&now, &ids, &attempts, &columns.texts]),
            Some(Verb::Evict(_)) => (&sql.evict, &[&ids, &attempts]),
            Some(Verb::MarkUnknown(..)) => (
                &sql.mark_unknown,
                &[
                    &now,
                    &ids,
                    &attempts,
                    &columns.texts,
                    &columns.resource_types,
                    &columns.resource_ids,
                ],
            ),
            Some(Verb::Heartbeat(_)) => (&sql.heartbeat, &[&now, &ids, &attempts, &columns.leases]),
            Some(Verb::Advance(_)) => (
                &sql.advance,
                &[&now, &ids, &attempts, &columns.texts, &columns.data],
            ),
        };
    Ok(session.client.query(statement, parameters).await?)
}

/// A batch as columns. Only those of its verb are filled.
#[derive(Default)]
struct Columns<'w> {
    statuses: Vec<i32>,
    headers: Vec<Vec<u8>>,
    bodies: Vec<Option<&'w [u8]>>,
    schema_versions: Vec<i32>,
    resource_types: Vec<Option<&'w str>>,
    resource_ids: Vec<Option<&'w str>>,
    texts: Vec<&'w str>,
    leases: Vec<i64>,
    data: Vec<&'w [u8]>,
}

impl<'w> Columns<'w> {
    fn of(batch: &'w [HolderWrite]) -> Self {
        let mut columns = Self::default();
        for write in batch {
            columns.add(&write.verb);
        }
        columns
    }

    fn add(&mut self, verb: &'w Verb) {
        match verb {
            Verb::Complete(Completion { response, resource }) => {
                self.statuses.push(response.status.into());
                self.headers.push(headers::encode(&response.headers).into());
                self.bodies.push(response.body.as_ref().map(Bytes::as_ref));
                self.schema_versions.push(response.schema_version.into());
                self.name(resource.as_ref());
            }
            Verb::Release(code) | Verb::Evict(code) => self.texts.push(code.as_str()),
            Verb::MarkUnknown(code, resource) => {
                self.texts.push(code.as_str());
                self.name(resource.as_ref());
            }
            Verb::Heartbeat(lease) => self.leases.push(micros(*lease)),
            Verb::Advance(RecoveryPoint { name, data }) => {
                self.texts.push(name);
                self.data.push(data);
            }
        }
    }

    fn name(&mut self, resource: Option<&'w Resource>) {
        self.resource_types
            .push(resource.map(|resource| &*resource.kind));
        self.resource_ids
            .push(resource.map(|resource| &*resource.id));
    }
}

/// Answers the writes that were refused, once each refusal is in the history. Leaves writes in the
/// batch that have become possible in between: the worker retries them.
async fn explain(
    session: &Session,
    time: &Time,
    batch: &mut Vec<HolderWrite>,
) -> std::result::Result<(), Failure> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut records = find(session, batch.iter().map(|write| write.fence.id)).await?;
    let (mut refused, mut notes) = (Vec::new(), Vec::new());
    for mut write in std::mem::take(batch) {
        let record = records.remove(&write.fence.id);
        if let Some(held) = refusal(record.clone(), &write) {
            notes.extend(record.and_then(|record| history_note(&record, held, &write)));
            refused.push((write, held));
            continue;
        }
        // A later attempt, or a late owner, cannot evict the record: it releases it.
        if let Verb::Evict(code) = &write.verb {
            write.verb = Verb::Release(code.clone());
        }
        batch.push(write);
    }
    let recorded = record_refusals(session, time, &notes).await;
    if let Err(failure) = recorded.and_then(|()| session.check_replicated()) {
        batch.extend(refused.into_iter().map(|(write, _)| write));
        return Err(failure);
    }
    for (write, held) in refused {
        let _ = write.reply.send(Ok(held));
    }
    Ok(())
}

/// The history entry of a refusal. The database sets its time.
fn history_note(record: &Record, held: Held, write: &HolderWrite) -> Option<(OperationId, Note)> {
    match held {
        Held::Fenced(_) => {}
        Held::Applied | Held::Repeated => return None,
    }
    let now = Timestamp::from_micros(0);
    history::fenced(record, &write.event(), now).map(|note| (record.id, note))
}

/// Writes refusals into the histories. Each is a statement with a commit of its own, all sent at
/// once: a statement that locks only one history cannot deadlock.
async fn record_refusals(
    session: &Session,
    time: &Time,
    notes: &[(OperationId, Note)],
) -> std::result::Result<(), Failure> {
    let writes = notes.iter().map(|(id, note)| async move {
        let code = note.code.as_ref().map(Code::as_str);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &time.given(),
            &uuid(*id),
            &i64::from(note.attempt),
            &note.what.as_str(),
            &&*note.actor,
            &code,
        ];
        session
            .client
            .query(&session.sql.record_refusal, &parameters)
            .await
    });
    try_join_all(writes).await?;
    Ok(())
}

/// Why a write was refused, judging by the record; nothing where it is possible now.
fn refusal(record: Option<Record>, write: &HolderWrite) -> Option<Held> {
    match &write.verb {
        // A repeated write, or one that comes too late: the pure function decides. The time makes
        // no difference.
        Verb::Complete(completion) => {
            let now = Timestamp::from_micros(0);
            let held = transition::complete(record, write.fence, completion.clone(), now).answer;
            (held != Held::Applied).then_some(held)
        }
        // From unknown too: a late owner knows the outcome.
        Verb::Release(code) | Verb::Evict(code) => {
            let now = Timestamp::from_micros(0);
            let held = transition::release(record, write.fence, code.clone(), now).answer;
            (held != Held::Applied).then_some(held)
        }
        Verb::MarkUnknown(..) | Verb::Heartbeat(_) | Verb::Advance(_) => {
            let ours = record.as_ref().is_some_and(|record| {
                record.fence() == write.fence && record.state.status() == Status::InProgress
            });
            (!ours).then(|| Held::Fenced(Fenced::by(record.as_ref())))
        }
    }
}

/// The records with these ids.
pub(crate) async fn find(
    session: &Session,
    ids: impl Iterator<Item = OperationId>,
) -> std::result::Result<HashMap<OperationId, Record>, Failure> {
    let ids: Vec<Uuid> = ids.map(uuid).collect();
    let rows = session.client.query(&session.sql.find, &[&ids]).await?;
    rows.iter()
        .map(|row| row::record(row).map(|record| (record.id, record)))
        .collect()
}
