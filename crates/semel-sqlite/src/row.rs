//! Rows as records. An invalid row is an error.

use bytes::Bytes;
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement, ToSql};
use semel_core::fingerprint::RulesId;
use semel_core::statistics::Caller;
use semel_core::store::Summary;
use semel_core::{
    Code, Fence, Fingerprint, Identity, Key, KeyScope, Lease, OperationId, Record, RecoveryPoint,
    Resource, Response, Status, Stored, Timestamp, Windows, headers, time,
};

use crate::error::Failure;

/// The one record of a statement that selects its columns in the order of `find.sql`.
pub(crate) fn find(
    statement: &mut Statement<'_>,
    by: &dyn ToSql,
) -> Result<Option<Record>, Failure> {
    let mut rows = statement.query([by])?;
    match rows.next()? {
        Some(row) => record(row).map(Some),
        None => Ok(None),
    }
}

/// A row whose columns are those of `find.sql`.
pub(crate) fn record(row: &Row<'_>) -> Result<Record, Failure> {
    let mut columns = Columns { row, next: 0 };
    let id = columns.id()?;
    let identity = columns.identity()?;
    let version = columns.take()?;
    let rules = RulesId(columns.take()?);
    let fingerprint = Fingerprint::from_parts(version, columns.take()?).under(rules);
    let status = columns.status()?;
    let attempt = columns.take()?;
    let owner = columns.take::<String>()?.into();
    let lease = Lease {
        locked_until: columns.time()?,
        resume_within: columns.take::<Option<i64>>()?.map(time::duration),
    };
    let recovery = columns.pair(|name: Box<str>, data: Vec<u8>| RecoveryPoint {
        name,
        data: data.into(),
    })?;
    let response = columns.response()?;
    let resource = columns.pair(|kind, id| Resource { kind, id })?;
    let last_error = columns.take::<Option<String>>()?.map(Code::new);
    let (reconcile_after, reconcile_attempts) =
        (columns.optional_time()?, columns.take::<Option<u32>>()?);
    let dead_lettered_at = columns.optional_time()?;
    let resolved_by = columns.take()?;
    let (replay, body, tombstone) = (columns.take()?, columns.take()?, columns.take()?);
    let (created_at, updated_at) = (columns.time()?, columns.time()?);
    let completed_at = columns.optional_time()?;
    let expires_at = columns.optional_time()?;
    let body_expires_at = columns.optional_time()?;
    let purge_at = columns.optional_time()?;

    let stored = Stored {
        id,
        identity,
        fingerprint,
        status,
        attempt,
        owner,
        lease,
        recovery,
        response,
        resource,
        last_error,
        reconcile_after,
        reconcile_attempts,
        dead_lettered_at,
        resolved_by,
        windows: Windows::from_micros(replay, body, tombstone),
        created_at,
        updated_at,
        completed_at,
        expires_at,
        body_expires_at,
        purge_at,
    };
    stored.into_record().ok_or_else(|| {
        Failure::Corrupt(format!("record {id} has status {status} without its columns").into())
    })
}

/// A row of `list.sql`.
pub(crate) fn summary(row: &Row<'_>) -> Result<Summary, Failure> {
    let mut columns = Columns { row, next: 0 };
    let id = columns.id()?;
    let identity = columns.identity()?;
    let status = columns.status()?;
    Ok(Summary {
        fence: Fence {
            id,
            attempt: columns.take()?,
        },
        identity,
        status,
        dead_lettered_at: columns.optional_time()?,
        last_error: columns.take::<Option<String>>()?.map(Code::new),
        created_at: columns.time()?,
        updated_at: columns.time()?,
    })
}

/// A row of `scan_records.sql`, after its id.
pub(crate) fn scanned(row: &Row<'_>) -> Result<(Caller, Status), Failure> {
    let mut columns = Columns { row, next: 1 };
    Ok((columns.caller()?, columns.status()?))
}

