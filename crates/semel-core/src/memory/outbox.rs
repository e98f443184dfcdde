//! Events that go out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Memory, Records};
use crate::outbox::{Backlog, DeadEvent, Event, EventId, MAX_BACKLOG_COUNTED, Waiting, cut_reason};
use crate::store::MAX_BATCH;
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

impl Records {
    pub(super) fn claim_events(
        &mut self,
        relay: Owner,
        lease: Duration,
        limit: usize,
        now: Timestamp,
    ) -> Vec<Waiting> {
        let events = &mut self.outbox;
        if let Some((other, until)) = &events.relay
            && *other != relay
            && now < *until
        {
            return Vec::new();
        }
        events.relay = Some((relay, now.saturating_add(lease)));
        let held = |event: &Event| events.held.get(&event.aggregate);
        let due = events
            .waiting
            .values()
            .filter(|written| held(&written.event).is_none_or(|until| *until <= now))
            .take(limit.min(MAX_BATCH));
        due.map(|written| Waiting {
            event: written.event.clone(),
            tries: written.tries,
            written_at: written.at,
        })
        .collect()
    }

    pub(super) fn mark_sent(&mut self, sent: Vec<EventId>) {
        let events = &mut self.outbox;
        for id in sent {
            if let Some(position) = events.position(id)
                && let Some(written) = events.waiting.remove(&position)
            {
                events.held.remove(&written.event.aggregate);
            }
        }
    }

    pub(super) fn hold_back(&mut self, id: EventId, backoff: Backoff, now: Timestamp) {
        let events = &mut self.outbox;
        if let Some(position) = events.position(id)
            && let Some(written) = events.waiting.get_mut(&position)
        {
            written.tries = written.tries.saturating_add(1);
            let until = now.saturating_add(backoff.spread(id.seed(), written.tries));
            events.held.insert(written.event.aggregate.clone(), until);
        }
    }

    pub(super) fn dead_letter_event(&mut self, id: EventId, reason: &str, dead_at: Timestamp) {
        let events = &mut self.outbox;
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
    }

    pub(super) fn dead_events(&self, limit: usize) -> Vec<DeadEvent> {
        let dead = self.outbox.dead.values().take(limit.min(MAX_BATCH));
        dead.cloned().collect()
    }

    pub(super) fn revive_event(&mut self, id: EventId) -> bool {
        let events = &mut self.outbox;
        let mut dead = events.dead.iter();
        let position = dead.find_map(|(position, dead)| (dead.event.id == id).then_some(*position));
        let dead = position.and_then(|position| Some((position, events.dead.remove(&position)?)));
        let Some((position, dead)) = dead else {
            return false;
        };
        let written = Written {
            event: dead.event,
            at: dead.written_at,
            tries: 0,
        };
        events.waiting.insert(position, written);
        true
    }

    pub(super) fn outbox_backlog(&self) -> Backlog {
        let events = &self.outbox;
        let count = |events: usize| u64::try_from(events).unwrap_or(u64::MAX);
        Backlog {
            waiting: count(events.waiting.len()).min(MAX_BACKLOG_COUNTED),
            oldest: events.waiting.values().next().map(|written| written.at),
            dead: count(events.dead.len()).min(MAX_BACKLOG_COUNTED),
        }
    }

    pub(super) fn release_relay(&mut self, relay: &Owner) {
        let held = self.outbox.relay.as_ref();
        if held.is_some_and(|(owner, _)| owner == relay) {
            self.outbox.relay = None;
        }
    }
}
