//! Every response that the boundary makes itself, in both dialects.

use std::time::Duration;

use semel_core::{Code, Fence, OnExpired, Status, Store as _};
use semel_http::InFlight;
use semel_testkit::faulty::{Fault, Gate, Verb};

use crate::boundary::fixture::{Answer, EntryPoint, Fixture, SHORT, patient, stripe};

crate::boundary::through_both_entry_points!(
    missing_key_is_a_stripe_error,
    misuse_is_refused_in_every_state,
    misuse_is_a_stripe_error,
    in_flight_is_rejected,
    in_flight_is_a_stripe_error,
    in_flight_is_accepted,
    in_flight_waits_for_the_answer,
    waiting_ends_as_a_rejection,
    a_waiter_executes_after_a_release,
    unknown_outcome_returns_409,
    unknown_outcome_is_a_stripe_error,
    a_retry_is_reconciled_only_where_the_route_has_a_reconciler,
    a_dead_letter_says_that_an_operator_decides,
    error_base_is_the_prefix_of_the_type,
    an_expired_key_is_refused,
    an_expired_key_may_execute,
    replay_without_a_stored_body_returns_410,
    replay_after_body_expiry_returns_410,
    store_failure_refuses_without_executing,
    store_timeout_refuses_without_executing,
    unrecorded_outcome_is_pending,
    lost_commit_is_written_again,
    a_replay_equals_the_first_response,
    a_replayed_failure_is_final_for_stripe,
    expiry_is_disclosed,
    erasure_reaches_the_cache,
    the_cache_answers_without_the_store,
);

const OTHER: &str = r#"{"amount":2}"#;

async fn missing_key_is_a_stripe_error(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    let answer = fixture.post("/do/status-201", "", "{}").await;
    answer.refuses_like_stripe(400, "invalid_request_error", "idempotency_key_missing");
}

async fn misuse_is_refused_in_every_state(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let gate = fixture.app.gate("held-1");
    for (key, path) in [
        ("completed", "/do/status-201"),
        ("unknown", "/do/status-503"),
        ("released", "/do/status-408"),
    ] {
        fixture.post(path, key, "{}").await;
        let answer = fixture.post(path, key, OTHER).await;
        answer.refuses(422, "idempotency_key_reused");
        // The response reveals nothing about the first request.
        assert!(answer.json().get("operation_id").is_none());
        assert_eq!(answer.header("retry-after"), None);
    }
    let running = tokio::spawn(fixture.call("/do/held-1", "running", "{}").send());
    gate.reached().await;
    let answer = fixture.post("/do/held-1", "running", OTHER).await;
    answer.refuses(422, "idempotency_key_reused");
    gate.open();
    running.await.unwrap();
    // After the replay window as well.
    fixture.clock.advance(Duration::from_hours(25));
    let answer = fixture.post("/do/status-201", "completed", OTHER).await;
    answer.refuses(422, "idempotency_key_reused");
    assert_eq!(fixture.app.executions(), 4);
}

async fn misuse_is_a_stripe_error(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    fixture.post("/do/status-201", "k1", "{}").await;
    let answer = fixture.post("/do/status-201", "k1", OTHER).await;
    answer.refuses_like_stripe(400, "idempotency_error", "idempotency_key_reused");
}

/// Sends the same request again while the first is held.
async fn while_held(fixture: &Fixture) -> (Answer, Gate) {
    let gate = fixture.app.gate("held-1");
    tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    (fixture.post("/do/held-1", "k1", "{}").await, gate)
}

async fn in_flight_is_rejected(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let (answer, gate) = while_held(&fixture).await;
    answer.refuses(409, "idempotency_key_in_progress");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.json()["retryable"], true);
    gate.open();
}

async fn in_flight_is_a_stripe_error(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    let (answer, gate) = while_held(&fixture).await;
    answer.refuses_like_stripe(409, "invalid_request_error", "idempotency_key_in_use");
    assert_eq!(answer.header("stripe-should-retry"), Some("true"));
    gate.open();
}

async fn in_flight_is_accepted(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.in_flight(InFlight::Accept))
    })
    .await;
    let (answer, gate) = while_held(&fixture).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let id = fixture.records().await[0].id;
    let status = format!("/.semel/operations/{id}");
    assert_eq!(answer.header("location"), Some(status.as_str()));
    gate.open();
}

