//! Figures for people. Sums are made in Rust, inside the transaction that stores them: how figures
//! are added is said in one place, and a sum at its bound stays there.

mod looking;

use std::time::Duration;

use rusqlite::{OptionalExtension as _, Row, params};
use semel_core::figures::{
    Activity, Caller, Census, Count, Figures, MAX_CALLERS, MAX_MISUSES, Misuse, Survey, Told,
};
use semel_core::store::{Result, Summary};
use semel_core::{Key, OperationId, Owner, Timestamp};

use crate::Sqlite;
use crate::error::Failure;
use crate::list::whole;
use crate::maintenance::batch;
use crate::queries::Statements;
use crate::writer::Command;

/// What one process counted.
struct Add {
    activity: Vec<Activity>,
    misuses: Vec<Misuse>,
}

impl Command for Add {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> std::result::Result<(), Failure> {
        for line in &self.activity {
            add_activity(line, sql)?;
        }
        let mut is_any_new = false;
        for misuse in &self.misuses {
            is_any_new |= add_misuse(misuse, sql)?;
        }
        // This passes over all that are kept, so it is left out where there cannot be too many.
        if is_any_new {
            sql.misuse_make_room.execute([whole(MAX_MISUSES)])?;
        }
        Ok(())
    }
}

fn add_activity(more: &Activity, sql: &mut Statements<'_>) -> rusqlite::Result<()> {
    let Activity {
        at,
        operation,
        told: more,
    } = more;
    let kept = sql
        .count_find
        .query_row(params![at.as_micros(), operation], |row| told(row, 0))
        .optional()?;
    let mut sum = kept.unwrap_or_default();
    sum.add(more);
    sql.count.execute(params![
        at.as_micros(),
        operation,
        stored(sum.created),
        stored(sum.replayed),
        stored(sum.in_progress),
        stored(sum.misuse),
        stored(sum.retried),
        stored(sum.unknown),
        stored(sum.expired),
        stored(sum.failed),
    ])?;
    Ok(())
}

/// Says whether there was nothing of this tenant and command before.
fn add_misuse(more: &Misuse, sql: &mut Statements<'_>) -> rusqlite::Result<bool> {
    let kept = sql
        .misuse_find
        .query_row(params![more.tenant, more.operation], misuse)
        .optional()?;
    let is_new = kept.is_none();
    let sum = match kept {
        Some(mut sum) => {
            sum.add(more);
            sum
        }
        None => more.clone(),
    };
    sql.misuse.execute(params![
        sum.tenant,
        sum.operation,
        stored(sum.count),
        sum.first_at.as_micros(),
        sum.last_at.as_micros(),
        sum.last_id.as_bytes(),
    ])?;
    Ok(is_new)
}

/// Who calls what.
struct Meet(Vec<Caller>);

impl Command for Meet {
    type Answer = bool;

    fn perform(
        &self,
        sql: &mut Statements<'_>,
        _: Timestamp,
    ) -> std::result::Result<bool, Failure> {
        let mut strangers = Vec::new();
        for caller in &self.0 {
            if !sql.meet_find.exists(names(caller))? {
                strangers.push(caller);
            }
        }
        let known: i64 = sql.meet_count.query_row([], |row| row.get(0))?;
        let mut room = whole(MAX_CALLERS).saturating_sub(known);
        for caller in strangers {
            if room <= 0 {
                break;
            }
            let met = sql.meet.execute(names(caller))?;
            room = room.saturating_sub(whole(met));
        }
        Ok(room > 0)
    }
}

/// The columns of a caller.
fn names(caller: &Caller) -> (&str, &str, &str) {
    (caller.scope.as_str(), &caller.tenant, &caller.operation)
}

/// Somebody wants to take the census.
struct CountAlone(Owner, Duration);

impl Command for CountAlone {
    type Answer = bool;

    fn perform(
        &self,
        sql: &mut Statements<'_>,
        now: Timestamp,
    ) -> std::result::Result<bool, Failure> {
        let until = now.saturating_add(self.1);
        let taker = params![self.0.as_str(), until.as_micros(), now.as_micros()];
        Ok(sql.count_alone.execute(taker)? > 0)
    }
}

/// A census is made known.
struct Publish(Census);

