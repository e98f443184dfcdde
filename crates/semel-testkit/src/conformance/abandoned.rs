//! Resumable records that their owner abandoned: one completer at a time continues them, and the
//! sweeper waits until their resume deadline.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::store::MAX_BATCH;
use semel_core::transition::InProgress;
use semel_core::{Decision, Fence, Held, Lease, Policy, Record, Reserve, Stale, State, Status};

use super::fixture::{
    LEASE, TICK, again, completion, fenced_by, identity, point, policy, request, request_for,
    together, with_policy,
};
use super::history::kinds;
use super::{Fixture, Subject};

/// The completer of abandoned records, in most cases.
pub(crate) const COMPLETER: &str = "completer-1/7";

/// The lease that a completer takes: neither the one before nor how long others wait.
pub(crate) const COMPLETER_LEASE: Duration = Duration::from_secs(45);

/// How long a resumable record waits for a completer, in most cases.
pub(crate) const RESUME_WITHIN: Duration = Duration::from_mins(10);

/// A policy whose operations can be resumed.
pub(crate) fn resumable() -> Policy {
    Policy {
        stale: Stale::Resume,
        recovery_points: true,
        resume_within: RESUME_WITHIN,
        ..policy()
    }
}

impl<S: Subject> Fixture<S> {
    /// Claims as a completer of the command that most cases use.
    pub(crate) async fn claim_abandoned(&self, limit: usize) -> Vec<Record> {
        self.claim_abandoned_of("create_payment", limit).await
    }

    pub(crate) async fn claim_abandoned_of(&self, operation: &str, limit: usize) -> Vec<Record> {
        let (owner, lease) = (COMPLETER.into(), COMPLETER_LEASE);
        let claimed = self.store.claim_abandoned(operation, owner, lease, limit);
        claimed.await.expect("claim_abandoned")
    }
}

/// A request whose operation can be resumed.
fn asked(key: &str) -> Reserve {
    with_policy(&request(key), resumable())
}

fn fences(claimed: &[Record]) -> Vec<Fence> {
    claimed.iter().map(Record::fence).collect()
}

fn next(fence: Fence) -> Fence {
    let attempt = fence.attempt + 1;
    Fence { attempt, ..fence }
}

/// Only a record whose policy resumes and that has recovery points can be claimed.
pub async fn only_resumable_records_are_claimed<S: Subject>(f: Fixture<S>) {
    let points_missing = Policy {
        recovery_points: false,
        ..resumable()
    };
    let resume_missing = Policy {
        stale: Stale::Unknown,
        ..resumable()
    };
    let mut others = Vec::new();
    for (name, policy) in [
        ("usual", policy()),
        ("points missing", points_missing),
        ("resume missing", resume_missing),
    ] {
        let grant = f.execute(with_policy(&request(name), policy)).await;
        f.advance(grant.fence, point("charged", b"ch_1")).await;
        others.push(f.record(grant.fence.id).await);
    }
    let abandoned = f.execute(asked("abandoned")).await.fence;
    f.clock.advance(RESUME_WITHIN);
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(abandoned)]);
    for other in others {
        assert_eq!(f.record(other.id).await, other);
    }
}

/// A record can be claimed from `locked_until` on, not before, and not after a heartbeat.
pub async fn a_lease_expires_exactly_on_time_for_claim_abandoned<S: Subject>(f: Fixture<S>) {
    let silent = f.execute(asked("silent")).await;
    let alive = f.execute(asked("alive")).await;
    f.clock.advance(LEASE - TICK);
    assert_eq!(f.claim_abandoned(10).await, []);
    assert_eq!(f.heartbeat(alive.fence, LEASE).await, Held::Applied);
    f.clock.advance(TICK);
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(silent.fence)]);
    f.clock.advance(LEASE - TICK - TICK);
    assert_eq!(f.claim_abandoned(10).await, []);
    f.clock.advance(TICK);
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(alive.fence)]);
}

