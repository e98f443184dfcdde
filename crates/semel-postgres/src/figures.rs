//! Figures for people, in small tables of their own.

mod counts;
mod keys;

use std::time::Duration;

use semel_core::figures::{
    Activity, Caller, Census, Figures, MAX_CALLERS, MAX_MISUSES, Misuse, Survey,
};
use semel_core::store::{MAX_WALK, Result, Summary};
use semel_core::time::micros;
use semel_core::{Key, OperationId, Owner, Timestamp};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::Postgres;
use crate::connection::Session;
use crate::errand::Command;
use crate::error::Failure;
use crate::maintenance::bounded;
use crate::row::figures::{self as row, Surveyed};
use crate::row::uuid;
use crate::time::Time;
use counts::{ActivityColumns, CensusColumns, MisuseColumns};
use keys::FindKey;

/// What one process counted is added. All of it or nothing, so that whoever tries again after an
/// error counts nothing twice that the server refused.
struct Count(ActivityColumns, MisuseColumns);

impl Command for Count {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        let Self(activity, misuses) = self;
        let Session { client, sql } = session;
        let transaction = client.transaction().await?;
        if !activity.is_empty() {
            let parameters = activity.parameters();
            transaction
                .execute(&sql.count_activity, &parameters)
                .await?;
        }
        if !misuses.is_empty() {
            let parameters = misuses.parameters();
            transaction.execute(&sql.count_misuse, &parameters).await?;
            let most = i64::try_from(MAX_MISUSES).unwrap_or(i64::MAX);
            transaction.execute(&sql.trim_misuse, &[&most]).await?;
        }
        Ok(transaction.commit().await?)
    }
}

/// What requests were told, since then.
struct Since(Timestamp);

impl Command for Since {
    type Answer = Vec<Activity>;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Vec<Activity>, Failure> {
        let rows = session
            .client
            .query(&session.sql.activity, &[&self.0.as_micros()])
            .await?;
        let lines: std::result::Result<Vec<_>, _> = rows.iter().map(row::activity).collect();
        let mut lines = lines?;
        // Here, by bytes: the database sorts by whatever language it was set up for.
        lines.sort_unstable_by(|one, other| {
            (one.at, &one.operation).cmp(&(other.at, &other.operation))
        });
        Ok(lines)
    }
}

/// The latest misuses.
struct Misuses(usize);

impl Command for Misuses {
    type Answer = Vec<Misuse>;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Vec<Misuse>, Failure> {
        let rows = session
            .client
            .query(&session.sql.misuses, &[&bounded(self.0)])
            .await?;
        rows.iter().map(row::misuse).collect()
    }
}

/// A stretch of operations is counted.
struct Stretch(Option<OperationId>, usize);

impl Command for Stretch {
    type Answer = Survey;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Survey, Failure> {
        let Self(after, limit) = self;
        // Before all ids there can be.
        let after = after.map_or(Uuid::nil(), uuid);
        let limit = i64::try_from((*limit).min(MAX_WALK)).unwrap_or(i64::MAX);
        let rows = session
            .client
            .query(&session.sql.survey, &[&after, &limit])
            .await?;
        let mut survey = Survey::default();
        for row in &rows {
            let Surveyed { count, next } = row::surveyed(row)?;
            survey.counts.push(count);
            survey.next = next;
        }
        survey.counts.sort_unstable();
        Ok(survey)
    }
}

/// Callers are remembered.
struct Meet(Vec<Caller>);

impl Command for Meet {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<bool, Failure> {
        let Self(callers) = self;
        let Session { client, sql } = session;
        let column = |of: fn(&Caller) -> &str| -> Vec<&str> { callers.iter().map(of).collect() };
        let transaction = client.transaction().await?;
        transaction.query(&sql.lock_callers, &[]).await?;
        let most = i64::try_from(MAX_CALLERS).unwrap_or(i64::MAX);
        let parameters: [&(dyn ToSql + Sync); 4] = [
            &column(|caller| caller.scope.as_str()),
            &column(|caller| &caller.tenant),
            &column(|caller| &caller.operation),
            &most,
        ];
        transaction.execute(&sql.meet, &parameters).await?;
        let known = transaction.query_one(&sql.callers_count, &[]).await?;
        let known: i64 = known.try_get(0)?;
        transaction.commit().await?;
        Ok(known < most)
    }
}

