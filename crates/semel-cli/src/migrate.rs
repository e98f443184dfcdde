//! `semel migrate`: creates or upgrades the schema.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result, bail};
use semel_gateway::config::StoreUrl;
use semel_sqlite::Sqlite;

/// Create or upgrade the schema of a store. The gateway and the worker do so at start if their
/// database user may; otherwise run this with one that may. They never create a DynamoDB table: run
/// this once before them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The store, such as sqlite:semel.db, <postgres://user@host/database> or
    /// <dynamodb://table?region=eu-west-1>
    #[arg(long, env = "SEMEL_STORE", hide_env_values = true, value_name = "URL")]
    store: StoreUrl,

    /// Print the SQL of the whole schema, or the table's definitions for CloudFormation and
    /// Terraform, and change nothing
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = if args.print {
        match &args.store {
            StoreUrl::Postgres(_) => semel_postgres::schema(),
            StoreUrl::Sqlite(_) => semel_sqlite::schema(),
            StoreUrl::Memory => bail!("`memory:` has no schema"),
            #[cfg(feature = "dynamodb")]
            StoreUrl::Dynamodb(url) => semel_dynamodb::schema(url)?,
            #[cfg(not(feature = "dynamodb"))]
            StoreUrl::Dynamodb(_) => bail!(NOT_BUILT),
        }
    } else {
        migrate(&args.store)?
    };
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write standard output")
}

#[tokio::main(flavor = "current_thread")]
async fn migrate(store: &StoreUrl) -> Result<String> {
    match store {
        StoreUrl::Postgres(url) => Ok(match semel_postgres::migrate(url.expose()).await? {
            0 => format!("{store} is up to date\n"),
            1 => format!("{store} is up to date: 1 migration applied\n"),
            steps => format!("{store} is up to date: {steps} migrations applied\n"),
        }),
        StoreUrl::Sqlite(path) => {
            Sqlite::open(path).await?;
            Ok(format!("{store} is up to date\n"))
        }
        StoreUrl::Memory => bail!("`memory:` has no schema"),
        #[cfg(feature = "dynamodb")]
        StoreUrl::Dynamodb(url) => {
            let migrated = semel_dynamodb::migrate(url).await?;
            let done = if migrated.is_created {
                "was created"
            } else {
                "is up to date"
            };
            let warning = if migrated.has_recovery {
                ""
            } else {
                "warning: this server has no point-in-time recovery, so the table has no backup\n"
            };
            Ok(format!("{store} {done}\n{warning}"))
        }
        #[cfg(not(feature = "dynamodb"))]
        StoreUrl::Dynamodb(_) => bail!(NOT_BUILT),
    }
}

#[cfg(not(feature = "dynamodb"))]
const NOT_BUILT: &str =
    "this binary was built without DynamoDB: rebuild it with `--features dynamodb`";
