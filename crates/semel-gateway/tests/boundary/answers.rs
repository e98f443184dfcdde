//! Every answer of the boundary itself, in both dialects.

use std::time::Duration;

use semel_core::{Code, Fence, Maintain as _, OnExpired, Status, Store as _};
use semel_http::InFlight;
use semel_testkit::faulty::{Fault, Gate, Verb};

use crate::world::{Answer, Door, SHORT, World, patient, stripe};

crate::through_both_doors!(
    stripe_words_a_missing_key,
    misuse_is_refused_in_every_state,
    stripe_words_misuse,
    in_flight_is_rejected,
    stripe_words_in_flight,
    in_flight_is_accepted,
    in_flight_waits_for_the_answer,
    waiting_ends_as_a_rejection,
    a_waiter_takes_over_what_is_released,
    an_unknown_outcome_is_told,
    stripe_words_an_unknown_outcome,
    an_expired_key_is_refused,
    an_expired_key_may_execute,
    a_body_that_is_gone_is_told,
    a_body_goes_at_its_instant,
    a_store_that_fails_stops_everything,
    a_store_that_does_not_answer_stops_everything,
    what_cannot_be_recorded_is_pending,
    a_lost_commit_is_written_again,
    a_replay_is_the_same_again,
    a_replayed_failure_is_final_for_stripe,
    expiry_is_disclosed,
    erasure_reaches_the_cache,
    the_cache_answers_without_the_store,
);

const OTHER: &str = r#"{"amount":2}"#;

async fn stripe_words_a_missing_key(door: Door) {
    let world = World::with(door, stripe).await;
    let answer = world.post("/do/status-201", "", "{}").await;
    answer.refuses_like_stripe(400, "invalid_request_error", "idempotency_key_missing");
}

async fn misuse_is_refused_in_every_state(door: Door) {
    let world = World::new(door).await;
    let gate = world.app.gate("held-1");
    for (key, path) in [
        ("completed", "/do/status-201"),
        ("unknown", "/do/status-503"),
        ("released", "/do/status-408"),
    ] {
        world.post(path, key, "{}").await;
        let answer = world.post(path, key, OTHER).await;
        answer.refuses(422, "idempotency_key_reused");
        // Nothing is told about the first request.
        assert!(answer.json().get("operation_id").is_none());
        assert_eq!(answer.header("retry-after"), None);
    }
    let running = tokio::spawn(world.call("/do/held-1", "running", "{}").send());
    gate.reached().await;
    let answer = world.post("/do/held-1", "running", OTHER).await;
    answer.refuses(422, "idempotency_key_reused");
    gate.open();
    running.await.unwrap();
    // And after the window.
    world.clock.advance(Duration::from_hours(25));
    let answer = world.post("/do/status-201", "completed", OTHER).await;
    answer.refuses(422, "idempotency_key_reused");
    assert_eq!(world.app.executions(), 4);
}

async fn stripe_words_misuse(door: Door) {
    let world = World::with(door, stripe).await;
    world.post("/do/status-201", "k1", "{}").await;
    let answer = world.post("/do/status-201", "k1", OTHER).await;
    answer.refuses_like_stripe(400, "idempotency_error", "idempotency_key_reused");
}

/// Sends the same request again while the first is held.
async fn while_held(world: &World) -> (Answer, Gate) {
    let gate = world.app.gate("held-1");
    tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    (world.post("/do/held-1", "k1", "{}").await, gate)
}

async fn in_flight_is_rejected(door: Door) {
    let world = World::new(door).await;
    let (answer, gate) = while_held(&world).await;
    answer.refuses(409, "idempotency_key_in_progress");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.json()["retryable"], true);
    gate.open();
}

async fn stripe_words_in_flight(door: Door) {
    let world = World::with(door, stripe).await;
    let (answer, gate) = while_held(&world).await;
    answer.refuses_like_stripe(409, "invalid_request_error", "idempotency_key_in_use");
    assert_eq!(answer.header("stripe-should-retry"), Some("true"));
    gate.open();
}

async fn in_flight_is_accepted(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.in_flight(InFlight::Accept))
    })
    .await;
    let (answer, gate) = while_held(&world).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let id = world.records().await[0].id;
    let status = format!("/.semel/operations/{id}");
    assert_eq!(answer.header("location"), Some(status.as_str()));
    gate.open();
}

async fn in_flight_waits_for_the_answer(door: Door) {
    let world = World::with(door, patient).await;
    let gate = world.app.gate("held-1");
    let first = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let second = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(first.body, second.body);
    assert!(!first.is_replay() && second.is_replay());
    assert_eq!(world.app.executions(), 1);
}

async fn waiting_ends_as_a_rejection(door: Door) {
    let max = Duration::from_millis(10);
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.in_flight(InFlight::Wait { max }))
    })
    .await;
    let (answer, gate) = while_held(&world).await;
    answer.refuses(409, "idempotency_key_in_progress");
    // The waiter took nothing with it.
    assert_eq!(world.status().await, Some(Status::InProgress));
    gate.open();
}

