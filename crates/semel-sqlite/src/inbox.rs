//! Events from elsewhere, once each.

use bytes::Bytes;
use rusqlite::params;
use semel_core::inbox::{Handling, Inbox, Message, Parked, Receipt};
use semel_core::{Backoff, Timestamp, store};

use crate::Sqlite;
use crate::error::Failure;
use crate::maintenance::{batch, bounded};
use crate::queries::Statements;
use crate::writer::Command;

/// A message came in.
struct Receive(Message, Handling);

impl Command for Receive {
    type Answer = Receipt;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Receipt, Failure> {
        let Self(message, handling) = self;
        let inserted = sql.receive.execute(params![
            message.source,
            message.id,
            now.as_micros(),
            now.saturating_add(handling.remember).as_micros(),
            &message.payload[..],
            now.saturating_add(handling.look_after).as_micros(),
        ])?;
        Ok(if inserted == 1 {
            Receipt::New
        } else {
            Receipt::Repeated
        })
    }
}

/// A message is done with: its source and its id.
struct Settle(Box<str>, Box<str>);

impl Command for Settle {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        sql.settle.execute(params![self.0, self.1])?;
        Ok(())
    }
}

/// Due messages are handed to one worker.
struct ClaimParked(Backoff, usize);

impl Command for ClaimParked {
    type Answer = Vec<Parked>;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<Vec<Parked>, Failure> {
        let Self(backoff, limit) = self;
        let mut claimed = Vec::new();
        {
            let mut rows = sql.claim_parked.query([now.as_micros(), bounded(*limit)])?;
            while let Some(row) = rows.next()? {
                claimed.push(Parked {
                    message: Message {
                        source: row.get(0)?,
                        id: row.get(1)?,
                        payload: Bytes::from(row.get::<_, Vec<u8>>(2)?),
                    },
                    tries: row.get::<_, u32>(3)?.saturating_add(1),
                    received_at: Timestamp::from_micros(row.get(4)?),
                });
            }
        }
        for Parked { message, tries, .. } in &claimed {
            let next = now.saturating_add(backoff.spread(message.seed(), *tries));
            sql.claim_message.execute(params![
                message.source,
                message.id,
                tries,
                next.as_micros()
            ])?;
        }
        Ok(claimed)
    }
}

/// Messages whose time is over go.
struct Forget(usize);

impl Command for Forget {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.forget, self.0, now)
    }
}

impl Inbox for Sqlite {
    async fn receive(&self, message: Message, handling: Handling) -> store::Result<Receipt> {
        self.inner.write(Receive(message, handling)).await
    }

    async fn settle(&self, source: &str, id: &str) -> store::Result<()> {
        self.inner.write(Settle(source.into(), id.into())).await
    }

    async fn claim_parked(&self, backoff: Backoff, limit: usize) -> store::Result<Vec<Parked>> {
        self.inner.write(ClaimParked(backoff, limit)).await
    }

    async fn forget(&self, limit: usize) -> store::Result<usize> {
        self.inner.write(Forget(limit)).await
    }
}
