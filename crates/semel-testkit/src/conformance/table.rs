//! The state table: every state, every verb, with the right fence and with wrong ones.
//!
//! Each case brings records into one state through the public verbs, applies every verb to
//! a record of its own, and compares answer and record with the state machine, field by
//! field. A write that does not apply changes nothing at all.

use std::time::Duration;

use semel_core::fingerprint::RulesId;
use semel_core::store::{MAX_BATCH, OperationFilter};
use semel_core::{
    Event, Fence, Fingerprint, Fingerprints, OnExpired, OperationId, Policy, Reserve, Stale,
    Timestamp, Verdict, Windows,
};

use super::abandoned::{RESUME_WITHIN, resumable};
use super::fixture::{
    BACKOFF, LEASE, TICK, WINDOWS, again, by, completion, fingerprint, kept_for, misused,
    not_executed, point, policy, request, verdict, with_policy,
};
use super::{Fixture, Subject};
use crate::model::{Batch, StoreAndModel};

/// A step that brings records into a state, after attempt 2 started and set a recovery point.
enum SetupStep {
    Do(fn(Fence) -> Event),
    Pass(Duration),
    Run(Batch),
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident, $policy:expr, [$($step:expr),* $(,)?];)*) => {
        $($(#[$doc])*
        pub async fn $name<S: Subject>(fixture: Fixture<S>) {
            use SetupStep::{Do, Pass, Run};
            #[allow(unused, reason = "a state may need no further step")]
            let _ = (Do, Pass, Run);
            every_verb(fixture, &$policy, &[$($step),*]).await;
        })*
    };
}

states! {
    /// A fresh lease.
    every_verb_on_in_progress, policy(), [];
/// An expired lease before a sweep.
    every_verb_on_in_progress_after_lease_expiry, policy(), [Pass(LEASE)];
/// A fresh lease on a resumable record.
    every_verb_on_resumable, resumable(), [];
/// Resumable, after its lease and before its resume deadline.
    every_verb_on_resumable_after_lease_expiry, resumable(), [Pass(LEASE)];
/// Resumable, after its resume deadline.
    every_verb_on_resumable_after_resume_deadline, resumable(), [Pass(LEASE), Pass(RESUME_WITHIN)];
    /// A response that can be replayed.
    every_verb_on_completed, policy(), [Do(complete)];
/// A response after its replay window, before `expire`.
    every_verb_on_completed_after_replay_window, policy(), [Do(complete), Pass(WINDOWS.replay)];
/// A response after its body's window.
    every_verb_on_completed_after_body_expiry, kept_for(SHORT_BODY), [Do(complete), Pass(HOUR)];
/// A response without its body.
    every_verb_on_completed_without_body, kept_for(SHORT_BODY),
        [Do(complete), Pass(HOUR), Run(Batch::DropBodies)];
    /// Proven not to have executed.
    every_verb_on_failed_retryable, policy(), [Do(release)];
    /// Proven not to have executed, long ago.
    every_verb_on_failed_retryable_after_replay_window, policy(),
        [Do(release), Pass(WINDOWS.replay)];
    /// May have executed; reconciliation is due.
    every_verb_on_unknown_due, policy(), [Do(mark_unknown)];
/// Unknown, with a reconcile attempt scheduled.
    every_verb_on_unknown_not_due, policy(),
        [Do(mark_unknown), Run(Batch::ClaimDue(OperationFilter::All, BACKOFF)), Pass(TICK)];
    /// May have executed; a dead letter.
    every_verb_on_unknown_dead_lettered, policy(), [Do(mark_unknown), Do(dead_letter), Pass(TICK)];
    /// A tombstone.
    every_verb_on_expired, policy(), [Do(complete), Pass(WINDOWS.replay), Run(Batch::Expire)];
    /// A tombstone that may be purged.
    every_verb_on_expired_after_purge_time, policy(),
        [Do(complete), Pass(WINDOWS.replay), Run(Batch::Expire), Pass(TOMBSTONE)];
    /// A record that was evicted.
    every_verb_on_evicted, policy(), [Do(evict)];
    /// A record that expired without a tombstone.
    every_verb_on_deleted, kept_for(NO_TOMBSTONE), [Do(complete), Pass(WINDOWS.replay), Run(Batch::Expire)];
}

const HOUR: Duration = Duration::from_hours(1);

const TOMBSTONE: Duration = Duration::from_hours(30 * 24);

const SHORT_BODY: Windows = Windows {
    body: HOUR,
    ..WINDOWS
};

const NO_TOMBSTONE: Windows = Windows {
    tombstone: None,
    ..WINDOWS
};

fn complete(fence: Fence) -> Event {
    Event::Complete(fence, completion("paid"))
}

fn release(fence: Fence) -> Event {
    Event::Release(fence, "not_sent".into())
}

fn evict(fence: Fence) -> Event {
    Event::Evict(fence, "refused".into())
}

fn mark_unknown(fence: Fence) -> Event {
    Event::MarkUnknown(fence, "timeout".into(), None)
}

fn dead_letter(fence: Fence) -> Event {
    Event::DeadLetter(fence, "tries_used_up".into())
}

