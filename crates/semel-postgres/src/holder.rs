//! What the holders of attempts say. Each verb is one guarded statement for all who say it at
//! once; where it finds no row, the record tells why.

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
use crate::error::{Failure, unavailable};
use crate::lane::Kind;
use crate::row::{self, uuid};
use crate::time::Time;

/// What a holder says.
#[derive(Clone)]
pub(crate) enum Verb {
    /// How it ended.
    Complete(Completion),
    /// Nothing happened.
    Release(Code),
    /// Nothing happened, and nothing is to be remembered.
    Evict(Code),
    /// It may have happened, and this may have been created.
    MarkUnknown(Code, Option<Resource>),
    /// The owner is alive.
    Heartbeat(Duration),
    /// A phase committed.
    Advance(RecoveryPoint),
}

/// A word that waits to be written.
pub(crate) struct Word {
    pub(crate) fence: Fence,
    pub(crate) verb: Verb,
    pub(crate) reply: oneshot::Sender<Result<Held>>,
    pub(crate) tries: u32,
}

impl Word {
    /// As the pure function has it.
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

/// The lanes for what holders say.
pub(crate) struct Saying;

impl Kind for Saying {
    type Call = Word;

    /// As for reservations.
    const MOST: usize = 256;

    /// All with the verb of the first, one for each operation: of two words about one record
    /// the second finds what the first left. In the order in which every statement takes its
    /// locks.
    fn batch(waiting: &mut Vec<Word>) -> Vec<Word> {
        let Some(verb) = waiting.first().map(|word| discriminant(&word.verb)) else {
            return Vec::new();
        };
        let mut named = HashSet::new();
        let mut batch: Vec<_> = waiting
            .extract_if(.., |word| {
                discriminant(&word.verb) == verb && named.insert(word.fence.id)
            })
            .collect();
        batch.sort_unstable_by_key(|word| word.fence.id);
        batch
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Word>,
    ) -> std::result::Result<(), Failure> {
        let done: HashSet<OperationId> = say(session, time, batch)
            .await?
            .iter()
            .map(row::id)
            .collect::<std::result::Result<_, _>>()?;
        let mut refused = Vec::new();
        for word in std::mem::take(batch) {
            if done.contains(&word.fence.id) {
                let _ = word.reply.send(Ok(Held::Applied));
            } else {
                refused.push(word);
            }
        }
        *batch = refused;
        explain(session, time, batch).await
    }

    fn tries(call: &mut Word) -> &mut u32 {
        &mut call.tries
    }

    fn fail(call: Word, failure: Failure) {
        // Whoever said it may be gone.
        let _ = call.reply.send(Err(failure.of_write()));
    }

    fn refuse(call: Word, reason: &str) {
        let _ = call.reply.send(Err(unavailable(reason, None)));
    }
}

/// Writes a batch of one verb; gives the rows of those that were written.
async fn say(
    session: &Session,
    time: &Time,
    batch: &[Word],
) -> std::result::Result<Vec<Row>, Failure> {
    let now = time.given();
    let sql = &session.sql;
    let ids: Vec<Uuid> = batch.iter().map(|word| uuid(word.fence.id)).collect();
    let attempts: Vec<i64> = batch
        .iter()
        .map(|word| i64::from(word.fence.attempt))
        .collect();
    let columns = Columns::of(batch);
    let (statement, parameters): (&Statement, &[&(dyn ToSql + Sync)]) =
        match batch.first().map(|word| &word.verb) {
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

/// What a batch says, column by column. Only those of its verb are filled.
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
    fn of(batch: &'w [Word]) -> Self {
        let mut columns = Self::default();
        for word in batch {
            columns.add(&word.verb);
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

/// Tells those whose word was not written why, once it is in the history. What changed in between
/// is left, to be said again.
async fn explain(
    session: &Session,
    time: &Time,
    batch: &mut Vec<Word>,
) -> std::result::Result<(), Failure> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut records = find(session, batch.iter().map(|word| word.fence.id)).await?;
    let (mut refused, mut notes) = (Vec::new(), Vec::new());
    for mut word in std::mem::take(batch) {
        let record = records.remove(&word.fence.id);
        if let Some(held) = verdict(record.clone(), &word) {
            notes.extend(record.and_then(|record| remark(&record, held, &word)));
            refused.push((word, held));
            continue;
        }
        // What a later attempt cannot make forgotten, it hands back.
        if let Verb::Evict(code) = &word.verb {
            word.verb = Verb::Release(code.clone());
        }
        batch.push(word);
    }
    if let Err(failure) = tell(session, time, &notes).await {
        batch.extend(refused.into_iter().map(|(word, _)| word));
        return Err(failure);
    }
    for (word, held) in refused {
        let _ = word.reply.send(Ok(held));
    }
    Ok(())
}

/// What a refusal adds to the history of the record. When, the database says.
fn remark(record: &Record, held: Held, word: &Word) -> Option<(OperationId, Note)> {
    match held {
        Held::Fenced(_) => {}
        Held::Applied | Held::Repeated => return None,
    }
    let now = Timestamp::from_micros(0);
    history::fenced(record, &word.event(), now).map(|note| (record.id, note))
}

/// Tells of refusals. A statement and a commit each, all on their way at once: one that holds a
/// place in only one history cannot wait for another in a circle.
async fn tell(
    session: &Session,
    time: &Time,
    notes: &[(OperationId, Note)],
) -> std::result::Result<(), Failure> {
    let telling = notes.iter().map(|(id, note)| async move {
        let code = note.code.as_ref().map(Code::as_str);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &time.given(),
            &uuid(*id),
            &i64::from(note.attempt),
            &note.what.as_str(),
            &&*note.actor,
            &code,
        ];
        session.client.query(&session.sql.tell, &parameters).await
    });
    try_join_all(telling).await?;
    Ok(())
}

/// Why a word was not written, as the record shows it now; nothing where it could be written.
fn verdict(record: Option<Record>, word: &Word) -> Option<Held> {
    match &word.verb {
        // The same write again, or a write that comes too late: the pure function knows. When
        // it is makes no difference to that.
        Verb::Complete(completion) => {
            let now = Timestamp::from_micros(0);
            let held = transition::complete(record, word.fence, completion.clone(), now).answer;
            (held != Held::Applied).then_some(held)
        }
        Verb::Release(_)
        | Verb::Evict(_)
        | Verb::MarkUnknown(..)
        | Verb::Heartbeat(_)
        | Verb::Advance(_) => {
            let ours = record.as_ref().is_some_and(|record| {
                record.fence() == word.fence && record.state.status() == Status::InProgress
            });
            (!ours).then(|| Held::Fenced(Fenced::by(record.as_ref())))
        }
    }
}

/// The records of these names.
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
