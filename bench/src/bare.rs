//! The limits: what the same disk gives to a loop without queue, threads or answers.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rusqlite::{Connection, params};
use semel_core::OperationId;

use crate::load::{BODY, completion, request};

/// What the loop runs, as text.
pub(crate) struct Statements {
    schema: &'static str,
    reserve: &'static str,
    complete: &'static str,
}

/// The store's own schema and statements: what remains is what the store adds to SQLite.
pub(crate) const OWN: Statements = Statements {
    schema: concat!(
        include_str!("../../crates/semel-sqlite/migrations/0001_operations.sql"),
        include_str!("../../crates/semel-sqlite/migrations/0002_history_and_inbox.sql"),
    ),
    reserve: include_str!("../../crates/semel-sqlite/queries/reserve.sql"),
    complete: include_str!("../../crates/semel-sqlite/queries/complete.sql"),
};

/// The least that a reserve and a complete could be made of: a key and a body. No lease, no
/// fence that could be looked up, no retention, no order.
pub(crate) const LEAST: Statements = Statements {
    schema: "CREATE TABLE operations (
                 key_hash BLOB PRIMARY KEY, fingerprint BLOB, status TEXT, body BLOB
             )",
    reserve: "INSERT INTO operations (key_hash, fingerprint, status)
              VALUES (?1, ?7, 'in_progress')",
    complete: "UPDATE operations SET status = 'completed', body = ?5 WHERE key_hash = ?1",
};

/// A loop over SQLite with the settings of the store: the log on the disk at every commit,
/// and checkpoints of the same size, made by the loop itself as SQLite does when left alone.
pub(crate) struct BareSqlite {
    connection: Connection,
    statements: Statements,
}

impl BareSqlite {
    pub(crate) fn create(path: &Path, statements: Statements) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 16384;",
        )?;
        connection.execute_batch(statements.schema)?;
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
                        request.owner.as_str(),
                        now + 30 * second,
                        day,
                        day,
                        30 * day,
                        now,
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
                    let said = params![name, 1, 201, &headers[..], BODY, 0, none, none, now()];
                    // It says whether it was late, so it is a query.
                    complete.query_row(said, |_| Ok(1))?
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