/// The oldest expired lease comes first, up to the limit.
pub async fn the_longest_abandoned_is_claimed_first<S: Subject>(f: Fixture<S>) {
    let mut expected = Vec::new();
    // Reserved in one order, lapsing in the other, and given up in yet another.
    for (place, waits) in (1..=5).rev().zip([3, 1, 5, 2, 4]) {
        let policy = Policy {
            lease: LEASE * place,
            resume_within: RESUME_WITHIN * waits,
            ..resumable()
        };
        let grant = f
            .execute(with_policy(&request(&format!("k{place}")), policy))
            .await;
        expected.insert(0, next(grant.fence));
    }
    f.clock.advance(LEASE * 4);
    assert_eq!(f.claim_abandoned(0).await, []);
    assert_eq!(fences(&f.claim_abandoned(1).await), expected[..1]);
    assert_eq!(fences(&f.claim_abandoned(2).await), expected[1..3]);
    let rest = f.claim_abandoned(MAX_BATCH + 1).await;
    assert_eq!(fences(&rest), expected[3..4]);
    assert_eq!(f.claim_abandoned(10).await, []);
}

/// Records of other operations are not returned and do not use up the limit.
pub async fn a_completer_claims_only_its_operation<S: Subject>(f: Fixture<S>) {
    for operation in ["refund", "Pay", "pay2", "pa", "pay"] {
        let first = request_for(identity("t", operation, "k"));
        f.execute(with_policy(&first, resumable())).await;
        f.clock.advance(TICK);
    }
    f.clock.advance(LEASE);
    assert_eq!(f.claim_abandoned_of("unused", 10).await, []);
    let claimed = f.claim_abandoned_of("pay", 1).await;
    let operations: Vec<_> = claimed.iter().map(|r| r.identity.operation()).collect();
    assert_eq!(operations, ["pay"]);
    assert_eq!(f.claim_abandoned_of("pay", 10).await, []);
    assert_eq!(f.claim_abandoned_of("refund", 10).await.len(), 1);
}

/// A claim starts the next attempt of the same record at its recovery point, under the completer's
/// lease, with the resume deadline unchanged.
pub async fn a_claim_continues_at_the_recovery_point<S: Subject>(f: Fixture<S>) {
    let first = asked("k");
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"ch_1\0\xff"))
        .await;
    let before = f.record(first.id).await;
    f.clock.advance(LEASE);
    let claimed = f.claim_abandoned(10).await;
    let expected = Record {
        attempt: 2,
        owner: COMPLETER.into(),
        state: State::InProgress(Lease {
            locked_until: f.now().saturating_add(COMPLETER_LEASE),
            resume_within: Some(RESUME_WITHIN),
        }),
        updated_at: f.now(),
        ..before
    };
    assert_eq!(expected.recovery, Some(point("charged", b"ch_1\0\xff")));
    assert_eq!(claimed, std::slice::from_ref(&expected));
    assert_eq!(f.record(first.id).await, expected, "as it is stored");
    assert_eq!(
        f.complete(expected.fence(), completion("paid")).await,
        Held::Applied
    );
    let replay = f.replay(again(&first)).await;
    assert_eq!(replay.response, completion("paid").response);
}

/// A record abandoned before its first phase is claimed without a recovery point.
pub async fn a_claim_before_the_first_phase_has_no_recovery_point<S: Subject>(f: Fixture<S>) {
    f.execute(asked("k")).await;
    f.clock.advance(LEASE);
    let claimed = f.claim_abandoned(10).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].recovery, None);
}

/// Every write of the previous owner is fenced, and the history records each.
pub async fn the_previous_owner_is_fenced_after_a_claim<S: Subject>(f: Fixture<S>) {
    let grant = f.execute(asked("k")).await;
    f.clock.advance(LEASE);
    let claimed = f.claim_abandoned(10).await.remove(0);
    let fenced = fenced_by(&claimed);
    f.clock.advance(TICK);
    let old = grant.fence;
    assert_eq!(f.complete(old, completion("late")).await, fenced);
    assert_eq!(f.release(old).await, fenced);
    assert_eq!(f.evict(old).await, fenced);
    assert_eq!(f.mark_unknown(old).await, fenced);
    assert_eq!(f.heartbeat(old, LEASE).await, fenced);
    assert_eq!(f.advance(old, point("p", b"")).await, fenced);
    assert_eq!(f.record(old.id).await, claimed);
    assert_eq!(
        kinds(&f, old.id).await.len(),
        6,
        "resumed, and five refusals"
    );
}

