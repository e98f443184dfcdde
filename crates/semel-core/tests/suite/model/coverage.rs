//! Counts the situations that the search reached, so that a search which reaches none of them fails
//! instead of passing.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::transition::Answer;
use semel_core::{Decision, Event, Held, Record, Resolution, Status};

use super::state::{ModelState, OwnerProgress};

/// A situation that a search must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
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
    LateRelease,
    CompletionRepeated,
    WriteFenced,
    VerdictFenced,
    DeadOwnersRecordResolved,
    Evicted,
    BodyDropped,
    TombstonePurged,
}

/// How many steps of the search reached each [`Situation`].
#[derive(Debug, Default)]
pub(crate) struct SituationCounts([AtomicU64; Situation::ALL.len()]);

impl Situation {
    pub(crate) const ALL: [Self; 18] = [
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
        Self::LateRelease,
        Self::CompletionRepeated,
        Self::WriteFenced,
        Self::VerdictFenced,
        Self::DeadOwnersRecordResolved,
        Self::Evicted,
        Self::BodyDropped,
        Self::TombstonePurged,
    ];
}

impl SituationCounts {
    pub(crate) fn count(&self, situation: Situation) -> u64 {
        self.0[situation as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn increment(&self, situation: Situation) {
        self.0[situation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the situation that one store event shows.
    pub(crate) fn record_event(
        &self,
        state: &ModelState,
        event: &Event,
        before: Option<&Record>,
        after: Option<&Record>,
        answer: &Answer,
    ) {
        let situation = match answer {
            Answer::Decision(decision) => decision_situation(decision, before),
            Answer::Held(held) => write_situation(*held, event, before),
            Answer::Resolution(resolution) => verdict_situation(*resolution, state, before, after),
            Answer::Applied(true) if *event == Event::DropBody => Some(Situation::BodyDropped),
            Answer::Applied(true) if *event == Event::Purge => Some(Situation::TombstonePurged),
            Answer::Applied(true) if matches!(event, Event::ClaimAbandoned(..)) => {
                Some(Situation::AbandonedClaimed)
            }
            Answer::Applied(_) => None,
        };
        if let Some(situation) = situation {
            self.increment(situation);
        }
    }
}

fn decision_situation(decision: &Decision, before: Option<&Record>) -> Option<Situation> {
    match decision {
        Decision::Execute(grant) => before
            .is_some_and(|before| before.id != grant.fence.id)
            .then_some(Situation::BegunAnew),
        Decision::Resume(_) => Some(Situation::Resumed),
        Decision::Replay(_) => Some(Situation::Replay),
        Decision::InProgress(_) => Some(Situation::InFlightAnswer),
        Decision::Unknown(_) => Some(Situation::UnknownAnswer),
        Decision::KeyMisuse { .. } => Some(Situation::MisuseRefused),
        Decision::Expired(_) => Some(Situation::ExpiredAnswer),
        // All requests of the model have the default rules.
        Decision::OtherRules { .. } => None,
    }
}

fn write_situation(held: Held, event: &Event, before: Option<&Record>) -> Option<Situation> {
    let was_unknown = before.is_some_and(|before| before.state.status() == Status::Unknown);
    match held {
        Held::Applied if was_unknown => match event {
            Event::Release(..) | Event::Evict(..) => Some(Situation::LateRelease),
            _ => Some(Situation::LateCompletion),
        },
        Held::Applied if matches!(event, Event::Evict(..)) => Some(Situation::Evicted),
        Held::Applied => None,
        Held::Repeated => Some(Situation::CompletionRepeated),
        Held::Fenced(_) => Some(Situation::WriteFenced),
    }
}

fn verdict_situation(
    resolution: Resolution,
    state: &ModelState,
    before: Option<&Record>,
    after: Option<&Record>,
) -> Option<Situation> {
    if matches!(resolution, Resolution::Fenced(_)) {
        return Some(Situation::VerdictFenced);
    }
    let fence = before?.fence();
    let dead = state
        .attempts
        .iter()
        .any(|a| a.fence == fence && a.progress == OwnerProgress::Died);
    let resolved = after?.state.status() != Status::Unknown;
    (dead && resolved).then_some(Situation::DeadOwnersRecordResolved)
}
