//! The indexes: where a record with some id is, and what is due.
//!
//! An index follows the table after a moment. So what it returns is a hint: the record is read, and
//! the condition of the write decides.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::Result;
use semel_core::{OperationId, Timestamp};

use crate::attributes::{Attributes, Item, binary, number, text};
use crate::call::{Fault, unavailable};
use crate::keys::{self, Class};
use crate::skew;
use crate::store::{Inner, all, values};

/// The index by id, in shards.
pub(crate) const IDS: &str = "ids";
/// The index by the time at which a worker looks at an item.
pub(crate) const DUE: &str = "due";
/// The same for items that have a second such time.
pub(crate) const SECOND_DUE: &str = "second_due";
/// The index by the resource that a record created.
pub(crate) const RESOURCES: &str = "resources";

/// The first delay between two looks for an id that is not in the index yet.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a lookup for a person waits for a new id.
const LOOKUP_LAG: Duration = Duration::from_millis(250);
/// The most entries that one request asks an index for.
const MAX_PAGE: usize = 1000;

/// An entry of an index: the key of an item, and its position. Lower positions come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IndexEntry {
    pub(crate) position: i128,
    pub(crate) key: (String, String),
}

/// What to walk through.
#[derive(Clone, Debug)]
pub(crate) enum WalkRange {
    /// Items of a class that are due by then, longest due first.
    Due(Class, Timestamp),
    /// All items of a class.
    All(Class),
    /// Records after an id, oldest first.
    After(Option<OperationId>),
    /// Records before an id, newest first.
    Before(Option<OperationId>),
}

/// A walk through all shards of an index at once, in the order of positions.
pub(crate) struct Walk<'a> {
    store: &'a Inner,
    range: WalkRange,
    page: usize,
    shards: Vec<Cursor>,
}

/// How far a walk has come in one shard.
struct Cursor {
    shard: u8,
    read: VecDeque<IndexEntry>,
    next: Next,
}

enum Next {
    Start,
    After(Item),
    End,
}

impl Inner {
    /// Begins a walk of about `expected` entries.
    pub(crate) fn walk(&self, range: WalkRange, expected: usize) -> Walk<'_> {
        let shards = (0..self.shards).map(|shard| Cursor {
            shard,
            read: VecDeque::new(),
            next: Next::Start,
        });
        Walk {
            store: self,
            range,
            page: expected.clamp(1, MAX_PAGE),
            shards: shards.collect(),
        }
    }

    /// How long a lookup waits for a new id.
    pub(crate) fn lookup_lag(&self) -> Duration {
        self.index_lag.min(LOOKUP_LAG)
    }

    /// The partition of the record with that id. An id that is so new that the index may not have
    /// it yet is looked for again.
    pub(crate) async fn partition_of(
        &self,
        id: OperationId,
        lag: Duration,
    ) -> Result<Option<Arc<str>>> {
        if let Some(partition) = self.partitions.get(&id) {
            return Ok(Some(partition));
        }
        let mut delay = LOOK_AGAIN;
        loop {
            if let Some(partition) = self.query_id(id).await? {
                let partition = Arc::<str>::from(partition);
                self.partitions.insert(id, Arc::clone(&partition));
                return Ok(Some(partition));
            }
            // The index had the time to learn of it, whichever clock made the id.
            let visible_at = created_at(id).saturating_add(lag);
            if visible_at <= skew::system_now() || delay > lag {
                return Ok(None);
            }
            tokio::time::sleep(delay).await;
            delay *= 2;
        }
    }

    /// As [`partition_of`](Self::partition_of), for a decision: that there is no record with that id
    /// is not final as long as the id is new, because an index may be behind for longer than a call
    /// waits.
    ///
    /// # Errors
    /// It is not known yet.
    pub(crate) async fn partition_of_record(&self, id: OperationId) -> Result<Option<Arc<str>>> {
        let found = self.partition_of(id, self.index_lag).await?;
        if found.is_none() && created_at(id).saturating_add(self.unused_after) > skew::system_now()
        {
            let reason = format!(
                "the index has no record with the id {id}, and the id is so new that the index may \
                 be behind: try again"
            );
            return Err(unavailable(reason, None));
        }
        Ok(found)
    }

    async fn query_id(&self, id: OperationId) -> Result<Option<String>> {
        let shard = keys::id_shard(keys::shard_of(id, self.shards));
        let values = values([(":x", text(shard)), (":i", binary(*id.as_bytes()))]);
        let read = self.limit.send(|| {
            self.client
                .query()
                .table_name(&self.table)
                .index_name(IDS)
                .key_condition_expression("x = :x AND i = :i")
                .set_expression_attribute_values(Some(values.clone()))
                .send()
        });
        let answer = read.await.outcome.map_err(Fault::of_read)?;
        let mut items = answer.items.unwrap_or_default();
        items
            .pop()
            .map(|item| Attributes(item).need("p"))
            .transpose()
    }

    /// The partitions of the newest records that created a resource with that id.
    pub(crate) async fn query_resource(
        &self,
        resource_id: &str,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>)> {
        let values = values([(":r", text(keys::digest(&[resource_id])))]);
        let read = self.limit.send(|| {
            self.client
                .query()
                .table_name(&self.table)
                .index_name(RESOURCES)
                .key_condition_expression("r = :r")
                .set_expression_attribute_values(Some(values.clone()))
                .scan_index_forward(false)
                .set_exclusive_start_key(start.clone())
                .limit(10)
                .send()
        });
        let answer = read.await.outcome.map_err(Fault::of_read)?;
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        Ok((answer.items.unwrap_or_default(), next))
    }
}

