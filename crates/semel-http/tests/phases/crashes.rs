//! The process dies at every step, and somebody goes on.

use std::time::Duration;

use http::StatusCode;
use semel_core::{Maintain as _, Resolution, Resolve, Status, Verdict};
use semel_http::Downstream;

use super::world::{World, runtime};

/// The steps of a payment without a crash.
fn steps() -> usize {
    let world = World::new();
    let process = world.process();
    assert_eq!(process.send().unwrap().0, StatusCode::CREATED);
    world.is_paid_once("undisturbed");
    // Opening, charging, settling: each before, within and after.
    assert!(process.steps() >= 10, "{}", process.steps());
    process.steps()
}

#[test]
fn a_retry_goes_on_wherever_the_process_died() {
    for at in 1..=steps() {
        let world = World::new();
        assert_eq!(world.process().crashing(at).send(), None, "step {at}");
        let (status, _) = world.process().send().unwrap();
        if world.status() == Status::InProgress {
            assert_eq!(
                status,
                StatusCode::CONFLICT,
                "step {at}: the owner may be alive"
            );
        }
        world.lease_over();
        let (status, body) = world.process().send().unwrap();
        assert_eq!((status, &*body), (StatusCode::CREATED, "paid"), "step {at}");
        world.is_paid_once(&format!("step {at}"));
    }
}

#[test]
fn it_dies_again_and_again_and_ends_well() {
    for first in 1..=steps() {
        for second in 1..=steps() {
            let case = format!("steps {first} and {second}");
            let world = World::new();
            assert_eq!(world.process().crashing(first).send(), None, "{case}");
            world.lease_over();
            // It may have less to do, and end before it dies.
            let _ = world.process().crashing(second).send();
            world.lease_over();
            let (status, _) = world.process().send().unwrap();
            assert_eq!(status, StatusCode::CREATED, "{case}");
            world.is_paid_once(&case);
        }
    }
}

#[test]
fn the_completer_goes_on_where_no_client_comes_back() {
    for at in 1..=steps() {
        let world = World::new();
        assert_eq!(world.process().crashing(at).send(), None, "step {at}");
        assert_eq!(
            world.process().complete(),
            0,
            "step {at}: the owner may be alive"
        );
        world.lease_over();
        // Also where the completer dies.
        let _ = world.process().crashing(at).complete();
        world.lease_over();
        world.process().complete();
        if world.rows().is_empty() {
            // Nothing had begun, and nobody but the client knows what it wants.
            assert_eq!(world.status(), Status::FailedRetryable, "step {at}");
        } else {
            world.is_paid_once(&format!("step {at}"));
        }
        let (answer, _) = world.process().send().unwrap();
        assert_eq!(answer, StatusCode::CREATED, "step {at}");
        world.is_paid_once(&format!("step {at}"));
    }
}

#[test]
fn a_call_that_must_not_be_repeated_is_made_once() {
    let mut unknowns = 0;
    for at in 1..=steps() + 1 {
        let world = World::new();
        let process = || world.process().with(Downstream::NotIdempotent);
        if process().crashing(at).send().is_some() {
            continue;
        }
        world.lease_over();
        let (status, _) = process().send().unwrap();
        assert!(world.charges() <= 1, "step {at}");
        match world.status() {
            Status::Completed => world.is_paid_once(&format!("step {at}")),
            Status::Unknown => {
                unknowns += 1;
                assert!(status.is_server_error() || status == StatusCode::CONFLICT);
                // No client gets in, however often it comes, and whatever dies.
                world.lease_over();
                assert_eq!(process().send().unwrap().0, StatusCode::CONFLICT);
                assert_eq!(process().complete(), 0);
                assert_eq!(world.rows(), ["opened"], "step {at}");
                if world.charges() == 0 {
                    released(&world);
                    assert_eq!(process().send().unwrap().0, StatusCode::CREATED);
                    world.is_paid_once(&format!("step {at}"));
                }
            }
            other => panic!("step {at}: {other}"),
        }
    }
    assert!(unknowns >= 2, "{unknowns}");
}

/// Somebody finds out that the call was not made.
fn released(world: &World) {
    let resolve = Resolve {
        fence: world.record().fence(),
        verdict: Verdict::NotExecuted("provider_says_so".into()),
        by: "test".into(),
        evidence: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let resolution = runtime.block_on(world.store.resolve(resolve)).unwrap();
    assert_eq!(resolution, Resolution::Applied);
}

/// What nobody heard of is proven by a verdict on its own attempt, and on no other.
#[test]
fn a_verdict_on_one_attempt_says_nothing_of_an_earlier_one() {
    let world = World::new();
    let process = || world.process().with(Downstream::NotIdempotent);
    // The first attempt makes the call; the second dies before it comes that far.
    assert_eq!(process().crashing(7).send(), None);
    assert_eq!(world.charges(), 1);
    world.lease_over();
    assert_eq!(process().crashing(1).send(), None);
    world.clock.advance(Duration::from_hours(2));
    let runtime = runtime();
    assert_eq!(runtime.block_on(world.store.sweep(10)).unwrap().len(), 1);
    released(&world);
    process().send().unwrap();
    assert_eq!(world.status(), Status::Unknown);
    assert_eq!(world.charges(), 1);
}
