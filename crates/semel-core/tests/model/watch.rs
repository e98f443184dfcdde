//! The invariants of the state machine, judged from outside: by what the store was told,
//! what it answered, what the record was and became, and what truly happened.

use semel_core::transition::Answer;
use semel_core::{
    Decision, Event, Fence, Held, Record, Reserve, Resolution, State, Status, Timestamp,
};
use stateright::Property;

use crate::rules::Rules;
use crate::sightings::Sight;
use crate::world::World;

/// What must be true always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// 1. "For one record at most one execution is granted per attempt, and attempt n+1 is
    ///    granted only after attempt n was proven not to have executed (or resumes at a
    ///    declared recovery point, or the window was over)."
    OneGrant,
    /// 1, as the world sees it: no effect of attempt n after attempt n+1 was granted. Where
    ///    the downstream is idempotent such an effect is no second one, and is not counted.
    NoLateEffect,
    /// 2. "A write by attempt n after attempt n+1 exists changes nothing."
    Fence,
    /// 3. "Once `completed`, status, stored headers and body never change until they
    ///    expire; every replay is byte-identical."
    ImmutableAnswer,
    /// 5. "No client request ever moves a record out of `unknown`."
    UnknownIsClosed,
    /// 6. "A different fingerprint never executes, replays, or learns anything of the
    ///    stored response, in any state."
    MisuseFirst,
    /// 9. "`in_progress` and `unknown` records are never expired, purged or overwritten,
    ///    however old."
    NothingPrunedEarly,
}

/// The set of invariants that did not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Broken(u8);

/// Invariant 1 by its consequence: one operation, at most one effect.
pub(crate) const ONE_EFFECT: &str = "1 one effect";
/// What `evict` promises: nothing happened, and nothing will.
pub(crate) const FORGOTTEN: &str = "1 what is forgotten did not happen";

/// All properties, as the checker knows them.
pub(crate) fn properties() -> Vec<Property<Rules>> {
    fn holds(world: &World, invariant: Invariant) -> bool {
        !world.broken.contains(invariant)
    }
    vec![
        Property::always(Invariant::OneGrant.name(), |_, w| {
            holds(w, Invariant::OneGrant)
        }),
        Property::always(Invariant::NoLateEffect.name(), |_, w| {
            holds(w, Invariant::NoLateEffect)
        }),
        Property::always(Invariant::Fence.name(), |_, w| holds(w, Invariant::Fence)),
        Property::always(Invariant::ImmutableAnswer.name(), |_, w| {
            holds(w, Invariant::ImmutableAnswer)
        }),
        Property::always(Invariant::UnknownIsClosed.name(), |_, w| {
            holds(w, Invariant::UnknownIsClosed)
        }),
        Property::always(Invariant::MisuseFirst.name(), |_, w| {
            holds(w, Invariant::MisuseFirst)
        }),
        Property::always(Invariant::NothingPrunedEarly.name(), |_, w| {
            holds(w, Invariant::NothingPrunedEarly)
        }),
        Property::always(ONE_EFFECT, |_, w: &World| {
            w.ledger.windows(2).all(|pair| pair[0].id != pair[1].id)
        }),
        Property::always(FORGOTTEN, |_, w: &World| {
            w.evicted.iter().all(|id| !w.happened(*id))
        }),
    ]
}

impl Invariant {
    /// The property's name, which begins with the invariant's number.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneGrant => "1 one grant",
            Self::NoLateEffect => "1 no effect after the next grant",
            Self::Fence => "2 fence",
            Self::ImmutableAnswer => "3 immutable answer",
            Self::UnknownIsClosed => "5 unknown is closed",
            Self::MisuseFirst => "6 misuse first",
            Self::NothingPrunedEarly => "9 nothing is pruned early",
        }
    }
}

impl Broken {
    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    fn contains(self, invariant: Invariant) -> bool {
        self.0 & (1 << invariant as u8) != 0
    }

    fn insert_unless(&mut self, held: bool, invariant: Invariant) {
        if !held {
            self.0 |= 1 << invariant as u8;
        }
    }
}

