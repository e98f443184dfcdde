//! What the search came across, so that "nothing bad was found" is not said of a world in
//! which nothing happens.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::transition::Answer;
use semel_core::{Decision, Event, Held, Record, Resolution, Status};

use crate::world::{Course, World};

/// Something that is worth having seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Replay,
    InFlightAnswer,
    UnknownAnswer,
    ExpiredAnswer,
    MisuseRefused,
    LaterAttemptExecuted,
    Resumed,
    AbandonedClaimed,
    BegunAnew,
    LateCompletion,
    CompletionRepeated,
    WriteFenced,
    VerdictFenced,
    DeadOwnersRecordResolved,
    Evicted,
    BodyDropped,
    TombstonePurged,
}

/// How many steps of the search showed each [`Sight`].
#[derive(Debug, Default)]
pub(crate) struct Sightings([AtomicU64; Sight::ALL.len()]);

impl Sight {
    pub(crate) const ALL: [Self; 17] = [
        Self::Replay,
        Self::InFlightAnswer,
        Self::UnknownAnswer,
        Self::ExpiredAnswer,
        Self::MisuseRefused,
        Self::LaterAttemptExecuted,
        Self::Resumed,
        Self::AbandonedClaimed,
        Self::BegunAnew,
        Self::LateCompletion,
        Self::CompletionRepeated,
        Self::WriteFenced,
        Self::VerdictFenced,
        Self::DeadOwnersRecordResolved,
        Self::Evicted,
        Self::BodyDropped,
        Self::TombstonePurged,
    ];
}

impl Sightings {
    pub(crate) fn count(&self, sight: Sight) -> u64 {
        self.0[sight as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, sight: Sight) {
        self.0[sight as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes what one step of the store shows.
    pub(crate) fn note(
        &self,
        world: &World,
        event: &Event,
        before: Option<&Record>,
        after: Option<&Record>,
        answer: &Answer,
    ) {
        let sight = match answer {
            Answer::Decision(decision) => of_decision(decision, before),
            Answer::Held(held) => of_write(*held, event, before),
            Answer::Resolution(resolution) => of_verdict(*resolution, world, before, after),
            Answer::Applied(true) if *event == Event::DropBody => Some(Sight::BodyDropped),
            Answer::Applied(true) if *event == Event::Purge => Some(Sight::TombstonePurged),
            Answer::Applied(true) if matches!(event, Event::ClaimAbandoned(..)) => {
                Some(Sight::AbandonedClaimed)
            }
            Answer::Applied(_) => None,
        };
        if let Some(sight) = sight {
            self.saw(sight);
        }
    }
}

fn of_decision(decision: &Decision, before: Option<&Record>) -> Option<Sight> {
    match decision {
        Decision::Execute(grant) => before
            .is_some_and(|before| before.id != grant.fence.id)
            .then_some(Sight::BegunAnew),
        Decision::Resume(_) => Some(Sight::Resumed),
        Decision::Replay(_) => Some(Sight::Replay),
        Decision::InProgress(_) => Some(Sight::InFlightAnswer),
        Decision::Unknown(_) => Some(Sight::UnknownAnswer),
        Decision::KeyMisuse { .. } => Some(Sight::MisuseRefused),
        Decision::Expired(_) => Some(Sight::ExpiredAnswer),
    }
}

fn of_write(held: Held, event: &Event, before: Option<&Record>) -> Option<Sight> {
    let was_unknown = before.is_some_and(|before| before.state.status() == Status::Unknown);
    match held {
        Held::Applied if matches!(event, Event::Evict(..)) => Some(Sight::Evicted),
        Held::Applied => was_unknown.then_some(Sight::LateCompletion),
        Held::Repeated => Some(Sight::CompletionRepeated),
        Held::Fenced(_) => Some(Sight::WriteFenced),
    }
}

fn of_verdict(
    resolution: Resolution,
    world: &World,
    before: Option<&Record>,
    after: Option<&Record>,
) -> Option<Sight> {
    if matches!(resolution, Resolution::Fenced(_)) {
        return Some(Sight::VerdictFenced);
    }
    let fence = before?.fence();
    let dead = world
        .attempts
        .iter()
        .any(|a| a.fence == fence && a.course == Course::Died);
    let resolved = after?.state.status() != Status::Unknown;
    (dead && resolved).then_some(Sight::DeadOwnersRecordResolved)
}
