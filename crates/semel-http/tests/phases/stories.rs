//! Programs that change, or are wrong.

use http::StatusCode;
use semel_core::Status;
use semel_http::Downstream;

use super::world::{Call, Commit, Story, World};

#[test]
fn another_story_than_the_one_that_is_written_down_is_not_continued() {
    // A phase that is over has another name now, or is gone.
    for story in [Story::Renamed, Story::Shortened] {
        let world = World::new();
        world.endings(&[Call::Unclear; 3]);
        world.process().send().unwrap();
        if story == Story::Shortened {
            // The charge is over as well.
            world.lease_over();
            let process = world.process().committing(Commit::Fails("settled"));
            process.send().unwrap();
        }
        world.lease_over();
        let (status, _) = world.process().telling(story).send().unwrap();
        assert!(status.is_server_error(), "{story:?}: {status}");
        assert_eq!(world.status(), Status::Unknown, "{story:?}");
        let code = world.record().last_error.unwrap();
        assert_eq!(code.as_str(), "phase_renamed", "{story:?}");
        assert_eq!(world.rows(), ["opened"], "{story:?}");
    }
}

#[test]
fn a_call_that_may_be_on_its_way_keeps_its_name() {
    let world = World::new();
    let process = || world.process().with(Downstream::NotIdempotent);
    // Opened, and the charge is on its way.
    assert_eq!(process().crashing(7).send(), None);
    assert_eq!((world.rows().len(), world.charges()), (1, 1));
    world.lease_over();
    process().telling(Story::RenamedCall).send().unwrap();
    assert_eq!(world.status(), Status::Unknown);
    assert_eq!(world.charges(), 1);
}

#[test]
fn a_story_that_begins_with_a_call_can_be_told_without_its_client() {
    let world = World::new();
    let process = || world.process().telling(Story::CallFirst);
    assert_eq!(process().crashing(3).send(), None);
    assert_eq!((world.rows().len(), world.charges()), (0, 1));
    world.lease_over();
    assert_eq!(process().complete(), 1);
    world.is_paid_once("completed");
}

#[test]
fn two_phases_of_one_name_are_refused() {
    let world = World::new();
    let (status, _) = world.process().telling(Story::Doubled).send().unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(world.rows(), ["opened"]);
    assert_eq!(
        world.record().last_error.unwrap().as_str(),
        "opened_repeated"
    );
}

#[test]
fn phases_are_declared() {
    let world = World::new();
    let (status, _) = world.process().telling(Story::NoPhases).send().unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(world.rows(), [""; 0]);
    let code = world.record().last_error.unwrap();
    assert_eq!(code.as_str(), "phases_not_declared");
    let layer = world.process().telling(Story::NoPhases).layer();
    let completer = layer.completer("pay", |_, (): ()| async { "paid" });
    assert!(completer.is_err());
}
