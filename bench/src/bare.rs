//! The limits: what the same disk gives to a loop that knows nothing of safe retries.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;
use semel_core::OperationId;

use crate::load::BODY;

/// The least table that a reserve and a complete could be made of, with the settings of the
/// store: the log on the disk at every commit, and checkpoints of the same size. They are
/// made by the loop itself, as SQLite does when left alone.
pub(crate) struct BareSqlite {
    connection: Connection,
}

impl BareSqlite {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 16384;
             PRAGMA cache_size = -65536;
             CREATE TABLE operations (
                 key_hash BLOB PRIMARY KEY, fingerprint BLOB, status TEXT, body BLOB
             );",
        )?;
        Ok(Self { connection })
    }

    /// Inserts `group` rows in one commit and gives each its body in another, again and
    /// again. One operation is one insert and one update.
    pub(crate) fn operations(&self, group: u64, time: Duration) -> Result<u64> {
        let mut insert = self.connection.prepare(
            "INSERT INTO operations (key_hash, fingerprint, status) VALUES (?1, ?2, 'in_progress')",
        )?;
        let mut update = self
            .connection
            .prepare("UPDATE operations SET status = 'completed', body = ?2 WHERE key_hash = ?1")?;
        let (mut done, end) = (0, Instant::now() + time);
        while Instant::now() < end {
            let keys: Vec<_> = (0..group).map(|_| random_key()).collect();
            self.connection.execute_batch("BEGIN IMMEDIATE")?;
            for key in &keys {
                insert.execute((key, [1u8; 32]))?;
            }
            self.connection.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
            for key in &keys {
                update.execute((key, BODY))?;
            }
            self.connection.execute_batch("COMMIT")?;
            done += group;
        }
        Ok(done)
    }
}

/// Appends of a kibibyte to a file, `group` to an fdatasync.
pub(crate) fn appends(path: &Path, group: u64, time: Duration) -> Result<u64> {
    let mut file = File::create(path)?;
    let block = BODY.repeat(usize::try_from(group)?);
    let (mut done, end) = (0, Instant::now() + time);
    while Instant::now() < end {
        file.write_all(&block)?;
        file.sync_data()?;
        done += group;
    }
    Ok(done)
}

/// Spread over the index as the hashes of real keys are.
fn random_key() -> [u8; 16] {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(OperationId::generate().as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}
