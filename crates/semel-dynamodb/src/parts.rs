//! Values that do not fit into one item.
//!
//! DynamoDB holds at most 400 KB in an item. What is larger is written in parts first, under a new
//! token, and then named by the item that it belongs to. Parts that no item names are orphans of a
//! write that failed or lost a race: nothing reads them, and they go with the record.

use aws_sdk_dynamodb::types::AttributeValue;
use bytes::{Bytes, BytesMut};
use semel_core::store::Result;
use uuid::Uuid;

use crate::attributes::{Attributes, FromAttribute, binary, corrupt, key, text};
use crate::keys;
use crate::store::Inner;

/// The largest value that is kept in the item itself. Less than half of what an item holds: it also
/// has headers, names and the data of phases.
pub(crate) const MAX_INLINE: usize = 160 * 1024;
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

impl Inner {
    /// Writes a value in parts. They are there before this returns.
    pub(crate) async fn write_parts(&self, partition: &str, value: &[u8]) -> Result<Parts> {
        let parts = Parts {
            token: Uuid::new_v4().simple().to_string().into(),
            length: value.len(),
        };
        for (number, part) in value.chunks(PART).enumerate() {
            let mut item = key(partition, &keys::part(&parts.token, number));
            item.insert("b".to_owned(), binary(part));
            self.write_item(item).await?;
        }
        Ok(parts)
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
        self.remove_all(partition, &keys::parts(&parts.token)).await;
    }
}
