//! `reserve`: which decision a request gets.

use semel_core::{
    Code, Decision, Fence, Fingerprint, Fingerprints, Held, OnExpired, Policy, Reserve, Stale,
    Status,
};

use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, fenced_by, fingerprint, kept_for, misused,
    not_executed, point, policy, request, unresolved, with_policy,
};
use super::{Fixture, Subject};

/// A policy under which a lease that is over may be resumed.
fn resumable() -> Policy {
    Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..policy()
    }
}

/// The first request executes attempt 1 under its own id.
pub async fn the_first_request_executes<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!((grant.fence.id, grant.fence.attempt), (first.id, 1));
    assert_eq!(grant.locked_until, f.now().saturating_add(LEASE));
    assert_eq!(grant.recovery, None);
    let record = f.record(first.id).await;
    assert_eq!(record.identity, first.identity);
    assert_eq!(record.fingerprint, fingerprint(1));
    assert_eq!((record.created_at, record.updated_at), (f.now(), f.now()));
}

/// A retry during execution gets the fence and the end of the lease.
pub async fn a_retry_during_execution_is_in_progress<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    let running = f.in_progress(again(&first)).await;
    assert_eq!(running.fence, grant.fence);
    assert_eq!(running.locked_until, grant.locked_until);
}

/// A different body under the same key is misuse in every state, before any other check. It reveals
/// and changes nothing.
pub async fn misuse_is_checked_first_in_every_state<S: Subject>(f: Fixture<S>) {
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..resumable()
    };
    let mut first = Vec::new();
    for name in [
        "running",
        "done",
        "released",
        "lost",
        "set-aside",
        "tombstone",
        "silent",
    ] {
        first.push(with_policy(&request(name), policy()));
    }
    let [
        running,
        done,
        released,
        lost,
        dead_lettered,
        tombstone,
        silent,
    ] = &first[..]
    else {
        unreachable!("seven names")
    };
    f.completed(tombstone.clone(), "old").await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    f.execute(silent.clone()).await;
    f.clock.advance(LEASE);
    f.execute(running.clone()).await;
    f.completed(done.clone(), "secret").await;
    f.released(released.clone()).await;
    f.lost(lost.clone()).await;
    let grant = f.lost(dead_lettered.clone()).await;
    f.dead_letter(grant.fence, "person".into()).await;

    f.clock.advance(TICK);
    for asked in &first {
        let before = f.record(asked.id).await;
        // A tombstone starts over where the policy says so.
        let starts_over = asked.id == tombstone.id;
        for policy in [policy(), eager.clone()]
            .into_iter()
            .take(2 - usize::from(starts_over))
        {
            let other = with_policy(&misused(asked), policy);
            let decision = f.reserve(other).await;
            let misuse = Decision::KeyMisuse { id: asked.id };
            assert_eq!(decision, misuse, "on {:?}", before.state.status());
            assert_eq!(
                f.record(asked.id).await,
                before,
                "misuse changed the record"
            );
        }
    }
}

/// The same for a record whose window ended and that was not expired yet, unless the policy lets
/// the key start over: then it does so with any body.
pub async fn misuse_is_checked_first_after_the_replay_window<S: Subject>(f: Fixture<S>) {
    for (name, is_swept) in [("tombstone", true), ("k", false)] {
        let first = request(name);
        f.completed(first.clone(), "old").await;
        f.clock.advance(WINDOWS.replay);
        if is_swept {
            assert_eq!(f.expire(10).await, 1);
        }
        let before = f.record(first.id).await;
        let decision = f.reserve(misused(&first)).await;
        assert_eq!(decision, Decision::KeyMisuse { id: first.id });
        assert_eq!(f.record(first.id).await, before);
        let execute = Policy {
            on_expired: OnExpired::Execute,
            ..policy()
        };
        let anew = with_policy(&misused(&first), execute);
        let grant = f.execute(anew.clone()).await;
        assert_eq!((grant.fence.id, grant.fence.attempt), (anew.id, 1));
        assert_eq!(
            f.record(anew.id).await.fingerprint,
            anew.fingerprints.newest()
        );
        assert_eq!(f.find(first.id).await, None);
        // The first body is now the other one.
        let decision = f.reserve(again(&first)).await;
        assert_eq!(decision, Decision::KeyMisuse { id: anew.id });
        f.complete(grant.fence, completion("new")).await;
    }
}

