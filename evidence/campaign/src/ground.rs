//! Everything that runs: the stores, the gateways, the worker, the application, the provider.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::pg_proxy::Proxy;
use semel_testkit::postgres_server::Server;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::chaos::Chaos;
use crate::client::Gateway;
use crate::clock::Shifted;
use crate::disk::SmallDisk;
use crate::http;
use crate::plan::{GATEWAYS, Target};
use crate::process::{Process, free_address};
use crate::redis::Redis;

const CONFIG: &str = include_str!("semel.toml");
/// Where the application keeps its payments if it is there: it is killed, but the machine is not,
/// and the disk's time is better spent on the ledger.
const MEMORY: &str = "/dev/shm";
/// The SQLite store, on a disk of its own.
pub(crate) const SQLITE_FILE: &str = "semel.db";
/// The disk of the SQLite store: a few times what it needs, its log of 64 MiB included.
const SMALL_DISK: u64 = 384 << 20;
/// How long anything may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// What is answered to operators by those who have their store.
const STORE_IS_OPEN: &str = "/api/v1/operations?limit=1";
/// Less than the gateways wait for the application.
const PROVIDER_TIMEOUT_MS: &str = "2500";

/// The programs under test.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) semel: PathBuf,
    pub(crate) payments: PathBuf,
}

/// A gateway with its two doors.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// Everything that runs. Dropped, all of it ends.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) gateways: Vec<Door>,
    pub(crate) worker: Process,
    worker_admin: SocketAddr,
    pub(crate) sqlite: Door,
    pub(crate) app: Process,
    pub(crate) app_address: SocketAddr,
    pub(crate) provider_address: SocketAddr,
    provider: Process,
    /// One for each gateway, and one for the worker.
    pub(crate) links: Vec<Proxy>,
    pub(crate) chaos: Chaos,
    redis: Mutex<Redis>,
    pub(crate) postgres: Arc<Server>,
    pub(crate) clock: Result<Arc<Shifted>, String>,
    pub(crate) disk: Result<SmallDisk, String>,
    pub(crate) ledger: PathBuf,
    _memory: TempDir,
}

/// Where processes come from, and where they write.
struct Yard<'p> {
    programs: &'p Programs,
    place: &'p Path,
}

impl Yard<'_> {
    fn process(&self, name: &str, program: &Path, arguments: &[&str]) -> Process {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let log = self.place.join(format!("{name}.log"));
        Process::new(name, program.to_owned(), arguments, log)
    }

    fn provider(&self, address: SocketAddr, ledger: &Path) -> Process {
        let (address, ledger) = (address.to_string(), ledger.to_string_lossy());
        let arguments = ["provider", "--listen", &address, "--ledger", &ledger];
        self.process("provider", &self.programs.payments, &arguments)
    }

    fn app(&self, address: SocketAddr, provider: SocketAddr, database: &Path) -> Process {
        let (address, provider) = (address.to_string(), format!("http://{provider}"));
        let database = database.to_string_lossy();
        let mut arguments = vec!["app", "--unkeyed", "--listen", &address];
        arguments.extend(["--provider", &provider, "--database", &database]);
        arguments.extend(["--provider-timeout-ms", PROVIDER_TIMEOUT_MS]);
        self.process("app", &self.programs.payments, &arguments)
    }

    fn door(&self, name: &str, store: &str, upstream: &str, worker: bool) -> Result<Door> {
        let (address, admin) = (free_address()?, free_address()?);
        let (listen, admin_listen) = (address.to_string(), admin.to_string());
        let config = self.config(store);
        let config = config.to_string_lossy();
        let mut arguments = vec!["gateway", "--config", &config, "--listen", &listen];
        arguments.extend(["--admin-listen", &admin_listen, "--upstream", upstream]);
        arguments.extend(["--store", store, "--threads", "1"]);
        if !worker {
            arguments.push("--no-worker");
        }
        Ok(Door {
            process: self.process(name, &self.programs.semel, &arguments),
            address,
            admin,
        })
    }

    fn worker(&self, store: &str, upstream: &str, admin: SocketAddr) -> Process {
        let admin = admin.to_string();
        let config = self.config(store);
        let config = config.to_string_lossy();
        let mut arguments = vec!["worker", "--config", &config, "--admin-listen", &admin];
        arguments.extend(["--upstream", upstream, "--store", store]);
        self.process("worker", &self.programs.semel, &arguments)
    }

    /// Only a store that is shared has a cache that is.
    fn config(&self, store: &str) -> PathBuf {
        let alone = store.starts_with("sqlite:");
        let name = if alone { "alone.toml" } else { "shared.toml" };
        self.place.join(name)
    }

    fn write_configs(&self, redis: &Redis) -> Result<()> {
        let cache = format!("cache = \"{}\"", redis.url());
        for (name, cache) in [("shared.toml", cache.as_str()), ("alone.toml", "")] {
            fs::write(self.place.join(name), CONFIG.replace("{{cache}}", cache))?;
        }
        Ok(())
    }
}

