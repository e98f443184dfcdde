//! Concurrent calls: exactly one wins.

use std::collections::BTreeMap;

use semel_core::store::MAX_BATCH;
use semel_core::{
    Decision, Fence, Held, OnExpired, OperationId, Policy, Reserve, Resolution, Stale, State,
    Status, Verdict,
};

use super::fixture::{
    LEASE, WINDOWS, again, completion, not_executed, policy, request, together, verdict,
    with_policy,
};
use super::{Fixture, Subject};

/// The decisions for concurrent requests.
async fn crowd<S: Subject>(f: &Fixture<S>, asked: &Reserve) -> Vec<Decision> {
    let all = (0..f.scale.tasks).map(|_| again(asked)).collect();
    together(&f.store, all, |store, request| async move {
        store.reserve(request).await.expect("reserve")
    })
    .await
}

/// The one grant among the answers, all others of which are in progress on it.
fn the_one_grant(answers: Vec<Decision>) -> Fence {
    let mut granted = Vec::new();
    let mut running = Vec::new();
    for answer in answers {
        match answer {
            Decision::Execute(grant) | Decision::Resume(grant) => granted.push(grant.fence),
            Decision::InProgress(on) => running.push(on.fence),
            other => panic!("neither granted nor in progress: {other:?}"),
        }
    }
    assert_eq!(granted.len(), 1, "grants: {granted:?}");
    assert!(
        running.iter().all(|fence| *fence == granted[0]),
        "{running:?}"
    );
    granted[0]
}

/// Of many first requests, one executes and the others see it in progress.
pub async fn one_of_many_executes<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let answers = crowd(&f, &request(&format!("k{round}"))).await;
        assert_eq!(the_one_grant(answers).attempt, 1);
    }
}

/// Of many requests after a release, one executes the next attempt.
pub async fn one_of_many_executes_after_a_release<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        f.released(first.clone()).await;
        let fence = the_one_grant(crowd(&f, &first).await);
        assert_eq!(
            fence,
            Fence {
                id: first.id,
                attempt: 2
            }
        );
    }
}

/// Of many requests after the replay window, one executes a new record.
pub async fn one_of_many_executes_after_expiry<S: Subject>(f: Fixture<S>) {
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..policy()
    };
    for round in 0..f.scale.rounds {
        let first = with_policy(&request(&format!("k{round}")), eager.clone());
        f.completed(first.clone(), "old").await;
        f.clock.advance(WINDOWS.replay);
        assert_eq!(the_one_grant(crowd(&f, &first).await).attempt, 1);
    }
}

/// Of many requests after the lease, one resumes.
pub async fn one_of_many_resumes<S: Subject>(f: Fixture<S>) {
    let resumable = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..policy()
    };
    for round in 0..f.scale.rounds {
        let first = with_policy(&request(&format!("k{round}")), resumable.clone());
        f.execute(first.clone()).await;
        f.clock.advance(LEASE);
        assert_eq!(the_one_grant(crowd(&f, &first).await).attempt, 2);
    }
}

/// Of many requests after the lease of a record that is not resumable, none executes.
pub async fn none_of_many_executes_after_lease_expiry<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        f.execute(first.clone()).await;
        f.clock.advance(LEASE);
        for answer in crowd(&f, &first).await {
            assert!(matches!(answer, Decision::Unknown(_)), "{answer:?}");
        }
    }
}

/// Of many requests with different bodies, one executes and the others are misuse.
pub async fn one_of_many_bodies_executes<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let all = (0..f.scale.tasks).map(|body| Reserve {
            fingerprints: super::fixture::fingerprint(u8::try_from(body % 251).unwrap()).into(),
            ..request(&format!("k{round}"))
        });
        let answers = together(&f.store, all.collect(), |store, request| async move {
            store.reserve(request).await.expect("reserve")
        })
        .await;
        let executed = answers
            .iter()
            .filter(|a| matches!(a, Decision::Execute(_)))
            .count();
        let misused = answers
            .iter()
            .filter(|a| matches!(a, Decision::KeyMisuse { .. }))
            .count();
        assert_eq!(
            (executed, executed + misused),
            (1, f.scale.tasks),
            "{answers:?}"
        );
    }
}

/// Many concurrent keys with four requests each: each key executes once.
pub async fn many_keys_execute_once_each<S: Subject>(f: Fixture<S>) {
    let all = (0..f.scale.keys * 4).map(|place| request(&format!("k{}", place % f.scale.keys)));
    let answers = together(&f.store, all.collect(), |store, request| async move {
        let key = request.identity.key().as_str().to_owned();
        match store.reserve(request).await.expect("reserve") {
            Decision::Execute(grant) => {
                let body = completion(&grant.fence.id.to_string());
                let held = store.complete(grant.fence, body).await.expect("complete");
                assert_eq!(held, Held::Applied);
                Some((key, grant.fence.id))
            }
            Decision::InProgress(_) | Decision::Replay(_) => None,
            other => panic!("neither executes nor waits nor replays: {other:?}"),
        }
    })
    .await;
    let executed: Vec<(String, OperationId)> = answers.into_iter().flatten().collect();
    let by_key: BTreeMap<_, _> = executed.iter().cloned().collect();
    assert_eq!((executed.len(), by_key.len()), (f.scale.keys, f.scale.keys));
    for (key, id) in by_key {
        assert_eq!(f.replay(request(&key)).await.id, id);
    }
}

