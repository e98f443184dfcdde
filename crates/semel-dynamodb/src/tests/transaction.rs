//! The application's items and the outcome commit together.

use std::sync::Arc;
use std::time::Duration;

use semel_core::history::EntryKind;
use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Error, Fence, Status, Store as _};
use semel_testkit::ManualClock;
use semel_testkit::dynamodb_proxy::Fault;

use super::faults::{behind_proxy, request};
use super::server::{Server, options};
use crate::attributes::{key, text};
use crate::sdk::types::{Put, TransactWriteItem};
use crate::{Dynamo, TransactionError};

/// The application's partition. It may be another table; here it is the same.
const SHOP: &str = "#shop";

fn completion() -> Completion {
    Completion::new(201, vec![], "paid")
}

/// A payment, which must not exist yet.
fn payment(store: &Dynamo, name: &str) -> TransactWriteItem {
    let mut item = key(SHOP, name);
    item.insert("amount".to_owned(), text("10.00"));
    let put = Put::builder()
        .table_name(&store.inner.table)
        .set_item(Some(item))
        .condition_expression("attribute_not_exists(p)")
        .build()
        .unwrap();
    TransactWriteItem::builder().put(put).build()
}

async fn has_payment(store: &Dynamo, name: &str) -> bool {
    store.inner.read(SHOP, name).await.unwrap().is_some()
}

async fn status(store: &Dynamo, fence: Fence) -> Status {
    let record = store.find(fence.id).await.unwrap().unwrap();
    record.state.status()
}

async fn execute(store: &Dynamo, name: &str) -> Fence {
    match store.reserve(request(name)).await.unwrap() {
        Decision::Execute(grant) => grant.fence,
        other => panic!("must execute, but: {other:?}"),
    }
}

#[tokio::test]
async fn the_items_and_the_outcome_commit_together_or_not_at_all() {
    for server in [Server::ExtendDb, Server::Dynoxide] {
        let url = server.new_table().await;
        let clock = Arc::new(ManualClock::default());
        let store = options(&url).clock(clock).open().await.unwrap();

        let fence = execute(&store, "together").await;
        let writes = vec![payment(&store, "pay_1")];
        let held = store
            .complete_with(fence, completion(), writes.clone())
            .await;
        assert_eq!(held.unwrap(), Held::Applied, "{server:?}");
        assert!(has_payment(&store, "pay_1").await);
        assert_eq!(status(&store, fence).await, Status::Completed);
        // The layer completes it as well, with the same response.
        let again = store.complete(fence, completion()).await.unwrap();
        assert_eq!(again, Held::Repeated);
        let again = store
            .complete_with(fence, completion(), writes.clone())
            .await;
        assert_eq!(again.unwrap(), Held::Repeated);

        // The application's condition does not hold: the attempt goes on.
        let fence = execute(&store, "refused").await;
        let refused = store.complete_with(fence, completion(), writes).await;
        let Err(TransactionError::Refused { reasons, .. }) = refused else {
            panic!("must be refused, but: {refused:?}");
        };
        assert!(reasons.contains("ConditionalCheckFailed"), "{reasons}");
        assert_eq!(status(&store, fence).await, Status::InProgress);

        // The attempt does not hold the record any more: no item is written.
        let fence = execute(&store, "fenced").await;
        store.release(fence, "not_sent".into()).await.unwrap();
        let writes = vec![payment(&store, "pay_2")];
        let fenced = store
            .complete_with(fence, completion(), writes)
            .await
            .unwrap();
        assert!(matches!(fenced, Held::Fenced(_)), "{fenced:?}");
        assert!(!has_payment(&store, "pay_2").await);
    }
}

/// Another process completes the attempt by its fence, and the index may have the id or not.
#[tokio::test]
async fn an_outcome_is_never_stored_without_the_items() {
    let url = Server::ExtendDb.new_table().await;
    let clock = Arc::new(ManualClock::default());
    let open = || {
        let options = options(&url).clock(Arc::<ManualClock>::clone(&clock));
        options.index_lag(Duration::ZERO).open()
    };
    let (one, other) = (open().await.unwrap(), open().await.unwrap());
    for place in 0..200 {
        let name = format!("pay_{place}");
        let fence = execute(&one, &name).await;
        // sleeps because the index is 5 ms behind: the calls meet it before and after that
        tokio::time::sleep(Duration::from_micros(40 * place)).await;
        let writes = vec![payment(&one, &name)];
        let held = other.complete_with(fence, completion(), writes).await;
        let is_stored = status(&one, fence).await == Status::Completed;
        assert_eq!(is_stored, has_payment(&one, &name).await, "{held:?}");
        match held {
            Ok(held) => assert_eq!(held, Held::Applied),
            Err(TransactionError::Store(Error::Unavailable { .. })) => assert!(!is_stored),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A fenced completion is noted in the history.
#[tokio::test]
async fn a_fenced_completion_is_noted() {
    let url = Server::Dynoxide.new_table().await;
    let clock = Arc::new(ManualClock::default());
    let store = options(&url).clock(clock).open().await.unwrap();
    let fence = execute(&store, "k").await;
    store.complete(fence, completion()).await.unwrap();
    let other = Completion::new(500, vec![], "failed");
    let writes = vec![payment(&store, "pay_1")];
    let fenced = store.complete_with(fence, other, writes).await.unwrap();
    assert!(matches!(fenced, Held::Fenced(_)), "{fenced:?}");
    assert!(!has_payment(&store, "pay_1").await);
    let history = store.history(fence.id).await.unwrap();
    assert_eq!(history.last().unwrap().note.what, EntryKind::Fenced);
}

/// A response of several parts, with an answer that is lost.
#[tokio::test]
async fn a_transaction_whose_answer_is_lost_is_recognised() {
    let (store, proxy, _) = behind_proxy().await;
    let large = Completion::new(201, vec![], vec![b'x'; 400 << 10]);
    for (place, fault) in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Delay]
        .into_iter()
        .enumerate()
    {
        let name = format!("pay_{place}");
        let fence = execute(&store, &name).await;
        let before = proxy.landed();
        // The two parts of the response come first.
        proxy.inject_after(2, fault, 1);
        let writes = vec![payment(&store, &name)];
        let held = store.complete_with(fence, large.clone(), writes).await;
        assert_eq!(held.unwrap(), Held::Applied, "{fault:?}");
        assert!(has_payment(&store, &name).await);
        while fault == Fault::Delay && proxy.landed() == before {
            // sleeps because the proxy delays the write
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let record = store.find(fence.id).await.unwrap().unwrap();
        assert_eq!(record.state.status(), Status::Completed);
    }
}

/// The first try has no answer, so that the second one was refused does not say that nothing was
/// written.
#[tokio::test]
async fn a_refusal_after_a_lost_answer_is_ambiguous() {
    let (store, proxy, _) = behind_proxy().await;
    let fence = execute(&store, "first").await;
    let writes = vec![payment(&store, "pay_1")];
    let held = store.complete_with(fence, completion(), writes.clone());
    assert_eq!(held.await.unwrap(), Held::Applied);
    let fence = execute(&store, "second").await;
    proxy.inject(Fault::LoseRequest, 1);
    let refused = store.complete_with(fence, completion(), writes).await;
    assert!(
        matches!(
            refused,
            Err(TransactionError::Store(Error::Ambiguous { .. }))
        ),
        "{refused:?}"
    );
}
