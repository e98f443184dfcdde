//! Handlers that change between attempts, or are wrong.

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;

use super::fixture::{CallEnding, CommitEnding, Fixture, HandlerVersion};

#[test]
fn renamed_or_removed_phases_make_the_operation_unknown() {
    // A committed phase has been renamed or removed.
    for version in [HandlerVersion::Renamed, HandlerVersion::Shortened] {
        let fixture = Fixture::new();
        fixture.endings(&[CallEnding::Unclear; 3]);
        fixture.process().send().unwrap();
        if version == HandlerVersion::Shortened {
            // The charge is committed as well.
            fixture.expire_lease();
            let process = fixture.process().committing(CommitEnding::Fails("settled"));
            process.send().unwrap();
        }
        fixture.expire_lease();
        let (status, _) = fixture.process().with_version(version).send().unwrap();
        assert!(status.is_server_error(), "{version:?}: {status}");
        assert_eq!(fixture.status(), Status::Unknown, "{version:?}");
        let code = fixture.record().last_error.unwrap();
        assert_eq!(code.as_str(), "phase_renamed", "{version:?}");
        assert_eq!(fixture.rows(), ["opened"], "{version:?}");
    }
}

#[test]
fn a_renamed_call_that_may_have_been_made_is_not_repeated() {
    let fixture = Fixture::new();
    let process = || fixture.process().with(Downstream::NotIdempotent);
    // Opened, and the charge is in flight.
    assert_eq!(process().crashing(7).send(), None);
    assert_eq!((fixture.rows().len(), fixture.charges()), (1, 1));
    fixture.expire_lease();
    process()
        .with_version(HandlerVersion::RenamedCall)
        .send()
        .unwrap();
    assert_eq!(fixture.status(), Status::Unknown);
    assert_eq!(fixture.charges(), 1);
}

#[test]
fn an_operation_that_begins_with_a_call_is_resumed_without_its_client() {
    let fixture = Fixture::new();
    let process = || fixture.process().with_version(HandlerVersion::CallFirst);
    assert_eq!(process().crashing(3).send(), None);
    assert_eq!((fixture.rows().len(), fixture.charges()), (0, 1));
    fixture.expire_lease();
    assert_eq!(process().resume(), 1);
    fixture.assert_paid_once("completed");
}

#[test]
fn two_phases_of_one_name_are_refused() {
    let fixture = Fixture::new();
    let (status, _) = fixture
        .process()
        .with_version(HandlerVersion::Doubled)
        .send()
        .unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(fixture.rows(), ["opened"]);
    assert_eq!(
        fixture.record().last_error.unwrap().as_str(),
        "opened_repeated"
    );
}

#[test]
fn phases_on_a_route_without_them_are_refused() {
    let fixture = Fixture::new();
    let (status, _) = fixture
        .process()
        .with_version(HandlerVersion::NoPhases)
        .send()
        .unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(fixture.rows(), [""; 0]);
    let code = fixture.record().last_error.unwrap();
    assert_eq!(code.as_str(), "phases_not_declared");
    let layer = fixture
        .process()
        .with_version(HandlerVersion::NoPhases)
        .layer();
    let resume_job = layer.resume_job("pay", |_, (): ()| async { "paid" });
    assert!(resume_job.is_err());
}