async fn in_flight_waits_for_the_answer(entry: EntryPoint) {
    let fixture = Fixture::with(entry, patient).await;
    let gate = fixture.app.gate("held-1");
    let first = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let second = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.open();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(first.body, second.body);
    assert!(!first.is_replay() && second.is_replay());
    assert_eq!(fixture.app.executions(), 1);
}

async fn waiting_ends_as_a_rejection(entry: EntryPoint) {
    let max = Duration::from_millis(10);
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.in_flight(InFlight::Wait { max }))
    })
    .await;
    let (answer, gate) = while_held(&fixture).await;
    answer.refuses(409, "idempotency_key_in_progress");
    // The waiter did not release the record.
    assert_eq!(fixture.status().await, Some(Status::InProgress));
    gate.open();
}

async fn a_waiter_executes_after_a_release(entry: EntryPoint) {
    let fixture = Fixture::with(entry, patient).await;
    let gate = fixture.app.gate("held-1");
    tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let waiter = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    let fence = fixture.records().await[0].fence();
    let store = fixture.store.inner();
    store.release(fence, Code::new("test")).await.unwrap();
    // The waiter reserves the released record and executes.
    gate.reached_times(2).await;
    gate.open();
    assert_eq!(waiter.await.unwrap().status, 201);
    assert_eq!(fixture.app.executions(), 2);
}

async fn unknown_outcome_returns_409(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    fixture.post("/do/status-503", "k1", "{}").await;
    for _ in 0..3 {
        let answer = fixture.post("/do/status-503", "k1", "{}").await;
        answer.refuses(409, "idempotency_outcome_unknown");
        assert!(answer.header("retry-after").is_some());
        let id = fixture.records().await[0].id.to_string();
        let status = format!("/.semel/operations/{id}");
        assert_eq!(answer.header("location"), Some(status.as_str()));
        assert_eq!(answer.json()["operation_id"], id);
    }
    // No matter how long ago.
    fixture.clock.advance(Duration::from_hours(10_000));
    let answer = fixture.post("/do/status-503", "k1", "{}").await;
    answer.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(fixture.app.executions(), 1);
}

async fn unknown_outcome_is_a_stripe_error(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    fixture.post("/do/status-503", "k1", "{}").await;
    let answer = fixture.post("/do/status-503", "k1", "{}").await;
    answer.refuses_like_stripe(409, "api_error", "idempotency_outcome_unknown");
    assert_eq!(answer.header("stripe-should-retry"), Some("false"));
}

async fn a_retry_is_reconciled_only_where_the_route_has_a_reconciler(entry: EntryPoint) {
    for reconciled in [false, true] {
        let fixture = Fixture::with(entry, |layer| {
            layer.defaults(|route| {
                if reconciled {
                    route.reconciled()
                } else {
                    route
                }
            })
        });
        let fixture = fixture.await;
        fixture.post("/do/status-503", "k1", "{}").await;
        let answer = fixture.post("/do/status-503", "k1", "{}").await;
        answer.refuses(409, "idempotency_outcome_unknown");
        let detail = answer.json()["detail"].to_string();
        assert_eq!(detail.contains("being reconciled"), reconciled, "{detail}");
        assert!(!detail.contains("operator"), "{detail}");
    }
}

async fn a_dead_letter_says_that_an_operator_decides(entry: EntryPoint) {
    for (wait, retry_after) in [(None, "300"), (Some(Duration::from_mins(20)), "1200")] {
        let fixture = Fixture::with(entry, |layer| {
            let layer = layer.defaults(semel_http::Route::reconciled);
            match wait {
                Some(wait) => layer.dead_letter_retry_after(wait),
                None => layer,
            }
        });
        let fixture = fixture.await;
        fixture.post("/do/status-503", "k1", "{}").await;
        let fence = fixture.records().await[0].fence();
        let dead = fixture.store.dead_letter(fence, Code::from("exhausted"));
        dead.await.unwrap();
        let answer = fixture.post("/do/status-503", "k1", "{}").await;
        answer.refuses(409, "idempotency_outcome_unknown");
        assert_eq!(answer.header("retry-after"), Some(retry_after));
        let location = format!("/.semel/operations/{}", fence.id);
        assert_eq!(answer.header("location"), Some(location.as_str()));
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains("An operator decides"), "{detail}");
        assert!(!detail.contains("reconciled"), "{detail}");
    }
}

