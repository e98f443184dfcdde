//! The process dies at every step, and the operation is resumed.

use std::time::Duration;

use http::StatusCode;
use semel_core::{Resolution, Resolve, Status, Store as _, Verdict};
use semel_http::Downstream;

use super::fixture::{Fixture, runtime};

/// The steps of a payment without a crash.
fn steps() -> usize {
    let fixture = Fixture::new();
    let process = fixture.process();
    assert_eq!(process.send().unwrap().0, StatusCode::CREATED);
    fixture.assert_paid_once("undisturbed");
    // Opening, charging, settling: before, during and after each.
    assert!(process.steps() >= 10, "{}", process.steps());
    process.steps()
}

#[test]
fn a_retry_resumes_wherever_the_process_died() {
    for at in 1..=steps() {
        let fixture = Fixture::new();
        assert_eq!(fixture.process().crashing(at).send(), None, "step {at}");
        let (status, _) = fixture.process().send().unwrap();
        if fixture.status() == Status::InProgress {
            assert_eq!(
                status,
                StatusCode::CONFLICT,
                "step {at}: the owner may be alive"
            );
        }
        fixture.expire_lease();
        let (status, body) = fixture.process().send().unwrap();
        assert_eq!((status, &*body), (StatusCode::CREATED, "paid"), "step {at}");
        fixture.assert_paid_once(&format!("step {at}"));
    }
}

#[test]
fn an_operation_completes_after_two_crashes_at_any_steps() {
    for first in 1..=steps() {
        for second in 1..=steps() {
            let case = format!("steps {first} and {second}");
            let fixture = Fixture::new();
            assert_eq!(fixture.process().crashing(first).send(), None, "{case}");
            fixture.expire_lease();
            // The second attempt may have fewer steps, and complete before the crash.
            let _ = fixture.process().crashing(second).send();
            fixture.expire_lease();
            let (status, _) = fixture.process().send().unwrap();
            assert_eq!(status, StatusCode::CREATED, "{case}");
            fixture.assert_paid_once(&case);
        }
    }
}

#[test]
fn the_resume_job_completes_an_operation_without_a_client_retry() {
    for at in 1..=steps() {
        let fixture = Fixture::new();
        assert_eq!(fixture.process().crashing(at).send(), None, "step {at}");
        assert_eq!(
            fixture.process().resume(),
            0,
            "step {at}: the owner may be alive"
        );
        fixture.expire_lease();
        // Also if the resume job dies.
        let _ = fixture.process().crashing(at).resume();
        fixture.expire_lease();
        fixture.process().resume();
        if fixture.rows().is_empty() {
            // No recovery point was written, so only the client has the request.
            assert_eq!(fixture.status(), Status::FailedRetryable, "step {at}");
        } else {
            fixture.assert_paid_once(&format!("step {at}"));
        }
        let (answer, _) = fixture.process().send().unwrap();
        assert_eq!(answer, StatusCode::CREATED, "step {at}");
        fixture.assert_paid_once(&format!("step {at}"));
    }
}

#[test]
fn a_call_that_must_not_be_repeated_is_made_once() {
    let mut unknowns = 0;
    for at in 1..=steps() + 1 {
        let fixture = Fixture::new();
        let process = || fixture.process().with(Downstream::NotIdempotent);
        if process().crashing(at).send().is_some() {
            continue;
        }
        fixture.expire_lease();
        let (status, _) = process().send().unwrap();
        assert!(fixture.charges() <= 1, "step {at}");
        match fixture.status() {
            Status::Completed => fixture.assert_paid_once(&format!("step {at}")),
            Status::Unknown => {
                unknowns += 1;
                assert!(status.is_server_error() || status == StatusCode::CONFLICT);
                // No retry executes, and no resume job claims the record.
                fixture.expire_lease();
                assert_eq!(process().send().unwrap().0, StatusCode::CONFLICT);
                assert_eq!(process().resume(), 0);
                assert_eq!(fixture.rows(), ["opened"], "step {at}");
                if fixture.charges() == 0 {
                    resolve_not_executed(&fixture);
                    assert_eq!(process().send().unwrap().0, StatusCode::CREATED);
                    fixture.assert_paid_once(&format!("step {at}"));
                }
            }
            other => panic!("step {at}: {other}"),
        }
    }
    assert!(unknowns >= 2, "{unknowns}");
}

/// Applies the verdict that the call was not made.
fn resolve_not_executed(fixture: &Fixture) {
    let resolve = Resolve {
        fence: fixture.record().fence(),
        verdict: Verdict::NotExecuted("provider_says_so".into()),
        by: "test".into(),
        evidence: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let resolution = runtime.block_on(fixture.store.resolve(resolve)).unwrap();
    assert_eq!(resolution, Resolution::Applied);
}

/// Only a verdict on the attempt that may have made the call proves that it was not made.
#[test]
fn a_verdict_on_one_attempt_does_not_cover_an_earlier_one() {
    let fixture = Fixture::new();
    let process = || fixture.process().with(Downstream::NotIdempotent);
    // The first attempt makes the call; the second dies before it.
    assert_eq!(process().crashing(7).send(), None);
    assert_eq!(fixture.charges(), 1);
    fixture.expire_lease();
    assert_eq!(process().crashing(1).send(), None);
    fixture.clock.advance(Duration::from_hours(2));
    let runtime = runtime();
    assert_eq!(runtime.block_on(fixture.store.sweep(10)).unwrap().len(), 1);
    resolve_not_executed(&fixture);
    process().send().unwrap();
    assert_eq!(fixture.status(), Status::Unknown);
    assert_eq!(fixture.charges(), 1);
}
