//! How an execution ends, and the resulting state of the record.

use std::sync::Arc;
use std::time::Duration;

use semel_core::Status;
use semel_http::OutcomeKind;
use semel_testkit::faulty::{Fault, Verb};

use crate::boundary::fixture::{EntryPoint, Fixture, SHORT, eventually, stripe};

crate::boundary::through_both_entry_points!(
    status_determines_the_outcome,
    outcome_header_overrides_the_status,
    an_invalid_outcome_header_is_unknown,
    a_success_marked_unknown_returns_504,
    route_outcomes_override_the_status,
    a_route_may_name_a_class_of_statuses,
    a_refused_request_is_corrected_under_its_key_for_stripe,
    a_truncated_response_is_unknown,
    a_panic_is_unknown,
    a_panic_is_a_stripe_error,
    an_execution_that_times_out_is_unknown,
    a_heartbeat_keeps_the_lease,
    client_disconnect_does_not_stop_the_execution,
    failed_mark_unknown_falls_back_to_lease_expiry,
    concurrent_requests_execute_once,
    drain_waits_and_then_marks_unknown,
);

async fn status_determines_the_outcome(entry: EntryPoint) {
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
            let fixture = Fixture::new(entry).await;
            let path = format!("/do/status-{status}");
            let answer = fixture.post(&path, "k1", "{}").await;
            assert_eq!(answer.status, *status);
            assert_eq!(fixture.status().await, expected, "{status}");
            let again = fixture.post(&path, "k1", "{}").await;
            let executed = fixture.app.executions() == 2;
            let replayed = again.is_replay() && again.body == answer.body;
            match expected {
                Some(Status::Completed) => assert!(replayed && !executed, "{status}"),
                Some(Status::Unknown) => assert!(!executed && again.status == 409, "{status}"),
                _ => assert!(executed && !replayed, "{status}"),
            }
        }
    }
}

async fn outcome_header_overrides_the_status(entry: EntryPoint) {
    for (word, expected) in [
        ("completed", Some(Status::Completed)),
        ("not-executed", Some(Status::FailedRetryable)),
        ("unknown", Some(Status::Unknown)),
        ("forget", None),
    ] {
        for status in [503, 500] {
            let fixture = Fixture::new(entry).await;
            let answer = fixture
                .post(&format!("/do/say-{word}-{status}"), "k1", "{}")
                .await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("semel-outcome"), None);
            assert_eq!(fixture.status().await, expected, "{word} {status}");
        }
    }
    // The header is removed from unguarded responses as well.
    let fixture = Fixture::new(entry).await;
    let answer = fixture.post("/optional/say-completed-200", "", "{}").await;
    assert_eq!(answer.header("semel-outcome"), None);
}

async fn an_invalid_outcome_header_is_unknown(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    fixture.post("/do/say-done-500", "k1", "{}").await;
    assert_eq!(fixture.status().await, Some(Status::Unknown));
}

async fn a_success_marked_unknown_returns_504(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let answer = fixture.post("/do/say-unknown-200", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
}

async fn route_outcomes_override_the_status(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| {
            route
                .outcome(503, OutcomeKind::NotExecuted)?
                .outcome(402, OutcomeKind::Forget)
        })
    })
    .await;
    fixture.post("/do/status-503", "k1", "{}").await;
    assert_eq!(fixture.status().await, Some(Status::FailedRetryable));
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.outcome(402, OutcomeKind::Forget))
    })
    .await;
    fixture.post("/do/status-402", "k1", "{}").await;
    assert_eq!(fixture.status().await, None);
}

async fn a_truncated_response_is_unknown(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let answer = fixture.post("/do/broken", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(fixture.status().await, Some(Status::Unknown));
}

async fn a_panic_is_unknown(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let answer = fixture.post("/do/panic", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(fixture.status().await, Some(Status::Unknown));
    let again = fixture.post("/do/panic", "k1", "{}").await;
    again.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_panic_is_a_stripe_error(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    let answer = fixture.post("/do/panic", "k1", "{}").await;
    answer.refuses_like_stripe(504, "api_error", "idempotency_outcome_unknown");
    assert_eq!(answer.header("stripe-should-retry"), Some("false"));
}

async fn an_execution_that_times_out_is_unknown(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.execute_max(Duration::from_millis(50)))
    })
    .await;
    let answer = fixture.post("/do/held-1", "k1", "{}").await;
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(fixture.status().await, Some(Status::Unknown));
}

async fn a_heartbeat_keeps_the_lease(entry: EntryPoint) {
    // The lease follows the manual clock; heartbeats run in real time.
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| route.lease(Duration::from_millis(30)))
    })
    .await;
    let gate = fixture.app.gate("held-1");
    let first = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let lease = |records: Vec<semel_core::Record>| match &records[0].state {
        semel_core::State::InProgress(lease) => lease.locked_until,
        other => panic!("{other:?}"),
    };
    let before = lease(fixture.records().await);
    fixture.clock.advance(Duration::from_millis(25));
    eventually(async || lease(fixture.records().await) != before).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
}