/// A retry during a completer's attempt waits as for any other owner.
pub async fn a_retry_during_a_claim_is_in_progress<S: Subject>(f: Fixture<S>) {
    let first = asked("k");
    let grant = f.execute(first.clone()).await;
    f.clock.advance(LEASE);
    f.claim_abandoned(10).await;
    let running = InProgress {
        fence: next(grant.fence),
        locked_until: f.now().saturating_add(COMPLETER_LEASE),
    };
    assert_eq!(f.in_progress(again(&first)).await, running);
    f.clock.advance(COMPLETER_LEASE - TICK);
    assert_eq!(f.in_progress(again(&first)).await, running);
    f.clock.advance(TICK);
    assert_eq!(f.resume(again(&first)).await.fence.attempt, 3);
    assert_eq!(f.claim_abandoned(10).await, [], "the client has it");
}

/// A completer that stops is replaced by the next one.
pub async fn an_abandoned_claim_can_be_claimed<S: Subject>(f: Fixture<S>) {
    let first = f.execute(asked("k")).await.fence;
    f.clock.advance(LEASE);
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(first)]);
    f.clock.advance(COMPLETER_LEASE - TICK);
    assert_eq!(f.claim_abandoned(10).await, []);
    f.clock.advance(TICK);
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(next(first))]);
    f.clock.advance(COMPLETER_LEASE + RESUME_WITHIN - TICK);
    assert_eq!(f.sweep(10).await, [], "it waits as long as before");
    f.clock.advance(TICK);
    assert_eq!(f.sweep(10).await, [next(next(first))]);
}

/// The sweeper leaves a resumable record to completers until its resume deadline. Afterwards it
/// cannot be claimed.
pub async fn sweep_waits_for_the_resume_deadline<S: Subject>(f: Fixture<S>) {
    let grant = f.execute(asked("k")).await;
    f.clock.advance(LEASE + RESUME_WITHIN - TICK);
    assert_eq!(f.sweep(10).await, []);
    assert_eq!(f.status(grant.fence.id).await, Some(Status::InProgress));
    f.clock.advance(TICK);
    assert_eq!(f.sweep(10).await, [grant.fence]);
    assert_eq!(f.status(grant.fence.id).await, Some(Status::Unknown));
    assert_eq!(f.claim_abandoned(10).await, []);
}

/// Records that wait for a completer do not use up the sweep's limit; the oldest due record comes
/// first.
pub async fn resumable_records_do_not_delay_a_sweep<S: Subject>(f: Fixture<S>) {
    for place in 0..3 {
        f.execute(asked(&format!("waits-{place}"))).await;
    }
    f.clock.advance(TICK);
    let lapsed = f.execute(request("lapsed")).await;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(1).await, [lapsed.fence]);
    // Abandoned before the other, with a later deadline.
    let later = Policy {
        resume_within: LEASE * 3,
        ..resumable()
    };
    let later = f.execute(with_policy(&request("later"), later)).await;
    f.clock.advance(LEASE);
    let sooner = f.execute(request("sooner")).await;
    f.clock.advance(LEASE * 3);
    assert_eq!(f.sweep(1).await, [sooner.fence]);
    assert_eq!(f.sweep(1).await, [later.fence]);
}

/// Each attempt takes the resume settings from its own policy.
pub async fn a_new_attempt_sets_whether_it_is_resumable<S: Subject>(f: Fixture<S>) {
    let usual = f.released(request("now resumable")).await.fence;
    f.execute(asked("now resumable")).await;
    let resumable = f.released(asked("no longer")).await.fence;
    f.execute(request("no longer")).await;
    let changed = Policy {
        resume_within: RESUME_WITHIN * 2,
        ..self::resumable()
    };
    let longer = f.execute(asked("longer")).await.fence;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(10).await, [next(resumable)]);
    f.resume(with_policy(&request("longer"), changed)).await;
    assert_eq!(fences(&f.claim_abandoned(10).await), [next(next(usual))]);
    f.clock.advance(LEASE + RESUME_WITHIN * 2 - TICK);
    let swept = f.sweep(10).await;
    assert!(!swept.contains(&next(longer)), "{swept:?}");
    f.clock.advance(TICK);
    assert_eq!(f.sweep(10).await, [next(longer)]);
}

