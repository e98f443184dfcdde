//! Rows as records. An invalid row is an error.

pub(crate) mod statistics;

use bytes::Bytes;
use semel_core::contract::{Contracts, Published, RecordsInUse};
use semel_core::fingerprint::RulesId;
use semel_core::history::{Entry, EntryKind, Note};
use semel_core::inbox::{Message, Parked};
use semel_core::outbox::{Backlog, DeadEvent, Event, EventId, Waiting};
use semel_core::store::{CountWithOldest, Summary, UnfinishedCounts};
use semel_core::time::duration;
use semel_core::{
    Code, Fence, Fingerprint, Identity, Key, KeyScope, Lease, OperationId, Record, RecoveryPoint,
    Resource, Response, Status, Stored, Timestamp, Windows, headers,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::Failure;

/// A record's id as a PostgreSQL value.
pub(crate) fn uuid(id: OperationId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

/// A row whose columns are those of `find.sql`.
pub(crate) fn record(row: &Row) -> Result<Record, Failure> {
    record_from(row, 0)
}

/// A row that has the columns of `find.sql` from `first` on.
pub(crate) fn record_from(row: &Row, first: usize) -> Result<Record, Failure> {
    let mut columns = Columns { row, next: first };
    let id = columns.id()?;
    let identity = columns.identity()?;
    let version = columns.small()?;
    let rules = RulesId(columns.take()?);
    let fingerprint = Fingerprint::from_parts(version, columns.digest()?).under(rules);
    let status = columns.status()?;
    let attempt = columns.count()?;
    let owner = columns.take::<String>()?.into();
    let lease = Lease {
        locked_until: columns.time()?,
        resume_within: columns.take::<Option<i64>>()?.map(duration),
    };
    let recovery = columns.pair(|name: String, data: Vec<u8>| RecoveryPoint {
        name: name.into(),
        data: data.into(),
    })?;
    let response = columns.response()?;
    let resource = columns.pair(|kind: String, id: String| Resource {
        kind: kind.into(),
        id: id.into(),
    })?;
    let last_error = columns.take::<Option<String>>()?.map(Code::new);
    let (reconcile_after, reconcile_attempts) =
        (columns.optional_time()?, columns.optional_count()?);
    let dead_lettered_at = columns.optional_time()?;
    let resolved_by = columns.take::<Option<String>>()?.map(Into::into);
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
    let sound = stored.into_record().filter(|record| record.attempt > 0);
    sound.ok_or_else(|| {
        Failure::Corrupt(format!("record {id} has status {status} without its columns").into())
    })
}

/// A row of a list.
pub(crate) enum Listed {
    /// A record that matches.
    Operation(Summary),
    /// The last id that was examined.
    Floor(OperationId),
}

/// A row of `list.sql`, whose last one may have only an id.
pub(crate) fn listed(row: &Row) -> Result<Listed, Failure> {
    let mut columns = Columns { row, next: 0 };
    let id = columns.id()?;
    match columns.take::<Option<&str>>()? {
        Some(_) => summary_from(row, 0).map(Listed::Operation),
        None => Ok(Listed::Floor(id)),
    }
}

/// A row that has the columns of `list.sql` from `first` on.
fn summary_from(row: &Row, first: usize) -> Result<Summary, Failure> {
    let mut columns = Columns { row, next: first };
    let id = columns.id()?;
    let identity = columns.identity()?;
    let status = columns.status()?;
    Ok(Summary {
        fence: Fence {
            id,
            attempt: columns.count()?,
        },
        identity,
        status,
        dead_lettered_at: columns.optional_time()?,
        last_error: columns.take::<Option<String>>()?.map(Code::new),
        created_at: columns.time()?,
        updated_at: columns.time()?,
    })
}

/// A row of `history.sql`.
pub(crate) fn entry(row: &Row) -> Result<Entry, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Entry {
        seq: columns.count()?,
        note: Note {
            at: columns.time()?,
            attempt: columns.count()?,
            what: columns.what()?,
            actor: columns.take::<String>()?.into(),
            code: columns.take::<Option<String>>()?.map(Code::new),
            reason: columns.take::<Option<String>>()?.map(Into::into),
            evidence: columns.take::<Option<Vec<u8>>>()?.map(Into::into),
        },
        evidence_hash: columns.optional_digest()?,
        hash: columns.digest()?,
    })
}

