//! The inbox: each message from elsewhere is stored once.

use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::time::micros;
use semel_core::{Backoff, Timestamp};
use tokio_postgres::types::ToSql;

use crate::command::Command;
use crate::connection::Session;
use crate::error::Failure;
use crate::maintenance::{batch, bounded};
use crate::row;
use crate::time::Time;

/// Stores a message, unless it was received before.
pub(crate) struct Receive(pub(crate) Message, pub(crate) Handling);

impl Command for Receive {
    type Answer = Receipt;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Receipt, Failure> {
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

/// Marks a message as handled, by source and id.
pub(crate) struct Settle(pub(crate) Box<str>, pub(crate) Box<str>);

impl Command for Settle {
    type Answer = ();
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, _: &Time) -> Result<(), Failure> {
        let Self(source, id) = self;
        session
            .client
            .execute(&session.sql.settle, &[&&**source, &&**id])
            .await?;
        Ok(())
    }
}

/// Hands due messages to one worker.
pub(crate) struct ClaimParked(pub(crate) Backoff, pub(crate) usize);

impl Command for ClaimParked {
    type Answer = Vec<Parked>;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<Vec<Parked>, Failure> {
        let Self(backoff, limit) = self;
        let Session { client, sql, .. } = session;
        let transaction = client.transaction().await?;
        let now = time.ask(&transaction, &sql.now).await?;
        let rows = transaction
            .query(&sql.claim_parked, &[&now, &bounded(*limit)])
            .await?;
        let now = Timestamp::from_micros(now);
        let claimed = rows
            .iter()
            .map(|row| row::parked(row).map(count_try))
            .collect::<Result<Vec<_>, _>>()?;
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
            .execute(&sql.schedule_parked, &[&sources, &ids, &next, &tries])
            .await?;
        transaction.commit().await?;
        Ok(claimed)
    }
}

/// Counts this try.
fn count_try(parked: Parked) -> Parked {
    Parked {
        tries: parked.tries.saturating_add(1),
        ..parked
    }
}

/// Deletes messages whose retention ended.
pub(crate) struct Forget(pub(crate) usize);

impl Command for Forget {
    type Answer = usize;
    const WRITES: bool = true;

    async fn perform(&self, session: &mut Session, time: &Time) -> Result<usize, Failure> {
        batch(session, &session.sql.forget, self.0, time).await
    }
}
