//! Events that go out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::Memory;
use crate::outbox::{
    Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Outbox, Waiting, cut_reason,
};
use crate::store::{MAX_BATCH, Result};
use crate::{Backoff, Owner, Timestamp};

/// Events in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Events {
    next: u64,
    waiting: BTreeMap<u64, Written>,
    dead: BTreeMap<u64, DeadEvent>,
    /// Aggregates whose oldest event was refused, and until when they wait.
    held: HashMap<Box<str>, Timestamp>,
    relay: Option<(Owner, Timestamp)>,
}

#[derive(Debug)]
struct Written {
    event: Event,
    at: Timestamp,
    /// The event's own: what comes after it in its aggregate was not refused.
    tries: u32,
}

impl Events {
    fn position(&self, id: EventId) -> Option<u64> {
        let mut events = self.waiting.iter();
        events.find_map(|(position, written)| (written.event.id == id).then_some(*position))
    }
}

impl Memory {
    /// Writes an event. There are no transactions here, so it is there by itself; one of a name
    /// that is there already is the same event.
    pub fn publish(&self, event: Event) {
        let mut records = self.lock();
        let at = self.clock.now();
        let events = &mut records.outbox;
        let dead = events.dead.values().any(|dead| dead.event.id == event.id);
        if dead || events.position(event.id).is_some() {
            return;
        }
        events.next += 1;
        let tries = 0;
        events
            .waiting
            .insert(events.next, Written { event, at, tries });
    }
}

impl Outbox for Memory {
    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Waiting>> {
        let mut records = self.lock();
        let now = self.clock.now();
        let events = &mut records.outbox;
        if let Some((other, until)) = &events.relay
            && *other != relay
            && now < *until
        {
            return Ok(Vec::new());
        }
        events.relay = Some((relay, now.saturating_add(lease)));
        let held = |event: &Event| events.held.get(&event.aggregate);
        let due = events
            .waiting
            .values()
            .filter(|written| held(&written.event).is_none_or(|until| *until <= now))
            .take(limit.min(MAX_BATCH));
        Ok(due
            .map(|written| Waiting {
                event: written.event.clone(),
                tries: written.tries,
                written_at: written.at,
            })
            .collect())
    }

    async fn mark_sent(&self, sent: Vec<EventId>) -> Result<()> {
        let mut records = self.lock();
        let events = &mut records.outbox;
        for id in sent {
            if let Some(position) = events.position(id)
                && let Some(written) = events.waiting.remove(&position)
            {
                events.held.remove(&written.event.aggregate);
            }
        }
        Ok(())
    }

    async fn hold_back(&self, id: EventId, _: &str, backoff: Backoff) -> Result<()> {
        let mut records = self.lock();
        let now = self.clock.now();
        let events = &mut records.outbox;
        if let Some(position) = events.position(id)
            && let Some(written) = events.waiting.get_mut(&position)
        {
            written.tries = written.tries.saturating_add(1);
            let until = now.saturating_add(backoff.spread(id.seed(), written.tries));
            events.held.insert(written.event.aggregate.clone(), until);
        }
        Ok(())
    }

    async fn set_aside(&self, id: EventId, reason: &str) -> Result<()> {
        let mut records = self.lock();
        let dead_at = self.clock.now();
        let events = &mut records.outbox;
        if let Some(position) = events.position(id)
            && let Some(Written { event, at, .. }) = events.waiting.remove(&position)
        {
            events.held.remove(&event.aggregate);
            let dead = DeadEvent {
                event,
                written_at: at,
                dead_at,
                reason: cut_reason(reason).into(),
            };
            events.dead.insert(position, dead);
        }
        Ok(())
    }

    async fn dead_events(&self, limit: usize) -> Result<Vec<DeadEvent>> {
        let records = self.lock();
        let dead = records.outbox.dead.values().take(limit.min(MAX_BATCH));
        Ok(dead.cloned().collect())
    }

    async fn revive(&self, id: EventId) -> Result<bool> {
        let mut records = self.lock();
        let events = &mut records.outbox;
        let mut dead = events.dead.iter();
        let position = dead.find_map(|(position, dead)| (dead.event.id == id).then_some(*position));
        let dead = position.and_then(|position| Some((position, events.dead.remove(&position)?)));
        let Some((position, dead)) = dead else {
            return Ok(false);
        };
        let written = Written {
            event: dead.event,
            at: dead.written_at,
            tries: 0,
        };
        events.waiting.insert(position, written);
        Ok(true)
    }

    async fn backlog(&self) -> Result<Backlog> {
        let records = self.lock();
        let events = &records.outbox;
        let count = |events: usize| u64::try_from(events).unwrap_or(u64::MAX);
        Ok(Backlog {
            waiting: count(events.waiting.len()).min(MAX_BACKLOG_COUNTED),
            oldest: events.waiting.values().next().map(|written| written.at),
            dead: count(events.dead.len()).min(MAX_BACKLOG_COUNTED),
        })
    }

    async fn stand_down(&self, relay: Owner) -> Result<()> {
        let mut records = self.lock();
        let held = records.outbox.relay.as_ref();
        if held.is_some_and(|(owner, _)| *owner == relay) {
            records.outbox.relay = None;
        }
        Ok(())
    }
}
