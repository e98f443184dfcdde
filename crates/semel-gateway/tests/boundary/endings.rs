//! How an execution ends, and what the record says then.

use std::sync::Arc;
use std::time::Duration;

use semel_core::Status;
use semel_http::Ending;
use semel_testkit::faulty::{Fault, Verb};

use crate::world::{Door, SHORT, World, eventually, stripe};

crate::through_both_doors!(
    a_status_decides,
    the_application_decides,
    a_misspelt_word_is_unknown,
    a_success_that_is_unknown_is_not_shown,
    a_route_decides_otherwise,
    a_truncated_answer_is_unknown,
    a_panic_is_unknown,
    stripe_words_what_broke,
    an_execution_without_end_is_unknown,
    a_heartbeat_keeps_the_lease,
    a_client_that_goes_away_stops_nothing,
    a_store_that_marks_nothing_leaves_the_lease_to_tell,
    racers_execute_once,
    a_drain_waits_and_then_says_unknown,
);

async fn a_status_decides(door: Door) {
    for (statuses, expected) in [
        (
            &[
                200, 201, 202, 204, 301, 303, 400, 402, 404, 409, 422, 499, 500, 501, 505, 599,
            ][..],
            Some(Status::Completed),
        ),
        (&[401, 403, 407, 429], None),
        (&[408, 425], Some(Status::FailedRetryable)),
        (&[502, 503, 504], Some(Status::Unknown)),
    ] {
        for status in statuses {
            let world = World::new(door).await;
            let path = format!("/do/status-{status}");
            let answer = world.post(&path, "k1", "{}").await;
            assert_eq!(answer.status, *status);
            assert_eq!(world.status().await, expected, "{status}");
            let again = world.post(&path, "k1", "{}").await;
            let executed = world.app.executions() == 2;
            let replayed = again.is_replay() && again.body == answer.body;
            match expected {
                Some(Status::Completed) => assert!(replayed && !executed, "{status}"),
                Some(Status::Unknown) => assert!(!executed && again.status == 409, "{status}"),
                _ => assert!(executed && !replayed, "{status}"),
            }
        }
    }
}

async fn the_application_decides(door: Door) {
    for (word, expected) in [
        ("completed", Some(Status::Completed)),
        ("not-executed", Some(Status::FailedRetryable)),
        ("unknown", Some(Status::Unknown)),
        ("forget", None),
    ] {
        for status in [503, 500] {
            let world = World::new(door).await;
            let answer = world
                .post(&format!("/do/say-{word}-{status}"), "k1", "{}")
                .await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("semel-outcome"), None);
            assert_eq!(world.status().await, expected, "{word} {status}");
        }
    }
    // It is stripped from what is not guarded, too.
    let world = World::new(door).await;
    let answer = world.post("/optional/say-completed-200", "", "{}").await;
    assert_eq!(answer.header("semel-outcome"), None);
}

async fn a_misspelt_word_is_unknown(door: Door) {
    let world = World::new(door).await;
    world.post("/do/say-done-500", "k1", "{}").await;
    assert_eq!(world.status().await, Some(Status::Unknown));
}

async fn a_success_that_is_unknown_is_not_shown(door: Door) {
    let world = World::new(door).await;
    let answer = world.post("/do/say-unknown-200", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
}

async fn a_route_decides_otherwise(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| {
            route
                .outcome(503, Ending::NotExecuted)?
                .outcome(402, Ending::Forget)
        })
    })
    .await;
    world.post("/do/status-503", "k1", "{}").await;
    assert_eq!(world.status().await, Some(Status::FailedRetryable));
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.outcome(402, Ending::Forget))
    })
    .await;
    world.post("/do/status-402", "k1", "{}").await;
    assert_eq!(world.status().await, None);
}

