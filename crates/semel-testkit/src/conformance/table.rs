//! The state table: every state, every verb, with the right fence and with wrong ones.
//!
//! Each case brings records into one state through the public verbs, applies every verb to
//! a record of its own, and compares answer and record with the state machine, field by
//! field. A write that does not apply changes nothing at all.

use std::time::Duration;

use semel_core::store::{MAX_BATCH, Which};
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
use crate::twin::{Batch, Twin};

/// How to bring records into a state, once attempt 2 runs and holds a recovery point.
enum Way {
    Do(fn(Fence) -> Event),
    Pass(Duration),
    Run(Batch),
}

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident, $policy:expr, [$($way:expr),* $(,)?];)*) => {
        $($(#[$doc])*
        pub async fn $name<S: Subject>(fixture: Fixture<S>) {
            use Way::{Do, Pass, Run};
            #[allow(unused, reason = "a state may need no further way")]
            let _ = (Do, Pass, Run);
            every_verb(fixture, &$policy, &[$($way),*]).await;
        })*
    };
}

states! {
    /// A fresh lease.
    every_verb_on_in_progress, policy(), [];
    /// A lease that is over, and nobody noticed.
    every_verb_on_in_progress_with_the_lease_over, policy(), [Pass(LEASE)];
    /// A fresh lease on what can be resumed.
    every_verb_on_resumable, resumable(), [];
    /// What can be resumed, and waits for somebody to do so.
    every_verb_on_resumable_with_the_lease_over, resumable(), [Pass(LEASE)];
    /// What can be resumed, and waited long enough.
    every_verb_on_resumable_past_its_time, resumable(), [Pass(LEASE), Pass(RESUME_WITHIN)];
    /// A response that can be replayed.
    every_verb_on_completed, policy(), [Do(complete)];
    /// A response whose window is over, and nobody noticed.
    every_verb_on_completed_with_the_window_over, policy(), [Do(complete), Pass(WINDOWS.replay)];
    /// A response whose body is due to go.
    every_verb_on_completed_with_the_body_over, kept_for(SHORT_BODY), [Do(complete), Pass(HOUR)];
    /// A response whose body went.
    every_verb_on_completed_without_body, kept_for(SHORT_BODY),
        [Do(complete), Pass(HOUR), Run(Batch::DropBodies)];
    /// Proven not to have executed.
    every_verb_on_failed_retryable, policy(), [Do(release)];
    /// Proven not to have executed, long ago.
    every_verb_on_failed_retryable_with_the_window_over, policy(),
        [Do(release), Pass(WINDOWS.replay)];
    /// May have executed; reconciliation is due.
    every_verb_on_unknown_due, policy(), [Do(mark_unknown)];
    /// May have executed; somebody is looking.
    every_verb_on_unknown_not_due, policy(),
        [Do(mark_unknown), Run(Batch::ClaimDue(Which::All, BACKOFF)), Pass(TICK)];
    /// May have executed; a person is looking.
    every_verb_on_unknown_dead_lettered, policy(), [Do(mark_unknown), Do(dead_letter), Pass(TICK)];
    /// A tombstone.
    every_verb_on_expired, policy(), [Do(complete), Pass(WINDOWS.replay), Run(Batch::Expire)];
    /// A tombstone whose own time is over.
    every_verb_on_expired_past_its_purge, policy(),
        [Do(complete), Pass(WINDOWS.replay), Run(Batch::Expire), Pass(TOMBSTONE)];
    /// A record that was there and went.
    every_verb_on_evicted, policy(), [Do(evict)];
    /// A record that expired and left nothing.
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

/// Everything a holder, a reconciler or an operator may say of one record.
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
    let mut all: Vec<_> = policies
        .into_iter()
        .flat_map(|policy| {
            let asked = with_policy(first, policy);
            [misused(&asked), asked]
        })
        .collect();
    all.push(newer);
    all
}

async fn every_verb<S: Subject>(fixture: Fixture<S>, policy: &Policy, ways: &[Way]) {
    let mut twin = Twin::new(fixture);
    let asked = questions(&request("count")).len();
    let requests = requests(policy, "verb", asked + 4 * SAYINGS.len());
    bring(&mut twin, &requests, ways).await;

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
    twin.steps(steps).await;
    twin.verify_all().await;

    let batches = [
        Batch::Sweep,
        Batch::ClaimAbandoned("create_payment".into(), "completer-1".into(), LEASE),
        Batch::ClaimDue(Which::All, BACKOFF),
        Batch::Expire,
        Batch::DropBodies,
        Batch::Purge,
    ];
    for (place, batch) in batches.iter().enumerate() {
        let fresh = self::requests(policy, &format!("batch-{place}"), 1);
        bring(&mut twin, &fresh, ways).await;
        twin.batch(batch, MAX_BATCH).await;
        twin.verify_all().await;
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
/// released, attempt 2 goes the ways.
async fn bring<S: Subject>(twin: &mut Twin<S>, requests: &[Reserve], ways: &[Way]) {
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
    twin.steps(all(&|r| Event::Reserve(r.clone()))).await;
    twin.steps(all(&|r| {
        Event::Advance(at(1)(r), point("created", b"pay_1"))
    }))
    .await;
    twin.steps(all(&|r| release(at(1)(r)))).await;
    twin.clock().advance(TICK);
    twin.steps(all(&|r| Event::Reserve(again(r)))).await;
    for way in ways {
        match way {
            Way::Do(event) => {
                twin.steps(all(&|r| event(at(2)(r)))).await;
            }
            Way::Pass(time) => twin.clock().advance(*time),
            Way::Run(batch) => {
                twin.batch(batch, MAX_BATCH).await;
            }
        }
    }
}
