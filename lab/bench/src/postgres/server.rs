//! The Postgres server, and the databases that are made in it for one measurement each.

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls};

use crate::measure::{Measurement, Work, measure};
use crate::process::Tree;

const CREATE_DATABASE: &str = include_str!("../../queries/create_database.sql");
const DROP_DATABASE: &str = include_str!("../../queries/drop_database.sql");
const LOG_POSITION: &str = include_str!("../../queries/log_position.sql");
const BACKEND_PID: &str = include_str!("../../queries/backend_pid.sql");

/// The name in these statements, and what every name begins with.
const NAME: &str = "semel_bench";

pub(crate) struct Server {
    url: String,
    /// All processes of the server: those that serve and those that work in the background.
    pub(super) tree: Tree,
    pub(crate) runtime: Runtime,
}

impl Server {
    pub(crate) fn connect(url: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let tree = runtime.block_on(async {
            let client = connect(url, "").await?;
            let row = client.query_one(BACKEND_PID, &[]).await?;
            let backend: i32 = row.try_get(0)?;
            let tree = Tree::around(u32::try_from(backend)?, "postgres");
            // Its process lives as long as the connection.
            drop(client);
            tree
        })?;
        Ok(Self {
            url: url.to_owned(),
            tree,
            runtime,
        })
    }

    /// An empty database, in place of the last one of that name.
    pub(crate) fn fresh(&self, name: &str) -> Result<Database<'_>> {
        let name = format!("{NAME}_{name}");
        let database = Database {
            server: self,
            url: with_database(&self.url, &name)?,
            name,
        };
        database.perform(DROP_DATABASE)?;
        database.perform(CREATE_DATABASE)?;
        Ok(database)
    }

    /// Runs `work` and measures this process and Postgres.
    pub(super) fn measure<W: Into<Work>>(
        &self,
        work: impl FnOnce() -> Result<W>,
    ) -> Result<Measurement> {
        let log = self.log_position()?;
        let postgres = self.tree.cpu_time()?;
        let mut operations = 0.0;
        let mut measured = measure(|| {
            let work = work()?.into();
            operations = work.operations as f64;
            Ok(work)
        })?;
        let postgres = self.tree.cpu_time()?.saturating_sub(postgres);
        measured.cpu_behind = postgres.as_secs_f64() * 1e6 / operations;
        measured.log_bytes = Some((self.log_position()? - log) / operations);
        Ok(measured)
    }

    fn log_position(&self) -> Result<f64> {
        self.runtime.block_on(async {
            let client = connect(&self.url, "").await?;
            Ok(client.query_one(LOG_POSITION, &[]).await?.try_get(0)?)
        })
    }

    /// One answer from outside the measured database.
    pub(super) fn ask(&self, sql: &str, name: &str) -> Result<tokio_postgres::Row> {
        self.runtime.block_on(async {
            let client = connect(&self.url, "").await?;
            Ok(client.query_one(sql, &[&name]).await?)
        })
    }
}

/// A database for one measurement. Dropping it drops it.
pub(crate) struct Database<'a> {
    server: &'a Server,
    pub(crate) url: String,
    pub(super) name: String,
}

impl Database<'_> {
    fn perform(&self, sql: &str) -> Result<()> {
        let sql = sql.replace(NAME, &self.name);
        self.server.runtime.block_on(async {
            let client = connect(&self.server.url, "").await?;
            let done = client.batch_execute(&sql).await;
            done.with_context(|| format!("cannot create or drop the database {}", self.name))
        })
    }

    /// Runs statements in the database, each alone.
    pub(super) fn execute(&self, statements: &[&str]) -> Result<()> {
        self.server.runtime.block_on(async {
            let client = connect(&self.url, "").await?;
            for sql in statements {
                client.batch_execute(sql).await?;
            }
            Ok(())
        })
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // If this fails, creating the next database of that name drops it, or reports the error.
        let _ = self.perform(DROP_DATABASE);
    }
}

/// Connects with session settings such as `-c enable_seqscan=off`.
pub(crate) async fn connect(url: &str, settings: &str) -> Result<Client> {
    let mut config: Config = url.parse().context("that is no address of a Postgres")?;
    if !settings.is_empty() {
        config.options(settings);
    }
    let (client, connection) = config
        .connect(NoTls)
        .await
        .context("cannot connect to Postgres")?;
    // Its error reaches the caller that waits for an answer.
    tokio::spawn(connection);
    Ok(client)
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, settings) = match url.split_once('?') {
        Some((address, settings)) => (address, format!("?{settings}")),
        None => (url, String::new()),
    };
    let (scheme, rest) = address
        .split_once("://")
        .context("the address of Postgres must be a URL")?;
    let host = rest.split('/').next().unwrap_or_default();
    Ok(format!("{scheme}://{host}/{name}{settings}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_changes() {
        for (url, expected) in [
            ("postgres://u@h:1/postgres", "postgres://u@h:1/other"),
            ("postgres://u:p@h", "postgres://u:p@h/other"),
            ("postgresql://h/a?a=/b", "postgresql://h/other?a=/b"),
        ] {
            assert_eq!(with_database(url, "other").unwrap(), expected);
        }
        assert!(with_database("host=h", "other").is_err());
    }
}
