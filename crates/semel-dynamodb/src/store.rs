//! What all verbs share: the client, and single reads and writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use quick_cache::sync::Cache;
use semel_core::identity::IdentityHash;
use semel_core::store::Result;
use semel_core::{Clock, Identity, OperationId};

use crate::attributes::{Attributes, Item, VERSION, binary, key};
use crate::call::{Fault, Limit};
use crate::conditions::{Condition, Conditions};
use crate::item::{Row, Version};
use crate::skew::Skew;
use crate::writer_locks::WriterLocks;

/// How many requests one call has under way at once.
const CONCURRENT: usize = 16;

/// Everything behind a [`Dynamo`](crate::Dynamo).
pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) table: String,
    /// How many shards each index has. The table says, so that all processes agree.
    pub(crate) shards: u8,
    pub(crate) clock: Arc<dyn Clock>,
    /// The check of the clock, where it is this machine's.
    pub(crate) skew: Option<Arc<Skew>>,
    /// What a lease lasts longer than its holder knows.
    pub(crate) margin: Duration,
    pub(crate) conditions: Conditions,
    pub(crate) identity_hash: fn(&Identity) -> IdentityHash,
    /// How long a new id may be missing in the index.
    pub(crate) index_lag: Duration,
    /// How old an id is before its absence in the index means that there is no such record.
    pub(crate) unused_after: Duration,
    pub(crate) limit: Limit,
    pub(crate) writer_locks: WriterLocks,
    /// Partition keys by id: a fence does not carry the identity. They never change.
    pub(crate) partitions: Cache<OperationId, Arc<str>>,
    /// Attempts that this process holds, as it last wrote them: their next write needs no read.
    pub(crate) held: Cache<OperationId, Arc<Row>>,
    /// Partitions that had a record: their next request reads before it writes.
    pub(crate) known: Cache<Arc<str>, ()>,
    pub(crate) erasures: crate::erasures::Erasures,
}

/// The result of a conditional write.
pub(crate) enum WriteResult {
    /// It is done.
    Applied,
    /// The condition does not hold for this item, or for its absence. Nothing was written.
    Conflict(Option<Item>),
}

/// The item that a failed condition returned.
macro_rules! found {
    ($error:expr, $kind:ident) => {
        match $error.as_service_error() {
            Some($kind::ConditionalCheckFailedException(failed)) => failed.item.clone(),
            _ => None,
        }
    };
}

impl Inner {
    /// Writes an item whatever is there: for parts, which are named before they are read.
    pub(crate) async fn write_item(&self, item: Item) -> Result<()> {
        let tried = self.limit.send(|| {
            self.client
                .put_item()
                .table_name(&self.table)
                .set_item(Some(item.clone()))
                .send()
        });
        let tried = tried.await;
        let unanswered = tried.unanswered;
        tried.outcome.map_err(|fault| fault.of_write(unanswered))?;
        Ok(())
    }

    /// Writes an item under a condition. Where an answer was lost, the same write is made again:
    /// its version shows whether the first one was performed.
    pub(crate) async fn put(
        &self,
        item: Item,
        condition: Condition,
        values: Option<Item>,
    ) -> Result<WriteResult> {
        let none = ReturnValue::None;
        let put = self.put_and_read(item, condition, values, none);
        Ok(put.await?.0)
    }

