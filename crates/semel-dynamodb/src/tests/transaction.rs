//! The application's items and the outcome commit together.

use std::sync::Arc;

use semel_core::transition::{Completion, Decision, Held};
use semel_core::{Fence, Status, Store as _};
use semel_testkit::ManualClock;

use super::faults::request;
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
