//! The DynamoDB table that the gateways share, and its faults.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rusqlite::{Connection, OpenFlags};
use semel_testkit::dynamodb_proxy::{Fault, Proxy};
use tokio::time::{Instant, sleep};

use crate::faults::FaultInjector;
use crate::plan::{GATEWAYS, Link};
use crate::process::{Process, free_address};

/// Where `cargo xtask campaign --dynamodb` has installed the server.
const PROGRAMS: &str = "SEMEL_DYNAMODB_SERVERS";
/// The access key of the documentation of AWS, which ExtendDB accepts.
pub(crate) const ACCESS_KEY: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
    (
        "AWS_SECRET_ACCESS_KEY",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ),
];
const TABLE: &str = "semel-campaign";
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);
/// How long the indexes may take to catch up.
const INDEX_PATIENCE: Duration = Duration::from_mins(30);
/// What idle processes write at most in a moment.
const MAX_BEHIND: i64 = 100;

/// A fault of DynamoDB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DynamoFault {
    /// The server is killed, and started again this many milliseconds later.
    Crash(u64),
    /// The answers to the next writes of a process are lost, so many.
    LoseAnswers(Link, u64),
    /// The next writes of a process are cut off and land later, so many.
    DelayWrites(Link, u64),
    /// The next writes of a process are throttled, so many.
    Throttle(Link, u64),
}

/// A server with one table, and a proxy for each process that uses it.
#[derive(Debug)]
pub(crate) struct Dynamo {
    pub(crate) process: Process,
    pub(crate) links: Vec<Proxy>,
    /// Where the server keeps its tables.
    database: PathBuf,
    /// How many faults of the proxies are recorded.
    recorded: AtomicU64,
}

impl Dynamo {
    /// Starts ExtendDB, and creates the table by `semel migrate`.
    pub(crate) async fn start(semel: &Path, place: &Path, trusted: &Path) -> Result<Self> {
        let programs = std::env::var_os(PROGRAMS).map(PathBuf::from);
        let programs = programs
            .context("a campaign on DynamoDB needs ExtendDB: `cargo xtask campaign --dynamodb`")?;
        let program = programs.join("node_modules/@extenddb/linux-x64/extenddb");
        let directory = place.join("extenddb");
        std::fs::create_dir_all(&directory)?;
        let config = directory.join("extenddb.toml").display().to_string();
        let database = directory.join("extenddb.sqlite").display().to_string();
        let init = Command::new(&program)
            .args(["init", "--config", &config, "--sqlite-path", &database])
            .env("HOME", &directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !init.success() {
            bail!("`extenddb init` failed: {init}");
        }
        let address = free_address()?;
        let port = address.port().to_string();
        let arguments = [
            "serve",
            "--config",
            &config,
            "--foreground",
            "--port",
            &port,
        ];
        let arguments = arguments.map(str::to_owned).to_vec();
        let log = place.join("extenddb.log");
        let process = Process::new("extenddb", program, arguments, log, trusted.to_owned());
        process.start()?;
        let endpoint = format!("http://{address}");
        migrate(semel, &url(&endpoint)).await?;
        let mut links = Vec::new();
        for _ in 0..=GATEWAYS {
            links.push(Proxy::start(&endpoint).await);
        }
        Ok(Self {
            process,
            links,
            database: directory.join("extenddb.sqlite"),
            recorded: AtomicU64::new(0),
        })
    }

    /// Waits until the indexes have caught up. `ExtendDB` writes them behind the table, some 600 entries a
    /// second, and an operation has ten: under load they are minutes behind.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        let until = Instant::now() + INDEX_PATIENCE;
        loop {
            let database =
                Connection::open_with_flags(&self.database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            let behind: i64 =
                database.query_row("SELECT count(*) FROM gsi_pending", [], |row| row.get(0))?;
            drop(database);
            if behind < MAX_BEHIND {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the indexes of ExtendDB are still {behind} entries behind");
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Where each gateway finds it, and then the worker.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.links
            .iter()
            .map(|link| url(&link.endpoint()))
            .collect()
    }
}

fn url(endpoint: &str) -> String {
    format!("dynamodb://{TABLE}?region=us-east-1&shards=4&endpoint={endpoint}")
}

/// Creates the table, once the server answers.
async fn migrate(semel: &Path, store: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let output = Command::new(semel)
            .args(["migrate", "--store", store])
            .env_clear()
            .envs(ACCESS_KEY)
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        if Instant::now() > until {
            bail!(
                "the table cannot be created: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        sleep(POLL).await;
    }
}

impl FaultInjector {
    pub(crate) async fn break_dynamo(&self, fault: DynamoFault) -> Result<()> {
        let Some(dynamo) = &self.test_bed.dynamo else {
            return Ok(());
        };
        match fault {
            DynamoFault::Crash(ms) => {
                dynamo.process.kill();
                self.recorder.fault("crash_dynamodb", "dynamodb");
                sleep(Duration::from_millis(ms)).await;
                dynamo.process.start()?;
            }
            DynamoFault::LoseAnswers(link, writes) => {
                dynamo.links[link].inject(Fault::LoseAnswer, writes);
            }
            DynamoFault::DelayWrites(link, writes) => {
                dynamo.links[link].inject(Fault::Delay, writes);
            }
            DynamoFault::Throttle(link, writes) => {
                dynamo.links[link].inject(Fault::Throttle, writes);
            }
        }
        Ok(())
    }

    /// Ends the faults of a phase, and records those that met a write.
    pub(crate) fn heal_dynamo(&self) {
        let Some(dynamo) = &self.test_bed.dynamo else {
            return;
        };
        for link in &dynamo.links {
            link.inject(Fault::LoseAnswer, 0);
            link.inject(Fault::Delay, 0);
            link.inject(Fault::Throttle, 0);
        }
        let all: u64 = dynamo.links.iter().map(Proxy::faults).sum();
        let before = dynamo.recorded.swap(all, Ordering::Relaxed);
        for _ in before..all {
            self.recorder.fault("dynamodb_write", "dynamodb");
        }
    }
}
