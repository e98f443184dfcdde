//! Lost answers, lost requests, throttling, killed servers, and clocks that are wrong.

use std::sync::Arc;
use std::time::Duration;

use semel_core::transition::{Completion, Decision, Held};
use semel_core::{
    Clock as _, Error, Event, Fingerprint, Identity, Key, OperationId, Policy, Record, Reserve,
    State, Status, Store as _,
};
use semel_testkit::ManualClock;
use semel_testkit::dynamodb_proxy::{Fault, Proxy};

use super::server::{Server, options};
use crate::Dynamo;
use crate::index::Range;
use crate::keys::Class;

pub(super) fn request(key: &str) -> Reserve {
    let key = Key::new(key).unwrap();
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new("tenant-1", "create_payment", key).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "host-1/42".into(),
        policy: Policy::default(),
    }
}

fn completion() -> Completion {
    Completion::new(201, vec![], "paid")
}

/// A store behind a proxy.
async fn behind_proxy() -> (Dynamo, Proxy, ManualClock) {
    let direct = Server::Dynoxide.new_table().await;
    let endpoint = Server::Dynoxide.endpoint();
    let proxy = Proxy::start(&endpoint).await;
    let clock = ManualClock::default();
    let url = direct.replace(&endpoint, &proxy.endpoint());
    let options = options(&url).clock(Arc::new(clock.clone()));
    (options.open().await.unwrap(), proxy, clock)
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_recognised() {
    let (store, proxy, _) = behind_proxy().await;
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        for lost in 1..=2 {
            let request = request(&format!("{fault:?}-{lost}"));
            let before = proxy.faults();
            proxy.inject(fault, lost);
            let decision = store.reserve(request.clone()).await.unwrap();
            let Decision::Execute(grant) = decision else {
                panic!("the first request executes: {decision:?}");
            };
            assert_eq!(grant.fence.id, request.id);
            assert_eq!(proxy.faults() - before, lost);

            proxy.inject(fault, lost);
            let held = store.complete(grant.fence, completion()).await.unwrap();
            assert_eq!(held, Held::Applied);
            let record = store.find(grant.fence.id).await.unwrap().unwrap();
            assert_eq!(record.state.status(), Status::Completed);
        }
    }
}

/// The caller writes the same again until it is answered.
#[tokio::test]
async fn a_write_that_stays_unanswered_is_ambiguous_and_settled_by_writing_again() {
    let (store, proxy, _) = behind_proxy().await;
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    proxy.inject(Fault::LoseAnswer, 3);
    let lost = store.complete(grant.fence, completion()).await;
    assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
    let again = store.complete(grant.fence, completion()).await.unwrap();
    assert_eq!(again, Held::Repeated);

    proxy.inject(Fault::LoseAnswer, 3);
    let lost = store.reserve(request("other")).await;
    assert!(matches!(lost, Err(Error::Ambiguous { .. })), "{lost:?}");
    let again = store.reserve(request("other")).await.unwrap();
    assert!(matches!(again, Decision::InProgress(_)), "{again:?}");
}

#[tokio::test]
async fn a_throttled_write_is_repeated_and_never_half_done() {
    let (store, proxy, _) = behind_proxy().await;
    proxy.inject(Fault::Throttle, 3);
    let decision = store.reserve(request("k")).await.unwrap();
    assert!(matches!(decision, Decision::Execute(_)), "{decision:?}");
    proxy.inject(Fault::Throttle, 1000);
    let refused = store.reserve(request("other")).await;
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
    proxy.inject(Fault::Throttle, 0);
    let unused = store.find_identity(&request("other").identity).await;
    assert_eq!(unused.unwrap(), None, "nothing was written");
}

#[tokio::test]
async fn a_server_that_is_away_grants_nothing() {
    let (store, proxy, _) = behind_proxy().await;
    let url = Server::Dynoxide.unused_table();
    let gone = url.replace(&Server::Dynoxide.endpoint(), "http://127.0.0.1:1");
    let error = options(&gone).open().await.unwrap_err();
    assert!(error.to_string().contains("Check the region"), "{error}");
    drop(proxy);
    let missing = options(&url).open().await.unwrap_err();
    assert!(missing.to_string().contains("semel migrate"), "{missing}");
    drop(store);
}

/// A lease lasts the margin longer for other processes than for its holder, so that a clock that is
/// ahead does not end it early.
#[tokio::test]
async fn a_lease_lasts_the_margin_longer_for_others() {
    let url = Server::Dynoxide.new_table().await;
    let store = options(&url).open().await.unwrap();
    let asked = request("k");
    let Decision::Execute(grant) = store.reserve(asked.clone()).await.unwrap() else {
        panic!("the first request executes");
    };
    let record = store.find(asked.id).await.unwrap().unwrap();
    let State::InProgress(lease) = record.state else {
        panic!("it runs");
    };
    let margin = lease.locked_until.as_micros() - grant.locked_until.as_micros();
    assert_eq!(
        Duration::from_micros(margin.unsigned_abs()),
        crate::skew::MARGIN
    );
}

