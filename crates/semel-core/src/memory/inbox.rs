//! Events from elsewhere.

use std::collections::HashMap;

use super::Memory;
use crate::inbox::{Handling, Inbox, Message, Parked, Receipt};
use crate::store::{MAX_BATCH, Result};
use crate::{Backoff, Timestamp};

/// Messages by source and id.
pub(super) type Messages = HashMap<(Box<str>, Box<str>), Kept>;

/// What is kept of one.
#[derive(Debug)]
pub(super) struct Kept {
    received_at: Timestamp,
    forget_at: Timestamp,
    /// Gone once it is settled.
    parked: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    due_at: Timestamp,
    tries: u32,
}

impl Inbox for Memory {
    async fn receive(&self, message: Message, handling: Handling) -> Result<Receipt> {
        let mut records = self.lock();
        let now = self.clock.now();
        let key = (message.source.clone(), message.id.clone());
        if records.inbox.contains_key(&key) {
            return Ok(Receipt::Repeated);
        }
        let kept = Kept {
            received_at: now,
            forget_at: now.saturating_add(handling.remember),
            parked: Some(Waiting {
                message,
                due_at: now.saturating_add(handling.look_after),
                tries: 0,
            }),
        };
        records.inbox.insert(key, kept);
        Ok(Receipt::New)
    }

    async fn settle(&self, source: &str, id: &str) -> Result<()> {
        if let Some(kept) = self.lock().inbox.get_mut(&(source.into(), id.into())) {
            kept.parked = None;
        }
        Ok(())
    }

    async fn claim_parked(&self, backoff: Backoff, limit: usize) -> Result<Vec<Parked>> {
        let mut records = self.lock();
        let now = self.clock.now();
        let mut due: Vec<_> = records
            .inbox
            .values_mut()
            .filter_map(|kept| Some((kept.parked.as_mut()?, kept.received_at)))
            .filter(|(waiting, _)| waiting.due_at <= now)
            .collect();
        due.sort_unstable_by_key(|(waiting, _)| waiting.due_at);
        let claimed = due.into_iter().take(limit.min(MAX_BATCH));
        Ok(claimed
            .map(|(waiting, received_at)| {
                waiting.tries = waiting.tries.saturating_add(1);
                let delay = backoff.spread(waiting.message.seed(), waiting.tries);
                waiting.due_at = now.saturating_add(delay);
                Parked {
                    message: waiting.message.clone(),
                    tries: waiting.tries,
                    received_at,
                }
            })
            .collect())
    }

    async fn forget(&self, limit: usize) -> Result<usize> {
        let mut records = self.lock();
        let now = self.clock.now();
        let over: Vec<_> = records
            .inbox
            .iter()
            .filter(|(_, kept)| kept.forget_at <= now)
            .map(|(key, _)| key.clone())
            .take(limit.min(MAX_BATCH))
            .collect();
        for key in &over {
            records.inbox.remove(key);
        }
        Ok(over.len())
    }
}
