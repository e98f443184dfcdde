//! A running subject: its store, the application behind it, and itself, each under a supervisor.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use super::install::PeerInstaller;
use super::restate;
use super::subjects::{Adapter, Guard, Store, Subject};
use super::supervisor::{Program, SupervisedProcess, quoted, until};
use super::versions;
use crate::servers::{self, Server};

/// How long a local program may take to accept a connection.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Syncs every write before the answer. Without snapshots, which would disturb the measurement.
const DURABLE_REDIS: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
];
/// As recommended in docs/redis.md: no persistence, and eviction of the oldest keys.
const CACHE_REDIS: [&str; 8] = [
    "--appendonly",
    "no",
    "--save",
    "",
    "--maxmemory",
    "256mb",
    "--maxmemory-policy",
    "allkeys-lru",
];

/// A running subject. Dropping it stops everything, the subject first: fields are dropped in order.
pub(super) struct Deployment {
    /// The URL for the probes.
    pub(super) url: String,
    /// The URL for the load.
    pub(super) load_url: String,
    subject: SupervisedProcess,
    beside: Vec<SupervisedProcess>,
    store: Option<StoreServer>,
    /// The commands that lock and unlock a store without a server.
    locks: Option<[String; 2]>,
    cache: Option<StoreServer>,
    _places: Vec<TempDir>,
}

/// A store's server, which can be stopped.
struct StoreServer {
    kept: SupervisedProcess,
    url: String,
    signal: &'static str,
    /// Its version; `None` where the package states it already.
    version: Option<String>,
}

/// The running processes, by role.
pub(super) struct ProcessIds {
    pub(super) subject: Vec<u32>,
    /// The application behind the subject.
    pub(super) beside: Vec<u32>,
    pub(super) store: Vec<u32>,
}

/// The context that all subjects share.
#[derive(Clone, Copy)]
pub(super) struct CompareContext<'a> {
    pub(super) installer: PeerInstaller<'a>,
    pub(super) ledger: &'a str,
    /// The released binary.
    pub(super) semel: &'a Path,
    pub(super) plain: PlainApplication,
}

/// The unguarded application behind a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainApplication {
    /// In Rust, built for release.
    Rust,
    /// In Python, which needs no build: for the smoke run.
    Python,
}

impl Deployment {
    /// The command that kills the subject. It ends when the subject runs again.
    pub(super) fn crash_command(&self) -> String {
        self.subject.crash_command()
    }

    /// The commands that stop and start the store. None for a store in memory.
    pub(super) fn store_commands(&self) -> Option<[String; 2]> {
        let Some(store) = &self.store else {
            return self.locks.clone();
        };
        Some([
            store.kept.break_command(store.signal),
            store.kept.heal_command(),
        ])
    }

    pub(super) fn parts(&self) -> ProcessIds {
        let stores = self.store.iter().chain(&self.cache);
        ProcessIds {
            subject: self.subject.pid().into_iter().collect(),
            beside: self
                .beside
                .iter()
                .filter_map(SupervisedProcess::pid)
                .collect(),
            store: stores.filter_map(|store| store.kept.pid()).collect(),
        }
    }

    /// The versions of the servers.
    pub(super) fn servers(&self) -> Vec<String> {
        let stores = self.store.iter().chain(&self.cache);
        stores.filter_map(|store| store.version.clone()).collect()
    }

    /// The end of the subject's log.
    pub(super) fn log_tail(&self) -> String {
        self.subject.log_tail()
    }

