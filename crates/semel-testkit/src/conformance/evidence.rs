//! Bounds, erasure and retention of histories.

use bytes::Bytes;
use semel_core::history::{EntryKind, MAX_EVIDENCE, MAX_REASON, MAX_REMARKS, Note};
use semel_core::{
    Actor, Fence, Held, OnExpired, OperationId, Policy, Resolution, Resolve, Verdict, Windows,
};

use super::fixture::{
    TICK, WINDOWS, again, by, completion, fenced_by, kept_for, not_executed, policy, request,
    together, verdict, with_policy,
};
use super::history::{asked, entries, kinds, line, notes};
use super::{Fixture, Subject};

/// Entries that change nothing are recorded up to a bound; changes always.
pub async fn remarks_are_bounded_and_changes_are_not<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let bound = usize::try_from(MAX_REMARKS).expect("a small number");
    let looks = (0..bound + 5)
        .map(|_| asked(&f, grant.fence, None))
        .collect();
    together(&f.store, looks, |store, look| async move {
        let answer = store.resolve(look).await.expect("resolve");
        assert_eq!(answer, Resolution::Applied);
    })
    .await;
    assert_eq!(entries(&f, first.id).await.len(), bound);
    f.dead_letter(grant.fence, "tries_used_up".into()).await;
    assert_eq!(
        f.mark_unknown(grant.fence).await,
        fenced_by(&f.record(first.id).await)
    );
    let recorded = kinds(&f, first.id).await;
    assert_eq!(recorded[bound..], [EntryKind::DeadLettered]);
    f.resolve(not_executed(grant.fence)).await;
    f.execute(again(&first)).await;
    let recorded = kinds(&f, first.id).await;
    assert_eq!(
        recorded[bound + 1..],
        [EntryKind::ResolvedNotExecuted, EntryKind::Reattempted]
    );
}

/// Evidence is stored up to its bound, and no evidence differs from empty evidence.
pub async fn evidence_is_kept_up_to_its_bound<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(MAX_EVIDENCE + 1).collect();
    let given = [
        Some(Bytes::from(bytes.clone())),
        Some(Bytes::from(bytes[..MAX_EVIDENCE].to_vec())),
        Some(Bytes::new()),
        None,
    ];
    for evidence in given.clone() {
        f.resolve(asked(&f, grant.fence, evidence)).await;
    }
    let [_, whole, empty, none] = given;
    let entries = entries(&f, first.id).await;
    let kept = |place: usize| entries[place].note.evidence.clone();
    assert_eq!([kept(1), kept(2)], [whole.clone(), whole]);
    assert_eq!([kept(3), kept(4)], [empty, none]);
    let hashed: Vec<_> = entries
        .iter()
        .map(|entry| entry.evidence_hash.is_some())
        .collect();
    assert_eq!(hashed, [false, true, true, true, false]);
}

/// A reason that exceeds its bound is cut between characters.
pub async fn a_long_reason_is_cut_at_a_character_boundary<S: Subject>(f: Fixture<S>) {
    // The bound falls into the middle of a character of three bytes.
    let long = format!(
        "{}{}",
        "x".repeat(MAX_REASON % 3 + 1),
        "€".repeat(MAX_REASON)
    );
    for (name, why, kept) in [
        ("short", "because", "because"),
        ("exact", &"x".repeat(MAX_REASON), &"x".repeat(MAX_REASON)),
        ("long", &long, &long[..long.floor_char_boundary(MAX_REASON)]),
    ] {
        let first = request(name);
        let grant = f.lost(first.clone()).await;
        let decided = Resolve {
            by: Actor::person("op@example.com", why),
            ..not_executed(grant.fence)
        };
        f.resolve(decided).await;
        let notes = notes(&f, first.id).await;
        assert_eq!(notes[1].reason.as_deref(), Some(kept), "{name}");
    }
}

/// Erasing removes the evidence from every entry and records that; the hash chain stays valid.
pub async fn erase_removes_the_evidence_and_keeps_the_chain_valid<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.resolve(asked(&f, grant.fence, Some("a name".into())))
        .await;
    let found = Verdict::Completed(completion("found"));
    f.resolve(verdict(grant.fence, found)).await;
    let other = f.lost(request("other")).await;
    f.resolve(asked(&f, other.fence, Some("another name".into())))
        .await;
    let before = entries(&f, first.id).await;
    let others = entries(&f, other.fence.id).await;
    assert_eq!(
        before.iter().filter(|e| e.note.evidence.is_some()).count(),
        2
    );
    f.clock.advance(TICK);
    assert!(f.erase(first.id).await);
    let after = entries(&f, first.id).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(after.note.evidence, None, "{after:?}");
        assert_eq!(
            (after.hash, after.evidence_hash, &after.note.reason),
            (before.hash, before.evidence_hash, &before.note.reason),
            "all else stays"
        );
    }
    let erased = Note {
        reason: by().why,
        ..line(f.now(), 1, EntryKind::Erased, &by().who, None)
    };
    assert_eq!(
        after[before.len()..]
            .iter()
            .map(|e| &e.note)
            .collect::<Vec<_>>(),
        [&erased]
    );
    assert_eq!(
        entries(&f, other.fence.id).await,
        others,
        "another's evidence stays"
    );
}

