//! Reading and writing the attributes of an item.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use bytes::Bytes;
use semel_core::store::{Error, Result};
use semel_core::{OperationId, Timestamp};

/// An item, or its key.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The partition key of the table.
pub(crate) const PARTITION: &str = "p";
/// The sort key of the table.
pub(crate) const SORT: &str = "s";
/// What every write sets anew. A condition on it is a condition on everything that was read.
pub(crate) const VERSION: &str = "v";

pub(crate) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn number<T: ToString + Copy>(number: T) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub(crate) fn binary(bytes: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}

pub(crate) fn time(at: Timestamp) -> AttributeValue {
    number(at.as_micros())
}

/// The size of an item of texts, numbers and binaries, at least as DynamoDB counts it.
pub(crate) fn size(item: &Item) -> usize {
    let size_of = |value: &AttributeValue| {
        let text = value.as_s().or_else(|_| value.as_n()).map(String::len);
        text.or_else(|_| value.as_b().map(|blob| blob.as_ref().len()))
            .unwrap_or_default()
    };
    let sizes = item.iter().map(|(name, value)| name.len() + size_of(value));
    sizes.sum()
}

/// The primary key of an item.
pub(crate) fn key(partition: &str, sort: &str) -> Item {
    HashMap::from([
        (PARTITION.to_owned(), text(partition)),
        (SORT.to_owned(), text(sort)),
    ])
}

/// Sets an attribute if there is a value for it.
pub(crate) fn put(item: &mut Item, name: &str, value: Option<AttributeValue>) {
    if let Some(value) = value {
        item.insert(name.to_owned(), value);
    }
}

/// Attributes of a stored item. An attribute that is missing or of another type is corrupt data:
/// nothing may be decided by it.
pub(crate) struct Attributes(pub(crate) Item);

impl Attributes {
    /// Takes an optional attribute.
    pub(crate) fn take<T: FromAttribute>(&mut self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.0.remove(name) else {
            return Ok(None);
        };
        let found = T::from_attribute(value);
        found.map(Some).ok_or_else(|| self.corrupt(name))
    }

    /// Takes an attribute that every such item has.
    pub(crate) fn need<T: FromAttribute>(&mut self, name: &str) -> Result<T> {
        self.take(name)?.ok_or_else(|| self.corrupt(name))
    }

    /// The error about one attribute of this item.
    pub(crate) fn corrupt(&self, name: &str) -> Error {
        let key = |name: &str| {
            let value = self.0.get(name);
            let text = value.and_then(|value| value.as_s().ok());
            text.cloned().unwrap_or_default()
        };
        corrupt(format!(
            "attribute {name:?} of item {:?} {:?} is missing or invalid",
            key(PARTITION),
            key(SORT)
        ))
    }
}

/// The error about stored data that cannot be right.
pub(crate) fn corrupt(reason: impl Into<Box<str>>) -> Error {
    Error::Corrupt {
        reason: reason.into(),
    }
}

/// A value that an attribute can hold.
pub(crate) trait FromAttribute: Sized {
    /// The value; `None` if the attribute is of another type.
    fn from_attribute(value: AttributeValue) -> Option<Self>;
}

impl FromAttribute for String {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        value.as_s().ok().cloned()
    }
}

impl FromAttribute for Box<str> {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        String::from_attribute(value).map(Into::into)
    }
}

impl FromAttribute for Bytes {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        if let AttributeValue::B(blob) = value {
            Some(blob.into_inner().into())
        } else {
            None
        }
    }
}

impl<const N: usize> FromAttribute for [u8; N] {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        Bytes::from_attribute(value)?.as_ref().try_into().ok()
    }
}

impl FromAttribute for OperationId {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        <[u8; 16]>::from_attribute(value).map(Self::from_bytes)
    }
}

impl FromAttribute for Timestamp {
    fn from_attribute(value: AttributeValue) -> Option<Self> {
        i64::from_attribute(value).map(Self::from_micros)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl FromAttribute for $number {
            fn from_attribute(value: AttributeValue) -> Option<Self> {
                value.as_n().ok()?.parse().ok()
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 usize i64 }
