//! A store that waits for its indexes before it asks them: the suite expects what is due to be
//! found at once, and an index of DynamoDB has it after a moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::{Clock, Completion, Decision, OperationId, RecoveryPoint, Reserve};

use crate::Dynamo;
use crate::attributes::Item;
use crate::index::{DUE, IDS, RESOURCES, SECOND_DUE};
use crate::item::key_of;

/// See the module.
pub(super) struct Settled {
    pub(super) store: Dynamo,
    /// Whether the indexes follow the table after a moment.
    pub(super) waits: bool,
}

/// The indexes with their keys.
const INDEXES: [(&str, &str, &str); 4] = [
    (IDS, "x", "i"),
    (DUE, "d", "t"),
    (SECOND_DUE, "e", "u"),
    (RESOURCES, "r", "i"),
];

impl Settled {
    /// Waits until every index has just the items of the table.
    pub(super) async fn settle(&self) {
        if !self.waits {
            return;
        }
        loop {
            let items = self.scan(None).await;
            let mut is_settled = true;
            for (index, partition, sort) in INDEXES {
                let wanted = entries(&items, partition, sort);
                let found = entries(&self.scan(Some(index)).await, partition, sort);
                is_settled &= wanted == found;
            }
            if is_settled {
                return;
            }
            // sleeps because no server says when its indexes have caught up
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn scan(&self, index: Option<&str>) -> Vec<Item> {
        let (mut items, mut start) = (Vec::new(), None);
        loop {
            let scan = self
                .store
                .inner
                .client
                .scan()
                .table_name(&self.store.inner.table);
            let scan = scan
                .set_index_name(index.map(str::to_owned))
                .projection_expression("p, s, x, i, d, t, e, u, r")
                .set_exclusive_start_key(start)
                .consistent_read(index.is_none());
            let answer = scan.send().await.unwrap();
            items.extend(answer.items.unwrap_or_default());
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return items;
            }
        }
    }
}

fn entries(items: &[Item], partition: &str, sort: &str) -> BTreeSet<String> {
    let indexed = items
        .iter()
        .filter_map(|item| Some((key_of(item)?, item.get(partition)?, item.get(sort)?)));
    indexed.map(|entry| format!("{entry:?}")).collect()
}

impl Backend for Settled {
    async fn call(&self, request: Request) -> Result<Reply> {
        match &request {
            Request::Sweep { .. }
            | Request::ClaimAbandoned { .. }
            | Request::ClaimDue { .. }
            | Request::Expire { .. }
            | Request::DropBodies { .. }
            | Request::Purge { .. }
            | Request::FindResource { .. }
            | Request::CountUnfinished {}
            | Request::List { .. }
            | Request::ScanRecords { .. }
            | Request::ClaimParked { .. }
            | Request::ForgetMessages { .. } => self.settle().await,
            _ => {}
        }
        self.store.call(request).await
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.store.try_decide(request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.store.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.store.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.store.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.store.decrypt_evidence(id, evidence)
    }
}
