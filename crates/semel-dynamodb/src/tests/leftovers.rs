//! Values in parts: what no item names is removed, and nothing else is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Backoff, Error, Fence, RecoveryPoint, Store as _};
use semel_testkit::ManualClock;
use semel_testkit::dynamodb_proxy::Proxy;

use super::faults::{behind_proxy, request};
use super::server::{Server, options};
use crate::Dynamo;
use crate::attributes::{Item, key, text};
use crate::conditions::Condition;
use crate::item::key_of;
use crate::keys::{self, HEAD, RECORD};
use crate::store::{WriteResult, values};

/// A body that does not fit into an item.
const LARGE: usize = 1 << 20;
const BACKOFF: Backoff = Backoff {
    every: Duration::from_secs(1),
    max_every: Duration::from_secs(1),
};
const HANDLING: Handling = Handling {
    look_after: Duration::ZERO,
    remember: Duration::from_secs(10),
};

fn large() -> Completion {
    Completion::new(201, vec![], vec![b'x'; LARGE])
}

async fn open(clock: &ManualClock) -> Dynamo {
    let url = Server::Dynoxide.new_table().await;
    let options = options(&url).clock(Arc::new(clock.clone()));
    options.open().await.unwrap()
}

async fn execute(store: &Dynamo, name: &str) -> Fence {
    match store.reserve(request(name)).await.unwrap() {
        Decision::Execute(grant) => grant.fence,
        other => panic!("must execute, but: {other:?}"),
    }
}

/// The sort keys of a partition.
async fn sort_keys(store: &Dynamo, partition: &str) -> Vec<String> {
    let all = values([(":p", text(partition))]);
    let items = store.inner.query("p = :p", all, Some("p, s"), None);
    let items = items.await.unwrap();
    items
        .iter()
        .filter_map(key_of)
        .map(|(_, sort)| sort)
        .collect()
}

fn parts(sort_keys: &[String]) -> usize {
    sort_keys.iter().filter(|sort| keys::is_part(sort)).count()
}

/// Writes the parts of a large completion, as a writer that dies before it names them.
async fn leave_parts(store: &Dynamo, fence: Fence) {
    let partition = store.inner.partitions.get(&fence.id).unwrap();
    let mut row = store.inner.read_row(&partition).await.unwrap().unwrap();
    let event = semel_core::Event::Complete(fence, large());
    let (after, _) = store.inner.judge(Some(&row), &event);
    row.record = after.record.unwrap();
    let item = store.inner.prepare_item(&partition, &mut row).await;
    assert!(item.unwrap().contains_key("rc"));
}

#[tokio::test]
async fn a_repeated_completion_makes_no_second_set_of_parts() {
    let store = open(&ManualClock::default()).await;
    let fence = execute(&store, "k").await;
    leave_parts(&store, fence).await;
    leave_parts(&store, fence).await;
    let held = store.complete(fence, large()).await.unwrap();
    assert_eq!(held, Held::Applied);
    let partition = store.inner.partitions.get(&fence.id).unwrap();
    assert_eq!(
        parts(&sort_keys(&store, &partition).await),
        LARGE.div_ceil(350 << 10)
    );
    let record = store.find(fence.id).await.unwrap().unwrap();
    assert_eq!(crate::item::body(&record).map(Bytes::len), Some(LARGE));
}

/// A writer that lost a race leaves its parts: another writer of the same response may be about to
/// name them.
#[tokio::test]
async fn a_lost_race_removes_no_parts_that_another_writer_names() {
    let clock = ManualClock::default();
    let store = open(&clock).await;
    let fence = execute(&store, "k").await;
    let stale = store.inner.held.get(&fence.id).unwrap();
    assert_eq!(store.complete(fence, large()).await.unwrap(), Held::Applied);
    // As a process that has not heard of it.
    store.inner.held.insert(fence.id, stale);
    assert_eq!(
        store.complete(fence, large()).await.unwrap(),
        Held::Repeated
    );
    let again = store.reserve(request("k")).await.unwrap();
    let Decision::Replay(replay) = again else {
        panic!("must replay, but: {again:?}");
    };
    assert_eq!(replay.response.body.map(|body| body.len()), Some(LARGE));
}

#[tokio::test]
async fn a_removed_record_takes_its_orphans_along() {
    let store = open(&ManualClock::default()).await;
    let fence = execute(&store, "k").await;
    let partition = store.inner.partitions.get(&fence.id).unwrap();
    leave_parts(&store, fence).await;
    let orphan = keys::entry(fence.id, 1, &[7; 32]);
    store
        .inner
        .write_item(key(&partition, &orphan))
        .await
        .unwrap();
    assert_eq!(sort_keys(&store, &partition).await.len(), 5);
    store.evict(fence, "refused".into()).await.unwrap();
    assert_eq!(sort_keys(&store, &partition).await, [""; 0]);
}

