//! Owners that continue after their lease expired, and a process that drains.

use std::time::Duration;

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;
use semel_testkit::faulty::{Fault, Gate, Verb};

use super::fixture::{Fixture, HandlerVersion, LEASE, runtime};

#[test]
fn an_owner_that_continues_after_lease_expiry_changes_nothing() {
    for at in 1..=11 {
        let fixture = Fixture::new();
        let first = fixture.process().pausing(at);
        runtime().block_on(async {
            let (process, layer) = (first.clone(), first.layer());
            let late = tokio::spawn(async move { process.request(&layer).await });
            first.stopped().await;
            fixture.expire_lease();
            let second = fixture.process();
            let (status, _) = second.request(&second.layer()).await;
            assert_eq!(status, StatusCode::CREATED, "step {at}");
            first.wake();
            let (status, body) = late.await.unwrap();
            // The late owner gets the response of a retry, or an error.
            assert!(
                status == StatusCode::CREATED || !status.is_success(),
                "step {at}: {body}"
            );
        });
        fixture.assert_paid_once(&format!("step {at}"));
    }
}

#[test]
fn an_operation_stopped_by_a_drain_is_resumed() {
    for at in 1..=10 {
        let fixture = Fixture::new();
        let process = fixture.process().pausing(at);
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
        assert_eq!(fixture.status(), Status::InProgress, "step {at}");
        fixture.clock.advance(LEASE * 2);
        assert_eq!(fixture.process().send().unwrap().0, StatusCode::CREATED);
        fixture.assert_paid_once(&format!("step {at}"));
    }
}

/// The grant arrives after the client got the response that nothing was executed. The layer must
/// not release the record, because the attempt before may have charged.
#[test]
fn a_late_resume_grant_does_not_release_the_record() {
    let fixture = Fixture::new();
    // The first attempt charges, and dies before it records the result.
    assert_eq!(fixture.process().crashing(7).send(), None);
    assert_eq!(fixture.charges(), 1);
    fixture.expire_lease();
    let gate = Gate::closed();
    fixture
        .store
        .next(Verb::Reserve, Fault::HoldAfter(gate.clone()));
    runtime().block_on(async {
        let process = fixture.process();
        let layer = process.layer();
        let (status, _) = process.request(&layer).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        gate.open();
        layer.drain(Duration::from_secs(1)).await;
    });
    assert_eq!(fixture.status(), Status::InProgress);
    fixture.expire_lease();
    assert_eq!(fixture.process().resume(), 1);
    fixture.assert_paid_once("completed");
}

/// A statement is held in an abandoned connection: the layer writes it again at once, and the
/// database performs the first one after the process has continued and died.
#[test]
fn a_late_write_undoes_no_phase() {
    for downstream in [Downstream::Idempotent, Downstream::NotIdempotent] {
        // The first step is before the first write; the last steps are never reached.
        for at in 2..=12 {
            let case = format!("{downstream:?}, step {at}");
            let fixture = Fixture::new();
            let gate = Gate::closed();
            fixture
                .store
                .next(Verb::Advance, Fault::LandLate(gate.clone()));
            let new_process = || {
                let process = fixture.process().with(downstream);
                process.with_version(HandlerVersion::CallFirst)
            };
            let process = new_process().crashing(at);
            let layer = process.layer();
            runtime().block_on(async {
                tokio::select! {
                    _ = process.request(&layer) => {}
                    () = process.stopped() => {}
                }
                gate.open();
                gate.landed().await;
            });
            fixture.expire_lease();
            let _ = new_process().send();
            match downstream {
                Downstream::Idempotent => fixture.assert_paid_once(&case),
                Downstream::NotIdempotent => {
                    assert!(fixture.charges() <= 1, "{case}");
                    assert!(fixture.rows().len() <= 2, "{case}: {:?}", fixture.rows());
                }
            }
        }
    }
}