impl Ground {
    pub(crate) async fn prepare(programs: &Programs, place: &Path, seed: u64) -> Result<Self> {
        let yard = Yard { programs, place };
        let postgres = tokio::task::spawn_blocking(Server::start).await?;
        let postgres = postgres.context("a campaign needs PostgreSQL's programs")?;
        let redis = Redis::start()?;
        yard.write_configs(&redis)?;
        let memory = memory()?;
        let ledger = place.join("ledger.jsonl");
        let (provider_address, app_address) = (free_address()?, free_address()?);
        let provider = yard.provider(provider_address, &ledger);
        let database = memory.path().join("payments.db");
        let app = yard.app(app_address, provider_address, &database);
        let chaos = Chaos::in_front_of(app_address, seed).await?;
        let upstream = format!("http://{}", chaos.address());

        let mut links = Vec::new();
        for _ in 0..=GATEWAYS {
            links.push(Proxy::in_front_of(&postgres.url()).await);
        }
        // The first one has a worker inside, beside the one that is alone.
        let gateways = (0..GATEWAYS).map(|number| {
            let name = format!("gateway-{}", number + 1);
            yard.door(&name, links[number].url(), &upstream, number == 0)
        });
        let gateways = gateways.collect::<Result<Vec<_>>>()?;
        let worker_admin = free_address()?;
        let worker = yard.worker(links[GATEWAYS].url(), &upstream, worker_admin);
        let disk = SmallDisk::mount(SMALL_DISK).map_err(|error| format!("{error:#}"));
        let store = disk
            .as_ref()
            .map_or(place, SmallDisk::path)
            .join(SQLITE_FILE);
        let store = format!("sqlite:{}", store.display());
        let sqlite = yard.door("gateway-sqlite", &store, &upstream, true)?;
        let clock = Shifted::new(place).map_err(|error| format!("{error:#}"));
        let ground = Self {
            gateways,
            worker,
            worker_admin,
            sqlite,
            app,
            app_address,
            provider,
            provider_address,
            links,
            chaos,
            redis: Mutex::new(redis),
            postgres: Arc::new(postgres),
            clock: clock.map(Arc::new),
            disk,
            ledger,
            _memory: memory,
        };
        ground.start().await?;
        Ok(ground)
    }

    async fn start(&self) -> Result<()> {
        self.provider.start()?;
        self.app.start()?;
        answers(self.provider_address, "/pending").await?;
        answers(self.app_address, "/summary").await?;
        // One after the other: the first one creates the schema.
        for door in self.doors() {
            door.process.start()?;
            answers(door.admin, STORE_IS_OPEN).await?;
        }
        // One that cannot open its store ends, and would be taken for a crash.
        self.worker.start()?;
        answers(self.worker_admin, STORE_IS_OPEN).await
    }

    /// All gateways.
    pub(crate) fn doors(&self) -> impl Iterator<Item = &Door> {
        self.gateways.iter().chain([&self.sqlite])
    }

    /// All that may be killed.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        let doors = self.doors().map(|door| &door.process);
        doors.chain([&self.worker, &self.app])
    }

    pub(crate) fn process(&self, target: Target) -> &Process {
        match target {
            Target::Gateway(number) => &self.gateways[number].process,
            Target::Worker => &self.worker,
            Target::App => &self.app,
            Target::Sqlite => &self.sqlite.process,
        }
    }

    pub(crate) fn redis(&self) -> MutexGuard<'_, Redis> {
        self.redis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As clients know them.
    pub(crate) fn addresses(&self) -> (Vec<Gateway>, Vec<Gateway>) {
        let known = |door: &Door| Gateway {
            name: door.process.name().to_owned(),
            address: door.address,
        };
        let gateways = self.gateways.iter().map(known).collect();
        (gateways, vec![known(&self.sqlite)])
    }

    /// Waits until every gateway answers operators.
    pub(crate) async fn up(&self) -> Result<()> {
        for door in self.doors() {
            answers(door.admin, STORE_IS_OPEN).await?;
        }
        Ok(())
    }

    /// How many payments are under way, in the application and at the provider.
    pub(crate) async fn under_way(&self) -> Result<u64> {
        let pending = http::ask(self.provider_address, "/pending", None).await?;
        let summary = http::ask(self.app_address, "/summary", None).await?;
        let processing = &summary["by_status"]["processing"];
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(count(&pending) + count(processing))
    }
}

/// Waits until somebody answers there.
async fn answers(address: SocketAddr, path: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match http::ask(address, path, None).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => sleep(POLL).await,
        }
    }
}

fn memory() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("semel-campaign-");
    let directory = builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir());
    directory.context("cannot create a temporary directory")
}