async fn client_disconnect_does_not_stop_the_execution(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let gate = fixture.app.gate("held-1");
    let first = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    gate.open();
    eventually(async || fixture.status().await != Some(Status::InProgress)).await;
    let again = fixture.post("/do/held-1", "k1", "{}").await;
    assert!(again.is_replay());
    assert_eq!(fixture.app.executions(), 1);
}

async fn failed_mark_unknown_falls_back_to_lease_expiry(entry: EntryPoint) {
    let fixture = Fixture::with_patience(entry, SHORT, |layer| layer).await;
    let failing = |verb, _| (verb == Verb::MarkUnknown).then_some(Fault::FailBefore);
    fixture.store.when(failing);
    let answer = fixture.post("/do/panic", "k1", "{}").await;
    answer.refuses(503, "idempotency_outcome_pending");
    fixture.clock.advance(Duration::from_mins(1));
    let again = fixture.post("/do/panic", "k1", "{}").await;
    again.refuses(409, "idempotency_outcome_unknown");
    assert_eq!(fixture.app.executions(), 1);
}

async fn concurrent_requests_execute_once(entry: EntryPoint) {
    let fixture = Arc::new(Fixture::with(entry, crate::boundary::fixture::patient).await);
    let requests: Vec<_> = (0..50)
        .map(|_| tokio::spawn(fixture.call("/do/status-201", "k1", "{}").send()))
        .collect();
    let mut fresh = 0;
    let mut bodies = std::collections::HashSet::new();
    for request in requests {
        let answer = request.await.unwrap();
        assert_eq!(answer.status, 201);
        fresh += usize::from(!answer.is_replay());
        bodies.insert(answer.body);
    }
    assert_eq!((fresh, bodies.len(), fixture.app.executions()), (1, 1, 1));
}

async fn drain_waits_and_then_marks_unknown(entry: EntryPoint) {
    let fixture = Fixture::new(entry).await;
    let gate = fixture.app.gate("held-1");
    let first = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    let layer = fixture.layer.clone();
    let draining = tokio::spawn(async move { layer.drain(Duration::from_mins(5)).await });
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
    assert_eq!(draining.await.unwrap().abandoned, 0);

    let fixture = Fixture::new(entry).await;
    let gate = fixture.app.gate("held-1");
    let first = tokio::spawn(fixture.call("/do/held-1", "k1", "{}").send());
    gate.reached().await;
    assert_eq!(fixture.layer.drain(Duration::ZERO).await.abandoned, 1);
    let answer = first.await.unwrap();
    answer.refuses(504, "idempotency_outcome_unknown");
    assert_eq!(fixture.status().await, Some(Status::Unknown));
    // Nothing starts after the drain, not even a request that was being reserved.
    let late = fixture.post("/do/status-201", "k2", "{}").await;
    late.refuses(503, "idempotency_store_unavailable");
    assert_eq!(fixture.app.executions(), 1);
}

async fn a_route_may_name_a_class_of_statuses(entry: EntryPoint) {
    let fixture = Fixture::with(entry, |layer| {
        layer.defaults(|route| {
            let route = route.outcome_class(4, OutcomeKind::Forget)?;
            route.outcome(404, OutcomeKind::Completed)
        })
    })
    .await;
    for (status, executions) in [(422, 2), (404, 1)] {
        let before = fixture.app.executions();
        for _ in 0..2 {
            let path = format!("/do/status-{status}");
            let answer = fixture.post(&path, &format!("k{status}"), "{}").await;
            assert_eq!(answer.status, status);
        }
        assert_eq!(fixture.app.executions() - before, executions, "{status}");
    }
    let kept = fixture.status().await;
    assert_eq!(kept, Some(Status::Completed), "only the 404");
}

async fn a_refused_request_is_corrected_under_its_key_for_stripe(entry: EntryPoint) {
    let fixture = Fixture::with(entry, stripe).await;
    let refused = fixture.post("/do/status-400", "k1", "{}").await;
    assert_eq!((refused.status.as_u16(), refused.is_replay()), (400, false));
    assert_eq!(fixture.status().await, None);
    let corrected = r#"{"amount":1}"#;
    for replay in [false, true] {
        let answer = fixture.post("/do/status-201", "k1", corrected).await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (201, replay));
    }
    assert_eq!(fixture.app.executions(), 2);
    // The IETF draft leaves it open; the response is stored.
    let fixture = Fixture::new(entry).await;
    fixture.post("/do/status-400", "k1", "{}").await;
    assert!(fixture.post("/do/status-400", "k1", "{}").await.is_replay());
}
