//! Migrations: numbered steps, each applied once.

use tokio_postgres::{Client, GenericClient, Row};

use crate::error::{Error, chain};

/// All migrations. A published one is never changed: a new one follows it.
const MIGRATIONS: [(i64, &str); 9] = [
    (1, include_str!("../migrations/0001_operations.sql")),
    (2, include_str!("../migrations/0002_complete.sql")),
    (3, include_str!("../migrations/0003_history.sql")),
    (4, include_str!("../migrations/0004_outbox.sql")),
    (5, include_str!("../migrations/0005_figures.sql")),
    (6, include_str!("../migrations/0006_contracts.sql")),
    (7, include_str!("../migrations/0007_complete.sql")),
    (8, include_str!("../migrations/0008_durability.sql")),
    (9, include_str!("../migrations/0009_speed.sql")),
];

/// The table of applied migrations.
const BOOKKEEPING: &str = include_str!("../migrations/0000_migrations.sql");

const BEGIN: &str = include_str!("../queries/begin.sql");
const COMMIT: &str = include_str!("../queries/commit.sql");
const SERVER: &str = include_str!("../queries/server_version.sql");
const LOCK: &str = include_str!("../queries/lock_migrations.sql");
const HAS_MIGRATIONS: &str = include_str!("../queries/has_migrations.sql");
const SCHEMA_VERSION: &str = include_str!("../queries/schema_version.sql");
const RECORD_MIGRATION: &str = include_str!("../queries/record_migration.sql");

/// The oldest server version that supports the statements.
const OLDEST: i32 = 130_000;

/// The SQL of all migrations in one transaction, to be applied by hand.
pub(crate) fn text() -> String {
    let steps = MIGRATIONS.map(|(version, step)| {
        let record = RECORD_MIGRATION.replace("$1", &version.to_string());
        format!("{step}\n{};\n", record.trim_end())
    });
    format!(
        "{};\n\n{BOOKKEEPING}\n{}\n{};\n",
        BEGIN.trim_end(),
        steps.join("\n"),
        COMMIT.trim_end()
    )
}

/// Checks the server, and applies the migrations that are missing in one transaction. Returns how
/// many it applied.
pub(crate) async fn migrate(address: &str, client: &mut Client) -> Result<usize, Error> {
    let address = || address.into();
    let connect = |error| Error::Connect {
        address: address(),
        reason: chain(&error).into(),
    };
    let row: Row = client.query_one(SERVER, &[]).await.map_err(connect)?;
    let found: i32 = row.try_get(0).map_err(connect)?;
    if found < OLDEST {
        let address = address();
        return Err(Error::TooOld { address, found });
    }
    let current = version(client).await.map_err(connect)?;
    if current > newest() {
        return Err(Error::NewerSchema {
            address: address(),
            found: current,
            supported: newest(),
        });
    }
    // An up-to-date schema is not written to: the gateway's user need not own it.
    if current == newest() {
        return Ok(0);
    }
    apply_missing(client).await.map_err(|error| Error::Migrate {
        address: address(),
        reason: chain(&error).into(),
    })
}

async fn apply_missing(client: &mut Client) -> Result<usize, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    // Of several processes that start at once one applies the migrations, and the others then find
    // them applied.
    transaction.query_one(LOCK, &[]).await?;
    let current = version(&transaction).await?;
    transaction.batch_execute(BOOKKEEPING).await?;
    let mut applied = 0;
    for (version, step) in MIGRATIONS
        .into_iter()
        .filter(|(version, _)| *version > current)
    {
        transaction.batch_execute(step).await?;
        transaction.execute(RECORD_MIGRATION, &[&version]).await?;
        applied += 1;
    }
    transaction.commit().await?;
    Ok(applied)
}

fn newest() -> i64 {
    let [.., (newest, _)] = MIGRATIONS;
    newest
}

/// The newest migration that was applied; 0 where none was.
async fn version(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    let known: bool = client.query_one(HAS_MIGRATIONS, &[]).await?.try_get(0)?;
    if !known {
        return Ok(0);
    }
    let row = client.query_opt(SCHEMA_VERSION, &[]).await?;
    row.map_or(Ok(0), |row| row.try_get(0))
}