    /// As [`put`](Self::put). Also returns the item that was replaced, if it is asked for and no
    /// answer was lost.
    pub(crate) async fn put_and_read(
        &self,
        item: Item,
        condition: Condition,
        values: Option<Item>,
        returned: ReturnValue,
    ) -> Result<(WriteResult, Option<Item>)> {
        let found = std::sync::Mutex::new(None);
        let tried = self.limit.send(|| async {
            let put = self
                .client
                .put_item()
                .table_name(&self.table)
                .set_item(Some(item.clone()))
                .condition_expression(self.conditions.text(condition))
                .set_expression_attribute_values(values.clone())
                .return_values(returned.clone())
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                );
            put.send()
                .await
                .inspect_err(|error| keep(&found, found!(error, PutItemError)))
        });
        let tried = tried.await;
        let found = found.into_inner().unwrap_or_default();
        match tried.outcome {
            Ok(answer) => Ok((WriteResult::Applied, answer.attributes)),
            Err(Fault::Condition) => {
                let ours = item.get(VERSION);
                let is_ours =
                    ours.is_some() && found.as_ref().map(|item| item.get(VERSION)) == Some(ours);
                let written = if tried.unanswered && is_ours {
                    WriteResult::Applied
                } else {
                    WriteResult::Conflict(found)
                };
                Ok((written, None))
            }
            Err(fault) => Err(fault.of_write(tried.unanswered)),
        }
    }

    /// Removes an item that has not changed since it was read.
    pub(crate) async fn remove(
        &self,
        partition: &str,
        sort: &str,
        condition: Condition,
        seen: Version,
    ) -> Result<WriteResult> {
        let found = std::sync::Mutex::new(None);
        let tried = self.limit.send(|| async {
            let delete = self
                .client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(key(partition, sort)))
                .condition_expression(self.conditions.text(condition))
                .expression_attribute_values(":seen", binary(seen.0))
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                );
            delete
                .send()
                .await
                .inspect_err(|error| keep(&found, found!(error, DeleteItemError)))
        });
        let tried = tried.await;
        let found = found.into_inner().unwrap_or_default();
        match tried.outcome {
            Ok(_) => Ok(WriteResult::Applied),
            // It was removed by the try without an answer, or by a caller who wanted the same.
            Err(Fault::Condition) if tried.unanswered && found.is_none() => {
                Ok(WriteResult::Applied)
            }
            Err(Fault::Condition) => Ok(WriteResult::Conflict(found)),
            Err(fault) => Err(fault.of_write(tried.unanswered)),
        }
    }

    /// Updates an item under a condition.
    pub(crate) async fn update(
        &self,
        item_key: Item,
        expression: &str,
        condition: Option<Condition>,
        values: Item,
    ) -> Result<WriteResult> {
        let updated = self.update_and_read(item_key, expression, condition, values);
        Ok(updated.await?.0)
    }

    /// Updates an item under a condition, and returns it as it is afterwards.
    pub(crate) async fn update_and_read(
        &self,
        item_key: Item,
        expression: &str,
        condition: Option<Condition>,
        values: Item,
    ) -> Result<(WriteResult, Option<Item>)> {
        let found = std::sync::Mutex::new(None);
        let tried = self.limit.send(|| async {
            let update = self
                .client
                .update_item()
                .table_name(&self.table)
                .set_key(Some(item_key.clone()))
                .update_expression(expression)
                .return_values(ReturnValue::AllNew)
                .set_condition_expression(
                    condition.map(|condition| self.conditions.text(condition).into_owned()),
                )
                .set_expression_attribute_values((!values.is_empty()).then(|| values.clone()))
                .return_values_on_condition_check_failure(
                    ReturnValuesOnConditionCheckFailure::AllOld,
                );
            update
                .send()
                .await
                .inspect_err(|error| keep(&found, found!(error, UpdateItemError)))
        });
        let tried = tried.await;
        let found = found.into_inner().unwrap_or_default();
        match tried.outcome {
            Ok(answer) => Ok((WriteResult::Applied, answer.attributes)),
            Err(Fault::Condition) => {
                // As in `put`: the version shows whether a try without an answer was performed.
                let ours = values.get(":version");
                let is_ours =
                    ours.is_some() && found.as_ref().map(|item| item.get(VERSION)) == Some(ours);
                Ok(if tried.unanswered && is_ours {
                    (WriteResult::Applied, found)
                } else {
                    (WriteResult::Conflict(found), None)
                })
            }
            Err(fault) => Err(fault.of_write(tried.unanswered)),
        }
    }

    /// Removes an item, whatever it holds.
    pub(crate) async fn remove_item(&self, partition: &str, sort: &str) -> Result<()> {
        let tried = self.limit.send(|| {
            self.client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(key(partition, sort)))
                .send()
        });
        let tried = tried.await;
        let unanswered = tried.unanswered;
        tried.outcome.map_err(|fault| fault.of_write(unanswered))?;
        Ok(())
    }

    /// The version of an item that was read.
    pub(crate) fn version(item: &Item) -> Result<Version> {
        let version = item
            .get(VERSION)
            .cloned()
            .map(|v| HashMap::from([(VERSION.to_owned(), v)]));
        Attributes(version.unwrap_or_default())
            .need(VERSION)
            .map(Version)
    }
}

fn keep(found: &std::sync::Mutex<Option<Item>>, item: Option<Item>) {
    if let Ok(mut found) = found.lock() {
        *found = item;
    }
}

/// Runs requests, a few at once; their results are in order.
pub(crate) async fn all<T, F: Future<Output = Result<T>>>(requests: Vec<F>) -> Result<Vec<T>> {
    stream::iter(requests)
        .buffered(CONCURRENT)
        .try_collect()
        .await
}

/// The values of a condition on a version.
pub(crate) fn seen(version: Version) -> Item {
    HashMap::from([(":seen".to_owned(), binary(version.0))])
}

/// Values of an expression.
pub(crate) fn values<const N: usize>(values: [(&str, AttributeValue); N]) -> Item {
    values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
