//! The keys of items and of index entries.
//!
//! The partition key of a record and of its parts is the hash of its identity in hexadecimal
//! digits. The partition keys of everything else contain a `#`, so the two cannot meet.

use semel_core::identity::IdentityHash;
use semel_core::{OperationId, hex};
use sha2::{Digest as _, Sha256};

/// The sort key of a record. Those of its parts and of its history are less.
pub(crate) const RECORD: &str = "r";
/// The sort key of other items that are alone under their partition key.
pub(crate) const HEAD: &str = "head";
/// The partition of the table's own settings.
pub(crate) const SETTINGS: &str = "#settings";
/// The partition of the published contracts.
pub(crate) const CONTRACTS: &str = "#contracts";
/// The partition of the published record counts.
pub(crate) const COUNTS: &str = "#counts";
/// The partition of the lease of the process that scans records.
pub(crate) const SCAN: &str = "#scan";
/// The partition of the number of erasures.
pub(crate) const ERASURES: &str = "#erasures";
/// The partition of the decisions by interval.
pub(crate) const ACTIVITY: &str = "#activity";
/// The partition of the misuses.
pub(crate) const MISUSES: &str = "#misuses";
/// The partition of the callers.
pub(crate) const CALLERS: &str = "#callers";

/// Most shards that an index may have. Two hexadecimal digits name one.
pub(crate) const MAX_SHARDS: u8 = 64;

/// The partition key of a record.
pub(crate) fn partition(hash: IdentityHash) -> String {
    hex(&hash.0)
}

/// The partition key of a message.
pub(crate) fn message(source: &str, id: &str) -> String {
    format!("#inbox#{}", digest(&[source, id]))
}

/// The beginning of the sort keys of a record's history.
pub(crate) fn history(id: OperationId) -> String {
    format!("H#{id}#")
}

/// The sort key of one entry of a history. Two writers that append at once make two entries; the
/// record's head names one of them.
pub(crate) fn entry(id: OperationId, seq: u32, hash: &[u8; 32]) -> String {
    format!("H#{id}#{seq:010}#{}", hex(hash))
}

/// Whether a sort key is that of a part.
pub(crate) fn is_part(sort: &str) -> bool {
    sort.starts_with("B#")
}

/// The beginning of the sort keys of the parts of one value.
pub(crate) fn parts(token: &str) -> String {
    format!("B#{token}#")
}

/// The sort key of one part.
pub(crate) fn part(token: &str, number: usize) -> String {
    format!("B#{token}#{number:06}")
}

/// The sort key of an interval's decisions: in the order of time, before 1970 as well.
pub(crate) fn activity(at: i64, operation: &str) -> String {
    format!("{}#{}", since(at), digest(&[operation]))
}

/// The sort keys of an interval and of later ones are not less than this.
pub(crate) fn since(at: i64) -> String {
    format!("{:016x}", at.cast_unsigned() ^ (1 << 63))
}

/// A short name for strings of any length: a sort key holds 1,024 bytes, an operation 8 KiB.
pub(crate) fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..16])
}

/// The shard that an id is in: by its random bits, since its first ones are the time.
pub(crate) fn shard_of(id: OperationId, shards: u8) -> u8 {
    let [.., last] = *id.as_bytes();
    last % shards.max(1)
}

/// The shard that a message is in.
pub(crate) fn shard_of_seed(seed: u32, shards: u8) -> u8 {
    let [first, ..] = seed.to_be_bytes();
    first % shards.max(1)
}

/// The name of a shard of the index by id.
pub(crate) fn id_shard(shard: u8) -> String {
    format!("{shard:02x}")
}

/// Why a record or a message is looked at later: the partition of an index of times is such a class
/// and a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// In progress: when the lease is swept.
    Lease,
    /// In progress: when it may be resumed. By operation, because completers ask for one.
    Resume(Box<str>),
    /// Unknown: when reconciliation looks next.
    Unknown,
    /// Unknown and dead-lettered: since when.
    Dead,
    /// Completed or released: when the window ends.
    Expiry,
    /// Completed: when the body goes.
    Body,
    /// A tombstone: when it goes.
    Tombstone,
    /// A parked message: when it is due.
    Parked,
    /// A message: when it is forgotten.
    Forget,
}

impl Class {
    /// The partition key of one shard.
    pub(crate) fn partition(&self, shard: u8) -> String {
        match self {
            Self::Lease => format!("lease#{shard:02x}"),
            Self::Resume(operation) => format!("resume:{}#{shard:02x}", digest(&[operation])),
            Self::Unknown => format!("unknown#{shard:02x}"),
            Self::Dead => format!("dead#{shard:02x}"),
            Self::Expiry => format!("expiry#{shard:02x}"),
            Self::Body => format!("body#{shard:02x}"),
            Self::Tombstone => format!("tombstone#{shard:02x}"),
            Self::Parked => format!("parked#{shard:02x}"),
            Self::Forget => format!("forget#{shard:02x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_sort_by_time() {
        let keys = [i64::MIN, -1, 0, 1, i64::MAX].map(|at| activity(at, "pay"));
        assert!(keys.is_sorted(), "{keys:?}");
        assert!(since(0) < activity(0, "pay") && activity(-1, "pay") < since(0));
    }

    #[test]
    fn framed_names_are_separate() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