/// The longest durations do not overflow into the past.
pub async fn a_record_without_resume_deadline_is_never_swept<S: Subject>(f: Fixture<S>) {
    let forever = Policy {
        resume_within: Duration::MAX,
        ..resumable()
    };
    let grant = f.execute(with_policy(&request("k"), forever)).await;
    f.clock.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(f.sweep(10).await, []);
    let claimed = f
        .store
        .claim_abandoned("create_payment", COMPLETER.into(), Duration::MAX, 10);
    let claimed = claimed.await.expect("claim_abandoned");
    assert_eq!(fences(&claimed), [next(grant.fence)]);
    f.clock.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(f.sweep(10).await, []);
    assert_eq!(f.claim_abandoned(10).await, []);
}

/// Concurrent completers: each abandoned record goes to exactly one of them.
pub async fn each_abandoned_record_goes_to_one_completer<S: Subject>(f: Fixture<S>) {
    let all: Vec<_> = (0..40).map(|place| asked(&format!("k{place}"))).collect();
    let ids: BTreeSet<_> = all.iter().map(|request| request.id).collect();
    together(&f.store, all, |store, request| async move {
        store.reserve(request).await.expect("reserve")
    })
    .await;
    f.clock.advance(LEASE);
    let claimed = together(&f.store, (0..8).collect(), |store, n: u8| async move {
        let mut mine = Vec::new();
        // Bounded, since a store that hands out the same again would never be done.
        for _ in 0..40 {
            let owner = format!("completer-{n}").as_str().into();
            let some = store.claim_abandoned("create_payment", owner, LEASE, 3);
            let some = some.await.expect("claim_abandoned").into_iter();
            mine.extend(some.map(|record| (record.id, record.attempt)));
        }
        mine
    })
    .await;
    let claimed: Vec<_> = claimed.into_iter().flatten().collect();
    assert_eq!(claimed.len(), ids.len(), "claimed twice, or not at all");
    assert!(claimed.iter().all(|(_, attempt)| *attempt == 2));
    let claimed: BTreeSet<_> = claimed.into_iter().map(|(id, _)| id).collect();
    assert_eq!(claimed, ids);
}

/// Completers, clients and the late owner race: one gets the next attempt, or the owner completed
/// first.
pub async fn one_of_racing_completers_clients_and_owner_wins<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = asked(&format!("k{round}"));
        let old = f.execute(first.clone()).await.fence;
        f.clock.advance(LEASE);
        let given = together(
            &f.store,
            (0..f.scale.tasks).collect(),
            move |store, place| {
                let asked = again(&first);
                async move {
                    match place % 3 {
                        0 => match store.reserve(asked).await.expect("reserve") {
                            Decision::Resume(grant) => Some(grant.fence.attempt),
                            Decision::InProgress(_) | Decision::Replay(_) => None,
                            other => panic!("{other:?}"),
                        },
                        1 => {
                            let owner = COMPLETER.into();
                            let claimed = store.claim_abandoned("create_payment", owner, LEASE, 1);
                            let claimed = claimed.await.expect("claim_abandoned");
                            claimed.first().map(|record| record.attempt)
                        }
                        _ => {
                            let held = store.complete(old, completion("late")).await;
                            (held.expect("complete") == Held::Applied).then_some(1)
                        }
                    }
                }
            },
        )
        .await;
        let won: Vec<_> = given.into_iter().flatten().collect();
        assert_eq!(won.len(), 1, "attempts that won: {won:?}");
        let record = f.record(old.id).await;
        assert_eq!(record.attempt, won[0]);
        f.complete(record.fence(), completion("late")).await;
    }
}
