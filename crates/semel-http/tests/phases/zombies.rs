//! Owners that were thought dead, and a process that stops in good order.

use std::time::Duration;

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;
use semel_testkit::faulty::{Fault, Gate, Verb};

use super::world::{LEASE, Story, World, runtime};

#[test]
fn an_owner_that_wakes_up_too_late_changes_nothing() {
    for at in 1..=11 {
        let world = World::new();
        let first = world.process().pausing(at);
        runtime().block_on(async {
            let (process, layer) = (first.clone(), first.layer());
            let late = tokio::spawn(async move { process.request(&layer).await });
            first.stopped().await;
            world.lease_over();
            let second = world.process();
            let (status, _) = second.request(&second.layer()).await;
            assert_eq!(status, StatusCode::CREATED, "step {at}");
            first.wake();
            let (status, body) = late.await.unwrap();
            // It is told what a retry would be, or that it does not know.
            assert!(
                status == StatusCode::CREATED || !status.is_success(),
                "step {at}: {body}"
            );
        });
        world.is_paid_once(&format!("step {at}"));
    }
}

#[test]
fn what_a_stopping_process_leaves_is_resumed_and_not_unknown() {
    for at in 1..=10 {
        let world = World::new();
        let process = world.process().pausing(at);
        runtime().block_on(async {
            let layer = process.layer();
            let (one, through) = (process.clone(), layer.clone());
            let stopped = tokio::spawn(async move { one.request(&through).await });
            process.stopped().await;
            let drained = layer.drain(Duration::from_secs(1)).await;
            assert_eq!(drained.abandoned, 1, "step {at}");
            let (status, body) = stopped.await.unwrap();
            assert_eq!(status, StatusCode::CONFLICT, "step {at}: {body}");
        });
        assert_eq!(world.status(), Status::InProgress, "step {at}");
        world.clock.advance(LEASE * 2);
        assert_eq!(world.process().send().unwrap().0, StatusCode::CREATED);
        world.is_paid_once(&format!("step {at}"));
    }
}

/// A client that was told nothing happened, while its grant came late: whoever had the grant
/// before it may have charged.
#[test]
fn a_resumed_grant_that_comes_too_late_is_proof_of_nothing() {
    let world = World::new();
    // Charged, and not recorded.
    assert_eq!(world.process().crashing(7).send(), None);
    assert_eq!(world.charges(), 1);
    world.lease_over();
    let gate = Gate::closed();
    world
        .store
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    runtime().block_on(async {
        let process = world.process();
        let layer = process.layer();
        let (status, _) = process.request(&layer).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        gate.open();
        layer.drain(Duration::from_secs(1)).await;
    });
    assert_eq!(world.status(), Status::InProgress);
    world.lease_over();
    assert_eq!(world.process().complete(), 1);
    world.is_paid_once("completed");
}

/// A statement held in a connection that was given up: written again at once, and performed when
/// the process has gone on and died.
#[test]
fn a_write_that_lands_late_takes_back_nothing_that_was_done() {
    for downstream in [Downstream::Idempotent, Downstream::NotIdempotent] {
        // The first step is before the first write; the last are never come to.
        for at in 2..=12 {
            let case = format!("{downstream:?}, step {at}");
            let world = World::new();
            let gate = Gate::closed();
            world
                .store
                .next(Verb::Advance, Fault::LandLate(gate.clone()));
            let life = || {
                let process = world.process().with(downstream);
                process.telling(Story::CallFirst)
            };
            let process = life().crashing(at);
            let layer = process.layer();
            runtime().block_on(async {
                tokio::select! {
                    _ = process.request(&layer) => {}
                    () = process.stopped() => {}
                }
                gate.open();
                gate.landed().await;
            });
            world.lease_over();
            let _ = life().send();
            match downstream {
                Downstream::Idempotent => world.is_paid_once(&case),
                Downstream::NotIdempotent => {
                    assert!(world.charges() <= 1, "{case}");
                    assert!(world.rows().len() <= 2, "{case}: {:?}", world.rows());
                }
            }
        }
    }
}