/// Each reveal of a stored response is recorded and changes nothing else. Without a response,
/// nothing is recorded.
pub async fn a_reveal_of_the_response_is_recorded<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    let look = async |id| f.store.audit_reveal(id, by()).await.expect("revealed");
    assert!(!look(first.id).await, "nothing is stored yet");
    assert_eq!(entries(&f, first.id).await, []);
    f.complete(grant.fence, completion("paid")).await;
    let before = f.record(first.id).await;
    for seq in 1..=3 {
        f.clock.advance(TICK);
        assert!(look(first.id).await);
        let entries = entries(&f, first.id).await;
        let revealed = Note {
            reason: by().why,
            ..line(f.now(), 1, EntryKind::Revealed, &by().who, None)
        };
        assert_eq!(entries.len(), seq);
        assert_eq!(entries.last().map(|entry| &entry.note), Some(&revealed));
    }
    assert_eq!(f.record(first.id).await, before);
    assert!(!look(OperationId::generate()).await);
}

/// A refused erasure keeps the evidence and records nothing.
pub async fn a_refused_erasure_keeps_the_evidence<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.resolve(asked(&f, grant.fence, Some("a name".into())))
        .await;
    let before = entries(&f, first.id).await;
    assert!(!f.erase(first.id).await);
    assert_eq!(entries(&f, first.id).await, before);
}

/// Every verb that removes a record removes its history, and no other.
pub async fn a_history_is_purged_with_its_record<S: Subject>(f: Fixture<S>) {
    let stays = f.lost(request("stays")).await;
    let kept = entries(&f, stays.fence.id).await;
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..policy()
    };
    let forgetful = kept_for(Windows {
        tombstone: None,
        ..WINDOWS
    });
    for removal in [
        "purged",
        "deleted",
        "begun anew",
        "buried and begun anew",
        "evicted",
    ] {
        let policy = if removal == "deleted" {
            &forgetful
        } else {
            &eager
        };
        let first = with_policy(&request(removal), policy.clone());
        let grant = f.execute(first.clone()).await;
        if removal == "evicted" {
            // A write of an attempt that was never granted is fenced and recorded.
            let attempt = 2;
            f.release(Fence {
                attempt,
                ..grant.fence
            })
            .await;
        } else {
            f.mark_unknown(grant.fence).await;
            f.complete(grant.fence, completion("late")).await;
        }
        assert_ne!(entries(&f, first.id).await, [], "{removal}");
        if removal == "evicted" {
            assert_eq!(f.evict(grant.fence).await, Held::Applied);
        } else {
            f.clock.advance(WINDOWS.replay);
        }
        if ["purged", "deleted", "buried and begun anew"].contains(&removal) {
            assert_eq!(f.expire(10).await, 1, "{removal}");
        }
        if removal == "purged" {
            assert_ne!(
                entries(&f, first.id).await,
                [],
                "a tombstone keeps its history"
            );
            f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
            assert_eq!(f.purge(10).await, 1);
        }
        if removal.ends_with("begun anew") {
            let anew = f.execute(again(&first)).await;
            assert_eq!(entries(&f, anew.fence.id).await, [], "{removal}");
        }
        assert_eq!(f.find(first.id).await, None, "{removal}");
        let left = f.store.history(first.id).await.expect("history");
        assert_eq!(left, [], "{removal}");
        assert_eq!(entries(&f, stays.fence.id).await, kept, "{removal}");
    }
}

/// A batch removes only the histories of the records that it removes.
pub async fn retention_keeps_the_histories_of_remaining_records<S: Subject>(f: Fixture<S>) {
    let forgetful = kept_for(Windows {
        tombstone: None,
        ..WINDOWS
    });
    let mut ids = Vec::new();
    for place in 0..4 {
        let buried = place % 2 == 0;
        let policy = if buried { policy() } else { forgetful.clone() };
        let first = with_policy(&request(&format!("k{place}")), policy);
        let grant = f.lost(first.clone()).await;
        f.complete(grant.fence, completion("late")).await;
        f.clock.advance(TICK);
        ids.push(first.id);
    }
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(3).await, 3);
    let entry_count = async |id| f.store.history(id).await.expect("history").len();
    // Two that leave a tombstone or were not their turn yet, and exactly those deleted are gone.
    for id in &ids {
        let there = f.find(*id).await.is_some();
        assert_eq!(entry_count(*id).await, if there { 2 } else { 0 });
    }
    assert_eq!(f.expire(3).await, 1);
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    assert_eq!(f.purge(1).await, 1);
    for id in &ids {
        let there = f.find(*id).await.is_some();
        assert_eq!(entry_count(*id).await, if there { 2 } else { 0 });
    }
}
