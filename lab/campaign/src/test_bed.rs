//! The system under test: the stores, the gateways, the worker, the application and the provider.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::cluster::Cluster;
use semel_testkit::pg_proxy::Proxy;
use semel_testkit::postgres_server::Server;
use semel_testkit::shifted_clock::Shifted;
use semel_testkit::small_disk::SmallDisk;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::chaos::Chaos;
use crate::client::Gateway;
use crate::cluster;
use crate::deploy::Settings;
use crate::dynamodb::Dynamo;
use crate::http;
use crate::launcher::{GatewayProcess, Launcher, Programs, WITH_TLS, config_file};
use crate::messages::Broker;
use crate::operation::Leg;
use crate::plan::{GATEWAYS, Mode, Target};
use crate::process::{Process, free_address};
use crate::redis_pair::RedisPair;
use crate::tls::Tls;

/// Where the application keeps its payments, if it exists: its process is killed but the machine is
/// not, and this leaves the disk to the ledger.
const MEMORY: &str = "/dev/shm";
/// The file of the charges.
pub(crate) const LEDGER: &str = "ledger.jsonl";
/// The SQLite store, on a disk of its own.
pub(crate) const SQLITE_FILE: &str = "semel.db";
/// The disk of the SQLite store: a few times what it needs, its log of 64 MiB included.
const SMALL_DISK: u64 = 384 << 20;
/// How long anything may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// An admin request that succeeds once the store is open.
pub(crate) const STORE_IS_OPEN: &str = "/api/v1/operations?limit=1";

/// The system under test. Dropping it stops every process.
#[derive(Debug)]
pub(crate) struct TestBed {
    pub(crate) gateways: Vec<GatewayProcess>,
    pub(crate) worker: Process,
    worker_admin: SocketAddr,
    pub(crate) sqlite: GatewayProcess,
    pub(crate) app: Process,
    pub(crate) app_address: SocketAddr,
    pub(crate) provider_address: SocketAddr,
    provider: Process,
    /// One for each gateway, and one for the worker; none in front of a cluster.
    pub(crate) links: Vec<Proxy>,
    pub(crate) chaos: Chaos,
    redis: Mutex<RedisPair>,
    /// The shared store, unless a cluster is.
    pub(crate) postgres: Option<Arc<Server>>,
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) dynamo: Option<Dynamo>,
    pub(crate) clock: Result<Arc<Shifted>, String>,
    pub(crate) disk: Result<SmallDisk, String>,
    pub(crate) broker: Result<Broker, String>,
    pub(crate) ledger: PathBuf,
    tls: Tls,
    place: PathBuf,
    _memory: TempDir,
}

/// The store that the gateways and the worker share.
struct SharedStore {
    server: Option<Arc<Server>>,
    cluster: Option<Arc<Cluster>>,
    dynamo: Option<Dynamo>,
    links: Vec<Proxy>,
    /// Where each gateway finds it, and then the worker.
    urls: Vec<String>,
}

impl SharedStore {
    async fn start(mode: Mode, launcher: &Launcher<'_>) -> Result<Self> {
        let place = launcher.place;
        match mode {
            Mode::Server => {
                let server = tokio::task::spawn_blocking(Server::start).await?;
                let server = server.context("a campaign needs PostgreSQL's programs")?;
                let mut links = Vec::new();
                for _ in 0..=GATEWAYS {
                    links.push(Proxy::in_front_of(&server.url()).await);
                }
                let urls = links.iter().map(|link| link.url().to_owned()).collect();
                Ok(Self {
                    server: Some(Arc::new(server)),
                    cluster: None,
                    dynamo: None,
                    links,
                    urls,
                })
            }
            Mode::Cluster => {
                let cluster = cluster::start(place).await?;
                Ok(Self {
                    server: None,
                    urls: vec![cluster.url(); GATEWAYS + 1],
                    cluster: Some(Arc::new(cluster)),
                    dynamo: None,
                    links: Vec::new(),
                })
            }
            Mode::Dynamodb => {
                let (semel, trusted) = (&launcher.programs.semel, &launcher.tls.certificate);
                let dynamo = Dynamo::start(semel, place, trusted).await?;
                Ok(Self {
                    server: None,
                    cluster: None,
                    urls: dynamo.urls(),
                    dynamo: Some(dynamo),
                    links: Vec::new(),
                })
            }
        }
    }
}

