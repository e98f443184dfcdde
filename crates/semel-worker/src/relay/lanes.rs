//! Who is next: events in the order of their aggregates.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};

use semel_core::outbox::{EventId, Waiting};

/// The hash of an aggregate. Two with one hash wait for each other, which harms nobody.
pub(super) type LaneId = u64;

/// What was claimed and is not published yet, by aggregate.
pub(super) struct Lanes<'a> {
    hasher: &'a RandomState,
    each: HashMap<LaneId, Lane>,
    /// Lanes that are open and have somebody waiting.
    ready: VecDeque<LaneId>,
    queued: usize,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Waiting>,
    gate: Gate,
}

/// Whether the next event of a lane may go.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    /// The one before is on its way.
    Busy,
    /// The one before was refused, and the store has not been told yet.
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

    /// Forgets who waits: the store knows them.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.queued = 0;
        self.each.retain(|_, lane| {
            lane.queue.clear();
            lane.gate != Gate::Open
        });
    }

    /// What a claim returned takes the place of what waited: whatever is missing in it was
    /// somebody else's meanwhile. `busy` are on their way, or wait for the store to be told.
    pub(super) fn refill(&mut self, claimed: Vec<Waiting>, busy: &HashSet<EventId>) {
        self.clear();
        for waiting in claimed {
            let id = self.hasher.hash_one(&*waiting.event.aggregate);
            let lane = self.each.entry(id).or_default();
            // The claim may be older than the refusal, and then it has what comes after it.
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

    /// The next event of an open lane, which is busy from then on.
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

    /// The one before arrived, or the store knows what became of it.
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

    /// The one before was refused: those after it wait for the store, and then come by a claim.
    pub(super) fn shut(&mut self, id: LaneId) {
        if let Some(lane) = self.each.get_mut(&id) {
            lane.gate = Gate::Shut;
            self.queued -= lane.queue.len();
            lane.queue.clear();
        }
    }
}
