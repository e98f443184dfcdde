//! Changing a record: read it, let the state machine judge, and write the result if nothing has
//! changed meanwhile.
//!
//! The condition of the write is the version that was read, which every write sets anew. So it
//! names the id, the attempt, the status and everything else that was judged by, and a write that
//! comes too late changes nothing: the failed condition returns the record as it is, and it is
//! judged again. A version also shows a writer whether a write without an answer was its own.

use std::sync::Arc;

use semel_core::history::{self, Entry};
use semel_core::store::{Error, Result};
use semel_core::transition::{self, Answer, Decision, Transition};
use semel_core::{Code, Event, Fence, Identity, OperationId, Record, Reserve, Status, Timestamp};

use crate::attributes::corrupt;
use crate::call::unavailable;
use crate::conditions::Condition;
use crate::item::Row;
use crate::keys;
use crate::skew;
use crate::step::{Step, step};
use crate::store::{Inner, WriteResult, seen};

/// How often a record is judged again because other writers were faster. Each time one of them has
/// succeeded.
const MAX_CONFLICTS: usize = 200;

/// What is known of a record before it is judged.
pub(crate) enum KnownRecord {
    /// Nothing: it is read first.
    Unread,
    /// Nothing: there is probably no record.
    Assumed,
    /// The record as this process last wrote it.
    Held(Row),
    /// The record as it was read, or its absence.
    Read(Option<Row>),
}

/// The result of a change.
pub(crate) struct ChangeResult {
    pub(crate) answer: Answer,
    /// Whether there was a record.
    pub(crate) had_record: bool,
    /// The record from now on.
    pub(crate) record: Option<Record>,
}

