//! What is kept of histories: within bounds, without what was erased, as long as the record.

use bytes::Bytes;
use semel_core::history::{MAX_EVIDENCE, MAX_REASON, MAX_REMARKS, Note, What};
use semel_core::{
    By, Fence, Held, OnExpired, OperationId, Policy, Resolution, Resolve, Verdict, Windows,
};

use super::fixture::{
    TICK, WINDOWS, again, by, completion, fenced_by, kept_for, not_executed, policy, request,
    together, verdict, with_policy,
};
use super::history::{asked, entries, kinds, line, told};
use super::{Fixture, Subject};

/// What changes nothing is told up to a bound; a change is told whatever came before.
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
        f.release(grant.fence).await,
        fenced_by(&f.record(first.id).await)
    );
    let told = kinds(&f, first.id).await;
    assert_eq!(told[bound..], [What::DeadLettered]);
    f.resolve(not_executed(grant.fence)).await;
    f.execute(again(&first)).await;
    let told = kinds(&f, first.id).await;
    assert_eq!(
        told[bound + 1..],
        [What::ResolvedNotExecuted, What::Reattempted]
    );
}

/// Evidence is kept exactly up to its bound, and none is not the same as an empty one.
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
    let told = entries(&f, first.id).await;
    let kept = |place: usize| told[place].note.evidence.clone();
    assert_eq!([kept(1), kept(2)], [whole.clone(), whole]);
    assert_eq!([kept(3), kept(4)], [empty, none]);
    let hashed: Vec<_> = told
        .iter()
        .map(|entry| entry.evidence_hash.is_some())
        .collect();
    assert_eq!(hashed, [false, true, true, true, false]);
}

/// A reason is cut at its bound, between characters.
pub async fn a_reason_is_cut_between_characters<S: Subject>(f: Fixture<S>) {
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
            by: By::person("op@example.com", why),
            ..not_executed(grant.fence)
        };
        f.resolve(decided).await;
        let told = told(&f, first.id).await;
        assert_eq!(told[1].reason.as_deref(), Some(kept), "{name}");
    }
}

/// Erasing takes the evidence out of every entry and says so; the chain holds without it.
pub async fn erase_removes_the_evidence_and_the_chain_holds<S: Subject>(f: Fixture<S>) {
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
        ..line(f.now(), 1, What::Erased, &by().who, None)
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

/// That somebody is shown the stored response is told, each time, and changes nothing; where there
/// is none, nothing is told.
pub async fn a_look_at_the_response_is_told<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    let look = async |id| f.store.revealed(id, by()).await.expect("revealed");
    assert!(!look(first.id).await, "nothing is stored yet");
    assert_eq!(entries(&f, first.id).await, []);
    f.complete(grant.fence, completion("paid")).await;
    let before = f.record(first.id).await;
    for seq in 1..=3 {
        f.clock.advance(TICK);
        assert!(look(first.id).await);
        let told = entries(&f, first.id).await;
        let revealed = Note {
            reason: by().why,
            ..line(f.now(), 1, What::Revealed, &by().who, None)
        };
        assert_eq!(told.len(), seq);
        assert_eq!(told.last().map(|entry| &entry.note), Some(&revealed));
    }
    assert_eq!(f.record(first.id).await, before);
    assert!(!look(OperationId::generate()).await);
}

/// What cannot be erased keeps its evidence, and nothing is told.
pub async fn a_refused_erasure_keeps_the_evidence<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.resolve(asked(&f, grant.fence, Some("a name".into())))
        .await;
    let before = entries(&f, first.id).await;
    assert!(!f.erase(first.id).await);
    assert_eq!(entries(&f, first.id).await, before);
}

/// A record goes with its history, whichever way it goes; another's stays.
pub async fn a_history_goes_with_its_record<S: Subject>(f: Fixture<S>) {
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
    for way in [
        "purged",
        "deleted",
        "begun anew",
        "buried and begun anew",
        "evicted",
    ] {
        let policy = if way == "deleted" { &forgetful } else { &eager };
        let first = with_policy(&request(way), policy.clone());
        let grant = f.execute(first.clone()).await;
        if way == "evicted" {
            // An attempt that was never granted is refused, and told.
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
        assert_ne!(entries(&f, first.id).await, [], "{way}");
        if way == "evicted" {
            assert_eq!(f.evict(grant.fence).await, Held::Applied);
        } else {
            f.clock.advance(WINDOWS.replay);
        }
        if ["purged", "deleted", "buried and begun anew"].contains(&way) {
            assert_eq!(f.expire(10).await, 1, "{way}");
        }
        if way == "purged" {
            assert_ne!(
                entries(&f, first.id).await,
                [],
                "a tombstone keeps its history"
            );
            f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
            assert_eq!(f.purge(10).await, 1);
        }
        if way.ends_with("begun anew") {
            let anew = f.execute(again(&first)).await;
            assert_eq!(entries(&f, anew.fence.id).await, [], "{way}");
        }
        assert_eq!(f.find(first.id).await, None, "{way}");
        let left = f.store.history(first.id).await.expect("history");
        assert_eq!(left, [], "{way}");
        assert_eq!(entries(&f, stays.fence.id).await, kept, "{way}");
    }
}

/// Of a batch only those that went lose their histories.
pub async fn retention_leaves_the_histories_of_what_stays<S: Subject>(f: Fixture<S>) {
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
    let told = async |id| f.store.history(id).await.expect("history").len();
    // Two that leave a tombstone or were not their turn yet, and exactly those deleted are gone.
    for id in &ids {
        let there = f.find(*id).await.is_some();
        assert_eq!(told(*id).await, if there { 2 } else { 0 });
    }
    assert_eq!(f.expire(3).await, 1);
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    assert_eq!(f.purge(1).await, 1);
    for id in &ids {
        let there = f.find(*id).await.is_some();
        assert_eq!(told(*id).await, if there { 2 } else { 0 });
    }
}
