//! The model of one key: its configuration, and every step that can happen in a state.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::transition::Answer;
use semel_core::{
    Backoff, Code, Completion, Event, Fingerprint, Fingerprints, Identity, Key, OnExpired, Policy,
    Record, RecoveryPoint, Reserve, Resolve, Response, Stale, Timestamp, Verdict, Windows,
};
use stateright::{Model, Property};

use super::coverage::SituationCounts;
use super::invariants;
use super::state::{Attempt, Message, ModelState, OwnerProgress, Payload, Step, StoredRecord};
use super::store::{self, Guard};

/// The unit of the model's clock. A lease is one of these.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// The model of one key: how the route is configured, how operators and services behave, and the
/// bounds of the search.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one independent assumption"
)]
pub(crate) struct KeyModel {
    pub(crate) policy: Policy,
    /// Whether the downstream call carries a key that is the same for every attempt, so that its
    /// effect happens once however often it is called.
    pub(crate) downstream_idempotent: bool,
    /// Whether the reconciler treats "not found" as proof that the call was not executed. It must
    /// not, unless the downstream is idempotent.
    pub(crate) absence_is_proof: bool,
    /// Whether unknown operations are also claimed, postponed and dead-lettered. This changes only
    /// when the next lookup is due, and makes the search ten times larger.
    pub(crate) scheduling: bool,
    /// The guard that is removed.
    pub(crate) removed_guard: Option<Guard>,
    pub(crate) max_ticks: u8,
    pub(crate) max_grants: usize,
    pub(crate) coverage: Arc<SituationCounts>,
    identity: Identity,
}

impl KeyModel {
    /// The defaults of a route whose downstream is not idempotent.
    pub(crate) fn new() -> Self {
        let key = Key::new("8e03978e-40d5-43dd").expect("a valid key");
        Self {
            policy: Policy {
                lease: TICK,
                windows: Windows {
                    replay: TICK,
                    body: TICK,
                    tombstone: Some(TICK),
                },
                stale: Stale::Unknown,
                recovery_points: false,
                resume_within: TICK,
                on_expired: OnExpired::Reject,
            },
            downstream_idempotent: false,
            absence_is_proof: false,
            scheduling: false,
            removed_guard: None,
            max_ticks: 4,
            max_grants: 3,
            coverage: Arc::default(),
            identity: Identity::new("tenant", "create_payment", key).expect("valid names"),
        }
    }

    pub(crate) fn resumes(&self) -> bool {
        self.policy.stale == Stale::Resume && self.policy.recovery_points
    }

    fn request(&self, state: &ModelState, payload: Payload) -> Event {
        Event::Reserve(Reserve {
            id: state.next_id(),
            identity: self.identity.clone(),
            fingerprints: fingerprints(payload),
            owner: "owner".into(),
            policy: self.policy.clone(),
        })
    }

    /// The messages about an attempt that can be delivered.
    fn deliverable_messages(&self, attempt: &Attempt) -> impl Iterator<Item = Message> {
        let gave_up = attempt.progress == OwnerProgress::GaveUp;
        [
            (Message::Complete, attempt.progress == OwnerProgress::Landed),
            (Message::Release, gave_up),
            (Message::Evict, gave_up),
            (Message::MarkUnknown, true),
            (Message::Heartbeat, true),
            (Message::Advance, self.resumes()),
            (Message::VerdictCompleted, attempt.found_done),
            (Message::VerdictNotExecuted, attempt.found_nothing),
            (Message::VerdictStillUnknown, self.scheduling),
            (Message::DeadLetter, self.scheduling),
        ]
        .into_iter()
        .filter_map(|(message, sent)| sent.then_some(message))
    }

    /// A reconciler or an operator looks up an attempt and sends a verdict.
    fn investigate(&self, state: &ModelState, attempt: &mut Attempt) {
        let absence_is_proof = self.downstream_idempotent || self.absence_is_proof;
        // Another proof: the owner is known to have died before the call.
        let died = attempt.progress == OwnerProgress::Died;
        if state.happened(attempt.fence.id) {
            attempt.found_done = true;
        } else if absence_is_proof || died {
            attempt.found_nothing = true;
        }
    }

    /// Applies an event to the store, and checks the invariants.
    fn apply_event(&self, state: &ModelState, event: &Event) -> Option<ModelState> {
        let before = state.record.0.as_deref();
        let applied = store::apply(
            self.removed_guard,
            before.cloned(),
            event.clone(),
            state.now(),
        );
        let grant = match &applied.answer {
            Answer::Decision(decision) => store::granted_fence(decision),
            Answer::Applied(true) if matches!(event, Event::ClaimAbandoned(..)) => {
                applied.record.as_ref().map(Record::fence)
            }
            Answer::Held(_) | Answer::Resolution(_) | Answer::Applied(_) => None,
        };
        if grant.is_some() && state.attempts.len() == self.max_grants {
            return None;
        }
        let violations =
            invariants::check_event(self, state, event, applied.record.as_ref(), &applied.answer);
        let unchanged = applied.record.as_ref() == before;
        if unchanged && violations.is_empty() {
            return None;
        }
        let mut next = state.clone();
        next.violations.add(violations);
        if !unchanged {
            invariants::update_history(&mut next, event, applied.record.as_ref());
            next.record = StoredRecord(applied.record.map(Arc::new));
        }
        next.attempts.extend(grant.map(Attempt::new));
        Some(next)
    }