/// Somebody wants to take the census.
struct CountAlone(Owner, Duration);

impl Command for CountAlone {
    type Answer = bool;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<bool, Failure> {
        let Self(owner, lease) = self;
        let parameters: [&(dyn ToSql + Sync); 3] =
            [&time.given(), &owner.as_str(), &micros(*lease)];
        let taken = session
            .client
            .execute(&session.sql.count_alone, &parameters)
            .await?;
        Ok(taken > 0)
    }
}

/// A census takes the place of the one before.
struct PublishCensus(Census);

impl Command for PublishCensus {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        let Self(census) = self;
        let columns = CensusColumns::from(census);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &census.began_at.as_micros(),
            &census.ended_at.as_micros(),
            &census.all_callers,
            &columns.operations,
            &columns.statuses,
            &columns.counts,
        ];
        session
            .client
            .execute(&session.sql.publish_census, &parameters)
            .await?;
        Ok(())
    }
}

/// The latest census.
struct LatestCensus;

impl Command for LatestCensus {
    type Answer = Option<Census>;
    const WRITES: bool = false;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<Option<Census>, Failure> {
        let row = session.client.query_opt(&session.sql.census, &[]).await?;
        row.as_ref().map(row::census).transpose()
    }
}

/// Figures that nobody looks at any more go.
enum Forget {
    Activity(Timestamp, usize),
    Misuses(Timestamp, usize),
}

impl Command for Forget {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        _: &Time,
    ) -> std::result::Result<usize, Failure> {
        let (statement, before, limit) = match self {
            Self::Activity(before, limit) => (&session.sql.forget_activity, before, limit),
            Self::Misuses(before, limit) => (&session.sql.forget_misuses, before, limit),
        };
        let parameters: [&(dyn ToSql + Sync); 2] = [&before.as_micros(), &bounded(*limit)];
        let gone = session.client.query(statement, &parameters).await?;
        Ok(gone.len())
    }
}

impl Figures for Postgres {
    async fn count(&self, activity: Vec<Activity>, misuses: Vec<Misuse>) -> Result<()> {
        let count = Count(
            ActivityColumns::sums(activity),
            MisuseColumns::sums(misuses),
        );
        self.inner.send(&self.inner.chores, count).await
    }

    async fn activity(&self, since: Timestamp) -> Result<Vec<Activity>> {
        self.inner.send(&self.inner.chores, Since(since)).await
    }

    async fn misuses(&self, limit: usize) -> Result<Vec<Misuse>> {
        self.inner.send(&self.inner.chores, Misuses(limit)).await
    }

    async fn survey(&self, after: Option<OperationId>, limit: usize) -> Result<Survey> {
        let stretch = Stretch(after, limit);
        self.inner.send(&self.inner.chores, stretch).await
    }

    async fn meet(&self, callers: Vec<Caller>) -> Result<bool> {
        let meet = Meet(keys::each_once(callers));
        self.inner.send(&self.inner.chores, meet).await
    }

    async fn count_alone(&self, owner: Owner, lease: Duration) -> Result<bool> {
        let taker = CountAlone(owner, lease);
        self.inner.send(&self.inner.chores, taker).await
    }

    async fn publish_census(&self, census: Census) -> Result<()> {
        let publish = PublishCensus(census);
        self.inner.send(&self.inner.chores, publish).await
    }

    async fn census(&self) -> Result<Option<Census>> {
        self.inner.send(&self.inner.chores, LatestCensus).await
    }

    async fn find_key(&self, key: &Key) -> Result<Vec<Summary>> {
        let find = FindKey(key.clone(), self.inner.identity_hash);
        self.inner.send(&self.inner.chores, find).await
    }

    async fn forget_activity(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let forget = Forget::Activity(before, limit);
        self.inner.send(&self.inner.chores, forget).await
    }

    async fn forget_misuses(&self, before: Timestamp, limit: usize) -> Result<usize> {
        let forget = Forget::Misuses(before, limit);
        self.inner.send(&self.inner.chores, forget).await
    }
}