async fn error_base_is_the_prefix_of_the_type(entry: EntryPoint) {
    let base = "https://api.example/errors/";
    let fixture = Fixture::with(entry, |layer| layer.error_base(base)).await;
    let answer = fixture.post("/do/status-201", "", "{}").await;
    let page = "https://api.example/errors/idempotency_key_missing";
    assert_eq!(answer.json()["type"], page);
}

async fn an_expired_key_is_refused(entry: EntryPoint) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let fixture = Fixture::with(entry, change).await;
        fixture.post("/do/status-201", "k1", "{}").await;
        assert!(fixture.post("/do/status-201", "k1", "{}").await.is_replay());
        // Exactly at the end of the window, although the response is cached by now.
        fixture.clock.advance(Duration::from_hours(24));
        let answer = fixture.post("/do/status-201", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(410, "idempotency_key_expired");
        } else {
            answer.refuses_like_stripe(400, "invalid_request_error", "idempotency_key_expired");
        }
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn an_expired_key_may_execute(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.on_expired(OnExpired::Execute))
    })
    .await;
    fixture.post("/do/status-201", "k1", "{}").await;
    fixture.clock.advance(Duration::from_hours(24));
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert_eq!(fixture.app.executions(), 2);
}

async fn replay_without_a_stored_body_returns_410(entry: EntryPoint) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let fixture = Fixture::with(entry, change).await;
        let large = fixture.post("/do/sized-1048577", "k1", "{}").await;
        assert_eq!(large.body.len(), 1_048_577);
        assert_eq!(large.header("idempotency-key-expires"), None);
        let answer = fixture.post("/do/sized-1048577", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(410, "idempotency_response_not_stored");
        } else {
            let code = "idempotency_response_not_stored";
            answer.refuses_like_stripe(400, "invalid_request_error", code);
        }
        assert_eq!(answer.header("location"), Some("/things/1"));
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn replay_after_body_expiry_returns_410(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| {
            let mut policy = semel_core::Policy::default();
            policy.windows.body = Duration::from_hours(1);
            route.policy(policy)
        })
    })
    .await;
    let first = fixture.post("/do/status-201", "k1", "{}").await;
    // Not the end of the record, which nothing could be replayed until.
    let body_expires_at = match &fixture.records().await[0].state {
        semel_core::State::Completed(completed) => completed.body_expires_at.unwrap().as_micros(),
        other => panic!("{other:?}"),
    };
    let seconds = Duration::from_secs(u64::try_from(body_expires_at / 1_000_000).unwrap());
    let disclosed = httpdate::fmt_http_date(std::time::SystemTime::UNIX_EPOCH + seconds);
    assert_eq!(first.header("idempotency-key-expires"), Some(&*disclosed));
    fixture
        .clock
        .advance(Duration::from_hours(1) - Duration::from_micros(1));
    // From the store, then from the cache.
    for _ in 0..2 {
        let again = fixture.post("/do/status-201", "k1", "{}").await;
        assert!(again.is_replay());
        assert_eq!(again.header("idempotency-key-expires"), Some(&*disclosed));
    }
    fixture.clock.advance(Duration::from_micros(1));
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses(410, "idempotency_response_not_stored");
}

/// Retries until the key is no longer in progress.
async fn once_free(fixture: &Fixture) -> Answer {
    let asking = async {
        loop {
            let answer = fixture.post("/do/status-201", "k1", "{}").await;
            if answer.status != 409 {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), asking).await;
    answer.expect("the key stays in progress")
}

async fn store_failure_refuses_without_executing(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        fixture.store.next(Verb::Reserve, fault);
        let answer = fixture.post("/do/status-201", "k1", "{}").await;
        answer.refuses(503, "idempotency_store_unavailable");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(fixture.app.executions(), 0);
    }
    // The reservation whose result was lost is released.
    let answer = once_free(&fixture).await;
    assert_eq!(answer.status, 201);
    let fixture = Fixture::with(entry, stripe).await;
    fixture.store.next(Verb::Reserve, Fault::FailBefore);
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses_like_stripe(503, "api_error", "idempotency_store_unavailable");
}

