//! Events from elsewhere, once each.

use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::store::Result;
use semel_core::time::micros;
use semel_core::{Backoff, Inbox, Timestamp};
use tokio_postgres::types::ToSql;

use crate::Postgres;
use crate::connection::Session;
use crate::errand::Command;
use crate::error::Failure;
use crate::maintenance::{batch, bounded};
use crate::row;
use crate::time::Time;

/// An event came in.
struct Receive(Message, Handling);

impl Command for Receive {
    type Answer = Receipt;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Receipt, Failure> {
        let Self(message, handling) = self;
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &time.given(),
            &&*message.source,
            &&*message.id,
            &&message.payload[..],
            &micros(handling.look_after),
            &micros(handling.remember),
        ];
        let inserted = session
            .client
            .query_opt(&session.sql.receive, &parameters)
            .await?;
        Ok(match inserted {
            Some(_) => Receipt::New,
            None => Receipt::Repeated,
        })
    }
}

/// Nothing more is to be done with an event.
struct Settle(Box<str>, Box<str>);

impl Command for Settle {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> std::result::Result<(), Failure> {
        let Self(source, id) = self;
        session
            .client
            .execute(&session.sql.settle, &[&&**source, &&**id])
            .await?;
        Ok(())
    }
}

/// Due events are handed to one worker.
struct ClaimParked(Backoff, usize);

impl Command for ClaimParked {
    type Answer = Vec<Parked>;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Vec<Parked>, Failure> {
        let Self(backoff, limit) = self;
        let Session { client, sql } = session;
        let transaction = client.transaction().await?;
        let now = time.ask(&transaction, &sql.now).await?;
        let rows = transaction
            .query(&sql.claim_parked, &[&now, &bounded(*limit)])
            .await?;
        let now = Timestamp::from_micros(now);
        let claimed = rows
            .iter()
            .map(|row| row::parked(row).map(looked_at))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let next: Vec<i64> = claimed
            .iter()
            .map(|Parked { message, tries, .. }| backoff.spread(message.seed(), *tries))
            .map(|delay| now.saturating_add(delay).as_micros())
            .collect();
        let messages = || claimed.iter().map(|parked| &parked.message);
        let sources: Vec<&str> = messages().map(|message| &*message.source).collect();
        let ids: Vec<&str> = messages().map(|message| &*message.id).collect();
        let tries: Vec<i64> = claimed.iter().map(|parked| parked.tries.into()).collect();
        transaction
            .execute(&sql.park, &[&sources, &ids, &next, &tries])
            .await?;
        transaction.commit().await?;
        Ok(claimed)
    }
}

/// This look counts.
fn looked_at(parked: Parked) -> Parked {
    Parked {
        tries: parked.tries.saturating_add(1),
        ..parked
    }
}

/// Events whose time is over go.
struct Forget(usize);

impl Command for Forget {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<usize, Failure> {
        batch(session, &session.sql.forget, self.0, time).await
    }
}

impl Inbox for Postgres {
    async fn receive(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let receive = Receive(message, handling);
        self.inner.send(&self.inner.errands, receive).await
    }

    async fn settle(&self, source: &str, id: &str) -> Result<()> {
        let settle = Settle(source.into(), id.into());
        self.inner.send(&self.inner.errands, settle).await
    }

    async fn claim_parked(&self, backoff: Backoff, limit: usize) -> Result<Vec<Parked>> {
        let claim = ClaimParked(backoff, limit);
        self.inner.send(&self.inner.chores, claim).await
    }

    async fn forget(&self, limit: usize) -> Result<usize> {
        self.inner.send(&self.inner.chores, Forget(limit)).await
    }
}
