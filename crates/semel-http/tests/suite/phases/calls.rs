//! Calls that fail or stay unclear.

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;
use semel_testkit::faulty::{Fault, Verb};

use super::fixture::{CallEnding, CommitEnding, Fixture};

#[test]
fn an_unclear_call_is_repeated_under_the_same_key() {
    for lost in [CallEnding::Unclear, CallEnding::Lost] {
        let fixture = Fixture::new();
        fixture.endings(&[lost, lost]);
        assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
        fixture.assert_paid_once(&format!("{lost:?}"));
    }
}

#[test]
fn a_call_that_stays_unclear_is_resumed() {
    let fixture = Fixture::new();
    fixture.endings(&[CallEnding::Unclear; 3]);
    let (status, body) = fixture.process().send().unwrap();
    assert_eq!(status, StatusCode::CONFLICT, "{body}");
    assert!(body.contains("idempotency_key_in_progress"), "{body}");
    assert_eq!(fixture.status(), Status::InProgress);
    fixture.expire_lease();
    assert_eq!(fixture.process().resume(), 1);
    fixture.assert_paid_once("completed");
}

#[test]
fn a_call_that_did_not_arrive_after_an_unclear_one_does_not_release_the_key() {
    let fixture = Fixture::new();
    fixture.endings(&[
        CallEnding::Unclear,
        CallEnding::NotSent,
        CallEnding::NotSent,
    ]);
    fixture.process().send().unwrap();
    assert_eq!(fixture.status(), Status::InProgress);
    // Nor if another attempt made the call that may have arrived.
    fixture.expire_lease();
    fixture.endings(&[CallEnding::NotSent; 3]);
    fixture.process().send().unwrap();
    assert_eq!(fixture.status(), Status::InProgress);
    fixture.expire_lease();
    assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
    fixture.assert_paid_once("resumed");
}

#[test]
fn a_call_that_did_not_arrive_releases_the_key() {
    for downstream in [Downstream::Idempotent, Downstream::NotIdempotent] {
        let fixture = Fixture::new();
        fixture.endings(&[CallEnding::NotSent]);
        let (status, body) = fixture.process().with(downstream).send().unwrap();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        assert!(body.contains("operation_not_executed"), "{body}");
        assert_eq!(fixture.status(), Status::FailedRetryable);
        assert_eq!(fixture.rows(), ["opened"]);
        // The retry continues at the recovery point.
        let (status, _) = fixture.process().with(downstream).send().unwrap();
        assert_eq!(status, StatusCode::CREATED, "{downstream:?}");
        fixture.assert_paid_once(&format!("{downstream:?}"));
    }
}

#[test]
fn an_unclear_call_that_must_not_be_repeated_is_unknown() {
    for lost in [CallEnding::Unclear, CallEnding::Lost] {
        let fixture = Fixture::new();
        fixture.endings(&[lost]);
        let process = fixture.process().with(Downstream::NotIdempotent);
        assert!(process.send().unwrap().0.is_server_error());
        assert_eq!(fixture.status(), Status::Unknown);
        fixture.expire_lease();
        let process = fixture.process().with(Downstream::NotIdempotent);
        assert_eq!(process.send().unwrap().0, StatusCode::CONFLICT);
        let calls = fixture
            .provider
            .calls
            .load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(calls, 1, "{lost:?}");
    }
}

#[test]
fn an_operation_is_unknown_after_twenty_attempts() {
    let fixture = Fixture::new();
    for attempt in 1..=20 {
        fixture.endings(&[CallEnding::Lost; 3]);
        fixture.process().send().unwrap();
        let expected = match attempt {
            20 => Status::Unknown,
            _ => Status::InProgress,
        };
        assert_eq!(fixture.status(), expected, "{attempt}");
        fixture.expire_lease();
    }
}

#[test]
fn a_failed_commit_is_distinguished_from_an_unanswered_one() {
    // Before any downstream effect.
    let fixture = Fixture::new();
    let failing = fixture.process().committing(CommitEnding::Fails("opened"));
    assert_eq!(failing.send().unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(fixture.status(), Status::FailedRetryable);
    assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
    fixture.assert_paid_once("failed to open");

    // After the charge the key is not released.
    let fixture = Fixture::new();
    let failing = fixture.process().committing(CommitEnding::Fails("settled"));
    assert_eq!(failing.send().unwrap().0, StatusCode::CONFLICT);
    assert_eq!(fixture.status(), Status::InProgress);
    fixture.expire_lease();
    assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
    fixture.assert_paid_once("failed to settle");

    // Nor if another attempt made the charge.
    let fixture = Fixture::new();
    for _ in 0..3 {
        let failing = fixture.process().committing(CommitEnding::Fails("settled"));
        assert_eq!(failing.send().unwrap().0, StatusCode::CONFLICT);
        assert_eq!(fixture.status(), Status::InProgress);
        fixture.expire_lease();
    }
    assert_eq!(fixture.process().resume(), 1);
    fixture.assert_paid_once("failed to settle thrice");

    for row in ["opened", "settled"] {
        for commit in [
            CommitEnding::Unanswered(row),
            CommitEnding::UnansweredRollback(row),
        ] {
            let fixture = Fixture::new();
            let (status, _) = fixture.process().committing(commit).send().unwrap();
            assert_eq!(status, StatusCode::CONFLICT, "{commit:?}");
            fixture.expire_lease();
            assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
            fixture.assert_paid_once(&format!("{commit:?}"));
        }
    }
}

#[test]
fn the_result_of_a_call_is_recorded_after_failed_writes() {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let fixture = Fixture::new();
        fixture.store.next(Verb::Advance, fault.clone());
        assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
        fixture.assert_paid_once("written at the second try");

        // If it cannot be recorded, the response does not claim that nothing was executed.
        let fixture = Fixture::new();
        for _ in 0..5 {
            fixture.store.next(Verb::Advance, fault.clone());
        }
        assert_eq!(fixture.process().send().unwrap().0, StatusCode::CONFLICT);
        assert_eq!(fixture.status(), Status::InProgress);
        fixture.expire_lease();
        assert_eq!(fixture.process().resume(), 1);
        fixture.assert_paid_once("resumed");
    }
}
