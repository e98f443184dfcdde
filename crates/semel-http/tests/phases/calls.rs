//! Calls that do not end well.

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;
use semel_testkit::faulty::{Fault, Verb};

use super::world::{Call, Commit, World};

#[test]
fn an_unclear_call_is_repeated_under_the_same_key() {
    for lost in [Call::Unclear, Call::Lost] {
        let world = World::new();
        world.endings(&[lost, lost]);
        assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
        world.is_paid_once(&format!("{lost:?}"));
    }
}

#[test]
fn what_stays_unclear_is_resumed_and_not_free() {
    let world = World::new();
    world.endings(&[Call::Unclear; 3]);
    let (status, body) = world.process().send().unwrap();
    assert_eq!(status, StatusCode::CONFLICT, "{body}");
    assert!(body.contains("idempotency_key_in_progress"), "{body}");
    assert_eq!(world.status(), Status::InProgress);
    world.lease_over();
    assert_eq!(world.process().complete(), 1);
    world.is_paid_once("completed");
}

#[test]
fn a_call_that_did_not_arrive_after_one_that_may_have_proves_nothing() {
    let world = World::new();
    world.endings(&[Call::Unclear, Call::NotSent, Call::NotSent]);
    world.process().send().unwrap();
    assert_eq!(world.status(), Status::InProgress);
    // Nor where the one that may have was another attempt's.
    world.lease_over();
    world.endings(&[Call::NotSent; 3]);
    world.process().send().unwrap();
    assert_eq!(world.status(), Status::InProgress);
    world.lease_over();
    assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
    world.is_paid_once("resumed");
}

#[test]
fn a_call_that_did_not_arrive_leaves_the_key_free() {
    for downstream in [Downstream::Idempotent, Downstream::NotIdempotent] {
        let world = World::new();
        world.endings(&[Call::NotSent]);
        let (status, body) = world.process().with(downstream).send().unwrap();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        assert!(body.contains("operation_not_executed"), "{body}");
        assert_eq!(world.status(), Status::FailedRetryable);
        assert_eq!(world.rows(), ["opened"]);
        // The retry goes on where it stopped.
        let (status, _) = world.process().with(downstream).send().unwrap();
        assert_eq!(status, StatusCode::CREATED, "{downstream:?}");
        world.is_paid_once(&format!("{downstream:?}"));
    }
}

#[test]
fn an_unclear_call_that_must_not_be_repeated_is_unknown() {
    for lost in [Call::Unclear, Call::Lost] {
        let world = World::new();
        world.endings(&[lost]);
        let process = world.process().with(Downstream::NotIdempotent);
        assert!(process.send().unwrap().0.is_server_error());
        assert_eq!(world.status(), Status::Unknown);
        world.lease_over();
        let process = world.process().with(Downstream::NotIdempotent);
        assert_eq!(process.send().unwrap().0, StatusCode::CONFLICT);
        let calls = world
            .provider
            .calls
            .load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(calls, 1, "{lost:?}");
    }
}

#[test]
fn it_is_not_resumed_for_ever() {
    let world = World::new();
    for attempt in 1..=20 {
        world.endings(&[Call::Lost; 3]);
        world.process().send().unwrap();
        let expected = match attempt {
            20 => Status::Unknown,
            _ => Status::InProgress,
        };
        assert_eq!(world.status(), expected, "{attempt}");
        world.lease_over();
    }
}

#[test]
fn a_commit_that_fails_is_told_from_one_that_is_not_heard_of() {
    // Before anything happened elsewhere.
    let world = World::new();
    let failing = world.process().committing(Commit::Fails("opened"));
    assert_eq!(failing.send().unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(world.status(), Status::FailedRetryable);
    assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
    world.is_paid_once("failed to open");

    // After the charge nobody is told that nothing happened.
    let world = World::new();
    let failing = world.process().committing(Commit::Fails("settled"));
    assert_eq!(failing.send().unwrap().0, StatusCode::CONFLICT);
    assert_eq!(world.status(), Status::InProgress);
    world.lease_over();
    assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
    world.is_paid_once("failed to settle");

    // Nor where the charge was another attempt's.
    let world = World::new();
    for _ in 0..3 {
        let failing = world.process().committing(Commit::Fails("settled"));
        assert_eq!(failing.send().unwrap().0, StatusCode::CONFLICT);
        assert_eq!(world.status(), Status::InProgress);
        world.lease_over();
    }
    assert_eq!(world.process().complete(), 1);
    world.is_paid_once("failed to settle thrice");

    for row in ["opened", "settled"] {
        for commit in [Commit::Unheard(row), Commit::UnheardRollback(row)] {
            let world = World::new();
            let (status, _) = world.process().committing(commit).send().unwrap();
            assert_eq!(status, StatusCode::CONFLICT, "{commit:?}");
            world.lease_over();
            assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
            world.is_paid_once(&format!("{commit:?}"));
        }
    }
}

#[test]
fn what_a_call_found_is_written_down_in_the_end() {
    for fault in [Fault::FailBefore, Fault::FailAfter] {
        let world = World::new();
        world.store.next(Verb::Advance, fault.clone());
        assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
        world.is_paid_once("written at the second try");

        // Where it cannot be, nobody is told that nothing happened.
        let world = World::new();
        for _ in 0..5 {
            world.store.next(Verb::Advance, fault.clone());
        }
        assert_eq!(world.process().send().unwrap().0, StatusCode::CONFLICT);
        assert_eq!(world.status(), Status::InProgress);
        world.lease_over();
        assert_eq!(world.process().complete(), 1);
        world.is_paid_once("resumed");
    }
}