/// A row of `count_unfinished.sql`.
pub(crate) fn unfinished_counts(row: &Row) -> Result<UnfinishedCounts, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(UnfinishedCounts {
        operation: columns.take::<String>()?.into(),
        in_progress: columns.tally()?,
        unknown: columns.tally()?,
        dead_lettered: columns.tally()?,
    })
}

/// A row of `contracts.sql`.
pub(crate) fn published(row: &Row) -> Result<Published, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Published {
        revision: columns.whole()?,
        contracts: Contracts::from_text(columns.take()?).map_err(|reason| {
            Failure::Corrupt(format!("the published contracts cannot be read: {reason}").into())
        })?,
    })
}

/// A row of `count_records.sql`.
pub(crate) fn records_in_use(row: &Row) -> Result<RecordsInUse, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(RecordsInUse {
        unfinished: columns.whole()?,
        replayable: columns.whole()?,
        all: columns.whole()?,
        last_window_ends: columns.optional_time()?,
    })
}

/// A row of `claim_parked.sql`: as it was before this claim.
pub(crate) fn parked(row: &Row) -> Result<Parked, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Parked {
        message: Message {
            source: columns.take::<String>()?.into(),
            id: columns.take::<String>()?.into(),
            payload: columns.take::<Vec<u8>>()?.into(),
        },
        tries: columns.count()?,
        received_at: columns.time()?,
    })
}

/// A row of `claim_events.sql`.
pub(crate) fn waiting(row: &Row) -> Result<Waiting, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Waiting {
        event: columns.event()?,
        tries: columns.count()?,
        written_at: columns.time()?,
    })
}

/// A row of `dead_events.sql`.
pub(crate) fn dead_event(row: &Row) -> Result<DeadEvent, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(DeadEvent {
        event: columns.event()?,
        written_at: columns.time()?,
        dead_at: columns.time()?,
        reason: columns.take::<String>()?.into(),
    })
}

/// A row of `hold_back.sql`: the aggregate, and how often it was refused.
pub(crate) fn held(row: &Row) -> Result<(String, u32), Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok((columns.take()?, columns.count()?))
}

/// A row of `backlog.sql`.
pub(crate) fn backlog(row: &Row) -> Result<Backlog, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Backlog {
        waiting: narrow(columns.take::<i64>()?)?,
        oldest: columns.optional_time()?,
        dead: narrow(columns.take::<i64>()?)?,
    })
}

/// A row that begins with an id.
pub(crate) fn id(row: &Row) -> Result<OperationId, Failure> {
    Columns { row, next: 0 }.id()
}

/// A row that begins with an id and an attempt.
pub(crate) fn fence(row: &Row) -> Result<Fence, Failure> {
    let mut columns = Columns { row, next: 0 };
    Ok(Fence {
        id: columns.id()?,
        attempt: columns.count()?,
    })
}

/// The columns of a row, read from left to right.
struct Columns<'r> {
    row: &'r Row,
    next: usize,
}

