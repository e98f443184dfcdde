//! What processes publish about their routes, and the records that a retry can still meet.

use rusqlite::params;
use semel_core::Timestamp;
use semel_core::contract::{Contracts, OperationMatch, Published, RecordFilter, RecordsInUse};

use crate::error::Failure;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::writer::Command;

/// What is published.
pub(crate) struct ReadContracts;

impl Lookup for ReadContracts {
    type Answer = Published;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Published, Failure> {
        let (revision, document): (i64, String) = sql
            .contracts
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Published {
            revision: revision.unsigned_abs(),
            contracts: Contracts::from_text(&document).map_err(|reason| {
                Failure::Corrupt(format!("the published contracts cannot be read: {reason}").into())
            })?,
        })
    }
}

/// Replaces what is published, if its revision is still the given one.
pub(crate) struct PublishContracts(pub(crate) u64, pub(crate) Contracts);

impl Command for PublishContracts {
    type Answer = bool;

    fn perform(&self, sql: &mut Statements<'_>, _: Timestamp) -> Result<bool, Failure> {
        let Self(revision, contracts) = self;
        let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
        let replaced = sql
            .publish_contracts
            .execute(params![revision, contracts.to_text()])?;
        Ok(replaced == 1)
    }
}

/// Counts the records that a retry can still meet.
pub(crate) struct CountRecords {
    pub(crate) filter: RecordFilter,
    pub(crate) now: Timestamp,
}

impl Lookup for CountRecords {
    type Answer = RecordsInUse;

    fn perform(self, sql: &mut Statements<'_>) -> Result<RecordsInUse, Failure> {
        let RecordFilter { operations, rules } = self.filter;
        let (is_prefix, name) = match &operations {
            OperationMatch::Exact(name) => (false, name),
            OperationMatch::Prefix(prefix) => (true, prefix),
        };
        let rules = rules.map(|rules| rules.0);
        let parameters = params![name, is_prefix, rules, self.now.as_micros()];
        let in_use = sql.count_records.query_row(parameters, |row| {
            let count = |column| row.get(column).map(i64::unsigned_abs);
            Ok(RecordsInUse {
                unfinished: count(0)?,
                replayable: count(1)?,
                all: count(2)?,
                last_window_ends: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_micros),
            })
        })?;
        Ok(in_use)
    }
}
