//! Reads of items by their keys, with strong consistency.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::KeysAndAttributes;
use semel_core::store::Result;

use crate::attributes::{Item, key, text};
use crate::call::{Fault, Rest, unavailable};
use crate::item::key_of;
use crate::store::{Inner, all};

/// Most items of one `BatchGetItem`.
const MAX_BATCH_GET: usize = 100;

impl Inner {
    /// Reads one item, as it is after every write that was answered.
    pub(crate) async fn read(&self, partition: &str, sort: &str) -> Result<Option<Item>> {
        let read = self.limit.send(|| {
            self.client
                .get_item()
                .table_name(&self.table)
                .set_key(Some(key(partition, sort)))
                .consistent_read(true)
                .send()
        });
        let answer = read.await.outcome.map_err(Fault::of_read)?;
        Ok(answer.item)
    }

    /// Reads the items with these keys, in their order, without those that are gone. With a
    /// projection, only the attributes that it names.
    pub(crate) async fn read_all(
        &self,
        keys: &[(String, String)],
        projection: Option<&str>,
    ) -> Result<Vec<Item>> {
        let chunks = keys.chunks(MAX_BATCH_GET);
        let found = all(chunks
            .map(|some| self.read_some(some, projection))
            .collect())
        .await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn read_some(
        &self,
        keys: &[(String, String)],
        projection: Option<&str>,
    ) -> Result<Vec<Item>> {
        let mut found = HashMap::new();
        let mut wanted: Vec<Item> = keys.iter().map(|(p, s)| key(p, s)).collect();
        wanted.sort_by_key(key_of);
        wanted.dedup();
        let mut rest = Rest::default();
        while !wanted.is_empty() {
            let wanted_count = wanted.len();
            let request = KeysAndAttributes::builder()
                .set_keys(Some(wanted))
                .consistent_read(true)
                .set_projection_expression(projection.map(str::to_owned))
                .build()
                .map_err(|invalid| unavailable(invalid.to_string(), None))?;
            let read = self.limit.send(|| {
                self.client
                    .batch_get_item()
                    .request_items(&self.table, request.clone())
                    .send()
            });
            let answer = read.await.outcome.map_err(Fault::of_read)?;
            for item in answer
                .responses
                .into_iter()
                .filter_map(|mut all| all.remove(&self.table))
                .flatten()
            {
                if let Some(key) = key_of(&item) {
                    found.insert(key, item);
                }
            }
            let left = answer
                .unprocessed_keys
                .and_then(|mut left| left.remove(&self.table));
            let left = left.map(|left| left.keys).unwrap_or_default();
            rest.wait(left.len(), wanted_count).await?;
            wanted = left;
        }
        Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
    }

    /// The items of a partition whose sort keys begin so, in their order.
    pub(crate) async fn query_parts(&self, partition: &str, prefix: &str) -> Result<Vec<Item>> {
        let values = HashMap::from([
            (":p".to_owned(), text(partition)),
            (":prefix".to_owned(), text(prefix)),
        ]);
        self.query("p = :p AND begins_with(s, :prefix)", values, None, None)
            .await
    }

    /// The items of a partition that a key condition selects, in their order; at most `limit`. With
    /// a projection, only the attributes that it names.
    pub(crate) async fn query(
        &self,
        condition: &str,
        values: Item,
        projection: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        let mut start: Option<Item> = None;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(items.len()));
            if left == Some(0) {
                return Ok(items);
            }
            let read = self.limit.send(|| {
                self.client
                    .query()
                    .table_name(&self.table)
                    .key_condition_expression(condition)
                    .set_expression_attribute_values(Some(values.clone()))
                    .set_projection_expression(projection.map(str::to_owned))
                    .consistent_read(true)
                    .set_limit(left.map(|left| i32::try_from(left).unwrap_or(i32::MAX)))
                    .set_exclusive_start_key(start.clone())
                    .send()
            });
            let answer = read.await.outcome.map_err(Fault::of_read)?;
            items.extend(answer.items.unwrap_or_default());
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(items);
            }
        }
    }
}