/// Judges one step of the store; `world` is as before it.
pub(crate) fn judge(
    rules: &Rules,
    world: &World,
    event: &Event,
    after: Option<&Record>,
    answer: &Answer,
) -> Broken {
    let before = world.record.0.as_deref();
    let unchanged = before == after;
    let now = world.now();
    let mut broken = Broken::default();

    if let (Event::Reserve(request), Answer::Decision(decision)) = (event, answer) {
        broken.insert_unless(grant_is_due(rules, world, decision), Invariant::OneGrant);
        broken.insert_unless(
            replay_is_the_answer(world, decision),
            Invariant::ImmutableAnswer,
        );
        if let Some(record) = before {
            let closed = record.state.status() != Status::Unknown || unchanged;
            broken.insert_unless(closed, Invariant::UnknownIsClosed);
            let refused = *decision == Decision::KeyMisuse { id: record.id } && unchanged;
            let same = same_payload(request, record);
            broken.insert_unless(same || refused, Invariant::MisuseFirst);
        }
    }
    if let (Event::ClaimAbandoned(..), Answer::Applied(true)) = (event, answer) {
        broken.insert_unless(claim_is_due(rules, world, after), Invariant::OneGrant);
    }
    if fence_of(event).is_some_and(|fence| world.superseded(fence)) {
        broken.insert_unless(unchanged && is_fenced(answer), Invariant::Fence);
    }
    if let Some(before) = before {
        let kept = answer_is_kept(before, after, event, now) && answer_is_first(world, after);
        broken.insert_unless(kept, Invariant::ImmutableAnswer);
        let stays = unfinished_stays(before, after, event);
        broken.insert_unless(stays, Invariant::NothingPrunedEarly);
    }
    rules.sightings.note(world, event, before, after, answer);
    broken
}

/// Judges an effect that is about to enter the ledger.
pub(crate) fn judge_effect(rules: &Rules, world: &World, fence: Fence) -> Broken {
    let mut broken = Broken::default();
    let next_granted = world
        .attempts
        .iter()
        .any(|a| a.fence.id == fence.id && a.fence.attempt > fence.attempt);
    let late = next_granted && !rules.downstream_idempotent;
    broken.insert_unless(!late, Invariant::NoLateEffect);
    if fence.attempt > 1 {
        rules.sightings.saw(Sight::LaterAttemptExecuted);
    }
    broken
}

/// Keeps what later steps are judged by; `world.record` is as before the step.
pub(crate) fn remember(world: &mut World, event: &Event, after: Option<&Record>) {
    match (after, world.record.0.as_deref()) {
        (Some(record), _) => {
            if let State::Completed(completed) = &record.state
                && world.answers.iter().all(|(id, _)| *id != record.id)
            {
                world.answers.push((record.id, completed.response.status));
            }
        }
        (None, Some(gone)) if matches!(event, Event::Evict(..)) => world.evicted.push(gone.id),
        (None, _) => {}
    }
}

/// Invariant 1, for one answer to a client.
fn grant_is_due(rules: &Rules, world: &World, decision: &Decision) -> bool {
    let (grant, resumed) = match decision {
        Decision::Execute(grant) => (grant, false),
        Decision::Resume(grant) => (grant, true),
        Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::Expired(_) => return true,
    };
    if world.attempts.iter().any(|a| a.fence == grant.fence) {
        return false;
    }
    let Some(before) = world.record.0.as_deref() else {
        return grant.fence.attempt == 1 && !resumed;
    };
    if grant.fence.id != before.id {
        return grant.fence.attempt == 1 && !resumed && window_is_over(before, world.now());
    }
    let proven = world
        .attempts
        .iter()
        .any(|a| a.fence == before.fence() && a.proven_not_executed());
    let goes_on = grant.recovery == before.recovery;
    grant.fence.attempt == before.attempt + 1
        && goes_on
        && if resumed {
            rules.resumes() && lease_is_over(before, world.now())
        } else {
            proven
        }
}

/// Invariant 1, for a completer: it has the next attempt of what can be resumed, where the one
/// before stopped.
fn claim_is_due(rules: &Rules, world: &World, after: Option<&Record>) -> bool {
    let (Some(before), Some(after)) = (world.record.0.as_deref(), after) else {
        return false;
    };
    let granted = world.attempts.iter().any(|a| a.fence == after.fence());
    let goes_on = after.id == before.id
        && after.attempt == before.attempt + 1
        && after.recovery == before.recovery;
    !granted && goes_on && rules.resumes() && lease_is_over(before, world.now())
}