impl TestBed {
    pub(crate) async fn prepare(
        programs: &Programs,
        place: &Path,
        seed: u64,
        mode: Mode,
    ) -> Result<Self> {
        let tls = Tls::create(place)?;
        let launcher = Launcher {
            programs,
            place,
            tls: &tls,
        };
        let shared = SharedStore::start(mode, &launcher).await?;
        let redis = RedisPair::start(&tls).await?;
        let memory = memory()?;
        let ledger = place.join(LEDGER);
        let (provider_address, app_address) = (free_address()?, free_address()?);
        let provider = launcher.provider(provider_address, &ledger);
        let database = memory.path().join("payments.db");
        let app = launcher.app(app_address, provider_address, &database);
        let chaos = Chaos::in_front_of(app_address, seed, Some(tls.clone())).await?;
        let plain = format!("http://{}", chaos.address());
        let encrypted = format!("https://{}", chaos.address());

        // The first one runs a worker, beside the separate one. All but the first have TLS for clients,
        // all but the last for the application.
        let gateways = (0..GATEWAYS).map(|number| {
            let name = format!("gateway-{}", number + 1);
            let store = &shared.urls[number];
            let last = number == GATEWAYS - 1;
            let upstream = if last { &plain } else { &encrypted };
            let tls = (number > 0).then_some(&tls);
            launcher.gateway(&name, store, upstream, number == 0, tls)
        });
        let gateways = gateways.collect::<Result<Vec<_>>>()?;
        let worker_admin = free_address()?;
        let worker = launcher.worker(&shared.urls[GATEWAYS], &encrypted, worker_admin);
        let disk = SmallDisk::mount(SMALL_DISK).map_err(|error| error.to_string());
        let store = disk
            .as_ref()
            .map_or(place, SmallDisk::path)
            .join(SQLITE_FILE);
        let store = format!("sqlite:{}", store.display());
        let sqlite = launcher.gateway("gateway-sqlite", &store, &plain, true, None)?;
        let broker = match &shared.server {
            Some(server) => Broker::start(place, &tls, &server.url()),
            None => Err(anyhow::Error::msg(
                "only the campaign against one server has a broker",
            )),
        };
        let clock = Shifted::new(place).map_err(|error| error.to_string());
        let test_bed = Self {
            gateways,
            worker,
            worker_admin,
            sqlite,
            app,
            app_address,
            provider,
            provider_address,
            links: shared.links,
            chaos,
            redis: Mutex::new(redis),
            postgres: shared.server,
            cluster: shared.cluster,
            dynamo: shared.dynamo,
            clock: clock.map(Arc::new),
            disk,
            broker: broker.map_err(|error| format!("{error:#}")),
            ledger,
            tls,
            place: place.to_owned(),
            _memory: memory,
        };
        for leg in [Leg::Postgres, Leg::Sqlite] {
            test_bed.configure(leg, Settings::default())?;
        }
        test_bed.start().await?;
        Ok(test_bed)
    }

    async fn start(&self) -> Result<()> {
        self.provider.start()?;
        self.app.start()?;
        wait_for_answer(self.provider_address, "/pending").await?;
        wait_for_answer(self.app_address, "/summary").await?;
        // One after the other: the first one creates the schema.
        for gateway in self.gateway_processes() {
            gateway.process.start()?;
            wait_for_answer(gateway.admin, STORE_IS_OPEN).await?;
        }
        // A worker that cannot open its store exits, which would count as a crash.
        self.worker.start()?;
        wait_for_answer(self.worker_admin, STORE_IS_OPEN).await
    }