async fn a_truncated_answer_is_unknown(door: Door) {
    let world = World::new(door).await;
    let answer = world.post("/do/broken", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(world.status().await, Some(Status::Unknown));
}

async fn a_panic_is_unknown(door: Door) {
    let world = World::new(door).await;
    let answer = world.post("/do/panic", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(world.status().await, Some(Status::Unknown));
    let again = world.post("/do/panic", "k1", "{}").await;
    again.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(world.app.executions(), 1);
}

async fn stripe_words_what_broke(door: Door) {
    let world = World::with(door, stripe).await;
    let answer = world.post("/do/panic", "k1", "{}").await;
    answer.refuses_like_stripe(504, "api_error", "idempotency_outcome_unknown");
    assert_eq!(answer.header("stripe-should-retry"), Some("false"));
}

async fn an_execution_without_end_is_unknown(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.execute_max(Duration::from_millis(50)))
    })
    .await;
    let answer = world.post("/do/held-1", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(world.status().await, Some(Status::Unknown));
}

async fn a_heartbeat_keeps_the_lease(door: Door) {
    // The lease is judged by the manual clock, and the heart beats in real time.
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.lease(Duration::from_millis(30)))
    })
    .await;
    let gate = world.app.gate("held-1");
    let first = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let lease = |records: Vec<semel_core::Record>| match &records[0].state {
        semel_core::State::InProgress(lease) => lease.locked_until,
        other => panic!("{other:?}"),
    };
    let before = lease(world.records().await);
    world.clock.advance(Duration::from_millis(25));
    eventually(async || lease(world.records().await) != before).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
}

async fn a_client_that_goes_away_stops_nothing(door: Door) {
    let world = World::new(door).await;
    let gate = world.app.gate("held-1");
    let first = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    gate.open();
    eventually(async || world.status().await != Some(Status::InProgress)).await;
    let again = world.post("/do/held-1", "k1", "{}").await;
    assert!(again.is_replay());
    assert_eq!(world.app.executions(), 1);
}

async fn a_store_that_marks_nothing_leaves_the_lease_to_tell(door: Door) {
    let world = World::with_patience(door, SHORT, |layer| layer).await;
    let deaf = |verb, _| (verb == Verb::MarkUnknown).then_some(Fault::FailBefore);
    world.store.when(deaf);
    let answer = world.post("/do/panic", "k1", "{}").await;
    answer.refuses(503, "idempotency_outcome_pending");
    world.clock.advance(Duration::from_mins(1));
    let again = world.post("/do/panic", "k1", "{}").await;
    again.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(world.app.executions(), 1);
}

async fn racers_execute_once(door: Door) {
    let world = Arc::new(World::with(door, crate::world::patient).await);
    let racers: Vec<_> = (0..50)
        .map(|_| tokio::spawn(world.call("/do/status-201", "k1", "{}").send()))
        .collect();
    let mut fresh = 0;
    let mut bodies = std::collections::HashSet::new();
    for racer in racers {
        let answer = racer.await.unwrap();
        assert_eq!(answer.status, 201);
        fresh += usize::from(!answer.is_replay());
        bodies.insert(answer.body);
    }
    assert_eq!((fresh, bodies.len(), world.app.executions()), (1, 1, 1));
}

async fn a_drain_waits_and_then_says_unknown(door: Door) {
    let world = World::new(door).await;
    let gate = world.app.gate("held-1");
    let first = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let layer = world.layer.clone();
    let draining = tokio::spawn(async move { layer.drain(Duration::from_mins(5)).await });
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(draining.await.unwrap().abandoned, 0);

    let world = World::new(door).await;
    let gate = world.app.gate("held-1");
    let first = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    assert_eq!(world.layer.drain(Duration::ZERO).await.abandoned, 1);
    let answer = first.await.unwrap();
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(world.status().await, Some(Status::Unknown));
    // Nothing begins after that, not even what was already being reserved.
    let late = world.post("/do/status-201", "k2", "{}").await;
    late.refuses(503, "idempotency_store_unavailable");
    assert_eq!(world.app.executions(), 1);
}