/// A row of `callers.sql`.
pub(crate) fn caller(row: &Row<'_>) -> Result<Caller, Failure> {
    Columns { row, next: 0 }.caller()
}

/// A row that begins with an id and an attempt.
pub(crate) fn fence(row: &Row<'_>) -> Result<Fence, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Fence {
        id: columns.id()?,
        attempt: columns.take()?,
    })
}

/// A row of id, attempt and recovery point, as a grant returns it.
pub(crate) fn granted(row: &Row<'_>) -> Result<(Fence, Option<RecoveryPoint>), Failure> {
    let mut columns = Columns { row, next: 0 };
    let fence = Fence {
        id: columns.id()?,
        attempt: columns.take()?,
    };
    let recovery = columns.pair(|name: Box<str>, data: Vec<u8>| RecoveryPoint {
        name,
        data: data.into(),
    })?;
    Ok((fence, recovery))
}

/// The columns of a row, read from left to right.
struct Columns<'r, 's> {
    row: &'r Row<'s>,
    next: usize,
}

impl Columns<'_, '_> {
    fn take<T: FromSql>(&mut self) -> Result<T, Failure> {
        let column = self.next;
        self.next += 1;
        Ok(self.row.get(column)?)
    }

    fn time(&mut self) -> Result<Timestamp, Failure> {
        Ok(Timestamp::from_micros(self.take()?))
    }

    fn optional_time(&mut self) -> Result<Option<Timestamp>, Failure> {
        Ok(self.take::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    fn id(&mut self) -> Result<OperationId, Failure> {
        Ok(OperationId::from_bytes(self.take()?))
    }

    fn status(&mut self) -> Result<Status, Failure> {
        let word: String = self.take()?;
        Status::from_word(&word)
            .ok_or_else(|| Failure::Corrupt(format!("unknown status {word:?}").into()))
    }

    fn scope(&mut self) -> Result<KeyScope, Failure> {
        let word: String = self.take()?;
        KeyScope::from_word(&word)
            .ok_or_else(|| Failure::Corrupt(format!("unknown key scope {word:?}").into()))
    }

    fn caller(&mut self) -> Result<Caller, Failure> {
        Ok(Caller {
            scope: self.scope()?,
            tenant: self.take()?,
            operation: self.take()?,
        })
    }

    fn identity(&mut self) -> Result<Identity, Failure> {
        let corrupt = |what: &dyn std::fmt::Display| Failure::Corrupt(what.to_string().into());
        let scope = self.scope()?;
        let (tenant, operation): (Box<str>, Box<str>) = (self.take()?, self.take()?);
        let key = Key::new(self.take::<Box<str>>()?).map_err(|error| corrupt(&error))?;
        Identity::new(tenant, operation, key)
            .map(|identity| identity.scoped(scope))
            .map_err(|error| corrupt(&error))
    }

    /// Two columns that are set together.
    fn pair<A: FromSql, B: FromSql, T>(
        &mut self,
        both: impl FnOnce(A, B) -> T,
    ) -> Result<Option<T>, Failure> {
        let first: Option<A> = self.take()?;
        let second: Option<B> = self.take()?;
        Ok(first.zip(second).map(|(first, second)| both(first, second)))
    }

    fn response(&mut self) -> Result<Option<Response>, Failure> {
        let status: Option<u16> = self.take()?;
        let lines: Option<Vec<u8>> = self.take()?;
        let body: Option<Vec<u8>> = self.take()?;
        let schema_version: Option<u16> = self.take()?;
        let (Some(status), Some(lines), Some(schema_version)) = (status, lines, schema_version)
        else {
            return Ok(None);
        };
        let headers = headers::decode(lines.into())
            .ok_or_else(|| Failure::Corrupt("stored headers cannot be read".into()))?;
        Ok(Some(Response {
            status,
            headers,
            body: body.map(Bytes::from),
            schema_version,
        }))
    }
}
