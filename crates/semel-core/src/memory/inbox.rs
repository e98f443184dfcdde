//! Messages from elsewhere.

use std::collections::HashMap;

use super::Records;
use crate::inbox::{Handling, Message, Parked, Receipt};
use crate::store::MAX_BATCH;
use crate::{Backoff, Timestamp};

/// Messages by source and id.
pub(super) type Messages = HashMap<(Box<str>, Box<str>), Kept>;

/// The stored form of one message.
#[derive(Debug)]
pub(super) struct Kept {
    received_at: Timestamp,
    forget_at: Timestamp,
    /// `None` once it is settled.
    parked: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    due_at: Timestamp,
    tries: u32,
}

impl Records {
    pub(super) fn receive_message(
        &mut self,
        message: Message,
        handling: Handling,
        now: Timestamp,
    ) -> Receipt {
        let key = (message.source.clone(), message.id.clone());
        if self.inbox.contains_key(&key) {
            return Receipt::Repeated;
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
        self.inbox.insert(key, kept);
        Receipt::New
    }

    pub(super) fn settle_message(&mut self, source: Box<str>, id: Box<str>) {
        if let Some(kept) = self.inbox.get_mut(&(source, id)) {
            kept.parked = None;
        }
    }

    pub(super) fn claim_parked(
        &mut self,
        backoff: Backoff,
        limit: usize,
        now: Timestamp,
    ) -> Vec<Parked> {
        let mut due: Vec<_> = self
            .inbox
            .values_mut()
            .filter_map(|kept| Some((kept.parked.as_mut()?, kept.received_at)))
            .filter(|(waiting, _)| waiting.due_at <= now)
            .collect();
        due.sort_unstable_by_key(|(waiting, _)| waiting.due_at);
        let claimed = due.into_iter().take(limit.min(MAX_BATCH));
        claimed
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
            .collect()
    }

    pub(super) fn forget_messages(&mut self, limit: usize, now: Timestamp) -> usize {
        let over: Vec<_> = self
            .inbox
            .iter()
            .filter(|(_, kept)| kept.forget_at <= now)
            .map(|(key, _)| key.clone())
            .take(limit.min(MAX_BATCH))
            .collect();
        for key in &over {
            self.inbox.remove(key);
        }
        over.len()
    }
}
