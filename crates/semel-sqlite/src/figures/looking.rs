//! What readers tell of the figures.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension as _, Row};
use semel_core::figures::{Activity, Census, Count, Misuse, Survey};
use semel_core::identity::IdentityHash;
use semel_core::store::{MAX_BATCH, MAX_WALK, Summary};
use semel_core::{Identity, Key, OperationId, Status, Timestamp};

use super::{counted, misuse, told};
use crate::error::Failure;
use crate::list::{BEFORE_ALL_IDS, whole};
use crate::maintenance::bounded;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::row;

/// What requests were told from a time on.
pub(super) struct ActivitySince(pub(super) Timestamp);

impl Lookup for ActivitySince {
    type Answer = Vec<Activity>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Activity>, Failure> {
        let rows = sql.activity.query_map([self.0.as_micros()], |row| {
            Ok(Activity {
                at: Timestamp::from_micros(row.get(0)?),
                operation: row.get(1)?,
                told: told(row, 2)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// Who used keys for something else.
pub(super) struct LatestMisuses(pub(super) usize);

impl Lookup for LatestMisuses {
    type Answer = Vec<Misuse>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Misuse>, Failure> {
        let rows = sql.misuses.query_map([bounded(self.0)], misuse)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// A stretch of all operations, counted.
pub(super) struct Stretch {
    pub(super) after: Option<OperationId>,
    pub(super) limit: usize,
}

impl Lookup for Stretch {
    type Answer = Survey;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Survey, Failure> {
        let after: &[u8] = match &self.after {
            Some(id) => id.as_bytes(),
            None => &BEFORE_ALL_IDS,
        };
        let limit = self.limit.min(MAX_WALK);
        // One more tells whether there are others beyond; it is counted with those.
        let beyond = whole(limit.saturating_add(1));
        let mut rows = sql.survey.query(rusqlite::params![after, beyond])?;
        let mut counts = BTreeMap::<_, u64>::new();
        let mut last = None;
        for _ in 0..limit {
            let Some(row) = rows.next()? else {
                break;
            };
            *counts.entry(row::surveyed(row)?).or_default() += 1;
            last = Some(OperationId::from_bytes(row.get(0)?));
        }
        let more = rows.next()?.is_some();
        Ok(Survey {
            counts: counts
                .into_iter()
                .map(|((caller, status), count)| (caller, status, count))
                .collect(),
            next: last.filter(|_| more),
        })
    }
}

/// The latest census.
pub(super) struct LatestCensus;

impl Lookup for LatestCensus {
    type Answer = Option<Census>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Option<Census>, Failure> {
        let mut rows = sql.census.query([])?;
        let mut census = None;
        while let Some(row) = rows.next()? {
            let latest = match &mut census {
                Some(latest) => latest,
                None => census.insert(Census {
                    began_at: Timestamp::from_micros(row.get(0)?),
                    ended_at: Timestamp::from_micros(row.get(1)?),
                    counts: Vec::new(),
                    all_callers: row.get(2)?,
                }),
            };
            latest.counts.extend(line(row)?);
        }
        Ok(census)
    }
}

/// One line of a census, unless it has none.
fn line(row: &Row<'_>) -> Result<Option<Count>, Failure> {
    let Some(operation) = row.get(3)? else {
        return Ok(None);
    };
    let word: String = row.get(4)?;
    let status = Status::from_word(&word)
        .ok_or_else(|| Failure::Corrupt(format!("no status is called {word:?}").into()))?;
    Ok(Some(Count {
        operation,
        status,
        count: counted(row.get(5)?),
    }))
}

/// The operations under a key, of all callers.
pub(super) struct FindKey {
    pub(super) key: Key,
    pub(super) identity_hash: fn(&Identity) -> IdentityHash,
}

impl Lookup for FindKey {
    type Answer = Vec<Summary>;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Vec<Summary>, Failure> {
        let mut found = BTreeMap::new();
        let mut callers = sql.callers.query([])?;
        while let Some(row) = callers.next()? {
            let caller = row::caller(row)?;
            let identity = Identity::new(caller.tenant, caller.operation, self.key.clone());
            // Callers are made of identities, so each makes one.
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
            // The commands of one tenant may share the key, and then name one operation.
            found.insert(summary.fence.id, summary);
        }
        Ok(found.into_values().rev().take(MAX_BATCH).collect())
    }
}
