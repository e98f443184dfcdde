//! Reads for people and for the contract check.

use std::collections::BTreeMap;

use semel_core::contract::{RecordFilter, RecordsInUse};
use semel_core::fingerprint::RulesId;
use semel_core::statistics::{Caller, RecordScan};
use semel_core::store::{
    CountWithOldest, MAX_WALK, Page, Query, Result, Summary, UnfinishedCounts,
};
use semel_core::{Code, Fence, Identity, OperationId, Record, Status, Timestamp};

use crate::attributes::{Attributes, Item};
use crate::call::{Fault, unavailable};
use crate::index::WalkRange;
use crate::item::{self, SUMMARY};
use crate::keys::{self, Class};
use crate::records::same_record;
use crate::store::Inner;

/// How many entries of an index are read before the records that they name.
const CHUNK: usize = 1000;
/// Most records that [`count_records`](Inner::count_records) reads: a scan of more would take
/// minutes, and the layer waits for it at start.
const MAX_COUNTED: usize = 1_000_000;

impl Inner {
    pub(crate) async fn find(&self, id: OperationId) -> Result<Option<Record>> {
        let Some(partition) = self.partition_of(id, self.lookup_lag()).await? else {
            return Ok(None);
        };
        let row = self.read_whole(&partition).await?;
        Ok(row.map(|row| row.record).filter(|record| record.id == id))
    }

    pub(crate) async fn find_identity(&self, identity: &Identity) -> Result<Option<Record>> {
        let Some(row) = self.read_whole(&self.partition(identity)).await? else {
            return Ok(None);
        };
        same_record(&row.record.identity, identity)?;
        Ok(Some(row.record))
    }

    pub(crate) async fn find_resource(&self, resource_id: &str) -> Result<Option<Record>> {
        let mut start = None;
        loop {
            let (items, next) = self.query_resource(resource_id, start).await?;
            for item in items {
                let (mut item, mut found) = (Attributes(item), None);
                let (partition, id): (String, OperationId) = (item.need("p")?, item.need("i")?);
                if let Some(row) = self.read_whole(&partition).await? {
                    found = Some(row.record).filter(|record| record.id == id);
                }
                let created = |record: &Record| {
                    let resource = record.resource.as_ref();
                    resource.is_some_and(|resource| *resource.id == *resource_id)
                };
                if let Some(record) = found.filter(created) {
                    return Ok(Some(record));
                }
            }
            start = next;
            if start.is_none() {
                return Ok(None);
            }
        }
    }

    pub(crate) async fn count_unfinished(&self) -> Result<Vec<UnfinishedCounts>> {
        let mut counts = BTreeMap::<Box<str>, UnfinishedCounts>::new();
        for operation in self
            .unfinished(&[Class::Lease, Class::Unknown, Class::Dead])
            .await?
        {
            let name = operation.identity.operation();
            let count = counts
                .entry(name.into())
                .or_insert_with(|| UnfinishedCounts {
                    operation: name.into(),
                    in_progress: CountWithOldest::default(),
                    unknown: CountWithOldest::default(),
                    dead_lettered: CountWithOldest::default(),
                });
            match operation.status {
                Status::InProgress => count.in_progress.add(operation.created_at),
                Status::Unknown => {
                    count.unknown.add(operation.created_at);
                    if operation.dead_lettered_at.is_some() {
                        count.dead_lettered.add(operation.created_at);
                    }
                }
                Status::Completed | Status::FailedRetryable | Status::Expired => {}
            }
        }
        Ok(counts
            .into_values()
            .filter(|count| count.in_progress.count + count.unknown.count > 0)
            .collect())
    }

    /// The records of classes of unfinished ones, by age.
    async fn unfinished(&self, classes: &[Class]) -> Result<Vec<Summary>> {
        let mut found = BTreeMap::new();
        for class in classes {
            // Each class has its own limit, or many of one would hide all of another.
            let mut walk = self.walk(WalkRange::All(class.clone()), CHUNK);
            let mut left = MAX_WALK;
            while left > 0 {
                let hits = walk.next(left.min(CHUNK)).await?;
                if hits.is_empty() {
                    break;
                }
                left -= hits.len();
                let keys: Vec<_> = hits.into_iter().map(|hit| hit.key).collect();
                for operation in self.summaries(&keys).await? {
                    found.insert(operation.fence.id, operation);
                }
            }
        }
        Ok(found.into_values().collect())
    }

    pub(crate) async fn list(&self, query: Query) -> Result<Page> {
        if query.is_narrow() {
            return self.list_unfinished(&query).await;
        }
        let (size, mut left) = (query.page_size(), query.walk_length());
        let mut walk = self.walk(WalkRange::Before(query.before), (size + 1).min(CHUNK));
        let (mut fitting, mut last) = (Vec::new(), None);
        while left > 0 && fitting.len() <= size {
            let hits = walk.next(left.min(size + 1)).await?;
            let Some(end) = hits.last() else {
                return Ok(Page::of(fitting, size, None));
            };
            left -= hits.len();
            last = Some(OperationId::from_bytes((!end.position).to_be_bytes()));
            let keys: Vec<_> = hits.into_iter().map(|hit| hit.key).collect();
            let operations = self.summaries(&keys).await?;
            fitting.extend(operations.into_iter().filter(|one| query.admits(one)));
        }
        let is_more = left == 0 && !walk.next(1).await?.is_empty();
        fitting.truncate(size + 1);
        Ok(Page::of(fitting, size, last.filter(|_| is_more)))
    }