/// Every write of a holder, a reconciler or an operator to one record.
const SAYINGS: [fn(Fence) -> Event; 15] = [
    complete,
    |fence| Event::Complete(fence, completion("declined")),
    release,
    evict,
    mark_unknown,
    |fence| Event::MarkUnknown(fence, "timeout".into(), completion("").resource),
    |fence| Event::Heartbeat(fence, 2 * LEASE),
    |fence| Event::Heartbeat(fence, Duration::ZERO),
    |fence| Event::Advance(fence, point("charged", b"ch_2")),
    |fence| Event::Resolve(verdict(fence, Verdict::Completed(completion("found")))),
    |fence| Event::Resolve(not_executed(fence)),
    |fence| {
        let later = Timestamp::from_micros(1_800_000_000_000_000);
        let still = Verdict::StillUnknown("not_found".into(), later);
        Event::Resolve(verdict(fence, still))
    },
    dead_letter,
    |_| Event::Erase(by()),
    |_| Event::Reveal(by()),
];

/// Everything a client may ask, of one record.
fn questions(first: &Reserve) -> Vec<Reserve> {
    let execute = Policy {
        on_expired: OnExpired::Execute,
        ..first.policy.clone()
    };
    let resume = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..execute.clone()
    };
    let points_missing = Policy {
        recovery_points: false,
        ..resume.clone()
    };
    let resume_missing = Policy {
        stale: Stale::Unknown,
        ..resume.clone()
    };
    let policies = [
        first.policy.clone(),
        execute,
        resume,
        points_missing,
        resume_missing,
    ];
    let newest = first.fingerprints.newest();
    let newer = Reserve {
        fingerprints: Fingerprints::from(Fingerprint::from_parts(2, [9; 32])).with_older(newest),
        ..again(first)
    };
    let other_rules = |asked: &Reserve| Reserve {
        fingerprints: newest.under(RulesId(7_000_000_000)).into(),
        ..again(asked)
    };
    let mut all: Vec<_> = policies
        .into_iter()
        .flat_map(|policy| {
            let asked = with_policy(first, policy);
            [misused(&asked), other_rules(&asked), asked]
        })
        .collect();
    let deployed = Reserve {
        fingerprints: other_rules(first).fingerprints.with_older(newest),
        ..again(first)
    };
    all.extend([newer, deployed]);
    all
}

async fn every_verb<S: Subject>(fixture: Fixture<S>, policy: &Policy, setup: &[SetupStep]) {
    let mut pair = StoreAndModel::new(fixture);
    let asked = questions(&request("count")).len();
    let requests = requests(policy, "verb", asked + 4 * SAYINGS.len());
    bring(&mut pair, &requests, setup).await;

    let steps = requests.iter().enumerate().map(|(place, first)| {
        let right = Fence {
            id: first.id,
            attempt: 2,
        };
        let Some(place) = place.checked_sub(asked) else {
            return (
                first.id,
                Event::Reserve(questions(first).swap_remove(place)),
            );
        };
        let fence = match place % 4 {
            0 => right,
            1 => Fence {
                attempt: 1,
                ..right
            },
            2 => Fence {
                attempt: 3,
                ..right
            },
            _ => Fence {
                id: OperationId::generate(),
                ..right
            },
        };
        (fence.id, SAYINGS[place / 4](fence))
    });
    let steps = steps.collect();
    pair.steps(steps).await;
    pair.verify_all().await;

    let batches = [
        Batch::Sweep,
        Batch::ClaimAbandoned("create_payment".into(), "completer-1".into(), LEASE),
        Batch::ClaimDue(OperationFilter::All, BACKOFF),
        Batch::Expire,
        Batch::DropBodies,
        Batch::Purge,
    ];
    for (place, batch) in batches.iter().enumerate() {
        let fresh = self::requests(policy, &format!("batch-{place}"), 1);
        bring(&mut pair, &fresh, setup).await;
        pair.batch(batch, MAX_BATCH).await;
        pair.verify_all().await;
    }
}

fn requests(policy: &Policy, name: &str, count: usize) -> Vec<Reserve> {
    (0..count)
        .map(|place| Reserve {
            policy: policy.clone(),
            fingerprints: fingerprint(1).into(),
            ..request(&format!("{name}-{place}"))
        })
        .collect()
}

/// Brings records into a state, all at once: attempt 1 leaves a recovery point and is
/// released, attempt 2 goes the steps.
async fn bring<S: Subject>(pair: &mut StoreAndModel<S>, requests: &[Reserve], steps: &[SetupStep]) {
    let at = |attempt| {
        move |request: &Reserve| Fence {
            id: request.id,
            attempt,
        }
    };
    let all = |event: &dyn Fn(&Reserve) -> Event| {
        requests
            .iter()
            .map(|r| (r.id, event(r)))
            .collect::<Vec<_>>()
    };
    pair.steps(all(&|r| Event::Reserve(r.clone()))).await;
    pair.steps(all(&|r| {
        Event::Advance(at(1)(r), point("created", b"pay_1"))
    }))
    .await;
    pair.steps(all(&|r| release(at(1)(r)))).await;
    pair.clock().advance(TICK);
    pair.steps(all(&|r| Event::Reserve(again(r)))).await;
    for step in steps {
        match step {
            SetupStep::Do(event) => {
                pair.steps(all(&|r| event(at(2)(r)))).await;
            }
            SetupStep::Pass(time) => pair.clock().advance(*time),
            SetupStep::Run(batch) => {
                pair.batch(batch, MAX_BATCH).await;
            }
        }
    }
}
