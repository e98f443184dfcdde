//! The schema, in numbered steps that are taken once.

use tokio_postgres::{Client, GenericClient, Row};

use crate::connection::Connector;
use crate::error::{Error, chain};

/// Every step there is. A step that was published is never changed: another follows it.
const MIGRATIONS: [(i64, &str); 5] = [
    (1, include_str!("../migrations/0001_operations.sql")),
    (2, include_str!("../migrations/0002_complete.sql")),
    (3, include_str!("../migrations/0003_history.sql")),
    (4, include_str!("../migrations/0004_outbox.sql")),
    (5, include_str!("../migrations/0005_figures.sql")),
];

/// The table that remembers the steps.
const BOOKKEEPING: &str = include_str!("../migrations/0000_migrations.sql");

const BEGIN: &str = include_str!("../queries/begin.sql");
const COMMIT: &str = include_str!("../queries/commit.sql");
const SERVER: &str = include_str!("../queries/server.sql");
const LOCK: &str = include_str!("../queries/lock_migrations.sql");
const HAS_MIGRATIONS: &str = include_str!("../queries/has_migrations.sql");
const SCHEMA_VERSION: &str = include_str!("../queries/schema_version.sql");
const RECORD_MIGRATION: &str = include_str!("../queries/record_migration.sql");

/// The oldest server that knows everything the statements use.
const OLDEST: i32 = 130_000;

/// What the steps are, for whoever wants to take them by hand: all of them or none.
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

/// Refuses a server that cannot hold the schema, and takes the steps that the database has not
/// seen, all of them or none. Says how many it took.
pub(crate) async fn migrate(connector: &Connector, client: &mut Client) -> Result<usize, Error> {
    let address = || connector.address.clone();
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
    if row.try_get(1).map_err(connect)? {
        return Err(Error::ReadOnly { address: address() });
    }
    let current = version(client).await.map_err(connect)?;
    if current > newest() {
        return Err(Error::NewerSchema {
            address: address(),
            found: current,
            supported: newest(),
        });
    }
    // Nothing is written where nothing has to be: the user of the gateway need not own anything.
    if current == newest() {
        return Ok(0);
    }
    take_steps(client).await.map_err(|error| Error::Migrate {
        address: address(),
        reason: chain(&error).into(),
    })
}

async fn take_steps(client: &mut Client) -> Result<usize, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    // Of several processes that start at once one takes the steps, and the others then find
    // them taken.
    transaction.query_one(LOCK, &[]).await?;
    let current = version(&transaction).await?;
    transaction.batch_execute(BOOKKEEPING).await?;
    let mut taken = 0;
    for (version, step) in MIGRATIONS
        .into_iter()
        .filter(|(version, _)| *version > current)
    {
        transaction.batch_execute(step).await?;
        transaction.execute(RECORD_MIGRATION, &[&version]).await?;
        taken += 1;
    }
    transaction.commit().await?;
    Ok(taken)
}

fn newest() -> i64 {
    let [.., (newest, _)] = MIGRATIONS;
    newest
}

/// The newest step that the database has seen; 0 where it has seen none.
async fn version(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    let known: bool = client.query_one(HAS_MIGRATIONS, &[]).await?.try_get(0)?;
    if !known {
        return Ok(0);
    }
    let row = client.query_opt(SCHEMA_VERSION, &[]).await?;
    row.map_or(Ok(0), |row| row.try_get(0))
}