/// A process whose clock is wrong answers what needs no clock, and grants nothing.
#[tokio::test]
async fn a_wrong_clock_grants_nothing() {
    let url = Server::Dynoxide.new_table().await;
    let store = options(&url).open().await.unwrap();
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    store.complete(grant.fence, completion()).await.unwrap();
    let skew = store.inner.skew.as_ref().unwrap();
    let an_hour_ago = crate::skew::now().saturating_sub(Duration::from_hours(1));
    skew.note("Thu, 01 Jan 2099 00:00:00 GMT", an_hour_ago, an_hour_ago);
    assert!(skew.is_beyond());
    // The next answer sets it right where the server sends a `Date`.
    let step = store.inner.check_clock_of_grant();
    assert!(matches!(step, Err(Error::Unavailable { .. })), "{step:?}");
}

/// An id that another process made is found once the index has it.
#[tokio::test]
async fn an_id_of_another_process_is_found_by_the_index() {
    for server in [Server::ExtendDb, Server::Dynoxide] {
        let url = server.new_table().await;
        let clock = ManualClock::default();
        let open = || options(&url).clock(Arc::new(clock.clone())).open();
        let (one, other) = (open().await.unwrap(), open().await.unwrap());
        let Decision::Execute(grant) = one.reserve(request("k")).await.unwrap() else {
            panic!("the first request executes");
        };
        let held = other.complete(grant.fence, completion()).await.unwrap();
        assert_eq!(held, Held::Applied, "{server:?}");
        let late = one.heartbeat(grant.fence, Duration::from_secs(1)).await;
        assert!(matches!(late.unwrap(), Held::Fenced(_)), "{server:?}");
    }
}

/// What a new key and a replay cost, as the server counts it.
#[tokio::test]
async fn capacity_units_are_within_their_bounds() {
    use aws_sdk_dynamodb::types::ReturnConsumedCapacity;
    let url = Server::ExtendDb.new_table().await;
    let store = options(&url).open().await.unwrap();
    let inner = &store.inner;
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    let partition = inner.partitions.get(&grant.fence.id).unwrap();
    let begun = inner
        .read(&partition, crate::keys::RECORD)
        .await
        .unwrap()
        .unwrap();
    let mut with_resource = Completion::new(201, vec![], vec![b'x'; 300]);
    with_resource.resource = Some(semel_core::Resource {
        kind: "payment".into(),
        id: "pay_789".into(),
    });
    store.complete(grant.fence, with_resource).await.unwrap();
    let done = inner
        .read(&partition, crate::keys::RECORD)
        .await
        .unwrap()
        .unwrap();
    // The same writes again, under another key of the table.
    let mut units = 0.0;
    for item in [begun, done] {
        let mut item = item;
        item.insert("p".to_owned(), crate::attributes::text("counted"));
        let put = inner.client.put_item().table_name(&inner.table);
        let put = put
            .set_item(Some(item))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let used = put.send().await.unwrap().consumed_capacity.unwrap();
        units += used.capacity_units.unwrap();
    }
    println!("a new key: {units} write units");
    assert!((1.0..=8.0).contains(&units), "{units} write units");
    let get = inner.client.get_item().table_name(&inner.table);
    let get = get
        .set_key(Some(crate::attributes::key(
            &partition,
            crate::keys::RECORD,
        )))
        .consistent_read(true)
        .return_consumed_capacity(ReturnConsumedCapacity::Total);
    let used = get.send().await.unwrap().consumed_capacity.unwrap();
    let units = used.capacity_units.unwrap();
    println!("a replay: {units} read units");
    assert!(units <= 1.0, "{units} read units");
}

/// An index that is behind names a lease that was renewed. The record decides.
#[tokio::test]
async fn a_stale_entry_of_an_index_does_not_end_a_lease() {
    let url = Server::Dynoxide.new_table().await;
    let clock = ManualClock::default();
    let options = options(&url).clock(Arc::new(clock.clone()));
    let store = options.open().await.unwrap();
    let Decision::Execute(grant) = store.reserve(request("k")).await.unwrap() else {
        panic!("the first request executes");
    };
    clock.advance(Duration::from_secs(29));
    let late = clock.now().saturating_add(Duration::from_mins(1));
    let mut walk = store.inner.walk(Range::Due(Class::Lease, late), 10);
    let stale = walk.next(10).await.unwrap();
    assert_eq!(stale.len(), 1);
    store
        .heartbeat(grant.fence, Duration::from_secs(30))
        .await
        .unwrap();
    clock.advance(Duration::from_secs(2));
    let due = |_: &Record| Some(clock.now());
    let swept = store
        .inner
        .apply_hits(&stale, &Event::Sweep, due)
        .await
        .unwrap();
    assert_eq!(swept, [], "its owner is alive");
    let held = store.complete(grant.fence, completion()).await.unwrap();
    assert_eq!(held, Held::Applied);
}
