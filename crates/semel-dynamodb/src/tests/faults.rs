//! Lost answers, lost requests, throttling, killed servers, and clocks that are wrong.

use std::sync::Arc;
use std::time::Duration;

use semel_core::statistics::Caller;
use semel_core::transition::{Completion, Decision, Fenced, Held, Resolution, Verdict};
use semel_core::{
    Clock as _, Error, Event, Fence, Fingerprint, Identity, Key, KeyScope, OperationId, Policy,
    Record, Reserve, Resolve, Status, Store as _,
};
use semel_testkit::ManualClock;
use semel_testkit::dynamodb_proxy::{Fault, Proxy};
use tokio::time::timeout;

use super::server::{Server, options};
use crate::Dynamo;
use crate::index::WalkRange;
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
pub(super) async fn behind_proxy() -> (Dynamo, Proxy, ManualClock) {
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
    let url = Server::Dynoxide.unused_table();
    let gone = url.replace(&Server::Dynoxide.endpoint(), "http://127.0.0.1:1");
    let error = options(&gone).open().await.unwrap_err();
    assert!(error.to_string().contains("Check the region"), "{error}");
    let missing = options(&url).open().await.unwrap_err();
    assert!(missing.to_string().contains("semel migrate"), "{missing}");

    // A store that runs.
    let (store, proxy, _) = behind_proxy().await;
    proxy.close();
    for name in ["k", "other"] {
        let refused = store.reserve(request(name)).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}

/// A delayed write lands after its sender has tried again, and changes nothing that was written
/// since.
#[tokio::test]
async fn a_write_that_lands_later_changes_nothing() {
    let (store, proxy, _) = behind_proxy().await;
    let asked = request("k");
    proxy.inject(Fault::Delay, 1);
    let Decision::Execute(grant) = store.reserve(asked.clone()).await.unwrap() else {
        panic!("the first request executes");
    };
    proxy.inject(Fault::Delay, 1);
    let beat = store.heartbeat(grant.fence, Duration::from_mins(1)).await;
    assert_eq!(beat.unwrap(), Held::Applied);
    let held = store.complete(grant.fence, completion()).await.unwrap();
    assert_eq!(held, Held::Applied);
    while proxy.landed() < 2 {
        // sleeps because the proxy delays the writes
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let record = store.find(asked.id).await.unwrap().unwrap();
    assert_eq!(
        (record.fence(), record.state.status()),
        (grant.fence, Status::Completed)
    );
}

/// Batches are writes too: what lost its answer is written again.
#[tokio::test]
async fn a_batch_whose_answer_is_lost_is_written_again() {
    let (store, proxy, _) = behind_proxy().await;
    let caller = Caller {
        scope: KeyScope::Operation,
        tenant: "tenant-1".into(),
        operation: "create_payment".into(),
    };
    store.reserve(request("k")).await.unwrap();
    let before = proxy.faults();
    proxy.inject(Fault::LoseAnswer, 1);
    assert!(store.record_callers(vec![caller]).await.unwrap());
    assert_eq!(proxy.faults() - before, 1);
    let key = Key::new("k").unwrap();
    assert_eq!(store.find_key(&key).await.unwrap().len(), 1);
}

/// A server that performs nothing of a batch is not asked for ever.
#[tokio::test]
async fn a_batch_that_is_never_read_is_an_error() {
    let (store, proxy, _) = behind_proxy().await;
    let table = &store.inner.table;
    let left = format!(
        "{{\"Responses\":{{}},\"UnprocessedKeys\":{{\"{table}\":{{\"Keys\":[\
         {{\"p\":{{\"S\":\"x\"}},\"s\":{{\"S\":\"r\"}}}}]}}}}}}"
    );
    proxy.answer("BatchGetItem", 200, left, 1000);
    let keys = [("x".to_owned(), "r".to_owned())];
    let read = timeout(Duration::from_secs(20), store.inner.read_all(&keys, None)).await;
    let read = read.expect("it gives up");
    assert!(matches!(read, Err(Error::Unavailable { .. })), "{read:?}");
}

/// An id that the index does not have may be one that it does not have yet.
#[tokio::test]
async fn an_unknown_id_is_refused_only_once_it_is_old() {
    let url = Server::Dynoxide.new_table().await;
    let clock = Arc::new(ManualClock::default());
    let options = options(&url).clock(clock).index_lag(Duration::ZERO);
    let store = options.open().await.unwrap();
    let fence = |id| Fence { id, attempt: 1 };
    let resolve = |id| Resolve {
        fence: fence(id),
        verdict: Verdict::Completed(completion()),
        by: "reconciler".into(),
        evidence: None,
    };
    let new = OperationId::generate();
    let held = store.complete(fence(new), completion()).await;
    assert!(matches!(held, Err(Error::Unavailable { .. })), "{held:?}");
    let resolved = store.resolve(resolve(new)).await;
    assert!(
        matches!(resolved, Err(Error::Unavailable { .. })),
        "{resolved:?}"
    );

    let mut old = *new.as_bytes();
    old[0] = 0;
    let old = OperationId::from_bytes(old);
    let held = store.complete(fence(old), completion()).await.unwrap();
    assert_eq!(held, Held::Fenced(Fenced { found: None }));
    let resolved = store.resolve(resolve(old)).await.unwrap();
    assert_eq!(resolved, Resolution::Fenced(Fenced { found: None }));
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
    let mut walk = store.inner.walk(WalkRange::Due(Class::Lease, late), 10);
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
