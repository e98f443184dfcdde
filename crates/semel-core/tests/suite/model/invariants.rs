//! The invariants of the state machine. They are checked against the event, the answer of the
//! store, the record before and after it, and the ledger of effects that happened.

use semel_core::transition::Answer;
use semel_core::{
    Decision, Event, Fence, Held, OnExpired, Record, Reserve, Resolution, State, Status, Timestamp,
};
use stateright::Property;

use super::coverage::Situation;
use super::key_model::KeyModel;
use super::state::ModelState;

/// A property that holds in every reachable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// 1. "For one record at most one execution is granted per attempt, and attempt n+1 is
    ///    granted only after attempt n was proven not to have executed (or resumes at a
    ///    declared recovery point, or the window was over)."
    OneGrant,
    /// 1, for effects: no effect of attempt n after attempt n+1 was granted. An idempotent
    ///    downstream counts both as one effect, so there it is allowed.
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

/// The set of invariants that a step violated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Violations(u8);

/// The consequence of invariant 1: one operation has at most one effect.
pub(crate) const ONE_EFFECT: &str = "1 one effect";
/// The guarantee of `evict`: an evicted operation has no effect, before or after.
pub(crate) const NO_EFFECT_AFTER_EVICT: &str = "1 evicted operations have no effect";