    /// The call arrives downstream and has its effect.
    fn land_call(&self, state: &mut ModelState, n: usize) {
        let fence = state.attempts[n].fence;
        state.attempts[n].progress = OwnerProgress::Landed;
        if self.downstream_idempotent && state.happened(fence.id) {
            return;
        }
        state
            .violations
            .add(invariants::check_effect(self, state, fence));
        state.ledger.push(fence);
        state.ledger.sort_by_key(|fence| (fence.id, fence.attempt));
    }
}

impl Model for KeyModel {
    type State = ModelState;
    type Action = Step;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState::default()]
    }

    fn actions(&self, state: &ModelState, steps: &mut Vec<Step>) {
        if state.tick < self.max_ticks {
            steps.push(Step::Tick);
        }
        steps.push(Step::Request(Payload::Same));
        if state.record.0.is_some() {
            steps.extend([
                Step::Request(Payload::Other),
                Step::Sweep,
                Step::ClaimAbandoned,
                Step::Expire,
                Step::DropBody,
                Step::Purge,
            ]);
            if self.scheduling {
                steps.push(Step::ClaimDue);
            }
        }
        for (n, attempt) in state.attempts.iter().enumerate() {
            match attempt.progress {
                OwnerProgress::Holding => {
                    steps.extend([Step::Call(n), Step::GiveUp(n), Step::Die(n)]);
                }
                OwnerProgress::Calling => steps.push(Step::Land(n)),
                OwnerProgress::Landed | OwnerProgress::GaveUp | OwnerProgress::Died => {}
            }
            if state.is_unknown(attempt.fence) {
                steps.push(Step::Investigate(n));
            }
            steps.extend(
                self.deliverable_messages(attempt)
                    .map(|m| Step::Deliver(n, m)),
            );
        }
    }

    fn next_state(&self, state: &ModelState, step: Step) -> Option<ModelState> {
        let event = match step {
            Step::Request(payload) => self.request(state, payload),
            Step::Deliver(n, message) => to_event(state, &state.attempts[n], message),
            Step::Sweep => Event::Sweep,
            Step::ClaimAbandoned => Event::ClaimAbandoned("resume-job".into(), TICK),
            Step::ClaimDue => Event::ClaimDue(Backoff {
                every: TICK,
                max_every: TICK,
            }),
            Step::Expire => Event::Expire,
            Step::DropBody => Event::DropBody,
            Step::Purge => Event::Purge,
            Step::Tick
            | Step::Call(_)
            | Step::Land(_)
            | Step::GiveUp(_)
            | Step::Die(_)
            | Step::Investigate(_) => return self.apply_external_step(state, step),
        };
        self.apply_event(state, &event)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        invariants::properties()
    }
}

impl KeyModel {
    fn apply_external_step(&self, state: &ModelState, step: Step) -> Option<ModelState> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.tick += 1,
            Step::Call(n) => next.attempts[n].progress = OwnerProgress::Calling,
            Step::Land(n) => self.land_call(&mut next, n),
            Step::GiveUp(n) => next.attempts[n].progress = OwnerProgress::GaveUp,
            Step::Die(n) => next.attempts[n].progress = OwnerProgress::Died,
            Step::Investigate(n) => self.investigate(state, &mut next.attempts[n]),
            Step::Request(_)
            | Step::Deliver(..)
            | Step::Sweep
            | Step::ClaimAbandoned
            | Step::ClaimDue
            | Step::Expire
            | Step::DropBody
            | Step::Purge => return None,
        }
        (next != *state).then_some(next)
    }
}

/// The store event of a message.
fn to_event(state: &ModelState, attempt: &Attempt, message: Message) -> Event {
    let fence = attempt.fence;
    let verdict = |verdict| {
        Event::Resolve(Resolve {
            fence,
            verdict,
            by: "reconciler".into(),
            evidence: None,
        })
    };
    let code = || Code::from("model");
    match message {
        Message::Complete => Event::Complete(fence, completion(200, fence.attempt)),
        Message::Release => Event::Release(fence, code()),
        Message::Evict => Event::Evict(fence, "refused".into()),
        Message::MarkUnknown => Event::MarkUnknown(fence, code(), None),
        Message::Heartbeat => Event::Heartbeat(fence, TICK),
        Message::Advance => {
            let point = RecoveryPoint {
                name: fence.attempt.to_string().into(),
                data: Bytes::new(),
            };
            Event::Advance(fence, point)
        }
        Message::VerdictCompleted => verdict(Verdict::Completed(completion(300, fence.attempt))),
        Message::VerdictNotExecuted => verdict(Verdict::NotExecuted(code())),
        Message::VerdictStillUnknown => {
            let later: Timestamp = state.now().saturating_add(TICK);
            verdict(Verdict::StillUnknown(code(), later))
        }
        Message::DeadLetter => Event::DeadLetter(fence, code()),
    }
}

/// A response whose status shows its writer, the owner (200) or a reconciler (300), and the
/// attempt.
fn completion(source: u16, attempt: u32) -> Completion {
    let status = source + u16::try_from(attempt).expect("few attempts");
    Completion {
        response: Response {
            status,
            headers: Vec::new(),
            body: Some(Bytes::copy_from_slice(&status.to_be_bytes())),
            schema_version: 0,
        },
        resource: None,
    }
}

fn fingerprints(payload: Payload) -> Fingerprints {
    let digest = match payload {
        Payload::Same => [1; 32],
        Payload::Other => [2; 32],
    };
    Fingerprint::from_parts(1, digest).into()
}