    pub(super) fn start(context: &CompareContext<'_>, subject: Subject) -> Result<Self> {
        let mut places = Vec::new();
        let mut place = || -> Result<PathBuf> {
            let place = tempfile::Builder::new()
                .prefix("semel-compare-")
                .tempdir()?;
            let path = place.path().to_path_buf();
            places.push(place);
            Ok(path)
        };
        let [mut store, cache] = match subject.store {
            Store::None | Store::Memory | Store::Sqlite | Store::Restate => [None, None],
            Store::Postgres => {
                let store = context.store(Server::Postgres, &[], &place()?)?;
                [Some(store), None]
            }
            Store::Redis => {
                let store = context.store(Server::Redis, &DURABLE_REDIS, &place()?)?;
                [Some(store), None]
            }
            Store::PostgresAndRedis => [
                Some(context.store(Server::Postgres, &[], &place()?)?),
                Some(context.store(Server::Redis, &CACHE_REDIS, &place()?)?),
            ],
        };
        let own = place()?;
        let store_url = match (&store, subject.store) {
            (Some(store), _) => store.url.clone(),
            (None, Store::Memory) => "memory".to_owned(),
            (None, _) => own.join("semel.db").display().to_string(),
        };
        let guard = subject.guard;
        let port = servers::free_port()?;
        let mut url = format!("http://127.0.0.1:{port}/work");
        let mut load_url = url.clone();
        // The port that accepts connections when the subject is ready.
        let mut ready_port = port;
        let mut beside = Vec::new();
        let mut deployments = None;
        let command = match guard.adapter(subject.store) {
            Adapter::Gateway(config) => {
                let upstream = servers::free_port()?;
                let plain = context.with_settings(context.plain_application()?, upstream, "");
                beside.push(context.supervise("plain", plain, upstream, &own)?);
                let mut gateway = context.gateway(port, upstream, &store_url, config);
                if let Some(cache) = &cache {
                    gateway.env("SEMEL_CACHE", &cache.url);
                }
                gateway
            }
            Adapter::Rust {
                workspace,
                package,
                binary,
            } => {
                let binary = context.installer.rust(workspace, package, binary)?;
                context.with_settings(Command::new(binary), port, &store_url)
            }
            Adapter::Node(script) => {
                context.with_settings(context.node(guard, script)?, port, &store_url)
            }
            Adapter::Restate(script) => {
                let (kept, ingress, admin) = context.restate(&own)?;
                load_url = format!("http://127.0.0.1:{ingress}{}", restate::PATH);
                ready_port = servers::free_port()?;
                url = format!("http://127.0.0.1:{ready_port}/work");
                deployments = Some((admin, ingress));
                store = Some(StoreServer {
                    kept,
                    url: String::new(),
                    signal: "KILL",
                    version: None,
                });
                let mut service = context.with_settings(context.node(guard, script)?, port, "");
                service.env("FRONT_PORT", ready_port.to_string());
                service.env("INGRESS", &load_url);
                service
            }
            Adapter::Python(script) => {
                let home = context.installer.python(guard.name(), guard.packages())?;
                let mut python = Command::new(home.join("bin/python"));
                python.arg(context.installer.adapters().join(script));
                context.with_settings(python, port, &store_url)
            }
        };
        let kept = context.supervise(guard.name(), command, ready_port, &own)?;
        if let Some((admin, ingress)) = deployments {
            restate::register(admin, ingress, port)?;
        }
        Ok(Self {
            url,
            load_url,
            subject: kept,
            beside,
            locks: (subject.store == Store::Sqlite).then(|| context.locks(&own)),
            store,
            cache,
            _places: places,
        })
    }
}