/// When an id was made, by the clock of its maker.
fn created_at(id: OperationId) -> Timestamp {
    let mut millis = [0; 8];
    millis[2..].copy_from_slice(&id.as_bytes()[..6]);
    let millis = u64::from_be_bytes(millis);
    Timestamp::from_micros(
        i64::try_from(millis)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000),
    )
}

impl Walk<'_> {
    /// The next entries, at most `limit`; none at the end.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<IndexEntry>> {
        let mut hits = Vec::new();
        while hits.len() < limit {
            self.fill().await?;
            while hits.len() < limit && self.shards.iter().all(Cursor::has_position) {
                let cursors = self
                    .shards
                    .iter_mut()
                    .filter(|cursor| !cursor.read.is_empty());
                let Some(first) = cursors.min_by(|a, b| a.read.front().cmp(&b.read.front())) else {
                    return Ok(hits);
                };
                hits.extend(first.read.pop_front());
            }
        }
        Ok(hits)
    }

    /// Reads on in every shard whose next entry is not known.
    async fn fill(&mut self) -> Result<()> {
        let (store, range, page) = (self.store, &self.range, self.page);
        let mut reads = Vec::new();
        for cursor in &mut self.shards {
            if !cursor.has_position() {
                reads.push(cursor.fill(store, range, page));
            }
        }
        all(reads).await?;
        Ok(())
    }
}

impl Cursor {
    /// Reads on until the next entry is known.
    async fn fill(&mut self, store: &Inner, range: &WalkRange, page: usize) -> Result<()> {
        while !self.has_position() {
            let start = match std::mem::replace(&mut self.next, Next::End) {
                Next::Start => None,
                Next::After(key) => Some(key),
                Next::End => break,
            };
            let (hits, next) = store.query_range(range, self.shard, page, start).await?;
            self.read.extend(hits);
            self.next = next.map_or(Next::End, Next::After);
        }
        Ok(())
    }

    /// Whether the next entry of this shard is known, or that there is none.
    fn has_position(&self) -> bool {
        !self.read.is_empty() || matches!(self.next, Next::End)
    }
}

impl Inner {
    async fn query_range(
        &self,
        range: &WalkRange,
        shard: u8,
        page: usize,
        start: Option<Item>,
    ) -> Result<(Vec<IndexEntry>, Option<Item>)> {
        let (index, condition, values, forward) = range.query(shard);
        let read = self.limit.send(|| {
            self.client
                .query()
                .table_name(&self.table)
                .index_name(index)
                .key_condition_expression(&condition)
                .set_expression_attribute_values(Some(values.clone()))
                .scan_index_forward(forward)
                .set_limit(i32::try_from(page).ok())
                .set_exclusive_start_key(start.clone())
                .send()
        });
        let answer = read.await.outcome.map_err(Fault::of_read)?;
        let items = answer.items.unwrap_or_default();
        let hits = items.into_iter().map(|item| range.hit(item));
        let hits: Vec<IndexEntry> = hits.collect::<Result<_>>()?;
        Ok((
            hits,
            answer.last_evaluated_key.filter(|key| !key.is_empty()),
        ))
    }
}

impl WalkRange {
    /// Index, key condition, its values, and whether lower keys come first.
    fn query(&self, shard: u8) -> (&'static str, String, Item, bool) {
        match self {
            Self::Due(class, now) => {
                let (index, partition, at) = class.index();
                let values = values([
                    (":class", text(class.partition(shard))),
                    (":now", number(now.as_micros())),
                ]);
                (
                    index,
                    format!("{partition} = :class AND {at} <= :now"),
                    values,
                    true,
                )
            }
            Self::All(class) => {
                let (index, partition, _) = class.index();
                let values = values([(":class", text(class.partition(shard)))]);
                (index, format!("{partition} = :class"), values, true)
            }
            Self::After(id) => Self::ids(shard, ">", *id, true),
            Self::Before(id) => Self::ids(shard, "<", *id, false),
        }
    }

    fn ids(
        shard: u8,
        compared: &str,
        id: Option<OperationId>,
        forward: bool,
    ) -> (&'static str, String, Item, bool) {
        let mut condition = "x = :x".to_owned();
        let mut bound = values([(":x", text(keys::id_shard(shard)))]);
        if let Some(id) = id {
            condition = format!("{condition} AND i {compared} :i");
            bound.extend(values([(":i", binary(*id.as_bytes()))]));
        }
        (IDS, condition, bound, forward)
    }

    fn hit(&self, item: Item) -> Result<IndexEntry> {
        let mut item = Attributes(item);
        let position = match self {
            Self::Due(class, _) | Self::All(class) => {
                let (_, _, at) = class.index();
                i128::from(item.need::<i64>(at)?)
            }
            Self::After(_) => i128::from_be_bytes(item.need("i")?),
            Self::Before(_) => !i128::from_be_bytes(item.need("i")?),
        };
        Ok(IndexEntry {
            position,
            key: (item.need("p")?, item.need("s")?),
        })
    }
}

impl Class {
    /// The index of a class, and the attributes that it is by.
    fn index(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Lease
            | Self::Unknown
            | Self::Dead
            | Self::Expiry
            | Self::Tombstone
            | Self::Parked => (DUE, "d", "t"),
            Self::Resume(_) | Self::Body | Self::Forget => (SECOND_DUE, "e", "u"),
        }
    }
}