async fn a_waiter_takes_over_what_is_released(door: Door) {
    let world = World::with(door, patient).await;
    let gate = world.app.gate("held-1");
    tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let waiter = tokio::spawn(world.call("/do/held-1", "k1", "{}").send());
    let fence = world.records().await[0].fence();
    let store = world.store.inner();
    store.release(fence, Code::new("test")).await.unwrap();
    // The waiter looks for itself, finds the operation free, and executes.
    gate.reached_times(2).await;
    gate.open();
    assert_eq!(waiter.await.unwrap().status, 201);
    assert_eq!(world.app.executions(), 2);
}

async fn an_unknown_outcome_is_told(door: Door) {
    let world = World::new(door).await;
    world.post("/do/status-503", "k1", "{}").await;
    for _ in 0..3 {
        let answer = world.post("/do/status-503", "k1", "{}").await;
        answer.refuses(409, "idempotency_outcome_unknown");
        assert!(answer.header("retry-after").is_some());
        let id = world.records().await[0].id.to_string();
        let status = format!("/.semel/operations/{id}");
        assert_eq!(answer.header("location"), Some(status.as_str()));
        assert_eq!(answer.json()["operation_id"], id);
    }
    // However long it is.
    world.clock.advance(Duration::from_hours(10_000));
    let answer = world.post("/do/status-503", "k1", "{}").await;
    answer.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(world.app.executions(), 1);
}

async fn stripe_words_an_unknown_outcome(door: Door) {
    let world = World::with(door, stripe).await;
    world.post("/do/status-503", "k1", "{}").await;
    let answer = world.post("/do/status-503", "k1", "{}").await;
    answer.refuses_like_stripe(409, "api_error", "idempotency_outcome_unknown");
    assert_eq!(answer.header("stripe-should-retry"), Some("false"));
}

async fn an_expired_key_is_refused(door: Door) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let world = World::with(door, change).await;
        world.post("/do/status-201", "k1", "{}").await;
        assert!(world.post("/do/status-201", "k1", "{}").await.is_replay());
        // To the instant, although the answer is in the cache by now.
        world.clock.advance(Duration::from_hours(24));
        let answer = world.post("/do/status-201", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(410, "idempotency_key_expired");
        } else {
            answer.refuses_like_stripe(400, "invalid_request_error", "idempotency_key_expired");
        }
        assert_eq!(world.app.executions(), 1);
    }
}

async fn an_expired_key_may_execute(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| route.on_expired(OnExpired::Execute))
    })
    .await;
    world.post("/do/status-201", "k1", "{}").await;
    world.clock.advance(Duration::from_hours(24));
    let answer = world.post("/do/status-201", "k1", "{}").await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert_eq!(world.app.executions(), 2);
}

async fn a_body_that_is_gone_is_told(door: Door) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let world = World::with(door, change).await;
        let large = world.post("/do/sized-1048577", "k1", "{}").await;
        assert_eq!(large.body.len(), 1_048_577);
        let answer = world.post("/do/sized-1048577", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(410, "idempotency_response_not_stored");
        } else {
            let code = "idempotency_response_not_stored";
            answer.refuses_like_stripe(400, "invalid_request_error", code);
        }
        assert_eq!(answer.header("location"), Some("/things/1"));
        assert_eq!(world.app.executions(), 1);
    }
}

async fn a_body_goes_at_its_instant(door: Door) {
    let world = World::with(door, |layer| {
        layer.defaults(|route| {
            let mut policy = semel_core::Policy::default();
            policy.windows.body = Duration::from_hours(1);
            route.policy(policy)
        })
    })
    .await;
    world.post("/do/status-201", "k1", "{}").await;
    world
        .clock
        .advance(Duration::from_hours(1) - Duration::from_micros(1));
    // From the store, then from the cache.
    for _ in 0..2 {
        assert!(world.post("/do/status-201", "k1", "{}").await.is_replay());
    }
    world.clock.advance(Duration::from_micros(1));
    let answer = world.post("/do/status-201", "k1", "{}").await;
    answer.refuses(410, "idempotency_response_not_stored");
}

/// The answer once the key is no longer in progress, which it must come to.
async fn once_free(world: &World) -> Answer {
    let asking = async {
        loop {
            let answer = world.post("/do/status-201", "k1", "{}").await;
            if answer.status != 409 {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), asking).await;
    answer.expect("the key stays in progress")
}

async fn a_store_that_fails_stops_everything(door: Door) {
    let world = World::new(door).await;
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        world.store.next(Verb::Reserve, fault);
        let answer = world.post("/do/status-201", "k1", "{}").await;
        answer.refuses(503, "idempotency_store_unavailable");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(world.app.executions(), 0);
    }
    // What was reserved without anybody knowing is given back.
    let answer = once_free(&world).await;
    assert_eq!(answer.status, 201);
    let world = World::with(door, stripe).await;
    world.store.next(Verb::Reserve, Fault::FailBefore);
    let answer = world.post("/do/status-201", "k1", "{}").await;
    answer.refuses_like_stripe(503, "api_error", "idempotency_store_unavailable");
}

