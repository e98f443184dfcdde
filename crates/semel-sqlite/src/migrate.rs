//! The schema, in numbered steps that are taken once.

use rusqlite::Connection;

use crate::Options;
use crate::error::Error;

/// Every step there is. A step that was published is never changed: another follows it.
const MIGRATIONS: [(i64, &str); 4] = [
    (1, include_str!("../migrations/0001_operations.sql")),
    (2, include_str!("../migrations/0002_history_and_inbox.sql")),
    (
        3,
        include_str!("../migrations/0003_resuming_and_outbox.sql"),
    ),
    (4, include_str!("../migrations/0004_figures.sql")),
];

/// The table that remembers the steps.
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

/// Takes the steps that the file has not seen, all of them or none.
pub(crate) fn migrate(connection: &Connection, options: &Options) -> Result<(), Error> {
    let take_steps = || {
        if version(connection)? == newest() {
            return Ok(());
        }
        // Immediate: of several processes that open a new file at once one takes the steps,
        // and the others then find them taken.
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
    // On an error the connection is dropped, and the transaction with it.
    take_steps().map_err(|error| Error::opening(&options.path, error))
}

/// What the steps are, for whoever wants to read them.
pub(crate) fn text() -> String {
    let steps: Vec<&str> = MIGRATIONS.iter().map(|(_, step)| *step).collect();
    format!("{BOOKKEEPING}\n{}", steps.join("\n"))
}

fn newest() -> i64 {
    let [.., (newest, _)] = MIGRATIONS;
    newest
}

/// The newest step that the file has seen; 0 where it has seen none.
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
