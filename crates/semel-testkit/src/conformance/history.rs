//! What is told of an operation: everything out of the ordinary, and nothing else.

use bytes::Bytes;
use semel_core::history::{self, Entry, Note, What};
use semel_core::transition::Fenced;
use semel_core::{
    By, Code, Fence, Held, OperationId, Policy, Resolution, Resolve, Stale, Timestamp, Verdict,
    Windows,
};

use super::abandoned::resumable;
use super::fixture::{
    LEASE, TICK, WINDOWS, again, completion, fenced_by, kept_for, not_executed, point, policy,
    refused_by, request, together, verdict, with_policy,
};
use super::{Fixture, Subject};

/// The entries of an operation, which must be a whole chain that leads to where it stands.
pub(super) async fn entries<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<Entry> {
    let record = f.record(id).await;
    let entries = f.store.history(id).await.expect("history");
    assert_eq!(
        history::verify(&record, &entries),
        Ok(()),
        "{record:#?}\n{entries:#?}"
    );
    entries
}

/// What the entries of an operation say.
pub(super) async fn told<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<Note> {
    let entries = entries(f, id).await;
    entries.into_iter().map(|entry| entry.note).collect()
}

/// The kinds of an operation's entries.
pub(super) async fn kinds<S: Subject>(f: &Fixture<S>, id: OperationId) -> Vec<What> {
    let told = told(f, id).await;
    told.into_iter().map(|note| note.what).collect()
}

/// A line in which nobody gave a reason and nothing was seen.
pub(super) fn line(
    at: Timestamp,
    attempt: u32,
    what: What,
    actor: &str,
    code: Option<&'static str>,
) -> Note {
    Note {
        at,
        attempt,
        what,
        actor: actor.into(),
        code: code.map(Into::into),
        reason: None,
        evidence: None,
    }
}

/// A verdict that decides nothing, with this evidence.
pub(super) fn asked<S: Subject>(f: &Fixture<S>, fence: Fence, evidence: Option<Bytes>) -> Resolve {
    let still = Verdict::StillUnknown("not_found".into(), f.now());
    Resolve {
        evidence,
        ..verdict(fence, still)
    }
}

/// What begins, beats, ends and is replayed is told by the record alone.
pub async fn an_ordinary_execution_leaves_no_history<S: Subject>(f: Fixture<S>) {
    let short = Windows {
        body: LEASE,
        ..WINDOWS
    };
    let first = with_policy(&request("k"), kept_for(short));
    let grant = f.execute(first.clone()).await;
    f.in_progress(again(&first)).await;
    assert_eq!(f.heartbeat(grant.fence, LEASE).await, Held::Applied);
    let phase = f.advance(grant.fence, point("charged", b"ch_1")).await;
    assert_eq!(phase, Held::Applied);
    assert_eq!(entries(&f, first.id).await, []);
    f.complete(grant.fence, completion("paid")).await;
    let repeated = f.complete(grant.fence, completion("paid")).await;
    assert_eq!(repeated, Held::Repeated);
    f.replay(again(&first)).await;
    assert_eq!(entries(&f, first.id).await, []);
    f.clock.advance(LEASE);
    assert_eq!(f.drop_bodies(10).await, 1);
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    assert_eq!(entries(&f, first.id).await, []);
}

/// A name that nobody used has no history, which is not an error.
pub async fn an_unused_name_has_no_history<S: Subject>(f: Fixture<S>) {
    let none = f.store.history(OperationId::generate()).await;
    assert_eq!(none.expect("history"), []);
}

/// However an execution is lost, it is told once, by whoever noticed.
pub async fn a_loss_is_told_by_whoever_noticed<S: Subject>(f: Fixture<S>) {
    let said = f.lost(request("said")).await;
    let told_at = f.now();
    let swept = f.execute(request("swept")).await;
    f.clock.advance(LEASE);
    assert_eq!(f.sweep(10).await, [swept.fence]);
    let noticed_request = request("noticed");
    let noticed = f.execute(noticed_request.clone()).await;
    f.clock.advance(LEASE);
    f.unknown(again(&noticed_request)).await;
    let noticed_at = f.now();
    f.clock.advance(TICK);
    // Asking again changes nothing.
    f.unknown(again(&noticed_request)).await;
    let lapsed = Code::LEASE_EXPIRED;
    for (grant, at, actor, code) in [
        (&said, told_at, "executor", Code::from("timeout")),
        (
            &swept,
            told_at.saturating_add(LEASE),
            "sweeper",
            lapsed.clone(),
        ),
        (&noticed, noticed_at, "client", lapsed),
    ] {
        let expected = Note {
            code: Some(code),
            ..line(at, 1, What::Unknown, actor, None)
        };
        assert_eq!(told(&f, grant.fence.id).await, [expected]);
    }
}

