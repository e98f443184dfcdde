//! The inbox: each message from elsewhere is stored once.

use bytes::Bytes;
use rusqlite::params;
use semel_core::inbox::{Handling, Message, Parked, Receipt};
use semel_core::{Backoff, Timestamp};

use crate::error::Failure;
use crate::maintenance::{batch, bounded};
use crate::queries::Statements;
use crate::writer::Command;

/// Stores a message, unless it was received before.
pub(crate) struct Receive(pub(crate) Message, pub(crate) Handling);

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

/// Marks a message as handled, by source and id.
pub(crate) struct Settle(pub(crate) Box<str>, pub(crate) Box<str>);

impl Command for Settle {
    type Answer = ();

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<(), Failure> {
        sql.settle.execute(params![self.0, self.1])?;
        Ok(())
    }
}

/// Hands due messages to one worker.
pub(crate) struct ClaimParked(pub(crate) Backoff, pub(crate) usize);

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
            sql.schedule_parked.execute(params![
                message.source,
                message.id,
                tries,
                next.as_micros()
            ])?;
        }
        Ok(claimed)
    }
}

/// Deletes messages whose retention ended.
pub(crate) struct Forget(pub(crate) usize);

impl Command for Forget {
    type Answer = usize;

    fn perform(&self, sql: &mut Statements<'_>, now: Timestamp) -> Result<usize, Failure> {
        batch(&mut sql.forget, self.0, now)
    }
}