async fn a_store_that_does_not_answer_stops_everything(door: Door) {
    let world = World::with_patience(door, SHORT, |layer| layer).await;
    let gate = Gate::closed();
    world
        .store
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    let answer = world.post("/do/status-201", "k1", "{}").await;
    answer.refuses(503, "idempotency_store_unavailable");
    // The grant comes late, and is given back: nothing executes, nothing stays reserved.
    gate.open();
    let answer = once_free(&world).await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert_eq!(world.app.executions(), 1);
}

async fn what_cannot_be_recorded_is_pending(door: Door) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let world = World::with_patience(door, SHORT, change).await;
        let failing = |verb, _| (verb == Verb::Complete).then_some(Fault::FailBefore);
        world.store.when(failing);
        let answer = world.post("/do/status-201", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(503, "idempotency_outcome_pending");
            assert_eq!(answer.header("retry-after"), Some("1"));
        } else {
            answer.refuses_like_stripe(503, "api_error", "idempotency_outcome_pending");
        }
        let again = world.post("/do/status-201", "k1", "{}").await;
        assert_eq!(again.status, 409);
        // Recording goes on in the background.
        world.store.heal();
        let answer = once_free(&world).await;
        assert!(answer.is_replay());
        assert_eq!(world.app.executions(), 1);
    }
}

async fn a_lost_commit_is_written_again(door: Door) {
    let world = World::new(door).await;
    world.store.next(Verb::Complete, Fault::FailAfter);
    let answer = world.post("/do/status-201", "k1", "{}").await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert!(world.post("/do/status-201", "k1", "{}").await.is_replay());
}

async fn a_replay_is_the_same_again(door: Door) {
    let world = World::new(door).await;
    for what in ["echo", "status-402", "status-500", "empty", "status-303"] {
        let path = format!("/do/{what}");
        let body = r#"{ "a": "\u00e9 é", "b": 1.50 }"#;
        let first = world.post(&path, what, body).await;
        assert!(first.header("idempotent-replayed").is_none());
        // From the store, then from the cache.
        for _ in 0..3 {
            let again = world.post(&path, what, body).await;
            assert!(again.is_replay());
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert!(again.header("date").is_some());
        }
    }
    assert_eq!(world.app.executions(), 5);
}

async fn a_replayed_failure_is_final_for_stripe(door: Door) {
    let world = World::with(door, stripe).await;
    let first = world.post("/do/status-500", "k1", "{}").await;
    assert_eq!(first.header("stripe-should-retry"), None);
    let again = world.post("/do/status-500", "k1", "{}").await;
    assert_eq!(again.status, 500);
    assert_eq!(again.header("stripe-should-retry"), Some("false"));
    world.post("/do/status-201", "k2", "{}").await;
    let again = world.post("/do/status-201", "k2", "{}").await;
    assert_eq!(again.header("stripe-should-retry"), None);
}

async fn expiry_is_disclosed(door: Door) {
    let world = World::new(door).await;
    let first = world.post("/do/status-201", "k1", "{}").await;
    let disclosed = first.header("idempotency-key-expires").unwrap();
    let expires_at = match &world.records().await[0].state {
        semel_core::State::Completed(completed) => completed.expires_at.as_micros() / 1_000_000,
        other => panic!("{other:?}"),
    };
    let expected =
        std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(expires_at).unwrap());
    assert_eq!(disclosed, httpdate::fmt_http_date(expected));
    for _ in 0..2 {
        let again = world.post("/do/status-201", "k1", "{}").await;
        assert_eq!(again.header("idempotency-key-expires"), Some(disclosed));
    }
}

async fn erasure_reaches_the_cache(door: Door) {
    let world = World::new(door).await;
    for _ in 0..3 {
        world.post("/do/status-201", "k1", "{}").await;
    }
    let id = world.records().await[0].id;
    assert!(world.store.erase(id, "test".into()).await.unwrap());
    let answer = world.post("/do/status-201", "k1", "{}").await;
    answer.refuses(410, "idempotency_response_not_stored");
}

async fn the_cache_answers_without_the_store(door: Door) {
    let world = World::new(door).await;
    for _ in 0..2 {
        world.post("/do/status-201", "k1", "{}").await;
    }
    world.store.when(|_, _| Some(Fault::FailBefore));
    assert!(world.post("/do/status-201", "k1", "{}").await.is_replay());
    // Nobody else profits from it.
    let answer = world.post("/do/status-201", "k1", OTHER).await;
    answer.refuses(503, "idempotency_store_unavailable");
    let _: Fence = world.records().await[0].fence();
}
