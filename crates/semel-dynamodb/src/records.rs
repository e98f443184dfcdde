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
use semel_core::transition::{self, Answer, Decision};
use semel_core::{Event, Fence, Identity, OperationId, Record, Reserve, Status, Timestamp};

use crate::attributes::corrupt;
use crate::call::unavailable;
use crate::conditions::Condition;
use crate::item::{self, Row};
use crate::keys;
use crate::parts::MAX_INLINE;
use crate::skew;
use crate::step::{Step, step};
use crate::store::{Inner, Written, seen};

/// How often a record is judged again because other writers were faster. Each time one of them has
/// succeeded.
const MAX_CONFLICTS: usize = 200;

/// What is known of a record before it is judged.
pub(crate) enum Seen {
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
pub(crate) struct Changed {
    pub(crate) answer: Answer,
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
            Seen::Unread
        } else {
            Seen::Assumed
        };
        let changed = self.change(&partition, None, &event, seen).await?;
        match changed.answer {
            Answer::Decision(Decision::Execute(mut grant)) => {
                grant.locked_until = grant.locked_until.saturating_sub(self.margin);
                Ok(Decision::Execute(grant))
            }
            Answer::Decision(Decision::Resume(mut grant)) => {
                grant.locked_until = grant.locked_until.saturating_sub(self.margin);
                Ok(Decision::Resume(grant))
            }
            Answer::Decision(decision) => Ok(decision),
            Answer::Held(_) | Answer::Resolution(_) | Answer::Applied(_) => {
                Err(corrupt("a reservation was not answered with a decision"))
            }
        }
    }

    /// A write by the holder of an attempt.
    pub(crate) async fn write_held(&self, fence: Fence, event: Event) -> Result<Answer> {
        let held = self
            .held
            .get(&fence.id)
            .filter(|row| row.record.fence() == fence);
        if let Some(row) = held {
            let partition = self.partition(&row.record.identity);
            let seen = Seen::Held(Row::clone(&row));
            return Ok(self
                .change(&partition, Some(fence.id), &event, seen)
                .await?
                .answer);
        }
        self.write_id(fence.id, event).await
    }

    /// A change of the record with that id.
    pub(crate) async fn write_id(&self, id: OperationId, event: Event) -> Result<Answer> {
        let Some(partition) = self.partition_of(id, self.index_lag).await? else {
            return Ok(transition::apply(None, event, self.now()).answer);
        };
        let changed = self
            .change(&partition, Some(id), &event, Seen::Unread)
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
        mut seen: Seen,
    ) -> Result<Changed> {
        let mut turn = None;
        for _ in 0..MAX_CONFLICTS {
            let (row, is_current) = match seen {
                Seen::Unread => (self.read_row(partition).await?, true),
                Seen::Assumed => (None, false),
                Seen::Held(row) => (Some(row), false),
                Seen::Read(row) => (row, true),
            };
            let Some(row) = self.with_needed_body(partition, event, row).await? else {
                // The record changed between two reads.
                seen = Seen::Unread;
                continue;
            };
            check_identity(event, row.as_ref())?;
            let before = row
                .as_ref()
                .filter(|row| id.is_none_or(|id| row.record.id == id));
            let had_row = before.is_some();
            let now = self.now();
            let record = before.map(|row| row.record.clone());
            let after = transition::apply(record, event.clone(), now);
            let note = history::note(before.map(|row| &row.record), event, &after, now);
            let step = step(before, &after, note);
            if matches!(step, Step::Nothing) && before.is_some() && !is_current {
                seen = Seen::Unread;
                continue;
            }
            self.check_clock(event, &step)?;
            match self.perform(partition, event, before, step).await? {
                Written::Applied => {
                    return Ok(Changed {
                        answer: after.answer,
                        record: after.record,
                    });
                }
                Written::Conflict(found) => {
                    self.known.insert(Arc::clone(partition), ());
                    seen = Seen::Read(found.map(Row::from_item).transpose()?);
                    if had_row && turn.is_none() {
                        // Many writers of one record would fail all but one, again and again.
                        turn = Some(self.turns.take(partition).await);
                        seen = Seen::Unread;
                    }
                }
            }
        }
        Err(unavailable(
            "other requests changed the record again and again",
            None,
        ))
    }

    async fn perform(
        &self,
        partition: &Arc<str>,
        event: &Event,
        before: Option<&Row>,
        step: Step,
    ) -> Result<Written> {
        let written = match (step, before) {
            (Step::Nothing, _) => return Ok(Written::Applied),
            (Step::Begin(row), _) => self.begin(partition, row).await?,
            (Step::Replace(row, entry), Some(before)) => {
                self.replace(partition, event, before, row, entry).await?
            }
            (Step::Remove, Some(before)) => self.remove_row(partition, before).await?,
            (Step::Replace(..) | Step::Remove, None) => Written::Applied,
        };
        if let (Written::Conflict(_), Some(before)) = (&written, before) {
            self.held.remove(&before.record.id);
        }
        Ok(written)
    }

    /// A record where none is.
    async fn begin(&self, partition: &Arc<str>, row: Row) -> Result<Written> {
        let item = row.to_item(partition, self.shards);
        let written = self.put(item, Condition::Begin, None).await?;
        if let Written::Applied = written {
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
    ) -> Result<Written> {
        let mut new_parts = None;
        if row.parts.is_none()
            && let Some(body) = item::body(&row.record)
            && body.len() > MAX_INLINE
        {
            new_parts = Some(self.write_parts(partition, body).await?);
            row.parts.clone_from(&new_parts);
        }
        if let Event::Erase(_) = event {
            self.erase_evidence(partition, row.record.id).await?;
        }
        if let Some(entry) = &entry {
            self.write_entry(partition, row.record.id, before.head, entry)
                .await?;
        }
        let item = row.to_item(partition, self.shards);
        let written = self
            .put(item, Condition::Replace, Some(seen(before.version)))
            .await?;
        match &written {
            Written::Applied => {
                if let Some(old) = before.parts.as_ref().filter(|_| before.parts != row.parts) {
                    self.remove_parts(partition, old).await;
                }
                if before.record.id != row.record.id {
                    self.remove_all(partition, &keys::history(before.record.id))
                        .await;
                }
                self.remember(partition, row);
            }
            Written::Conflict(_) => {
                // The entry stays: a writer that was faster may have named one just like it.
                if let Some(parts) = &new_parts {
                    self.remove_parts(partition, parts).await;
                }
            }
        }
        Ok(written)
    }

    /// No record where one is.
    async fn remove_row(&self, partition: &Arc<str>, before: &Row) -> Result<Written> {
        let removed = self.remove(partition, keys::RECORD, Condition::Remove, before.version);
        let written = removed.await?;
        if let Written::Applied = written {
            self.held.remove(&before.record.id);
            self.known.remove(partition);
            if let Some(parts) = &before.parts {
                self.remove_parts(partition, parts).await;
            }
            if before.head.is_some() {
                self.remove_all(partition, &keys::history(before.record.id))
                    .await;
            }
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
        let judges = matches!(
            event,
            Event::Reserve(_)
                | Event::Sweep
                | Event::ClaimAbandoned(..)
                | Event::Expire
                | Event::Purge
        );
        if judges && !matches!(step, Step::Nothing) {
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
