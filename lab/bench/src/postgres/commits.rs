//! How often an operation commits that writes a row of the application as well.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::transition::{Decision, Held};
use semel_core::{OperationId, Store as _, Transaction as _};
use semel_postgres::transaction::OpenTransaction;

use super::server::{Database, Server, connect};
use super::{Extent, subject};
use crate::load::{completion, request};
use crate::report::Report;
use crate::target::{Limit, Target};

const TABLE: &str = include_str!("../../queries/application_table.sql");
const ROW: &str = include_str!("../../queries/application_row.sql");
const COMMITS: &str = include_str!("../../queries/commits.sql");
const CONNECTED: &str = include_str!("../../queries/connected.sql");

/// How long connections may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// What happened in a database.
struct Count {
    commits: f64,
    log_bytes: f64,
}

/// How much of an operation is done, and how.
#[derive(Clone, Copy)]
enum Mode {
    /// Only the reservation. It commits before anything is executed, in every mode.
    Reserving,
    /// Reserve, row and completion, each by itself.
    Separately,
    /// Row and completion in the transaction of the application.
    Together,
}

pub(super) fn run(report: &mut Report, server: &Server, extent: &Extent) -> Result<()> {
    println!(
        "\n{:<38} {:>12} {:>14}",
        "an operation with an application's row", "commits", "bytes of log"
    );
    let mut each = Vec::new();
    for (name, mode) in [
        ("the reservation alone", Mode::Reserving),
        ("reserve, row and completion separately", Mode::Separately),
        ("row and completion in one transaction", Mode::Together),
    ] {
        let Count { commits, log_bytes } = per_operation(server, mode, extent.counted)?;
        println!("{name:<38} {commits:>12.2} {log_bytes:>14.0}");
        each.push(commits);
    }
    let together = match each[..] {
        [reserving, _, together] => Some(together - reserving),
        _ => None,
    };
    report.targets([Target::new(
        "commits for row and completion, in one transaction",
        together,
        // May include commits of the server itself.
        Limit::AtMost(1.05),
    )]);
    Ok(())
}

/// What one more operation adds. Opening the store commits, too: the difference of two runs
/// does not contain it.
fn per_operation(server: &Server, mode: Mode, operations: u64) -> Result<Count> {
    let once = count(server, mode, operations)?;
    let twice = count(server, mode, 2 * operations)?;
    let each = |twice: f64, once: f64| (twice - once) / operations as f64;
    Ok(Count {
        commits: each(twice.commits, once.commits),
        log_bytes: each(twice.log_bytes, once.log_bytes),
    })
}

fn count(server: &Server, mode: Mode, operations: u64) -> Result<Count> {
    let database = server.fresh("commits")?;
    database.execute(&[TABLE])?;
    let before = counted(server, &database)?;
    let url = database.url.clone();
    server.runtime.block_on(perform(url, mode, operations))?;
    let after = counted(server, &database)?;
    Ok(Count {
        commits: after.commits - before.commits,
        log_bytes: after.log_bytes - before.log_bytes,
    })
}

/// Waits until all connections to the database have ended, and reads its statistics.
fn counted(server: &Server, database: &Database<'_>) -> Result<Count> {
    let deadline = Instant::now() + PATIENCE;
    while server
        .ask(CONNECTED, &database.name)?
        .try_get::<_, i64>(0)?
        > 0
    {
        ensure!(Instant::now() < deadline, "a connection does not end");
        std::thread::sleep(POLL);
    }
    let row = server.ask(COMMITS, &database.name)?;
    Ok(Count {
        commits: row.try_get::<_, i64>(0)? as f64,
        log_bytes: row.try_get(1)?,
    })
}

async fn perform(url: String, mode: Mode, operations: u64) -> Result<()> {
    let client = Arc::new(connect(&url, "").await?);
    let row = client.prepare(ROW).await?;
    let store = subject::open(url).await?;
    for _ in 0..operations {
        let key = OperationId::generate().to_string();
        let Decision::Execute(grant) = store.reserve(request(&key)?).await? else {
            bail!("a new key is not granted");
        };
        match mode {
            Mode::Reserving => {}
            Mode::Separately => {
                client.execute(&row, &[&key]).await.context("no row")?;
                let held = store.complete(grant.fence, completion()).await?;
                ensure!(held == Held::Applied, "a completion is {held:?}");
            }
            Mode::Together => {
                let begun = OpenTransaction::begin(Arc::clone(&client)).await?;
                begun.execute(&row, &[&key]).await.context("no row")?;
                let conclude = Box::new(|_| Some(TransactionWrite::Complete(completion())));
                let finished = Box::new(begun).finish(grant.fence, conclude).await?;
                ensure!(
                    finished == Finished::Held(Held::Applied),
                    "a completion is {finished:?}"
                );
            }
        }
    }
    Ok(())
}
