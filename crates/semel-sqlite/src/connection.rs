//! Opening a file with the settings that durability depends on.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::error::Error;
use crate::{Options, migrate};

/// Memory for the writer's pages, in KiB: the inner pages of the key index of millions of
/// records, so that a new key costs at most one read. Not more: after a page was split
/// SQLite looks through its whole cache at the commit, and with 64 MiB that took a sixth of
/// the writer's time.
const WRITER_CACHE_KIB: i64 = 2 * 1024;

/// How long the end of a checkpoint may wait for readers of old pages. Every caller waits as long,
/// so it is less than one slow commit.
pub(crate) const CHECKPOINT_PATIENCE: Duration = Duration::from_millis(20);

/// The pause before a locked file is tried again, where SQLite does not wait itself. Setting up a
/// new file takes a few milliseconds.
const LOCKED_PAUSE: Duration = Duration::from_millis(2);

/// The connection that writes. The file is checked before it is changed.
pub(crate) fn open_writer(options: &Options) -> Result<Connection, Error> {
    create_private(&options.path);
    let connection = open(options, OpenFlags::SQLITE_OPEN_CREATE)?;
    let sqlite = |error| Error::opening(&options.path, error);
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(sqlite)? {
        // SQLite falls back to read-only, and would fail only at the first write.
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
        return Err(sqlite(rusqlite::Error::SqliteFailure(code, None)));
    }
    migrate::check(&connection, options)?;

    // With WAL readers and the writer do not wait for each other. Where several processes switch a
    // new file to WAL at once SQLite refuses all but one, whatever the busy timeout.
    retry_while_locked(options, || {
        require(
            &connection,
            options,
            "journal_mode",
            "WAL",
            &"wal".to_owned(),
        )
    })?;
    // A commit returns when the log is on the disk, not only in the system's cache.
    require(&connection, options, "synchronous", "FULL", &2_i64)?;
    // Checkpoints are made by a thread of their own.
    require(&connection, options, "wal_autocheckpoint", 0, &0_i64)?;
    connection
        .pragma_update(None, "cache_size", -WRITER_CACHE_KIB)
        .map_err(sqlite)?;
    if let Some(max_bytes) = options.max_bytes {
        let page_size: u32 = connection
            .pragma_query_value(None, "page_size", |row| row.get(0))
            .map_err(sqlite)?;
        // SQLite takes 0 for "leave the bound as it is".
        let pages = i64::try_from(max_bytes.get() / u64::from(page_size))
            .unwrap_or(i64::MAX)
            .max(1);
        connection
            .pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
            .map_err(sqlite)?;
    }
    migrate::migrate(&connection, options)?;
    Ok(connection)
}

/// A connection that only reads.
pub(crate) fn open_reader(options: &Options) -> Result<Connection, Error> {
    let connection = open(options, OpenFlags::empty())?;
    connection
        .pragma_update(None, "query_only", true)
        .map_err(|error| Error::opening(&options.path, error))?;
    Ok(connection)
}

/// A connection that only reads and never waits for a lock.
pub(crate) fn open_nonblocking_reader(options: &Options) -> Result<Connection, Error> {
    let connection = open_reader(options)?;
    connection
        .busy_timeout(Duration::ZERO)
        .map_err(|error| Error::opening(&options.path, error))?;
    Ok(connection)
}

/// A connection that moves pages from the log into the file.
pub(crate) fn open_checkpointer(options: &Options) -> Result<Connection, Error> {
    let connection = open(options, OpenFlags::empty())?;
    require(&connection, options, "synchronous", "FULL", &2_i64)?;
    Ok(connection)
}

/// Creates a missing file for this user alone: it holds keys and responses. SQLite gives the log and
/// its index the same mode. What fails here fails again, with a better message, when SQLite opens
/// the file.
fn create_private(path: &Path) {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

fn open(options: &Options, create: OpenFlags) -> Result<Connection, Error> {
    // Readers open the file for writing too: the log's index is shared memory that even a
    // reader must be able to write.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    let connection = Connection::open_with_flags(&options.path, flags)
        .map_err(|error| Error::opening(&options.path, error))?;
    connection
        .busy_timeout(options.busy_timeout)
        .map_err(|error| Error::opening(&options.path, error))?;
    Ok(connection)
}

/// Retries for as long as the busy timeout while another process has locked the file.
#[expect(
    clippy::disallowed_methods,
    reason = "as SQLite's busy timeout: it waits for another process, whatever the injected clock"
)]
fn retry_while_locked(
    options: &Options,
    attempt: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Error::Locked { .. }) if begun.elapsed() < options.busy_timeout => {
                thread::sleep(LOCKED_PAUSE);
            }
            ended => return ended,
        }
    }
}

/// Sets a pragma, reads it back, and refuses the file where it had no effect: SQLite reports no
/// error when a file system does not support it.
fn require<T>(
    connection: &Connection,
    options: &Options,
    pragma: &str,
    value: impl rusqlite::ToSql,
    expected: &T,
) -> Result<(), Error>
where
    T: rusqlite::types::FromSql + PartialEq + std::fmt::Debug,
{
    let sqlite = |error| Error::opening(&options.path, error);
    connection
        .pragma_update(None, pragma, value)
        .map_err(sqlite)?;
    let found: T = connection
        .pragma_query_value(None, pragma, |row| row.get(0))
        .map_err(sqlite)?;
    if found == *expected {
        Ok(())
    } else {
        Err(Error::Unsafe {
            path: options.path.clone(),
            reason: format!("{pragma} is {found:?}, not {expected:?}").into(),
        })
    }
}