/// A proxy that lets one removal fail: the caller erases again, and nothing is left.
#[tokio::test]
async fn an_erasure_removes_all_parts_or_fails() {
    const REFUSED: &str = "{\"__type\":\"com.amazon.coral.service#AccessDeniedException\"}";
    let (store, proxy, _): (Dynamo, Proxy, _) = behind_proxy().await;
    let fence = execute(&store, "k").await;
    let partition = store.inner.partitions.get(&fence.id).unwrap();
    leave_parts(&store, fence).await;
    let small = Completion::new(201, vec![], "paid");
    store.complete(fence, small).await.unwrap();
    proxy.answer("DeleteItem", 400, REFUSED, 1);
    let failed = store.erase(fence.id, "operator".into()).await;
    assert!(matches!(failed, Err(Error::Ambiguous { .. })), "{failed:?}");
    assert!(store.erase(fence.id, "operator".into()).await.unwrap());
    let left = sort_keys(&store, &partition).await;
    assert_eq!(parts(&left), 0, "{left:?}");
    assert!(left.contains(&RECORD.to_owned()));
}

/// The largest data of phases, and bodies around what fits beside them.
#[tokio::test]
async fn a_body_beside_the_largest_recovery_data_is_stored() {
    for server in [Server::ExtendDb, Server::Dynoxide] {
        let url = server.new_table().await;
        let clock = Arc::new(ManualClock::default());
        let store = options(&url).clock(clock).open().await.unwrap();
        let mut in_parts = 0;
        for length in [92 << 10, 94 << 10, 160 << 10, 348 << 10, 351 << 10] {
            let name = format!("k-{length}");
            let fence = execute(&store, &name).await;
            if length <= 160 << 10 {
                let point = RecoveryPoint {
                    name: "charged".into(),
                    data: vec![b'd'; 256 << 10].into(),
                };
                store.advance(fence, point).await.unwrap();
            }
            let headers = vec![("x-long".into(), Bytes::from(vec![b'h'; 200]))];
            let completion = Completion::new(201, headers, vec![b'x'; length]);
            let held = store.complete(fence, completion.clone()).await;
            assert_eq!(held.unwrap(), Held::Applied, "{server:?} {length}");
            let replayed = store.reserve(request(&name)).await.unwrap();
            let Decision::Replay(replay) = replayed else {
                panic!("must replay, but: {replayed:?}");
            };
            assert_eq!(replay.response, completion.response, "{server:?} {length}");
            let partition = store.inner.partitions.get(&fence.id).unwrap();
            in_parts += usize::from(parts(&sort_keys(&store, &partition).await) > 0);
        }
        assert_eq!(in_parts, 3, "{server:?}");
    }
}

fn message() -> Message {
    Message {
        source: "psp".into(),
        id: "evt_1".into(),
        payload: vec![b'm'; LARGE].into(),
    }
}

/// A delivery whose parts are written, and whose item is not.
async fn begin_delivery(store: &Dynamo, partition: &str) -> Item {
    let head = store.inner.read(partition, HEAD).await.unwrap().unwrap();
    let mut head = head;
    let payload = message().payload;
    let written = store.inner.put_value(partition, &mut head, &payload).await;
    assert!(written.unwrap().is_some());
    head
}

/// A message is delivered again while the first delivery is settled and forgotten.
#[tokio::test]
async fn a_new_delivery_keeps_its_parts_when_the_old_one_is_forgotten() {
    let clock = ManualClock::default();
    let store = open(&clock).await;
    let received = store.receive_message(message(), HANDLING).await.unwrap();
    assert_eq!(received, Receipt::New);
    let partition = keys::message("psp", "evt_1");
    let delivery = begin_delivery(&store, &partition).await;
    store.settle_message("psp", "evt_1").await.unwrap();
    let left = sort_keys(&store, &partition).await;
    assert_eq!(parts(&left), 3, "those of the delivery: {left:?}");
    clock.advance(HANDLING.remember);
    assert_eq!(store.forget_messages(1).await.unwrap(), 1);
    let put = store.inner.put(delivery, Condition::Receive, None).await;
    assert!(matches!(put.unwrap(), WriteResult::Applied));
    let claimed = store.claim_parked(BACKOFF, 1).await.unwrap();
    assert_eq!(claimed[0].message, message());
}

#[tokio::test]
async fn a_message_without_its_payload_is_corrupt() {
    let store = open(&ManualClock::default()).await;
    store.receive_message(message(), HANDLING).await.unwrap();
    let partition = keys::message("psp", "evt_1");
    let all = sort_keys(&store, &partition).await;
    let part = all.iter().find(|sort| keys::is_part(sort)).unwrap();
    store.inner.remove_item(&partition, part).await.unwrap();
    let claimed = store.claim_parked(BACKOFF, 1).await;
    assert!(matches!(claimed, Err(Error::Corrupt { .. })), "{claimed:?}");
}