fn lease_is_over(record: &Record, now: Timestamp) -> bool {
    matches!(&record.state, State::InProgress(lease) if lease.locked_until <= now)
}

fn window_is_over(record: &Record, now: Timestamp) -> bool {
    match &record.state {
        State::Completed(completed) => completed.expires_at <= now,
        State::FailedRetryable { expires_at } => *expires_at <= now,
        State::Expired { .. } => true,
        State::InProgress(_) | State::Unknown(_) => false,
    }
}

/// Invariant 3, for the record: a completed one keeps its response until its window is over.
fn answer_is_kept(before: &Record, after: Option<&Record>, event: &Event, now: Timestamp) -> bool {
    let State::Completed(was) = &before.state else {
        return true;
    };
    match after.filter(|after| after.id == before.id) {
        Some(Record {
            state: State::Completed(is),
            ..
        }) => {
            let body_over = was.body_expires_at.is_some_and(|instant| instant <= now);
            let mut allowed = was.response.clone();
            if *event == Event::DropBody && body_over {
                allowed.body = None;
            }
            is.response == allowed
        }
        Some(after) => after.state.status() == Status::Expired && was.expires_at <= now,
        None => was.expires_at <= now,
    }
}

/// Invariant 3, for the history: whatever states lay between, the answer is the first one.
fn answer_is_first(world: &World, after: Option<&Record>) -> bool {
    match after {
        Some(Record {
            id,
            state: State::Completed(completed),
            ..
        }) => is_answer(world, *id, completed.response.status),
        Some(_) | None => true,
    }
}

/// Invariant 3, for what a client is told.
fn replay_is_the_answer(world: &World, decision: &Decision) -> bool {
    let Decision::Replay(replay) = decision else {
        return true;
    };
    let stored = world
        .record
        .0
        .as_deref()
        .and_then(|record| match &record.state {
            State::Completed(completed) => Some(&completed.response),
            State::InProgress(_)
            | State::FailedRetryable { .. }
            | State::Unknown(_)
            | State::Expired { .. } => None,
        });
    stored == Some(&replay.response) && is_answer(world, replay.id, replay.response.status)
}

fn is_answer(world: &World, id: semel_core::OperationId, status: u16) -> bool {
    let mut answers = world.answers.iter().filter(|(answered, _)| *answered == id);
    answers.all(|(_, first)| *first == status)
}

/// Invariant 9: an unfinished record goes away only when its holder evicts it.
fn unfinished_stays(before: &Record, after: Option<&Record>, event: &Event) -> bool {
    let running = match before.state.status() {
        Status::InProgress => true,
        Status::Unknown => false,
        Status::Completed | Status::FailedRetryable | Status::Expired => return true,
    };
    match after {
        Some(after) => after.id == before.id && after.state.status() != Status::Expired,
        None => running && matches!(event, Event::Evict(fence, _) if *fence == before.fence()),
    }
}

fn same_payload(request: &Reserve, record: &Record) -> bool {
    request.fingerprints == record.fingerprint.into()
}

fn is_fenced(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Held(Held::Fenced(_)) | Answer::Resolution(Resolution::Fenced(_))
    )
}

/// The attempt that a write or a verdict names.
fn fence_of(event: &Event) -> Option<Fence> {
    match event {
        Event::Complete(fence, _)
        | Event::Release(fence, _)
        | Event::Evict(fence, _)
        | Event::MarkUnknown(fence, ..)
        | Event::Heartbeat(fence, _)
        | Event::Advance(fence, _)
        | Event::DeadLetter(fence, _) => Some(*fence),
        Event::Resolve(resolve) => Some(resolve.fence),
        Event::Reserve(_)
        | Event::Sweep
        | Event::ClaimAbandoned(..)
        | Event::ClaimDue(_)
        | Event::Expire
        | Event::DropBody
        | Event::Purge
        | Event::Erase(_)
        | Event::Reveal(_) => None,
    }
}
