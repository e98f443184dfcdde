//! Lookups of statistics, for the readers.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension as _, Row};
use semel_core::identity::IdentityHash;
use semel_core::statistics::{Activity, Misuse, RecordCount, RecordCounts, RecordScan};
use semel_core::store::{MAX_BATCH, MAX_WALK, Summary};
use semel_core::{Identity, Key, OperationId, Status, Timestamp};

use super::{decision_counts, decode_count, misuse};
use crate::error::Failure;
use crate::list::{BEFORE_ALL_IDS, whole};
use crate::maintenance::bounded;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::row;

/// The request counts from a time on.
pub(crate) struct ActivitySince(pub(crate) Timestamp);

impl Lookup for ActivitySince {
    type Answer = Vec<Activity>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Activity>, Failure> {
        let rows = sql.activity.query_map([self.0.as_micros()], |row| {
            Ok(Activity {
                at: Timestamp::from_micros(row.get(0)?),
                operation: row.get(1)?,
                decisions: decision_counts(row, 2)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// The latest misuse of keys.
pub(crate) struct LatestMisuses(pub(crate) usize);

impl Lookup for LatestMisuses {
    type Answer = Vec<Misuse>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Misuse>, Failure> {
        let rows = sql.misuses.query_map([bounded(self.0)], misuse)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// Counts a batch of records, by caller and status.
pub(crate) struct ScanRecords {
    pub(crate) after: Option<OperationId>,
    pub(crate) limit: usize,
}

impl Lookup for ScanRecords {
    type Answer = RecordScan;

    fn perform(self, sql: &mut Statements<'_>) -> Result<RecordScan, Failure> {
        let after: &[u8] = match &self.after {
            Some(id) => id.as_bytes(),
            None => &BEFORE_ALL_IDS,
        };
        let limit = self.limit.min(MAX_WALK);
        // One more shows whether there is a next batch, which counts it.
        let beyond = whole(limit.saturating_add(1));
        let mut rows = sql.scan_records.query(rusqlite::params![after, beyond])?;
        let mut counts = BTreeMap::<_, u64>::new();
        let mut last = None;
        for _ in 0..limit {
            let Some(row) = rows.next()? else {
                break;
            };
            *counts.entry(row::scanned(row)?).or_default() += 1;
            last = Some(OperationId::from_bytes(row.get(0)?));
        }
        let more = rows.next()?.is_some();
        Ok(RecordScan {
            counts: counts
                .into_iter()
                .map(|((caller, status), count)| (caller, status, count))
                .collect(),
            next: last.filter(|_| more),
        })
    }
}

/// The latest record counts.
pub(crate) struct LatestRecordCounts;

impl Lookup for LatestRecordCounts {
    type Answer = Option<RecordCounts>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Option<RecordCounts>, Failure> {
        let mut rows = sql.record_counts.query([])?;
        let mut published = None;
        while let Some(row) = rows.next()? {
            let latest = match &mut published {
                Some(latest) => latest,
                None => published.insert(RecordCounts {
                    began_at: Timestamp::from_micros(row.get(0)?),
                    ended_at: Timestamp::from_micros(row.get(1)?),
                    counts: Vec::new(),
                    all_callers: row.get(2)?,
                }),
            };
            latest.counts.extend(record_count(row)?);
        }
        Ok(published)
    }
}

/// Reads one count; `None` where the scan found no records.
fn record_count(row: &Row<'_>) -> Result<Option<RecordCount>, Failure> {
    let Some(operation) = row.get(3)? else {
        return Ok(None);
    };
    let name: String = row.get(4)?;
    let status = Status::from_word(&name)
        .ok_or_else(|| Failure::Corrupt(format!("unknown status {name:?}").into()))?;
    Ok(Some(RecordCount {
        operation,
        status,
        count: decode_count(row.get(5)?),
    }))
}

/// The records with a key, of all callers.
pub(crate) struct FindKey {
    pub(crate) key: Key,
    pub(crate) identity_hash: fn(&Identity) -> IdentityHash,
}

impl Lookup for FindKey {
    type Answer = Vec<Summary>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Summary>, Failure> {
        let mut found = BTreeMap::new();
        let mut callers = sql.callers.query([])?;
        while let Some(row) = callers.next()? {
            let caller = row::caller(row)?;
            let identity = Identity::new(caller.tenant, caller.operation, self.key.clone());
            // A caller was recorded from a valid identity, so this succeeds.
            let Ok(identity) = identity else { continue };
            let identity = identity.scoped(caller.scope);
            let hash = (self.identity_hash)(&identity);
            let summary = sql
                .find_key
                .query_row([hash.0], |row| Ok(row::summary(row)))
                .optional()?
                .transpose()?;
            let Some(summary) = summary else { continue };
            // A hash alone is not trusted.
            if !summary.identity.names_same_record(&identity) {
                return Err(Failure::Corrupt("two identities have one hash".into()));
            }
            // Operations of one tenant may share a key, and then several callers name one record.
            found.insert(summary.fence.id, summary);
        }
        Ok(found.into_values().rev().take(MAX_BATCH).collect())
    }
}