/// All properties, in the form that the checker takes.
pub(crate) fn properties() -> Vec<Property<KeyModel>> {
    fn holds(state: &ModelState, invariant: Invariant) -> bool {
        !state.violations.contains(invariant)
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
        Property::always(ONE_EFFECT, |_, w: &ModelState| {
            w.ledger.windows(2).all(|pair| pair[0].id != pair[1].id)
        }),
        Property::always(NO_EFFECT_AFTER_EVICT, |_, w: &ModelState| {
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

impl Violations {
    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn is_empty(self) -> bool {
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

/// Checks one event; `state` is the state before it.
pub(crate) fn check_event(
    model: &KeyModel,
    state: &ModelState,
    event: &Event,
    after: Option<&Record>,
    answer: &Answer,
) -> Violations {
    let before = state.record.0.as_deref();
    let unchanged = before == after;
    let now = state.now();
    let mut violations = Violations::default();

    if let (Event::Reserve(request), Answer::Decision(decision)) = (event, answer) {
        violations.insert_unless(
            grant_is_allowed(model, state, decision),
            Invariant::OneGrant,
        );
        violations.insert_unless(
            replay_is_the_answer(state, decision),
            Invariant::ImmutableAnswer,
        );
        if let Some(record) = before {
            let closed = record.state.status() != Status::Unknown || unchanged;
            violations.insert_unless(closed, Invariant::UnknownIsClosed);
            let refused = *decision == Decision::KeyMisuse { id: record.id } && unchanged;
            let same = same_payload(request, record);
            // After the window the key starts over with any request, where the policy says so.
            let starts_over = request.policy.on_expired == OnExpired::Execute
                && record.state.status() != Status::FailedRetryable
                && window_is_over(record, state.now());
            let first = same || refused || starts_over;
            violations.insert_unless(first, Invariant::MisuseFirst);
        }
    }
    if let (Event::ClaimAbandoned(..), Answer::Applied(true)) = (event, answer) {
        violations.insert_unless(claim_is_allowed(model, state, after), Invariant::OneGrant);
    }
    if fence_of(event).is_some_and(|fence| state.superseded(fence)) {
        violations.insert_unless(unchanged && is_fenced(answer), Invariant::Fence);
    }
    if let Some(before) = before {
        let kept = answer_is_kept(before, after, event, now) && answer_is_first(state, after);
        violations.insert_unless(kept, Invariant::ImmutableAnswer);
        let stays = unfinished_stays(before, after, event);
        violations.insert_unless(stays, Invariant::NothingPrunedEarly);
    }
    model
        .coverage
        .record_event(state, event, before, after, answer);
    violations
}

/// Checks an effect before it is added to the ledger.
pub(crate) fn check_effect(model: &KeyModel, state: &ModelState, fence: Fence) -> Violations {
    let mut violations = Violations::default();
    let next_granted = state
        .attempts
        .iter()
        .any(|a| a.fence.id == fence.id && a.fence.attempt > fence.attempt);
    let late = next_granted && !model.downstream_idempotent;
    violations.insert_unless(!late, Invariant::NoLateEffect);
    if fence.attempt > 1 {
        model.coverage.increment(Situation::LaterAttemptExecuted);
    }
    violations
}

/// Updates the history that later steps are checked against; `state.record` is still the record
/// before the step.
pub(crate) fn update_history(state: &mut ModelState, event: &Event, after: Option<&Record>) {
    match (after, state.record.0.as_deref()) {
        (Some(record), _) => {
            if let State::Completed(completed) = &record.state
                && state.answers.iter().all(|(id, _)| *id != record.id)
            {
                state.answers.push((record.id, completed.response.status));
            }
        }
        (None, Some(gone)) if matches!(event, Event::Evict(..)) => state.evicted.push(gone.id),
        (None, _) => {}
    }
}

/// Invariant 1, for a decision to a client.
fn grant_is_allowed(model: &KeyModel, state: &ModelState, decision: &Decision) -> bool {
    let (grant, resumed) = match decision {
        Decision::Execute(grant) => (grant, false),
        Decision::Resume(grant) => (grant, true),
        Decision::Replay(_)
        | Decision::InProgress(_)
        | Decision::Unknown(_)
        | Decision::KeyMisuse { .. }
        | Decision::OtherRules { .. }
        | Decision::Expired(_) => return true,
    };
    if state.attempts.iter().any(|a| a.fence == grant.fence) {
        return false;
    }
    let Some(before) = state.record.0.as_deref() else {
        return grant.fence.attempt == 1 && !resumed;
    };
    if grant.fence.id != before.id {
        return grant.fence.attempt == 1 && !resumed && window_is_over(before, state.now());
    }
    let proven = state
        .attempts
        .iter()
        .any(|a| a.fence == before.fence() && a.proven_not_executed());
    let same_recovery_point = grant.recovery == before.recovery;
    grant.fence.attempt == before.attempt + 1
        && same_recovery_point
        && if resumed {
            model.resumes() && lease_is_over(before, state.now())
        } else {
            proven
        }
}

/// Invariant 1, for a resume job: it gets the next attempt of a record that can be resumed, at the
/// recovery point of the attempt before.
fn claim_is_allowed(model: &KeyModel, state: &ModelState, after: Option<&Record>) -> bool {
    let (Some(before), Some(after)) = (state.record.0.as_deref(), after) else {
        return false;
    };
    let granted = state.attempts.iter().any(|a| a.fence == after.fence());
    let same_recovery_point = after.id == before.id
        && after.attempt == before.attempt + 1
        && after.recovery == before.recovery;
    !granted && same_recovery_point && model.resumes() && lease_is_over(before, state.now())
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

/// Invariant 3, for the record: a completed record keeps its response until its window ends.
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

/// Invariant 3, for the history: a completed record has the first answer, whatever states lie
/// between.
fn answer_is_first(state: &ModelState, after: Option<&Record>) -> bool {
    match after {
        Some(Record {
            id,
            state: State::Completed(completed),
            ..
        }) => is_answer(state, *id, completed.response.status),
        Some(_) | None => true,
    }
}

/// Invariant 3, for the answers to clients.
fn replay_is_the_answer(state: &ModelState, decision: &Decision) -> bool {
    let Decision::Replay(replay) = decision else {
        return true;
    };
    let stored = state
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
    stored == Some(&replay.response) && is_answer(state, replay.id, replay.response.status)
}

fn is_answer(state: &ModelState, id: semel_core::OperationId, status: u16) -> bool {
    let mut answers = state.answers.iter().filter(|(answered, _)| *answered == id);
    answers.all(|(_, first)| *first == status)
}

/// Invariant 9: an unfinished record is removed only when its holder evicts it.
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