impl Inner {
    /// Asks to execute.
    pub(crate) async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let partition = self.partition(&request.identity);
        let mut request = request;
        request.policy.lease = request.policy.lease.saturating_add(self.margin);
        let event = Event::Reserve(request);
        let is_known = self.known.get(&partition).is_some() || self.is_clock_wrong();
        let seen = if is_known {
            KnownRecord::Unread
        } else {
            KnownRecord::Assumed
        };
        let changed = self.change(&partition, None, &event, seen).await?;
        let Answer::Decision(mut decision) = changed.answer else {
            return Err(corrupt("a reservation was not answered with a decision"));
        };
        let is_resumed = matches!(decision, Decision::Resume(_));
        if let Decision::Execute(grant) | Decision::Resume(grant) = &mut decision {
            // A first attempt where a record was: its window is over, by this clock.
            let is_anew = changed.had_record && grant.fence.attempt == 1;
            self.confirm_grant(grant.fence, is_resumed || is_anew)
                .await?;
            grant.locked_until = grant.locked_until.saturating_sub(self.margin);
        }
        Ok(decision)
    }

    /// Returns a grant if an answer since then shows that the clock is wrong. One that another
    /// clock might not have given is unknown then: another attempt may be running.
    ///
    /// # Errors
    /// The clock is wrong, and nothing may be executed.
    pub(crate) async fn confirm_grant(&self, fence: Fence, is_by_time: bool) -> Result<()> {
        let Err(error) = self.check_clock_of_grant() else {
            return Ok(());
        };
        let code = Code::new("clock_wrong");
        let event = if is_by_time {
            Event::MarkUnknown(fence, code, None)
        } else {
            Event::Evict(fence, code)
        };
        if let Err(error) = Box::pin(self.write_held(fence, event)).await {
            tracing::warn!(%error, "a grant by a wrong clock was not returned: its lease will end");
        }
        Err(error)
    }

    /// A write by the holder of an attempt.
    pub(crate) async fn write_held(&self, fence: Fence, event: Event) -> Result<Answer> {
        let held = self
            .held
            .get(&fence.id)
            .filter(|row| row.record.fence() == fence);
        if let Some(row) = held {
            let partition = self.partition(&row.record.identity);
            let seen = KnownRecord::Held(Row::clone(&row));
            return Ok(self
                .change(&partition, Some(fence.id), &event, seen)
                .await?
                .answer);
        }
        self.write_id(fence.id, event).await
    }

    /// A change of the record with that id.
    pub(crate) async fn write_id(&self, id: OperationId, event: Event) -> Result<Answer> {
        let Some(partition) = self.partition_of_record(id).await? else {
            return Ok(transition::apply(None, event, self.now()).answer);
        };
        let changed = self
            .change(&partition, Some(id), &event, KnownRecord::Unread)
            .await?;
        Ok(changed.answer)
    }

    /// Applies an event to the record in a partition. With an `id`, any other record there is as
    /// good as none.
    pub(crate) async fn change(
        &self,
        partition: &Arc<str>,
        id: Option<OperationId>,
        event: &Event,
        mut seen: KnownRecord,
    ) -> Result<ChangeResult> {
        let mut turn = None;
        for _ in 0..MAX_CONFLICTS {
            let (row, is_current) = match seen {
                KnownRecord::Unread => (self.read_row(partition).await?, true),
                KnownRecord::Assumed => (None, false),
                KnownRecord::Held(row) => (Some(row), false),
                KnownRecord::Read(row) => (row, true),
            };
            let Some(row) = self.with_needed_body(partition, event, row).await? else {
                // The record changed between two reads.
                seen = KnownRecord::Unread;
                continue;
            };
            check_identity(event, row.as_ref())?;
            let before = row
                .as_ref()
                .filter(|row| id.is_none_or(|id| row.record.id == id));
            let had_record = before.is_some();
            let (after, step) = self.judge(before, event);
            if matches!(step, Step::Nothing) && before.is_some() && !is_current {
                seen = KnownRecord::Unread;
                continue;
            }
            self.check_clock(event, &step)?;
            match self.perform(partition, event, before, step).await? {
                WriteResult::Applied => {
                    return Ok(ChangeResult {
                        answer: after.answer,
                        had_record,
                        record: after.record,
                    });
                }
                WriteResult::Conflict(found) => {
                    self.known.insert(Arc::clone(partition), ());
                    seen = KnownRecord::Read(found.map(Row::from_item).transpose()?);
                    if had_record && turn.is_none() {
                        // Many writers of one record would fail all but one, again and again.
                        turn = Some(self.writer_locks.lock(partition).await);
                        seen = KnownRecord::Unread;
                    }
                }
            }
        }
        Err(unavailable(
            "other requests changed the record again and again",
            None,
        ))
    }

    /// What an event makes of a record, and what that writes.
    pub(crate) fn judge(&self, before: Option<&Row>, event: &Event) -> (Transition<Answer>, Step) {
        let record = before.map(|row| &row.record);
        let now = match record {
            // Another clock may be ahead, and no time of a record goes back.
            Some(record) if !is_by_time(event) => self.now().max(record.updated_at),
            Some(_) | None => self.now(),
        };
        let after = transition::apply(record.cloned(), event.clone(), now);
        let note = history::note(record, event, &after, now);
        let step = step(before, &after, note);
        (after, step)
    }

    /// Writes what an event makes of the record `before`, if it has not changed since.
    pub(crate) async fn perform(
        &self,
        partition: &Arc<str>,
        event: &Event,
        before: Option<&Row>,
        step: Step,
    ) -> Result<WriteResult> {
        let written = match (step, before) {
            (Step::Nothing, _) => return Ok(WriteResult::Applied),
            (Step::Begin(row), _) => self.begin(partition, row).await?,
            (Step::Replace(row, entry), Some(before)) => {
                self.replace(partition, event, before, row, entry).await?
            }
            (Step::Remove, Some(before)) => self.remove_row(partition, before).await?,
            (Step::Replace(..) | Step::Remove, None) => WriteResult::Applied,
        };
        if let (WriteResult::Conflict(_), Some(before)) = (&written, before) {
            self.held.remove(&before.record.id);
        }
        Ok(written)
    }

    /// A record where none is.
    async fn begin(&self, partition: &Arc<str>, row: Row) -> Result<WriteResult> {
        let item = row.to_item(partition, self.shards);
        let written = self.put(item, Condition::Begin, None).await?;
        if let WriteResult::Applied = written {
            self.remember(partition, row);
        }
        Ok(written)
    }

    /// Another record where one is. What the new one names is written before it.
    async fn replace(
        &self,
        partition: &Arc<str>,
        event: &Event,
        before: &Row,
        mut row: Row,
        entry: Option<Entry>,
    ) -> Result<WriteResult> {
        let item = self.prepare_item(partition, &mut row).await?;
        let is_erasure = matches!(event, Event::Erase(_));
        let is_anew = before.record.id != row.record.id;
        let mut unused = Vec::new();
        if is_erasure || is_anew {
            unused = self.list_satellites(partition).await?;
            unused.retain(|(_, sort)| is_anew || keys::is_part(sort));
        }
        if is_erasure {
            self.erase_evidence(partition, row.record.id).await?;
        }
        if let Some(entry) = &entry {
            self.write_entry(partition, row.record.id, before.head, entry)
                .await?;
        }
        let written = self
            .put(item, Condition::Replace, Some(seen(before.version)))
            .await?;
        // After a conflict the entry and the parts stay: a writer that was faster may have named
        // some just like them.
        if let WriteResult::Applied = written {
            let old_parts = before.parts.as_ref().filter(|_| before.parts != row.parts);
            self.remember(partition, row);
            if is_erasure {
                self.remove_each(&unused).await.map_err(unerased)?;
            } else if is_anew {
                self.remove_orphans(&unused).await;
            } else if let Some(old) = old_parts {
                self.remove_parts(partition, old).await;
            }
        }
        Ok(written)
    }

    /// No record where one is.
    async fn remove_row(&self, partition: &Arc<str>, before: &Row) -> Result<WriteResult> {
        let satellites = self.list_satellites(partition).await?;
        let removed = self.remove(partition, keys::RECORD, Condition::Remove, before.version);
        let written = removed.await?;
        if let WriteResult::Applied = written {
            self.held.remove(&before.record.id);
            self.known.remove(partition);
            self.remove_orphans(&satellites).await;
        }
        Ok(written)
    }

    /// Keeps what the next call about this record needs.
    pub(crate) fn remember(&self, partition: &Arc<str>, row: Row) {
        let id = row.record.id;
        self.partitions.insert(id, Arc::clone(partition));
        if row.record.state.status() == Status::InProgress {
            self.held.insert(id, Arc::new(row));
        } else {
            self.held.remove(&id);
            self.known.insert(Arc::clone(partition), ());
        }
    }

    /// The partition of an identity.
    pub(crate) fn partition(&self, identity: &Identity) -> Arc<str> {
        keys::partition((self.identity_hash)(identity)).into()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn is_clock_wrong(&self) -> bool {
        self.skew.as_ref().is_some_and(|skew| skew.is_beyond())
    }

    /// Refuses what would be judged by a wrong clock: a grant, and the end of a lease.
    fn check_clock(&self, event: &Event, step: &Step) -> Result<()> {
        if is_by_time(event) && !matches!(step, Step::Nothing) {
            self.check_clock_of_grant()?;
        }
        Ok(())
    }

    /// Refuses if this machine's clock is wrong.
    pub(crate) fn check_clock_of_grant(&self) -> Result<()> {
        match &self.skew {
            Some(skew) if skew.is_beyond() => {
                let reason = format!(
                    "this machine's clock differs from DynamoDB's by {} s, and at most {} s are \
                     accepted: synchronise it",
                    skew.seconds(),
                    skew::BOUND.as_secs()
                );
                Err(unavailable(reason, None))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether the clock decides if something is granted or ends.
fn is_by_time(event: &Event) -> bool {
    match event {
        Event::Reserve(_)
        | Event::Sweep
        | Event::ClaimAbandoned(..)
        | Event::Expire
        | Event::DropBody
        | Event::Purge => true,
        Event::Complete(..)
        | Event::Release(..)
        | Event::Evict(..)
        | Event::MarkUnknown(..)
        | Event::Heartbeat(..)
        | Event::Advance(..)
        | Event::ClaimDue(_)
        | Event::Resolve(_)
        | Event::DeadLetter(..)
        | Event::Erase(_)
        | Event::Reveal(_) => false,
    }
}

/// The record is erased, and its body may still be in the table.
fn unerased(cause: Error) -> Error {
    Error::Ambiguous {
        reason: "the record is erased, but parts of its body may not be: erase it again".into(),
        source: Some(cause.into()),
    }
}

/// A hash is never trusted alone.
fn check_identity(event: &Event, row: Option<&Row>) -> Result<()> {
    match (event, row) {
        (Event::Reserve(request), Some(row)) => {
            same_record(&row.record.identity, &request.identity)
        }
        _ => Ok(()),
    }
}

/// An error where two identities have one hash.
pub(crate) fn same_record(found: &Identity, wanted: &Identity) -> Result<()> {
    if found.names_same_record(wanted) {
        Ok(())
    } else {
        Err(Error::Corrupt {
            reason: "two identities have one hash".into(),
        })
    }
}
