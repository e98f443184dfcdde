//! Claimed events in per-aggregate order: one lane per aggregate, one event in flight per lane.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use semel_core::outbox::{EventId, Waiting};

/// The hash of an aggregate. Aggregates with the same hash share a lane, which is harmless.
pub(super) type LaneId = u64;

/// Claimed events that are not published yet, by aggregate.
pub(super) struct Lanes<'a> {
    hasher: &'a RandomState,
    each: HashMap<LaneId, Lane>,
    /// Open lanes with queued events.
    ready: VecDeque<LaneId>,
    queued: usize,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Waiting>,
    gate: Gate,
}

/// Whether the next event of a lane may be published.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    /// The previous event is in flight.
    Busy,
    /// The broker refused the previous event, and the store does not know yet.
    Shut,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(hasher: &'a RandomState) -> Self {
        Self {
            hasher,
            each: HashMap::new(),
            ready: VecDeque::new(),
            queued: 0,
        }
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Drops the queued events; the next claim returns them.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.queued = 0;
        self.each.retain(|_, lane| {
            lane.queue.clear();
            lane.gate != Gate::Open
        });
    }

    /// Replaces the queues by a new claim: an event that is missing in it was claimed elsewhere
    /// meanwhile. `busy` events are in flight, or wait to be written to the store.
    pub(super) fn refill(&mut self, claimed: Vec<Waiting>, busy: &HashSet<EventId>) {
        self.clear();
        for waiting in claimed {
            let id = self.hasher.hash_one(&*waiting.event.aggregate);
            let lane = self.each.entry(id).or_default();
            // The claim may be older than the refusal, and then contains the events after it.
            if busy.contains(&waiting.event.id) || lane.gate == Gate::Shut {
                continue;
            }
            if lane.gate == Gate::Open && lane.queue.is_empty() {
                self.ready.push_back(id);
            }
            lane.queue.push_back(waiting);
            self.queued += 1;
        }
        self.each
            .retain(|_, lane| lane.gate != Gate::Open || !lane.queue.is_empty());
    }

    /// The next event of an open lane; the lane becomes busy.
    pub(super) fn next(&mut self) -> Option<(LaneId, Waiting)> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(lane) = self.each.get_mut(&id)
                && let Some(waiting) = lane.queue.pop_front()
            {
                lane.gate = Gate::Busy;
                self.queued -= 1;
                return Some((id, waiting));
            }
        }
        None
    }

    /// Opens a lane: the previous event was confirmed, or the store knows of its refusal.
    pub(super) fn open(&mut self, id: LaneId) {
        if let Some(lane) = self.each.get_mut(&id) {
            if lane.queue.is_empty() {
                self.each.remove(&id);
            } else {
                lane.gate = Gate::Open;
                self.ready.push_back(id);
            }
        }
    }

    /// Shuts a lane after a refusal: a later claim returns the events behind it.
    pub(super) fn shut(&mut self, id: LaneId) {
        if let Some(lane) = self.each.get_mut(&id) {
            lane.gate = Gate::Shut;
            self.queued -= lane.queue.len();
            lane.queue.clear();
        }
    }
}
