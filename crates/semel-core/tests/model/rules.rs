//! What may happen in the world, step by step.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::transition::Answer;
use semel_core::{
    Backoff, Code, Completion, Event, Fingerprint, Fingerprints, Identity, Key, OnExpired, Policy,
    Record, RecoveryPoint, Reserve, Resolve, Response, Stale, Timestamp, Verdict, Windows,
};
use stateright::{Model, Property};

use crate::sightings::Sightings;
use crate::store::{self, Guard};
use crate::watch;
use crate::world::{Attempt, Course, Message, Payload, Step, Stored, World};

/// The unit of the model's clock. A lease is one of these.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// A world's constants: how the route is configured, how people and services behave, and
/// how far the search goes.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one independent assumption"
)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    /// Whether the foreign call carries a key that is the same on every attempt, so that
    /// its effect happens once however often it is called.
    pub(crate) downstream_idempotent: bool,
    /// Whether the reconciler takes "not found" for "never will be". It must not, unless
    /// the downstream is idempotent.
    pub(crate) absence_is_proof: bool,
    /// Whether unknown operations are also claimed, put off and dead-lettered. It moves
    /// only when somebody looks next, and makes the world ten times larger.
    pub(crate) scheduling: bool,
    /// The guard that is taken out.
    pub(crate) without: Option<Guard>,
    pub(crate) max_ticks: u8,
    pub(crate) max_grants: usize,
    pub(crate) sightings: Arc<Sightings>,
    identity: Identity,
}

impl Rules {
    /// The defaults of a careful route: nothing is known of the downstream.
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
            without: None,
            max_ticks: 4,
            max_grants: 3,
            sightings: Arc::default(),
            identity: Identity::new("tenant", "create_payment", key).expect("valid names"),
        }
    }

    pub(crate) fn resumes(&self) -> bool {
        self.policy.stale == Stale::Resume && self.policy.recovery_points
    }

    fn request(&self, world: &World, payload: Payload) -> Event {
        Event::Reserve(Reserve {
            id: world.next_id(),
            identity: self.identity.clone(),
            fingerprints: fingerprints(payload),
            owner: "owner".into(),
            policy: self.policy.clone(),
        })
    }

    /// What can be delivered about an attempt.
    fn deliverable(&self, attempt: &Attempt) -> impl Iterator<Item = Message> {
        let gave_up = attempt.course == Course::GaveUp;
        [
            (Message::Complete, attempt.course == Course::Landed),
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

    /// What a reconciler, or a person, finds out about an attempt, and sends off.
    fn investigate(&self, world: &World, attempt: &mut Attempt) {
        let absence_is_proof = self.downstream_idempotent || self.absence_is_proof;
        // Proof of another kind: the owner is known to have died before it could call.
        let died = attempt.course == Course::Died;
        if world.happened(attempt.fence.id) {
            attempt.found_done = true;
        } else if absence_is_proof || died {
            attempt.found_nothing = true;
        }
    }

    /// Brings an event to the store, and watches.
    fn tell_store(&self, world: &World, event: &Event) -> Option<World> {
        let before = world.record.0.as_deref();
        let told = store::apply(self.without, before.cloned(), event.clone(), world.now());
        let grant = match &told.answer {
            Answer::Decision(decision) => store::granted(decision),
            Answer::Applied(true) if matches!(event, Event::ClaimAbandoned(..)) => {
                told.record.as_ref().map(Record::fence)
            }
            Answer::Held(_) | Answer::Resolution(_) | Answer::Applied(_) => None,
        };
        if grant.is_some() && world.attempts.len() == self.max_grants {
            return None;
        }
        let broken = watch::judge(self, world, event, told.record.as_ref(), &told.answer);
        let unchanged = told.record.as_ref() == before;
        if unchanged && broken.is_none() {
            return None;
        }
        let mut next = world.clone();
        next.broken.add(broken);
        if !unchanged {
            watch::remember(&mut next, event, told.record.as_ref());
            next.record = Stored(told.record.map(Arc::new));
        }
        next.attempts.extend(grant.map(Attempt::new));
        Some(next)
    }

    /// The call arrives downstream.
    fn land(&self, world: &mut World, n: usize) {
        let fence = world.attempts[n].fence;
        world.attempts[n].course = Course::Landed;
        if self.downstream_idempotent && world.happened(fence.id) {
            return;
        }
        world.broken.add(watch::judge_effect(self, world, fence));
        world.ledger.push(fence);
        world.ledger.sort_by_key(|fence| (fence.id, fence.attempt));
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::default()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.tick < self.max_ticks {
            steps.push(Step::Tick);
        }
        steps.push(Step::Request(Payload::Same));
        if world.record.0.is_some() {
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
        for (n, attempt) in world.attempts.iter().enumerate() {
            match attempt.course {
                Course::Holding => steps.extend([Step::Call(n), Step::GiveUp(n), Step::Die(n)]),
                Course::Calling => steps.push(Step::Land(n)),
                Course::Landed | Course::GaveUp | Course::Died => {}
            }
            if world.is_unknown(attempt.fence) {
                steps.push(Step::Investigate(n));
            }
            steps.extend(self.deliverable(attempt).map(|m| Step::Deliver(n, m)));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let event = match step {
            Step::Request(payload) => self.request(world, payload),
            Step::Deliver(n, message) => event(world, &world.attempts[n], message),
            Step::Sweep => Event::Sweep,
            Step::ClaimAbandoned => Event::ClaimAbandoned("completer".into(), TICK),
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
            | Step::Investigate(_) => return self.outside_the_store(world, step),
        };
        self.tell_store(world, &event)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        watch::properties()
    }
}

impl Rules {
    fn outside_the_store(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::Tick => next.tick += 1,
            Step::Call(n) => next.attempts[n].course = Course::Calling,
            Step::Land(n) => self.land(&mut next, n),
            Step::GiveUp(n) => next.attempts[n].course = Course::GaveUp,
            Step::Die(n) => next.attempts[n].course = Course::Died,
            Step::Investigate(n) => self.investigate(world, &mut next.attempts[n]),
            Step::Request(_)
            | Step::Deliver(..)
            | Step::Sweep
            | Step::ClaimAbandoned
            | Step::ClaimDue
            | Step::Expire
            | Step::DropBody
            | Step::Purge => return None,
        }
        (next != *world).then_some(next)
    }
}

/// A message as the store's function takes it.
fn event(world: &World, attempt: &Attempt, message: Message) -> Event {
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
            let later: Timestamp = world.now().saturating_add(TICK);
            verdict(Verdict::StillUnknown(code(), later))
        }
        Message::DeadLetter => Event::DeadLetter(fence, code()),
    }
}

/// A response that shows who wrote it: the owner (200) or a reconciler (300), and in which
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
