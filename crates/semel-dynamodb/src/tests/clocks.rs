//! Clocks that are wrong, and clocks that differ within the bound.

use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Error, OnExpired, Policy, Reserve, Stale, State, Status, Store as _, Windows};
use semel_testkit::ManualClock;

use super::faults::request;
use super::server::{Server, options};
use crate::Dynamo;
use crate::skew::{MARGIN, system_now};

const HOUR: Duration = Duration::from_hours(1);

fn completion() -> Completion {
    Completion::new(201, vec![], "paid")
}

/// A store whose clock is right, and can be moved.
async fn open(server: Server) -> (Dynamo, ManualClock) {
    let url = server.new_table().await;
    let clock = ManualClock::starting_at(system_now());
    let mut options = options(&url).clock(Arc::new(clock.clone()));
    options.is_clock_checked = true;
    options.margin = MARGIN;
    (options.open().await.unwrap(), clock)
}

fn is_refused<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Unavailable { .. }))
}

/// A lease lasts the margin longer for other processes than for its holder, so that a clock that is
/// ahead does not end it early.
#[tokio::test]
async fn a_lease_lasts_the_margin_longer_for_others() {
    let (store, _) = open(Server::Dynoxide).await;
    let asked = request("k");
    let Decision::Execute(grant) = store.reserve(asked.clone()).await.unwrap() else {
        panic!("the first request executes");
    };
    let record = store.find(asked.id).await.unwrap().unwrap();
    let State::InProgress(lease) = record.state else {
        panic!("it runs");
    };
    let margin = lease.locked_until.as_micros() - grant.locked_until.as_micros();
    assert_eq!(Duration::from_micros(margin.unsigned_abs()), MARGIN);
}

/// So does the lease of a completer.
#[tokio::test]
async fn a_claimed_lease_lasts_the_margin_longer_for_others() {
    let url = Server::Dynoxide.new_table().await;
    let clock = ManualClock::default();
    let mut options = options(&url).clock(Arc::new(clock.clone()));
    options.margin = MARGIN;
    let store = options.open().await.unwrap();
    let asked = Reserve {
        policy: resumable(),
        ..request("k")
    };
    store.reserve(asked.clone()).await.unwrap();
    clock.advance(asked.policy.lease + MARGIN);
    let lease = Duration::from_secs(30);
    let claimed = store.claim_abandoned("create_payment", "completer".into(), lease, 1);
    let claimed = claimed.await.unwrap();
    let until = |state: &State| match state {
        State::InProgress(lease) => lease.locked_until,
        other => panic!("it runs, but: {other:?}"),
    };
    let stored = store.find(asked.id).await.unwrap().unwrap();
    let told = until(&claimed[0].state);
    assert_eq!(told.saturating_add(MARGIN), until(&stored.state));
}

fn resumable() -> Policy {
    Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..Policy::default()
    }
}

/// A process whose clock is wrong answers what needs no clock, and grants nothing.
#[tokio::test]
async fn a_wrong_clock_grants_nothing() {
    for server in [Server::ExtendDb, Server::Dynoxide] {
        for is_ahead in [true, false] {
            let (store, clock) = open(server).await;
            let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
                panic!("the first request executes");
            };
            store.complete(grant.fence, completion()).await.unwrap();
            let now = system_now();
            clock.set(if is_ahead {
                now.saturating_add(HOUR)
            } else {
                now.saturating_sub(HOUR)
            });
            // No answer has shown it before the first of these, so its grant is returned.
            for name in ["first", "second"] {
                let refused = store.reserve(request(name)).await;
                assert!(is_refused(&refused), "{server:?} {name}: {refused:?}");
                let record = store.find_identity(&request(name).identity).await;
                assert_eq!(record.unwrap(), None, "{server:?} {name}");
            }
            let replayed = store.reserve(request("k")).await.unwrap();
            assert!(matches!(replayed, Decision::Replay(_)), "{replayed:?}");

            clock.set(system_now());
            store.find_identity(&request("k").identity).await.unwrap();
            let decision = store.reserve(request("first")).await.unwrap();
            assert!(matches!(decision, Decision::Execute(_)), "{decision:?}");
        }
    }
}

/// A clock that is ahead does not end what another clock has not ended.
#[tokio::test]
async fn a_wrong_clock_ends_nothing() {
    let (store, clock) = open(Server::Dynoxide).await;
    let policy = Policy {
        windows: Windows {
            body: HOUR,
            ..Policy::default().windows
        },
        on_expired: OnExpired::Execute,
        ..Policy::default()
    };
    let asked = Reserve {
        policy,
        ..request("k")
    };
    let Decision::Execute(grant) = store.reserve(asked.clone()).await.unwrap() else {
        panic!("the first request executes");
    };
    store.complete(grant.fence, completion()).await.unwrap();
    let running = request("running");
    store.reserve(running.clone()).await.unwrap();
    let message = Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: "paid".into(),
    };
    let handling = Handling {
        look_after: HOUR,
        remember: HOUR,
    };
    store
        .receive_message(message.clone(), handling)
        .await
        .unwrap();

    clock.set(system_now().saturating_add(HOUR * 24 * 3650));
    assert!(is_refused(&store.drop_bodies(10).await));
    assert!(is_refused(&store.expire(10).await));
    assert!(is_refused(&store.sweep(10).await));
    assert!(is_refused(&store.forget_messages(10).await));
    assert!(is_refused(&store.reserve(asked.clone()).await));
    clock.set(system_now());
    store.find_identity(&asked.identity).await.unwrap();
    let received = store.receive_message(message, handling).await.unwrap();
    assert_eq!(received, Receipt::Repeated);
    let replayed = store.reserve(asked).await.unwrap();
    let Decision::Replay(replay) = replayed else {
        panic!("must replay, but: {replayed:?}");
    };
    assert_eq!(replay.response, completion().response);
    let record = store.find(running.id).await.unwrap().unwrap();
    assert_eq!(record.state.status(), Status::InProgress);
}

/// The holder's clock is behind that of the process that wrote last: no time goes back.
#[tokio::test]
async fn a_completion_is_not_before_its_reservation() {
    let url = Server::Dynoxide.new_table().await;
    let open = |clock: ManualClock| options(&url).clock(Arc::new(clock)).open();
    let (ahead, behind) = (ManualClock::default(), ManualClock::default());
    ahead.advance(Duration::from_secs(2));
    let (one, other) = (open(ahead).await.unwrap(), open(behind).await.unwrap());
    let Decision::Execute(grant) = one.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    let held = other.complete(grant.fence, completion()).await.unwrap();
    assert_eq!(held, Held::Applied);
    let record = one.find(grant.fence.id).await.unwrap().unwrap();
    assert_eq!(record.updated_at, record.created_at);
}