impl<'r> Columns<'r> {
    fn take<T: FromSql<'r>>(&mut self) -> Result<T, Failure> {
        let column = self.next;
        self.next += 1;
        self.row
            .try_get(column)
            .map_err(|error| Failure::Corrupt(format!("column {column}: {error}").into()))
    }

    fn time(&mut self) -> Result<Timestamp, Failure> {
        Ok(Timestamp::from_micros(self.take()?))
    }

    fn optional_time(&mut self) -> Result<Option<Timestamp>, Failure> {
        Ok(self.take::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    fn id(&mut self) -> Result<OperationId, Failure> {
        Ok(OperationId::from_bytes(self.take::<Uuid>()?.into_bytes()))
    }

    fn event(&mut self) -> Result<Event, Failure> {
        Ok(Event {
            id: EventId::from_bytes(self.take::<Uuid>()?.into_bytes()),
            kind: self.take::<String>()?.into(),
            aggregate: self.take::<String>()?.into(),
            payload: self.take::<Vec<u8>>()?.into(),
        })
    }

    /// Columns are wider than the Rust types, since PostgreSQL has no unsigned integers.
    fn count(&mut self) -> Result<u32, Failure> {
        narrow(self.take::<i64>()?)
    }

    fn optional_count(&mut self) -> Result<Option<u32>, Failure> {
        self.take::<Option<i64>>()?.map(narrow).transpose()
    }

    fn small(&mut self) -> Result<u16, Failure> {
        narrow(self.take::<i32>()?)
    }

    fn whole(&mut self) -> Result<u64, Failure> {
        narrow(self.take::<i64>()?)
    }

    fn tally(&mut self) -> Result<CountWithOldest, Failure> {
        Ok(CountWithOldest {
            count: self.whole()?,
            oldest: self.optional_time()?,
        })
    }

    fn digest(&mut self) -> Result<[u8; 32], Failure> {
        digest(self.take()?)
    }

    fn optional_digest(&mut self) -> Result<Option<[u8; 32]>, Failure> {
        self.take::<Option<&[u8]>>()?.map(digest).transpose()
    }

    fn what(&mut self) -> Result<EntryKind, Failure> {
        let word: &str = self.take()?;
        EntryKind::from_word(word)
            .ok_or_else(|| Failure::Corrupt(format!("unknown history entry {word:?}").into()))
    }

    fn status(&mut self) -> Result<Status, Failure> {
        status(self.take()?)
    }

    fn scope(&mut self) -> Result<KeyScope, Failure> {
        let word: &str = self.take()?;
        KeyScope::from_word(word)
            .ok_or_else(|| Failure::Corrupt(format!("unknown key scope {word:?}").into()))
    }

    fn identity(&mut self) -> Result<Identity, Failure> {
        let corrupt = |what: &dyn std::fmt::Display| Failure::Corrupt(what.to_string().into());
        let scope = self.scope()?;
        let (tenant, operation): (&str, &str) = (self.take()?, self.take()?);
        let key = Key::new(self.take::<&str>()?).map_err(|error| corrupt(&error))?;
        Identity::new(tenant, operation, key)
            .map(|identity| identity.scoped(scope))
            .map_err(|error| corrupt(&error))
    }

    /// Two columns that are set together.
    fn pair<A: FromSql<'r>, B: FromSql<'r>, T>(
        &mut self,
        both: impl FnOnce(A, B) -> T,
    ) -> Result<Option<T>, Failure> {
        let first: Option<A> = self.take()?;
        let second: Option<B> = self.take()?;
        match (first, second) {
            (Some(first), Some(second)) => Ok(Some(both(first, second))),
            (None, None) => Ok(None),
            (Some(_), None) | (None, Some(_)) => Err(Failure::Corrupt(
                "one of two columns that belong together is empty".into(),
            )),
        }
    }

    fn response(&mut self) -> Result<Option<Response>, Failure> {
        let status: Option<i32> = self.take()?;
        let lines: Option<&[u8]> = self.take()?;
        let body: Option<&[u8]> = self.take()?;
        let schema_version: Option<i32> = self.take()?;
        let (Some(status), Some(lines), Some(schema_version)) = (status, lines, schema_version)
        else {
            return Ok(None);
        };
        let headers = headers::decode(Bytes::copy_from_slice(lines))
            .ok_or_else(|| Failure::Corrupt("stored headers cannot be read".into()))?;
        Ok(Some(Response {
            status: narrow(status)?,
            headers,
            body: body.map(Bytes::copy_from_slice),
            schema_version: narrow(schema_version)?,
        }))
    }
}

fn status(word: &str) -> Result<Status, Failure> {
    Status::from_word(word)
        .ok_or_else(|| Failure::Corrupt(format!("unknown status {word:?}").into()))
}

fn digest(bytes: &[u8]) -> Result<[u8; 32], Failure> {
    bytes
        .try_into()
        .map_err(|_| Failure::Corrupt("a digest does not have 32 bytes".into()))
}

fn narrow<T: TryFrom<W>, W: Copy + std::fmt::Display>(wide: W) -> Result<T, Failure> {
    T::try_from(wide).map_err(|_| Failure::Corrupt(format!("{wide} is out of range").into()))
}