/// A record with an older fingerprint version matches the request's older fingerprint.
pub async fn an_older_fingerprint_version_still_matches<S: Subject>(f: Fixture<S>) {
    let old = Fingerprint::from_parts(1, [7; 32]);
    let new = Fingerprint::from_parts(2, [8; 32]);
    let first = Reserve {
        fingerprints: old.into(),
        ..request("k")
    };
    f.completed(first.clone(), "paid").await;
    let after_deploy = Reserve {
        fingerprints: Fingerprints::from(new).with_older(old),
        ..again(&first)
    };
    assert_eq!(f.replay(after_deploy).await.id, first.id);
    assert_eq!(f.record(first.id).await.fingerprint, old, "kept as it was");
}

/// The same digest in a version that the request does not carry does not match.
pub async fn an_unknown_fingerprint_version_is_misuse<S: Subject>(f: Fixture<S>) {
    let first = Reserve {
        fingerprints: Fingerprint::from_parts(300, [7; 32]).into(),
        ..request("k")
    };
    f.execute(first.clone()).await;
    for version in [299, 301, 44, 0] {
        let other = Reserve {
            fingerprints: Fingerprint::from_parts(version, [7; 32]).into(),
            ..again(&first)
        };
        let decision = f.reserve(other).await;
        assert_eq!(decision, Decision::KeyMisuse { id: first.id });
    }
}

/// Fingerprints that differ in any one bit do not match.
pub async fn every_bit_of_the_fingerprint_is_compared<S: Subject>(f: Fixture<S>) {
    let first = Reserve {
        fingerprints: Fingerprint::from_parts(1, [0; 32]).into(),
        ..request("k")
    };
    f.execute(first.clone()).await;
    for place in [0, 15, 16, 31] {
        let mut digest = [0; 32];
        digest[place] = 1;
        let other = Reserve {
            fingerprints: Fingerprint::from_parts(1, digest).into(),
            ..again(&first)
        };
        let decision = f.reserve(other).await;
        assert_eq!(
            decision,
            Decision::KeyMisuse { id: first.id },
            "byte {place}"
        );
    }
}

/// An expired lease makes the record unknown and due at once; the request does not execute. The
/// answer of the call that finds it says so, and no other.
pub async fn an_expired_lease_becomes_unknown<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.execute(first.clone()).await;
    f.clock.advance(LEASE);
    let unknown = f.unknown(again(&first)).await;
    assert_eq!(
        (unknown.reconcile_after, unknown.dead_lettered),
        (f.now(), false)
    );
    assert!(unknown.lease_expired);
    let record = f.record(first.id).await;
    assert_eq!(record.last_error, Some(Code::LEASE_EXPIRED));
    assert_eq!(unresolved(&record).reconcile_after, f.now());
    assert_eq!(record.attempt, 1);
    // And no later request moves it.
    f.clock.advance(WINDOWS.replay * 1000);
    for policy in [policy(), resumable()] {
        let unknown = f.unknown(with_policy(&first, policy)).await;
        assert!(!unknown.lease_expired);
    }
    assert_eq!(f.record(first.id).await, record);
    // The sweep found this one, and not the request.
    let swept = request("swept");
    f.execute(swept.clone()).await;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(10).await.len(), 1);
    assert!(!f.unknown(again(&swept)).await.lease_expired);
}

/// Resuming needs both a policy that allows it and recovery points.
pub async fn resume_requires_the_policy_and_recovery_points<S: Subject>(f: Fixture<S>) {
    let cases = [
        ("neither", Stale::Unknown, false),
        ("points only", Stale::Unknown, true),
        ("policy only", Stale::Resume, false),
    ];
    for (name, stale, recovery_points) in cases {
        let policy = Policy {
            stale,
            recovery_points,
            ..policy()
        };
        let first = with_policy(&request(name), policy);
        f.execute(first.clone()).await;
        f.clock.advance(LEASE);
        f.unknown(again(&first)).await;
    }
    let first = with_policy(&request("both"), resumable());
    f.execute(first.clone()).await;
    f.clock.advance(LEASE);
    assert_eq!(f.resume(again(&first)).await.fence.attempt, 2);
}

/// A resumed attempt continues after the last committed phase; the previous owner is fenced.
pub async fn resume_continues_at_the_recovery_point<S: Subject>(f: Fixture<S>) {
    let first = with_policy(&request("k"), resumable());
    let old = f.execute(first.clone()).await;
    for phase in ["created", "charged"] {
        let held = f.advance(old.fence, point(phase, b"\x00\xff id")).await;
        assert_eq!(held, Held::Applied);
    }
    f.clock.advance(LEASE);
    let new = f.resume(again(&first)).await;
    assert_eq!(new.recovery, Some(point("charged", b"\x00\xff id")));
    let record = f.record(first.id).await;
    assert_eq!(
        f.complete(old.fence, completion("late")).await,
        fenced_by(&record)
    );
    assert_eq!(
        f.advance(old.fence, point("x", b"")).await,
        fenced_by(&record)
    );
    assert_eq!(f.record(first.id).await, record);
}

