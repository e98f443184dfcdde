//! Values that do not fit into one item.
//!
//! DynamoDB holds at most 400 KB in an item. What is larger is written in parts first, under a
//! token, and then named by the item that it belongs to. Parts that no item names are orphans of a
//! write that failed or lost a race: nothing reads them, and they go with the record.
//!
//! The token of a response is made of its attempt and its content, so a repeated write makes no
//! second set of parts. So a writer that lost a race must leave its parts: another writer of the
//! same response may be about to name them. Other values have a random token, and only the writer
//! that made it ever names it.

use aws_sdk_dynamodb::types::AttributeValue;
use bytes::{Bytes, BytesMut};
use semel_core::store::Result;
use semel_core::{Fence, hex};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::attributes::{Attributes, FromAttribute, Item, binary, corrupt, key, size, text};
use crate::item::{self, Row, key_of};
use crate::keys;
use crate::store::{Inner, all, values};

/// The largest item that has its value in itself. DynamoDB's limit is 400 KB; the rest is for what a
/// later write adds, and for what [`size`] does not count.
pub(crate) const MAX_ITEM: usize = 350 * 1024;
/// The size of a part.
const PART: usize = 350 * 1024;

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    token: Box<str>,
    length: usize,
}

impl Parts {
    /// The attribute that names them.
    pub(crate) fn to_attribute(&self) -> AttributeValue {
        text(format!("{}:{}", self.token, self.length))
    }
}

impl FromAttribute for Parts {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        let named = String::from_attribute(value)?;
        let (token, length) = named.split_once(':')?;
        Some(Self {
            token: token.into(),
            length: length.parse().ok()?,
        })
    }
}

impl Parts {
    /// Of a value that only its writer names.
    fn unique(value: &[u8]) -> Self {
        Self {
            token: Uuid::new_v4().simple().to_string().into(),
            length: value.len(),
        }
    }

    /// Of the response of an attempt.
    fn of_response(fence: Fence, body: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(fence.id.as_bytes());
        hash.update(fence.attempt.to_be_bytes());
        hash.update(body);
        Self {
            token: hex(&hash.finalize()[..16]).into(),
            length: body.len(),
        }
    }
}

impl Inner {
    /// The item of a row. A body that does not fit into it is written in parts before.
    pub(crate) async fn prepare_item(&self, partition: &str, row: &mut Row) -> Result<Item> {
        let item = row.to_item(partition, self.shards);
        let Some(body) = item::body(&row.record).filter(|_| row.parts.is_none()) else {
            return Ok(item);
        };
        if size(&item) <= MAX_ITEM {
            return Ok(item);
        }
        let parts = Parts::of_response(row.record.fence(), body);
        self.write_parts(partition, &parts, body).await?;
        row.parts = Some(parts);
        Ok(row.to_item(partition, self.shards))
    }

    /// Sets the value of an item that is not a record. What does not fit is written in parts, which
    /// are returned.
    pub(crate) async fn put_value(
        &self,
        partition: &str,
        item: &mut Item,
        value: &[u8],
    ) -> Result<Option<Parts>> {
        if size(item) + value.len() <= MAX_ITEM {
            item.insert("rb".to_owned(), binary(value));
            return Ok(None);
        }
        let parts = Parts::unique(value);
        self.write_parts(partition, &parts, value).await?;
        item.insert("rc".to_owned(), parts.to_attribute());
        Ok(Some(parts))
    }

    /// Writes a value in parts. They are there before this returns.
    async fn write_parts(&self, partition: &str, parts: &Parts, value: &[u8]) -> Result<()> {
        for (number, part) in value.chunks(PART).enumerate() {
            let mut item = key(partition, &keys::part(&parts.token, number));
            item.insert("b".to_owned(), binary(part));
            self.write_item(item).await?;
        }
        Ok(())
    }

    /// The value; `None` if a part is gone, because the item that named it has changed since.
    pub(crate) async fn read_parts(&self, partition: &str, parts: &Parts) -> Result<Option<Bytes>> {
        let items = self
            .query_parts(partition, &keys::parts(&parts.token))
            .await?;
        let mut value = BytesMut::with_capacity(parts.length);
        for item in items {
            value.extend_from_slice(&Attributes(item).need::<Bytes>("b")?);
        }
        if value.len() > parts.length {
            return Err(corrupt("the parts of a value are longer than the value"));
        }
        Ok((value.len() == parts.length).then(|| value.freeze()))
    }

    /// Removes a value that nothing names any more. What cannot be removed now is an orphan.
    pub(crate) async fn remove_parts(&self, partition: &str, parts: &Parts) {
        let numbers = 0..parts.length.div_ceil(PART);
        let keys = numbers.map(|number| {
            let sort = keys::part(&parts.token, number);
            (partition.to_owned(), sort)
        });
        self.remove_orphans(&keys.collect::<Vec<_>>()).await;
    }

    /// The keys of the parts and history entries of the record in a partition: those that it names,
    /// and orphans. To be listed before the write after which none of them is needed: a later list
    /// could have those of the next record.
    pub(crate) async fn list_satellites(&self, partition: &str) -> Result<Vec<(String, String)>> {
        let values = values([(":p", text(partition)), (":record", text(keys::RECORD))]);
        let items = self
            .query("p = :p AND s < :record", values, Some("p, s"), None)
            .await?;
        Ok(items.iter().filter_map(key_of).collect())
    }

    /// Removes items that nothing names. What remains after a failure is removed with the record.
    pub(crate) async fn remove_orphans(&self, keys: &[(String, String)]) {
        if let Err(error) = self.remove_each(keys).await {
            tracing::debug!(%error, "parts that are not used any more stay until their record goes");
        }
    }

    /// Removes items.
    pub(crate) async fn remove_each(&self, keys: &[(String, String)]) -> Result<()> {
        all(keys.iter().map(|(p, s)| self.remove_item(p, s)).collect()).await?;
        Ok(())
    }
}