    /// Writes the configuration for the next start or reload. Only the shared store has a cache.
    pub(crate) fn configure(&self, leg: Leg, settings: Settings) -> Result<()> {
        let cache = match leg {
            // It needs PostgreSQL.
            Leg::Postgres if self.dynamo.is_some() => String::new(),
            Leg::Postgres => format!("cache = \"{}\"", self.redis().url()),
            Leg::Sqlite => String::new(),
        };
        let content = settings.render(&cache);
        if leg == Leg::Postgres {
            self.replace(WITH_TLS, &format!("{content}{}", self.tls.table()))?;
        }
        let outbox = match (leg, &self.broker) {
            (Leg::Postgres, Ok(broker)) => broker.table(),
            (Leg::Postgres, Err(_)) | (Leg::Sqlite, _) => String::new(),
        };
        self.replace(config_file(leg), &format!("{content}{outbox}"))
    }

    fn replace(&self, file: &str, content: &str) -> Result<()> {
        let file = self.place.join(file);
        // Renamed, so that no process reads half of it.
        let new = file.with_extension("new");
        fs::write(&new, content)?;
        fs::rename(&new, &file).with_context(|| format!("cannot replace {}", file.display()))
    }

    /// All gateways.
    pub(crate) fn gateway_processes(&self) -> impl Iterator<Item = &GatewayProcess> {
        self.gateways.iter().chain([&self.sqlite])
    }

    /// The processes that may be killed.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        let gateways = self.gateway_processes().map(|gateway| &gateway.process);
        gateways.chain([&self.worker, &self.app])
    }

    pub(crate) fn process(&self, target: Target) -> &Process {
        match target {
            Target::Gateway(number) => &self.gateways[number].process,
            Target::Worker => &self.worker,
            Target::App => &self.app,
            Target::Sqlite => &self.sqlite.process,
        }
    }

    /// The gateway, if the target is one.
    pub(crate) fn gateway(&self, target: Target) -> Option<&GatewayProcess> {
        match target {
            Target::Gateway(number) => self.gateways.get(number),
            Target::Sqlite => Some(&self.sqlite),
            Target::Worker | Target::App => None,
        }
    }

    /// Waits until a gateway has its store.
    pub(crate) async fn wait_for(&self, target: Target) -> Result<()> {
        match self.gateway(target) {
            Some(gateway) => wait_for_answer(gateway.admin, STORE_IS_OPEN).await,
            None => Ok(()),
        }
    }

    pub(crate) fn redis(&self) -> MutexGuard<'_, RedisPair> {
        self.redis.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses that clients use.
    pub(crate) fn addresses(&self) -> (Vec<Gateway>, Vec<Gateway>) {
        let known = |gateway: &GatewayProcess| Gateway {
            name: gateway.process.name().to_owned(),
            address: gateway.address,
            tls: gateway.tls.clone(),
        };
        let gateways = self.gateways.iter().map(known).collect();
        (gateways, vec![known(&self.sqlite)])
    }

    /// Waits until every gateway has its store.
    pub(crate) async fn wait_until_up(&self) -> Result<()> {
        for gateway in self.gateway_processes() {
            wait_for_answer(gateway.admin, STORE_IS_OPEN).await?;
        }
        Ok(())
    }

    /// How many payments are in progress, in the application and at the provider.
    pub(crate) async fn under_way(&self) -> Result<u64> {
        let pending = http::ask(self.provider_address, "/pending", None).await?;
        let summary = http::ask(self.app_address, "/summary", None).await?;
        let processing = &summary["by_status"]["processing"];
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(count(&pending) + count(processing))
    }
}

/// Waits until a request is answered.
pub(crate) async fn wait_for_answer(address: SocketAddr, path: &str) -> Result<()> {
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