async fn store_timeout_refuses_without_executing(entry: EntryPoint) {
    let fixture = Fixture::with_patience(entry, SHORT, |layer| layer).await;
    let gate = Gate::closed();
    fixture
        .store
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses(503, "idempotency_store_unavailable");
    // The late grant is released: nothing executes, and nothing stays reserved.
    gate.open();
    let answer = once_free(&fixture).await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert_eq!(fixture.app.executions(), 1);
}

async fn unrecorded_outcome_is_pending(entry: EntryPoint) {
    for dialect in ["ietf", "stripe"] {
        let change = if dialect == "ietf" {
            |layer| layer
        } else {
            stripe
        };
        let fixture = Fixture::with_patience(entry, SHORT, change).await;
        let failing = |verb, _| (verb == Verb::Complete).then_some(Fault::FailBefore);
        fixture.store.when(failing);
        let answer = fixture.post("/do/status-201", "k1", "{}").await;
        if dialect == "ietf" {
            answer.refuses(503, "idempotency_outcome_pending");
            assert_eq!(answer.header("retry-after"), Some("1"));
        } else {
            answer.refuses_like_stripe(503, "api_error", "idempotency_outcome_pending");
        }
        let again = fixture.post("/do/status-201", "k1", "{}").await;
        assert_eq!(again.status, 409);
        // The background task keeps trying to record the outcome.
        fixture.store.heal();
        let answer = once_free(&fixture).await;
        assert!(answer.is_replay());
        assert_eq!(fixture.app.executions(), 1);
    }
}

async fn lost_commit_is_written_again(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    fixture.store.next(Verb::Complete, Fault::FailAfter);
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, false));
    assert!(fixture.post("/do/status-201", "k1", "{}").await.is_replay());
}

async fn a_replay_equals_the_first_response(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for what in ["echo", "status-402", "status-500", "empty", "status-303"] {
        let path = format!("/do/{what}");
        let body = r#"{ "a": "\u00e9 é", "b": 1.50 }"#;
        let first = fixture.post(&path, what, body).await;
        assert!(first.header("idempotent-replayed").is_none());
        // From the store, then from the cache.
        for _ in 0..3 {
            let again = fixture.post(&path, what, body).await;
            assert!(again.is_replay());
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert!(again.header("date").is_some());
        }
    }
    assert_eq!(fixture.app.executions(), 5);
}

async fn a_replayed_failure_is_final_for_stripe(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    let first = fixture.post("/do/status-500", "k1", "{}").await;
    assert_eq!(first.header("stripe-should-retry"), None);
    let again = fixture.post("/do/status-500", "k1", "{}").await;
    assert_eq!(again.status, 500);
    assert_eq!(again.header("stripe-should-retry"), Some("false"));
    fixture.post("/do/status-201", "k2", "{}").await;
    let again = fixture.post("/do/status-201", "k2", "{}").await;
    assert_eq!(again.header("stripe-should-retry"), None);
}

async fn expiry_is_disclosed(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let first = fixture.post("/do/status-201", "k1", "{}").await;
    let disclosed = first.header("idempotency-key-expires").unwrap();
    let expires_at = match &fixture.records().await[0].state {
        semel_core::State::Completed(completed) => completed.expires_at.as_micros() / 1_000_000,
        other => panic!("{other:?}"),
    };
    let expected =
        std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(expires_at).unwrap());
    assert_eq!(disclosed, httpdate::fmt_http_date(expected));
    for _ in 0..2 {
        let again = fixture.post("/do/status-201", "k1", "{}").await;
        assert_eq!(again.header("idempotency-key-expires"), Some(disclosed));
    }
}

async fn erasure_reaches_the_cache(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for _ in 0..3 {
        fixture.post("/do/status-201", "k1", "{}").await;
    }
    let id = fixture.records().await[0].id;
    assert!(fixture.store.erase(id, "test".into()).await.unwrap());
    let answer = fixture.post("/do/status-201", "k1", "{}").await;
    answer.refuses(410, "idempotency_response_not_stored");
}

async fn the_cache_answers_without_the_store(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    for _ in 0..2 {
        fixture.post("/do/status-201", "k1", "{}").await;
    }
    fixture.store.when(|_, _| Some(Fault::FailBefore));
    assert!(fixture.post("/do/status-201", "k1", "{}").await.is_replay());
    // A different request is not answered from the cache.
    let answer = fixture.post("/do/status-201", "k1", OTHER).await;
    answer.refuses(503, "idempotency_store_unavailable");
    let _: Fence = fixture.records().await[0].fence();
}