/// A proof that nothing happened, and each attempt that it let in, is told.
pub async fn a_release_and_the_next_attempt_are_told<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    f.released(first.clone()).await;
    let one = f.now();
    f.clock.advance(TICK);
    let second = f.execute(again(&first)).await;
    let two = f.now();
    f.clock.advance(TICK);
    // A later attempt cannot make itself forgotten, and hands back.
    assert_eq!(f.evict(second.fence).await, Held::Applied);
    let expected = [
        line(one, 1, What::Released, "executor", Some("not_sent")),
        line(two, 2, What::Reattempted, "client", None),
        line(f.now(), 2, What::Released, "executor", Some("refused")),
    ];
    assert_eq!(told(&f, first.id).await, expected);
}

/// An attempt that went on from a recovery point is told, and not as a loss.
pub async fn a_resumed_attempt_is_told<S: Subject>(f: Fixture<S>) {
    let resumable = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..policy()
    };
    let first = with_policy(&request("k"), resumable);
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"ch_1")).await;
    f.clock.advance(LEASE);
    let second = f.resume(again(&first)).await;
    let expected = [line(f.now(), 2, What::Resumed, "client", None)];
    assert_eq!(told(&f, first.id).await, expected);
    f.clock.advance(TICK);
    f.complete(second.fence, completion("paid")).await;
    assert_eq!(told(&f, first.id).await, expected, "it ended in time");
}

/// An attempt of a completer is told as its own, and not as a loss.
pub async fn a_completer_is_told<S: Subject>(f: Fixture<S>) {
    let first = with_policy(&request("k"), resumable());
    let grant = f.execute(first.clone()).await;
    f.advance(grant.fence, point("charged", b"ch_1")).await;
    f.clock.advance(LEASE);
    let claimed = f.claim_abandoned(10).await;
    let expected = [line(f.now(), 2, What::Resumed, "completer", None)];
    assert_eq!(told(&f, first.id).await, expected);
    f.clock.advance(TICK);
    f.complete(claimed[0].fence(), completion("paid")).await;
    assert_eq!(told(&f, first.id).await, expected, "it ended in time");
}

/// An owner that ended what was already unknown is told as late, also after the dead letters.
pub async fn a_late_completion_is_told<S: Subject>(f: Fixture<S>) {
    for dead in [false, true] {
        let first = request(&format!("dead-{dead}"));
        let grant = f.lost(first.clone()).await;
        let mut expected = vec![line(f.now(), 1, What::Unknown, "executor", Some("timeout"))];
        f.clock.advance(TICK);
        if dead {
            f.dead_letter(grant.fence, "tries_used_up".into()).await;
            let code = Some("tries_used_up");
            expected.push(line(f.now(), 1, What::DeadLettered, "worker", code));
        }
        f.clock.advance(TICK);
        f.complete(grant.fence, completion("late")).await;
        expected.push(line(f.now(), 1, What::CompletedLate, "executor", None));
        assert_eq!(told(&f, first.id).await, expected);
        f.clock.advance(TICK);
        let repeated = f.complete(grant.fence, completion("late")).await;
        assert_eq!(repeated, Held::Repeated);
        assert_eq!(told(&f, first.id).await, expected, "the same write again");
    }
}

/// An attempt that ended in time is not late because an earlier one was lost.
pub async fn an_attempt_in_time_after_a_loss_is_not_late<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let one = f.lost(first.clone()).await;
    f.claim_due(10).await;
    f.resolve(not_executed(one.fence)).await;
    let two = f.execute(again(&first)).await;
    f.complete(two.fence, completion("paid")).await;
    let expected = [What::Unknown, What::ResolvedNotExecuted, What::Reattempted];
    assert_eq!(kinds(&f, first.id).await, expected);
}

/// Whoever looked is told with what was seen, and whoever decided with the reason.
pub async fn verdicts_are_told_with_reason_and_evidence<S: Subject>(f: Fixture<S>) {
    let person = By::person("op@example.com", "the provider says so: ch_1 ✓");
    for completed in [true, false] {
        let first = request(&format!("completed-{completed}"));
        let grant = f.lost(first.clone()).await;
        let mut expected = vec![line(f.now(), 1, What::Unknown, "executor", Some("timeout"))];
        f.clock.advance(TICK);
        let seen = Bytes::from_static(b"404\0\xff");
        f.resolve(asked(&f, grant.fence, Some(seen.clone()))).await;
        expected.push(Note {
            evidence: Some(seen.clone()),
            ..line(f.now(), 1, What::Asked, "reconciler", Some("not_found"))
        });
        f.clock.advance(TICK);
        let (said, what, code) = if completed {
            let found = Verdict::Completed(completion("found"));
            (found, What::ResolvedCompleted, None)
        } else {
            let never = Verdict::NotExecuted("never_created".into());
            (never, What::ResolvedNotExecuted, Some("never_created"))
        };
        let decided = Resolve {
            by: person.clone(),
            ..verdict(grant.fence, said)
        };
        assert_eq!(f.resolve(decided).await, Resolution::Applied);
        expected.push(Note {
            reason: person.why.clone(),
            evidence: Some(seen),
            ..line(f.now(), 1, what, "op@example.com", code)
        });
        assert_eq!(told(&f, first.id).await, expected);
    }
}