impl CompareContext<'_> {
    /// Installs and builds everything that a subject needs. Returns the installed versions.
    pub(super) fn ready(&self, subject: Subject) -> Result<Vec<String>> {
        let guard = subject.guard;
        let servers: &[Server] = match subject.store {
            Store::None | Store::Memory | Store::Sqlite | Store::Restate => &[],
            Store::Postgres => &[Server::Postgres],
            Store::Redis => &[Server::Redis],
            Store::PostgresAndRedis => &[Server::Postgres, Server::Redis],
        };
        servers::ensure_programs(servers, self.installer.may_install)?;
        let packages = guard.packages();
        Ok(match guard.adapter(subject.store) {
            Adapter::Gateway(_) => {
                self.installer.rust("rust", "app", "plain")?;
                Vec::new()
            }
            Adapter::Rust {
                workspace,
                package,
                binary,
            } => {
                self.installer.rust(workspace, package, binary)?;
                Vec::new()
            }
            Adapter::Node(_) | Adapter::Restate(_) => {
                versions::of_node(&self.installer.node(guard.name(), packages)?, packages)
            }
            Adapter::Python(_) => {
                versions::of_python(&self.installer.python(guard.name(), packages)?, packages)
            }
        })
    }

    fn plain_application(&self) -> Result<Command> {
        Ok(match self.plain {
            PlainApplication::Rust => Command::new(self.installer.rust("rust", "app", "plain")?),
            PlainApplication::Python => {
                let mut python = Command::new("python3");
                python.arg(self.installer.adapters().join("python/plain.py"));
                python
            }
        })
    }

    /// Adds the environment variables that every adapter reads.
    fn with_settings(&self, mut command: Command, port: u16, store: &str) -> Command {
        command
            .env("PORT", port.to_string())
            .env("LEDGER_URL", self.ledger)
            .env("STORE", store);
        command
    }

    /// The commands that lock and unlock a SQLite file: it has no server to kill.
    fn locks(&self, own: &Path) -> [String; 2] {
        let script = quoted(&self.installer.adapters().join("python/lock.py"));
        let own = quoted(own);
        let held = until("-e locked");
        [
            format!(
                "cd {own} && {{ python3 {script} semel.db locked </dev/null >/dev/null 2>&1 & \
                 echo $! >locker; {held}; [ -e locked ]; }}"
            ),
            format!("cd {own} && kill -KILL $(cat locker); rm -f locker locked"),
        ]
    }

    pub(super) fn supervise(
        &self,
        name: &'static str,
        command: Command,
        port: u16,
        own: &Path,
    ) -> Result<SupervisedProcess> {
        let program = Program {
            name,
            command,
            stop_signal: "KILL",
            answers: Box::new(move || accepts(port)),
        };
        SupervisedProcess::start(program, own.join(name), self.installer.interrupt)
    }

    /// Runs the adapter's script with the packages in `NODE_PATH`.
    fn node(&self, guard: Guard, script: &str) -> Result<Command> {
        let home = self.installer.node(guard.name(), guard.packages())?;
        let mut node = Command::new("node");
        node.arg(self.installer.adapters().join(script))
            .env("NODE_PATH", home.join("node_modules"))
            .env("NODE_ENV", "production")
            // Logging each request would disturb the measurement.
            .env("RESTATE_LOGGING", "ERROR");
        Ok(node)
    }

    fn gateway(&self, port: u16, upstream: u16, store: &str, config: &str) -> Command {
        let store = if store.starts_with("postgres://") {
            store.to_owned()
        } else {
            format!("sqlite:{store}")
        };
        let mut gateway = Command::new(self.semel);
        gateway
            .arg("gateway")
            .arg("--config")
            .arg(self.installer.adapters().join(config))
            .args(["--upstream", &format!("http://127.0.0.1:{upstream}")])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--admin-listen", "127.0.0.1:0", "--store", &store])
            .env("RUST_LOG", "warn");
        gateway
    }

    /// A server of its own for each subject.
    fn store(&self, server: Server, settings: &[&str], place: &Path) -> Result<StoreServer> {
        let mut launch = servers::prepare_launch(server, place, self.installer.may_install)?;
        launch.command.args(settings);
        let version = versions::of_server(&launch.command);
        let (name, signal) = match server {
            Server::Redis => ("redis", "KILL"),
            // PostgreSQL's immediate shutdown, which is a crash for its clients.
            Server::Postgres
            | Server::Nats
            | Server::Rabbitmq
            | Server::Extenddb
            | Server::Dynoxide => ("postgres", "QUIT"),
        };
        let program = Program {
            name,
            command: launch.command,
            stop_signal: launch.stop_signal,
            answers: launch.answers,
        };
        Ok(StoreServer {
            kept: SupervisedProcess::start(program, place.join("kept"), self.installer.interrupt)?,
            url: launch.url,
            signal,
            version,
        })
    }
}

fn accepts(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, CONNECT_PATIENCE).is_ok()
}