    /// A list of which an index has just what is asked for.
    async fn list_unfinished(&self, query: &Query) -> Result<Page> {
        let classes: &[Class] = if query.is_unknown_only() {
            &[Class::Unknown, Class::Dead]
        } else {
            &[Class::Lease]
        };
        let mut operations = self.unfinished(classes).await?;
        if !query.is_ascending() {
            operations.reverse();
        }
        let size = query.page_size();
        operations.retain(|operation| query.admits(operation));
        operations.truncate(size + 1);
        Ok(Page::of(operations, size, None))
    }

    /// What lists show of the records with these keys, without those that are gone.
    pub(crate) async fn summaries(&self, keys: &[(String, String)]) -> Result<Vec<Summary>> {
        let items = self.read_all(keys, Some(SUMMARY)).await?;
        items.into_iter().map(summary).collect()
    }

    pub(crate) async fn scan_records(
        &self,
        after: Option<OperationId>,
        limit: usize,
    ) -> Result<RecordScan> {
        let limit = limit.min(MAX_WALK);
        let mut walk = self.walk(WalkRange::After(after), limit.min(CHUNK));
        let (mut counts, mut last, mut left) = (BTreeMap::<_, u64>::new(), None, limit);
        while left > 0 {
            let hits = walk.next(left.min(CHUNK)).await?;
            let Some(end) = hits.last() else { break };
            left -= hits.len();
            last = Some(OperationId::from_bytes(end.position.to_be_bytes()));
            let keys: Vec<_> = hits.into_iter().map(|hit| hit.key).collect();
            for operation in self.summaries(&keys).await? {
                let identity = &operation.identity;
                let caller = Caller {
                    scope: identity.scope(),
                    tenant: identity.tenant().into(),
                    operation: identity.operation().into(),
                };
                *counts.entry((caller, operation.status)).or_default() += 1;
            }
        }
        let is_more = left == 0 && !walk.next(1).await?.is_empty();
        let counts = counts.into_iter();
        Ok(RecordScan {
            counts: counts
                .map(|((caller, status), count)| (caller, status, count))
                .collect(),
            next: last.filter(|_| is_more),
        })
    }

    /// Counts by a scan of the table. One that is cut short has found some records, or it is an
    /// error: that there are none is not known then.
    pub(crate) async fn count_records(&self, filter: RecordFilter) -> Result<RecordsInUse> {
        let now = self.now();
        let (mut in_use, mut looked_at, mut start) = (RecordsInUse::default(), 0, None::<Item>);
        loop {
            let read = self.limit.send(|| {
                self.client
                    .scan()
                    .table_name(&self.table)
                    .filter_expression("s = :record")
                    .expression_attribute_values(":record", crate::attributes::text(keys::RECORD))
                    .projection_expression("op, fr, st, ex")
                    .consistent_read(true)
                    .set_exclusive_start_key(start.clone())
                    .send()
            });
            let answer = read.await.outcome.map_err(Fault::of_read)?;
            looked_at += usize::try_from(answer.scanned_count).unwrap_or_default();
            for item in answer.items.unwrap_or_default() {
                count(&mut in_use, &filter, Attributes(item), now)?;
            }
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(in_use);
            }
            if looked_at >= MAX_COUNTED {
                return if in_use.protect_retries() {
                    Ok(in_use)
                } else {
                    let reason = format!(
                        "whether records are in use is not known after {MAX_COUNTED} items; \
                         accept the change with `semel contract accept`"
                    );
                    Err(unavailable(reason, None))
                };
            }
        }
    }
}

fn count(
    in_use: &mut RecordsInUse,
    filter: &RecordFilter,
    mut item: Attributes,
    now: Timestamp,
) -> Result<()> {
    let (operation, rules): (String, i64) = (item.need("op")?, item.need("fr")?);
    let is_wanted = filter.rules.is_none_or(|wanted| wanted == RulesId(rules));
    if !is_wanted || !filter.operations.admits(&operation) {
        return Ok(());
    }
    in_use.all += 1;
    match item::status(&mut item)? {
        Status::InProgress | Status::Unknown => in_use.unfinished += 1,
        Status::Completed => {
            let expires_at: Timestamp = item.need("ex")?;
            if now < expires_at {
                in_use.replayable += 1;
                in_use.last_window_ends = in_use.last_window_ends.max(Some(expires_at));
            }
        }
        Status::FailedRetryable | Status::Expired => {}
    }
    Ok(())
}

fn summary(item: Item) -> Result<Summary> {
    let mut item = Attributes(item);
    let status = item::status(&mut item)?;
    Ok(Summary {
        fence: Fence {
            id: item.need("i")?,
            attempt: item.need("a")?,
        },
        identity: item::identity(&mut item)?,
        status,
        dead_lettered_at: item.take("dl")?,
        last_error: item.take::<String>("le")?.map(Code::new),
        created_at: item.need("ca")?,
        updated_at: item.need("ua")?,
    })
}