/// A verdict that was refused is not told: it changed nothing and nothing happened.
pub async fn a_refused_verdict_is_not_told<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let record = f.record(first.id).await;
    assert_eq!(
        f.resolve(not_executed(grant.fence)).await,
        refused_by(&record)
    );
    let set_aside = f.dead_letter(grant.fence, "person".into()).await;
    assert_eq!(set_aside, refused_by(&record));
    assert_eq!(told(&f, first.id).await, []);
}

/// Setting aside what waits already is not told again.
pub async fn a_dead_letter_is_told_once<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    f.clock.advance(TICK);
    f.dead_letter(grant.fence, "tries_used_up".into()).await;
    let set_aside = line(
        f.now(),
        1,
        What::DeadLettered,
        "worker",
        Some("tries_used_up"),
    );
    f.clock.advance(TICK);
    f.dead_letter(grant.fence, "again".into()).await;
    assert_eq!(told(&f, first.id).await[1..], [set_aside]);
}

/// Every refused write of a holder is told with its own attempt, except a heartbeat.
pub async fn every_fenced_write_is_told<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let old = f.released(first.clone()).await;
    f.execute(again(&first)).await;
    f.clock.advance(TICK);
    let fenced = fenced_by(&f.record(first.id).await);
    let updated_at = f.record(first.id).await.updated_at;
    assert_eq!(f.complete(old.fence, completion("late")).await, fenced);
    assert_eq!(f.release(old.fence).await, fenced);
    assert_eq!(f.evict(old.fence).await, fenced);
    assert_eq!(f.mark_unknown(old.fence).await, fenced);
    assert_eq!(f.heartbeat(old.fence, LEASE).await, fenced);
    assert_eq!(f.advance(old.fence, point("p", b"")).await, fenced);
    let verbs = ["complete", "release", "evict", "mark_unknown", "advance"];
    let expected = verbs.map(|verb| line(f.now(), 1, What::Fenced, "executor", Some(verb)));
    assert_eq!(told(&f, first.id).await[2..], expected);
    assert_eq!(f.record(first.id).await.updated_at, updated_at);
}

/// The same refused write twice is two entries: each may have been an effect.
pub async fn the_same_fenced_write_twice_is_told_twice<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    for _ in 0..2 {
        f.clock.advance(TICK);
        f.complete(grant.fence, completion("other")).await;
    }
    let told = told(&f, first.id).await;
    let at: Vec<_> = told.iter().map(|note| note.at).collect();
    let whats: Vec<_> = told.iter().map(|note| note.what).collect();
    assert_eq!(whats, [What::Fenced; 2]);
    assert_eq!(at[0].saturating_add(TICK), at[1]);
}

/// Where there is no record there is nothing to tell of.
pub async fn a_fenced_write_without_a_record_tells_nothing<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.evict(grant.fence).await, Held::Applied);
    let none = Held::Fenced(Fenced { found: None });
    assert_eq!(f.complete(grant.fence, completion("late")).await, none);
    assert_eq!(f.release(grant.fence).await, none);
    assert_eq!(f.evict(grant.fence).await, none);
    let told = f.store.history(first.id).await.expect("history");
    assert_eq!(told, []);
}

/// Many late owners at once: every refusal is an entry, and the chain is whole.
pub async fn fenced_writes_at_once_leave_a_whole_chain<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.completed(first.clone(), "paid").await;
    let words = (0..f.scale.tasks).collect();
    together(&f.store, words, move |store, word: usize| async move {
        let said = completion(&word.to_string());
        store.complete(grant.fence, said).await.expect("complete")
    })
    .await;
    let expected = vec![What::Fenced; f.scale.tasks];
    assert_eq!(kinds(&f, first.id).await, expected);
}

/// Two operations' entries do not mix, and each has its own numbers.
pub async fn histories_are_kept_apart<S: Subject>(f: Fixture<S>) {
    let both = [request("a"), request("b")];
    let mut grants = Vec::new();
    for first in &both {
        grants.push(f.lost(first.clone()).await);
    }
    f.resolve(not_executed(grants[0].fence)).await;
    f.dead_letter(grants[1].fence, "person".into()).await;
    assert_eq!(
        kinds(&f, both[0].id).await,
        [What::Unknown, What::ResolvedNotExecuted]
    );
    assert_eq!(
        kinds(&f, both[1].id).await,
        [What::Unknown, What::DeadLettered]
    );
}
