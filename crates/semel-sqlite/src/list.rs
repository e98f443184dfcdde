//! A page of operations.

use rusqlite::{Rows, Statement, params};
use semel_core::store::{Page, Query, Summary};
use semel_core::{Key, OperationId, Status};

use crate::error::Failure;
use crate::queries::Statements;
use crate::reader::Lookup;
use crate::row;

/// Sorts after every id: the longest there could be, and one byte more.
const AFTER_ALL_IDS: [u8; 17] = [0xff; 17];

/// Sorts before every id.
pub(crate) const BEFORE_ALL_IDS: [u8; 0] = [];

/// A page of records.
pub(crate) struct List(pub(crate) Query);

impl Lookup for List {
    type Answer = Page;

    fn perform(self, sql: &mut Statements<'_>) -> Result<Page, Failure> {
        let Self(query) = self;
        let before: &[u8] = match &query.before {
            Some(id) => id.as_bytes(),
            None if query.is_ascending() => &BEFORE_ALL_IDS,
            None => &AFTER_ALL_IDS,
        };
        let size = query.page_size();
        // One more than fits shows whether there is a next page.
        let limit = whole(size.saturating_add(1));
        let (status, key) = (
            query.status.map(Status::as_str),
            query.key.as_ref().map(Key::as_str),
        );
        let Query {
            tenant,
            operation,
            dead_lettered,
            ..
        } = &query;
        if query.is_unknown_only() {
            let list = if query.is_ascending() {
                &mut sql.list_unknown_oldest
            } else {
                &mut sql.list_unknown
            };
            let unknown = list.query(params![
                before,
                status,
                tenant,
                operation,
                key,
                dead_lettered,
                limit
            ])?;
            return Ok(Page::of(summaries(unknown)?, size, None));
        }
        // The index of the leases holds all records in progress.
        if query.status == Some(Status::InProgress) {
            let in_progress = sql
                .list_in_progress
                .query(params![before, tenant, operation, key, limit])?;
            return Ok(Page::of(summaries(in_progress)?, size, None));
        }
        let walk = query.walk_length();
        // Without a filter every record fits: a page is full before the bound, or there are no more.
        let floor = if admits_all(&query) && walk > size {
            None
        } else {
            floor(&mut sql.list_floor, before, walk)?
        };
        let lowest: &[u8] = match &floor {
            Some(id) => id.as_bytes(),
            None => &BEFORE_ALL_IDS,
        };
        let fitting = sql.list.query(params![
            before,
            status,
            tenant,
            operation,
            key,
            dead_lettered,
            limit,
            lowest
        ])?;
        Ok(Page::of(summaries(fitting)?, size, floor))
    }
}

/// Whether no filter is set.
fn admits_all(query: &Query) -> bool {
    let Query {
        status,
        tenant,
        operation,
        key,
        dead_lettered,
        before: _,
        oldest_first: _,
        limit: _,
        walk: _,
    } = query;
    status.is_none()
        && tenant.is_none()
        && operation.is_none()
        && key.is_none()
        && dead_lettered.is_none()
}

/// The last of the next `walk` records, where there are more after it.
fn floor(
    list_floor: &mut Statement<'_>,
    before: &[u8],
    walk: usize,
) -> Result<Option<OperationId>, Failure> {
    let mut rows = list_floor.query(params![before, whole(walk.saturating_sub(1))])?;
    let last = match rows.next()? {
        Some(row) => OperationId::from_bytes(row.get(0)?),
        None => return Ok(None),
    };
    Ok(rows.next()?.map(|_| last))
}

fn summaries(mut rows: Rows<'_>) -> Result<Vec<Summary>, Failure> {
    let mut operations = Vec::new();
    while let Some(row) = rows.next()? {
        operations.push(row::summary(row)?);
    }
    Ok(operations)
}

/// A number of rows.
pub(crate) fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