/// A recovery point survives a release and a verdict.
pub async fn the_recovery_point_survives_into_the_next_grant<S: Subject>(f: Fixture<S>) {
    let first = request("released");
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("created", b"pay_1")).await;
    f.release(grant.fence).await;
    let next = f.execute(again(&first)).await;
    assert_eq!(next.recovery, Some(point("created", b"pay_1")));
    f.mark_unknown(next.fence).await;
    f.resolve(not_executed(next.fence)).await;
    let third = f.execute(again(&first)).await;
    assert_eq!(third.recovery, Some(point("created", b"pay_1")));
    assert_eq!(third.fence.attempt, 3);
}

/// A recovery point without data is valid.
pub async fn a_recovery_point_may_have_no_data<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.record(first.id).await.recovery, None);
    f.advance(grant.fence, point("", b"")).await;
    assert_eq!(f.record(first.id).await.recovery, Some(point("", b"")));
}

/// After a release, the next request executes attempt n + 1.
pub async fn a_released_record_executes_again<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    for attempt in 1..=5 {
        let next = Reserve {
            owner: format!("host-{attempt}").into(),
            ..again(&first)
        };
        let grant = f.execute(next).await;
        let id = f.find_identity(&first.identity).await.expect("a record").id;
        assert_eq!((grant.fence.id, grant.fence.attempt), (id, attempt));
        assert_eq!(f.release(grant.fence).await, Held::Applied);
        let record = f.record(id).await;
        assert_eq!(record.last_error, Some(Code::from("not_sent")));
        f.clock.advance(TICK);
    }
}

/// A new attempt takes the windows of its own policy.
pub async fn a_new_attempt_takes_the_windows_of_its_policy<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.released(first.clone()).await;
    let windows = semel_core::Windows {
        replay: WINDOWS.replay * 2,
        body: LEASE,
        tombstone: None,
    };
    let next = f.execute(with_policy(&first, kept_for(windows))).await;
    let record = f.record(next.fence.id).await;
    assert_eq!((record.windows, record.last_error), (windows, None));
}

/// An evicted key leaves no record and no fingerprint, and its fence is refused.
pub async fn an_evicted_key_leaves_no_record<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.evict(grant.fence).await, Held::Applied);
    assert_eq!(f.find(first.id).await, None);
    assert_eq!(f.find_identity(&first.identity).await, None);
    let other = misused(&first);
    let next = f.execute(other.clone()).await;
    assert_eq!((next.fence.id, next.fence.attempt), (other.id, 1));
    let none = Held::Fenced(semel_core::transition::Fenced { found: None });
    assert_eq!(f.complete(grant.fence, completion("late")).await, none);
    assert_eq!(f.evict(grant.fence).await, none);
    assert_eq!(f.status(other.id).await, Some(Status::InProgress));
}

/// A later attempt, or one with a committed phase, cannot prove that nothing was executed: it is
/// released instead, and the key keeps its fingerprint.
pub async fn only_a_first_attempt_without_phases_is_evicted<S: Subject>(f: Fixture<S>) {
    let later = request("later");
    let grant = f.execute(later.clone()).await;
    f.release(grant.fence).await;
    let second = f.execute(later.clone()).await;
    let phased = request("phased");
    let first = f.execute(phased.clone()).await;
    f.advance(first.fence, point("created", b"{}")).await;
    for (request, fence) in [(later, second.fence), (phased, first.fence)] {
        assert_eq!(f.evict(fence).await, Held::Applied);
        let record = f.record(fence.id).await;
        assert_eq!(record.state.status(), Status::FailedRetryable);
        assert_eq!(record.last_error, Some("refused".into()));
        let misuse = f.reserve(misused(&request)).await;
        assert!(matches!(misuse, Decision::KeyMisuse { .. }), "{misuse:?}");
        let next = f.execute(request).await;
        assert_eq!(
            (next.fence.id, next.fence.attempt),
            (fence.id, fence.attempt + 1)
        );
    }
}

/// Only its own holder can evict a first attempt.
pub async fn evict_with_another_fence_is_fenced<S: Subject>(f: Fixture<S>) {
    let grant = f.execute(request("k")).await;
    let before = f.record(grant.fence.id).await;
    for attempt in [0, 2] {
        let other = Fence {
            attempt,
            ..grant.fence
        };
        assert_eq!(f.evict(other).await, fenced_by(&before));
        assert_eq!(f.record(grant.fence.id).await, before);
    }
}