/// A completion that races a sweep and a retry is not lost.
pub async fn a_completion_racing_sweep_and_reserve_is_kept<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        let grant = f.execute(first.clone()).await;
        f.clock.advance(LEASE);
        let asked = again(&first);
        let held = together(&f.store, vec![0, 1, 2, 1, 2, 0], move |store, what: u8| {
            let asked = again(&asked);
            async move {
                match what {
                    0 => return store.complete(grant.fence, completion("paid")).await.ok(),
                    1 => drop(store.sweep(MAX_BATCH).await.expect("sweep")),
                    _ => match store.reserve(asked).await.expect("reserve") {
                        Decision::Unknown(_) | Decision::Replay(_) => {}
                        other => panic!("neither unknown nor replayed: {other:?}"),
                    },
                }
                None
            }
        })
        .await;
        let mut held: Vec<_> = held.into_iter().flatten().collect();
        held.sort_by_key(|held| *held == Held::Repeated);
        assert_eq!(held, [Held::Applied, Held::Repeated]);
        let replay = f.replay(again(&first)).await;
        assert_eq!(replay.response, completion("paid").response);
    }
}

/// Of different completions of one attempt, one applies, and every replay returns it.
pub async fn one_of_many_racing_completions_wins<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        let grant = f.execute(first.clone()).await;
        let numbers = (0..f.scale.tasks).collect();
        let held = together(&f.store, numbers, move |store, number: usize| async move {
            let given = completion(&number.to_string());
            store.complete(grant.fence, given).await.expect("complete")
        })
        .await;
        let stood: Vec<_> = (0..)
            .zip(&held)
            .filter(|(_, h)| **h == Held::Applied)
            .collect();
        assert_eq!(stood.len(), 1, "{held:?}");
        assert!(!held.contains(&Held::Repeated), "{held:?}");
        let replay = f.replay(again(&first)).await;
        let number: usize = stood[0].0;
        assert_eq!(replay.response, completion(&number.to_string()).response);
    }
}

/// Of two concurrent verdicts, one applies.
pub async fn one_of_two_racing_verdicts_wins<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        let grant = f.lost(first.clone()).await;
        let both = vec![
            verdict(grant.fence, Verdict::Completed(completion("found"))),
            not_executed(grant.fence),
        ];
        let answers = together(&f.store, both, |store, given| async move {
            store.resolve(given).await.expect("resolve")
        })
        .await;
        let stood = [Status::Completed, Status::FailedRetryable]
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| **answer == Resolution::Applied);
        let stood: Vec<_> = stood.map(|(status, _)| status).collect();
        assert_eq!(stood.len(), 1, "{answers:?}");
        assert_eq!(f.status(first.id).await, Some(stood[0]));
    }
}

/// A late completion and a verdict of "not executed" do not both apply.
pub async fn a_late_owner_and_a_verdict_do_not_both_apply<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        let grant = f.lost(first.clone()).await;
        let applied = together(
            &f.store,
            vec![true, false],
            move |store, owner| async move {
                if owner {
                    let held = store.complete(grant.fence, completion("late")).await;
                    held.expect("complete") == Held::Applied
                } else {
                    let answer = store.resolve(not_executed(grant.fence)).await;
                    answer.expect("resolve") == Resolution::Applied
                }
            },
        )
        .await;
        let expected = match applied[..] {
            [true, false] => Status::Completed,
            [false, true] => Status::FailedRetryable,
            _ => panic!("owner and verdict: {applied:?}"),
        };
        assert_eq!(f.status(first.id).await, Some(expected));
    }
}

/// A heartbeat that races a release does not restore the attempt.
pub async fn a_heartbeat_does_not_undo_a_racing_release<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.rounds {
        let first = request(&format!("k{round}"));
        let grant = f.execute(first.clone()).await;
        let beats = (0..f.scale.tasks).collect();
        together(&f.store, beats, move |store, place: usize| async move {
            if place == 0 {
                let held = store.release(grant.fence, "not_sent".into()).await;
                assert_eq!(held.expect("release"), Held::Applied);
            } else {
                store
                    .heartbeat(grant.fence, LEASE * 2)
                    .await
                    .expect("heartbeat");
            }
        })
        .await;
        let record = f.record(first.id).await;
        assert!(
            matches!(record.state, State::FailedRetryable { .. }),
            "{record:?}"
        );
    }
}

/// A cancelled `reserve` leaves the store usable, and the key either unused or in progress.
pub async fn a_cancelled_reserve_leaves_the_key_usable<S: Subject>(f: Fixture<S>) {
    for round in 0..f.scale.tasks {
        let first = request(&format!("k{round}"));
        let (store, asked) = (std::sync::Arc::clone(&f.store), first.clone());
        let task = tokio::spawn(async move { store.reserve(asked).await });
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        task.abort();
        drop(task.await);
        // A call that was given up may still be performed, before this one or after it.
        match f.reserve(again(&first)).await {
            Decision::Execute(grant) => assert_eq!(grant.fence.attempt, 1),
            Decision::InProgress(running) => {
                assert_eq!(
                    running.fence,
                    Fence {
                        id: first.id,
                        attempt: 1
                    }
                );
            }
            other => panic!("neither unused nor in progress: {other:?}"),
        }
        f.in_progress(again(&first)).await;
    }
}
