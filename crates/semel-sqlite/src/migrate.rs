//! Migrations: numbered steps, each applied once.

use rusqlite::Connection;

use crate::Options;
use crate::error::Error;

/// All migrations. A published one is never changed: a new one follows it.
const MIGRATIONS: [(i64, &str); 5] = [
    (1, include_str!("../migrations/0001_operations.sql")),
    (2, include_str!("../migrations/0002_history_and_inbox.sql")),
    (
        3,
        include_str!("../migrations/0003_resuming_and_outbox.sql"),
    ),
    (4, include_str!("../migrations/0004_figures.sql")),
    (5, include_str!("../migrations/0005_contracts.sql")),
];

/// The table of applied migrations.
const BOOKKEEPING: &str = include_str!("../migrations/0000_migrations.sql");

const HAS_MIGRATIONS: &str = include_str!("../queries/has_migrations.sql");
const SCHEMA_VERSION: &str = include_str!("../queries/schema_version.sql");
const RECORD_MIGRATION: &str = include_str!("../queries/record_migration.sql");

/// Refuses a file that is damaged or too new, without writing to it.
pub(crate) fn check(connection: &Connection, options: &Options) -> Result<(), Error> {
    let supported = newest();
    let found = version(connection).map_err(|error| Error::opening(&options.path, error))?;
    if found > supported {
        return Err(Error::NewerSchema {
            path: options.path.clone(),
            found,
            supported,
        });
    }
    Ok(())
}

/// Applies the missing migrations in one transaction.
pub(crate) fn migrate(connection: &Connection, options: &Options) -> Result<(), Error> {
    let apply_missing = || {
        if version(connection)? == newest() {
            return Ok(());
        }
        // Immediate: of several processes that open a new file at once one applies the migrations,
        // and the others then find them applied.
        connection.execute_batch("BEGIN IMMEDIATE")?;
        connection.execute_batch(BOOKKEEPING)?;
        let current = version(connection)?;
        for (version, step) in MIGRATIONS
            .into_iter()
            .filter(|(version, _)| *version > current)
        {
            connection.execute_batch(step)?;
            let now = options.clock.now().as_micros();
            connection.execute(RECORD_MIGRATION, [version, now])?;
        }
        connection.execute_batch("COMMIT")
    };
    // On an error the connection is dropped, which rolls back.
    apply_missing().map_err(|error| Error::opening(&options.path, error))
}

/// The SQL of all migrations.
pub(crate) fn text() -> String {
    let steps: Vec<&str> = MIGRATIONS.iter().map(|(_, step)| *step).collect();
    format!("{BOOKKEEPING}\n{}", steps.join("\n"))
}

fn newest() -> i64 {
    let [.., (newest, _)] = MIGRATIONS;
    newest
}

/// The newest migration that was applied; 0 where none was.
fn version(connection: &Connection) -> rusqlite::Result<i64> {
    let known: i64 = connection.query_row(HAS_MIGRATIONS, [], |row| row.get(0))?;
    if known == 0 {
        return Ok(0);
    }
    match connection.query_row(SCHEMA_VERSION, [], |row| row.get(0)) {
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(0),
        version => version,
    }
}
