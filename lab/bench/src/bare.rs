//! The limits: what the same disk achieves with a loop that has no queue, threads or answers.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rusqlite::{Connection, params};
use semel_core::OperationId;

use crate::load::{BODY, Contender, completion, request};

/// The statements of the loop.
pub(crate) struct Statements {
    /// `None` where the file has the store's schema.
    schema: Option<&'static str>,
    reserve: &'static str,
    complete: &'static str,
}

/// The store's schema and statements: the difference to the store is what the store adds to
/// SQLite. The store must have created the file.
pub(crate) const OWN: Statements = Statements {
    schema: None,
    reserve: include_str!("../../../crates/semel-sqlite/queries/reserve.sql"),
    complete: include_str!("../../../crates/semel-sqlite/queries/complete.sql"),
};

/// The least that a reserve and a complete need: a key and a body. No lease, no fencing token, no
/// retention, no order.
pub(crate) const LEAST: Statements = Statements {
    schema: Some(
        "CREATE TABLE operations (
             key_hash BLOB PRIMARY KEY, fingerprint BLOB, status TEXT, body BLOB
         )",
    ),
    reserve: "INSERT INTO operations (key_hash, fingerprint, status)
              VALUES (?1, ?7, 'in_progress')",
    complete: "UPDATE operations SET status = 'completed', body = ?5 WHERE key_hash = ?1",
};

/// A loop over SQLite with the settings of the store: the log is on the disk at every commit.
/// Checkpoints have the same size and are made by SQLite itself.
pub(crate) struct BareSqlite {
    connection: Connection,
    statements: Statements,
}

impl BareSqlite {
    pub(crate) fn open(path: &Path, statements: Statements) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 16384;",
        )?;
        if let Some(schema) = statements.schema {
            connection.execute_batch(schema)?;
        }
        Ok(Self {
            connection,
            statements,
        })
    }

    /// Reserves `group` operations in one commit and completes them in another, again and
    /// again.
    pub(crate) fn operations(&self, group: usize, time: Duration) -> Result<u64> {
        let mut reserve = self.connection.prepare(self.statements.reserve)?;
        let mut complete = self.connection.prepare(self.statements.complete)?;
        let by_hash = self.statements.complete.contains("WHERE key_hash");
        let headers = semel_core::headers::encode(&completion().response.headers);
        let (mut done, end) = (0, Instant::now() + time);
        while Instant::now() < end {
            let mut names = Vec::with_capacity(group);
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            for _ in 0..group {
                let request = request(&OperationId::generate().to_string())?;
                let (identity, hash) = (&request.identity, request.identity.hash().0);
                let (second, day) = (1_000_000, 86_400_000_000_i64);
                let now = now();
                let fingerprint = request.fingerprints.newest();
                if by_hash {
                    // Positions are kept, so that both sets of statements bind alike.
                    reserve.raw_bind_parameter(1, hash)?;
                    reserve.raw_bind_parameter(7, fingerprint.digest())?;
                    reserve.raw_execute()?;
                } else {
                    reserve.execute(params![
                        hash,
                        request.id.as_bytes(),
                        "operation",
                        identity.tenant(),
                        identity.operation(),
                        identity.key().as_str(),
                        fingerprint.digest(),
                        fingerprint.version(),
                        fingerprint.rules().0,
                        request.owner.as_str(),
                        now + 30 * second,
                        day,
                        day,
                        30 * day,
                        now,
                        None::<i64>,
                    ])?;
                }
                names.push(if by_hash {
                    hash
                } else {
                    *request.id.as_bytes()
                });
            }
            self.connection.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
            for name in &names {
                let changed = if by_hash {
                    complete.raw_bind_parameter(1, name)?;
                    complete.raw_bind_parameter(5, BODY)?;
                    complete.raw_execute()?
                } else {
                    let none = None::<&str>;
                    let parameters =
                        params![name, 1, 201, &headers[..], BODY, 0, none, none, now()];
                    // A query: it returns whether the completion was late.
                    complete.query_row(parameters, |_| Ok(1))?
                };
                ensure!(changed == 1, "a completion found no row");
            }
            self.connection.execute_batch("COMMIT")?;
            done += group as u64;
        }
        Ok(done)
    }
}

fn now() -> i64 {
    semel_core::Clock::now(&semel_core::SystemClock).as_micros()
}

/// What many teams write: one connection behind a lock, two commits per request, on the runtime's threads
/// for blocking work.
#[derive(Clone)]
pub(crate) struct HandSqlite {
    connection: Arc<Mutex<Connection>>,
}

impl HandSqlite {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let BareSqlite { connection, .. } = BareSqlite::open(path, LEAST)?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
        })
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let connection = Arc::clone(&self.connection);
        let work = move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(work).await??)
    }
}

impl Contender for HandSqlite {
    async fn complete_new(&self, key: &str) -> Result<()> {
        let hash = request(key)?.identity.hash().0;
        let reserved = self.with(move |connection| {
            let mut reserve = connection.prepare_cached(LEAST.reserve)?;
            reserve.raw_bind_parameter(1, hash)?;
            reserve.raw_bind_parameter(7, [1u8; 32])?;
            reserve.raw_execute()
        });
        ensure!(reserved.await? == 1, "a new key is not granted");
        let completed = self.with(move |connection| {
            let mut complete = connection.prepare_cached(LEAST.complete)?;
            complete.raw_bind_parameter(1, hash)?;
            complete.raw_bind_parameter(5, BODY)?;
            complete.raw_execute()
        });
        ensure!(completed.await? == 1, "a completion found no row");
        Ok(())
    }

    async fn replay(&self, _key: &str) -> Result<()> {
        bail!("only new operations are compared with it")
    }
}

/// Appends of a kibibyte to a file, `group` to an fdatasync.
pub(crate) fn appends(path: &Path, group: usize, time: Duration) -> Result<u64> {
    let mut file = File::create(path)?;
    let block = BODY.repeat(group);
    let (mut done, end) = (0, Instant::now() + time);
    while Instant::now() < end {
        file.write_all(&block)?;
        file.sync_data()?;
        done += group as u64;
    }
    Ok(done)
}