impl Command for Publish {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> std::result::Result<(), Failure> {
        let Self(Census {
            began_at,
            ended_at,
            counts,
            all_callers,
        }) = self;
        let taken = params![began_at.as_micros(), ended_at.as_micros(), all_callers];
        if sql.publish_census.execute(taken)? == 0 {
            return Ok(());
        }
        sql.publish_census_clear.execute([])?;
        for (place, line) in counts.iter().enumerate() {
            let Count {
                operation,
                status,
                count,
            } = line;
            let line = params![whole(place), operation, status.as_str(), stored(*count)];
            sql.publish_census_line.execute(line)?;
        }
        Ok(())
    }
}

/// Figures that nobody looks at any more go.
enum Forget {
    Activity(Timestamp, usize),
    Misuses(Timestamp, usize),
}

impl Command for Forget {
    type Answer = usize;

    fn perform(
        &self,
        sql: &mut Statements<'_>,
        _: Timestamp,
    ) -> std::result::Result<usize, Failure> {
        let (statement, before, limit) = match self {
            Self::Activity(before, limit) => (&mut sql.forget_activity, before, limit),
            Self::Misuses(before, limit) => (&mut sql.forget_misuses, before, limit),
        };
        batch(statement, *limit, *before)
    }
}

/// Eight counts, in columns from `first` on.
fn told(row: &Row<'_>, first: usize) -> rusqlite::Result<Told> {
    let count = |column: usize| row.get(first + column).map(counted);
    Ok(Told {
        created: count(0)?,
        replayed: count(1)?,
        in_progress: count(2)?,
        misuse: count(3)?,
        retried: count(4)?,
        unknown: count(5)?,
        expired: count(6)?,
        failed: count(7)?,
    })
}

/// A row of `misuses.sql`.
fn misuse(row: &Row<'_>) -> rusqlite::Result<Misuse> {
    Ok(Misuse {
        tenant: row.get(0)?,
        operation: row.get(1)?,
        count: counted(row.get(2)?),
        first_at: Timestamp::from_micros(row.get(3)?),
        last_at: Timestamp::from_micros(row.get(4)?),
        last_id: OperationId::from_bytes(row.get(5)?),
    })
}

/// A count as it is stored. What does not fit stays at the most that does.
fn stored(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count that was stored.
fn counted(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}

impl Figures for Sqlite {
    async fn count(&self, activity: Vec<Activity>, misuses: Vec<Misuse>) -> Result<()> {
        self.inner.write(Add { activity, misuses }).await
    }

    async fn activity(&self, since: Timestamp) -> Result<Vec<Activity>> {
        let lookup = looking::ActivitySince(since);
        self.inner.look(&self.inner.lists, lookup).await
    }

    async fn misuses(&self, limit: usize) -> Result<Vec<Misuse>> {
        let lookup = looking::LatestMisuses(limit);
        self.inner.look(&self.inner.lists, lookup).await
    }

    async fn survey(&self, after: Option<OperationId>, limit: usize) -> Result<Survey> {
        let lookup = looking::Stretch { after, limit };
        self.inner.look(&self.inner.lists, lookup).await
    }

    async fn meet(&self, callers: Vec<Caller>) -> Result<bool> {
        self.inner.write(Meet(callers)).await
    }

    async fn count_alone(&self, owner: Owner, lease: Duration) -> Result<bool> {
        self.inner.write(CountAlone(owner, lease)).await
    }

    async fn publish_census(&self, census: Census) -> Result<()> {
        self.inner.write(Publish(census)).await
    }

    async fn census(&self) -> Result<Option<Census>> {
        let lookup = looking::LatestCensus;
        self.inner.look(&self.inner.lists, lookup).await
    }

    async fn find_key(&self, key: &Key) -> Result<Vec<Summary>> {
        let lookup = looking::FindKey {
            key: key.clone(),
            identity_hash: self.inner.identity_hash,
        };
        self.inner.look(&self.inner.lists, lookup).await
    }

    async fn forget_activity(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.inner.write(Forget::Activity(before, limit)).await
    }

    async fn forget_misuses(&self, before: Timestamp, limit: usize) -> Result<usize> {
        self.inner.write(Forget::Misuses(before, limit)).await
    }
}
