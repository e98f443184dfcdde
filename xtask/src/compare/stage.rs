//! One subject, running: its store, what it stands in front of, and itself, each kept by a keeper.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use super::install::Shop;
use super::keeper::{Kept, Program, quoted, until};
use super::restate;
use super::subjects::{Adapter, Guard, Store, Subject};
use super::versions;
use crate::servers::{self, Server};

/// A program on the same machine that needs longer to accept is not there yet.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Every write is synced before it is answered. Its log is all that is kept: a snapshot beside it
/// would be measured, too.
const DURABLE_REDIS: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
];
/// As docs/redis.md asks for it: nothing is on disk, and what is old goes first.
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

/// Dropping it stops everything, the subject first: fields are dropped in their order.
pub(super) struct Stage {
    /// Where the probes go.
    pub(super) url: String,
    /// Where the load goes.
    pub(super) load_url: String,
    subject: Kept,
    beside: Vec<Kept>,
    store: Option<Fragile>,
    /// What a store without a server is taken away by.
    locks: Option<[String; 2]>,
    cache: Option<Fragile>,
    _places: Vec<TempDir>,
}

/// A store that can be taken away.
struct Fragile {
    kept: Kept,
    url: String,
    signal: &'static str,
    /// By its own words; nothing where it is a package that says it already.
    version: Option<String>,
}

/// The processes that run, by what they are for.
pub(super) struct Parts {
    pub(super) subject: Vec<u32>,
    /// What the subject stands in front of.
    pub(super) beside: Vec<u32>,
    pub(super) store: Vec<u32>,
}

/// What is the same for every subject.
#[derive(Clone, Copy)]
pub(super) struct Hall<'a> {
    pub(super) shop: Shop<'a>,
    pub(super) ledger: &'a str,
    /// The binary that is released.
    pub(super) semel: &'a Path,
}

impl Stage {
    /// Kills the subject. It is there again when the command ends.
    pub(super) fn crash_command(&self) -> String {
        self.subject.crash_command()
    }

    /// Takes the store away, and gives it back. Memory cannot be taken.
    pub(super) fn store_commands(&self) -> Option<[String; 2]> {
        let Some(store) = &self.store else {
            return self.locks.clone();
        };
        Some([
            store.kept.break_command(store.signal),
            store.kept.heal_command(),
        ])
    }

    pub(super) fn parts(&self) -> Parts {
        let stores = self.store.iter().chain(&self.cache);
        Parts {
            subject: self.subject.pid().into_iter().collect(),
            beside: self.beside.iter().filter_map(Kept::pid).collect(),
            store: stores.filter_map(|store| store.kept.pid()).collect(),
        }
    }

    /// The servers, by their own words.
    pub(super) fn servers(&self) -> Vec<String> {
        let stores = self.store.iter().chain(&self.cache);
        stores.filter_map(|store| store.version.clone()).collect()
    }

    /// The end of the subject's log, for a reader who wonders.
    pub(super) fn last_words(&self) -> String {
        self.subject.last_words()
    }

    pub(super) fn set(hall: &Hall<'_>, subject: Subject) -> Result<Self> {
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
                let store = hall.store(Server::Postgres, &[], &place()?)?;
                [Some(store), None]
            }
            Store::Redis => {
                let store = hall.store(Server::Redis, &DURABLE_REDIS, &place()?)?;
                [Some(store), None]
            }
            Store::PostgresAndRedis => [
                Some(hall.store(Server::Postgres, &[], &place()?)?),
                Some(hall.store(Server::Redis, &CACHE_REDIS, &place()?)?),
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
        // What says that it runs.
        let mut door = port;
        let mut beside = Vec::new();
        let mut deployments = None;
        let command = match guard.adapter(subject.store) {
            Adapter::Gateway(config) => {
                let upstream = servers::free_port()?;
                let plain = Command::new(hall.shop.rust("rust", "app", "plain")?);
                let plain = hall.told(plain, upstream, "");
                beside.push(hall.keep("plain", plain, upstream, &own)?);
                let mut gateway = hall.gateway(port, upstream, &store_url, config);
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
                let binary = hall.shop.rust(workspace, package, binary)?;
                hall.told(Command::new(binary), port, &store_url)
            }
            Adapter::Node(script) => hall.told(hall.node(guard, script)?, port, &store_url),
            Adapter::Restate(script) => {
                let (kept, ingress, admin) = hall.restate(&own)?;
                load_url = format!("http://127.0.0.1:{ingress}{}", restate::PATH);
                door = servers::free_port()?;
                url = format!("http://127.0.0.1:{door}/work");
                deployments = Some((admin, ingress));
                store = Some(Fragile {
                    kept,
                    url: String::new(),
                    signal: "KILL",
                    version: None,
                });
                let mut service = hall.told(hall.node(guard, script)?, port, "");
                service.env("FRONT_PORT", door.to_string());
                service.env("INGRESS", &load_url);
                service
            }
            Adapter::Python(script) => {
                let home = hall.shop.python(guard.name(), guard.packages())?;
                let mut python = Command::new(home.join("bin/python"));
                python.arg(hall.shop.adapters().join(script));
                hall.told(python, port, &store_url)
            }
        };
        let kept = hall.keep(guard.name(), command, door, &own)?;
        if let Some((admin, ingress)) = deployments {
            restate::register(admin, ingress, port)?;
        }
        Ok(Self {
            url,
            load_url,
            subject: kept,
            beside,
            locks: (subject.store == Store::Sqlite).then(|| hall.locks(&own)),
            store,
            cache,
            _places: places,
        })
    }
}

impl Hall<'_> {
    /// Installs and builds all that a subject needs, so that nothing is built beside a measurement.
    /// What is there then, by the installation's own words.
    pub(super) fn ready(&self, subject: Subject) -> Result<Vec<String>> {
        let guard = subject.guard;
        let servers: &[Server] = match subject.store {
            Store::None | Store::Memory | Store::Sqlite | Store::Restate => &[],
            Store::Postgres => &[Server::Postgres],
            Store::Redis => &[Server::Redis],
            Store::PostgresAndRedis => &[Server::Postgres, Server::Redis],
        };
        servers::have_programs(servers, self.shop.may_install)?;
        let packages = guard.packages();
        Ok(match guard.adapter(subject.store) {
            Adapter::Gateway(_) => {
                self.shop.rust("rust", "app", "plain")?;
                Vec::new()
            }
            Adapter::Rust {
                workspace,
                package,
                binary,
            } => {
                self.shop.rust(workspace, package, binary)?;
                Vec::new()
            }
            Adapter::Node(_) | Adapter::Restate(_) => {
                versions::of_node(&self.shop.node(guard.name(), packages)?, packages)
            }
            Adapter::Python(_) => {
                versions::of_python(&self.shop.python(guard.name(), packages)?, packages)
            }
        })
    }

    /// What every adapter is told.
    fn told(&self, mut command: Command, port: u16, store: &str) -> Command {
        command
            .env("PORT", port.to_string())
            .env("LEDGER_URL", self.ledger)
            .env("STORE", store);
        command
    }

    /// A file has no server to kill: somebody else holds its write lock.
    fn locks(&self, own: &Path) -> [String; 2] {
        let script = quoted(&self.shop.adapters().join("python/lock.py"));
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

    pub(super) fn keep(
        &self,
        name: &'static str,
        command: Command,
        port: u16,
        own: &Path,
    ) -> Result<Kept> {
        let program = Program {
            name,
            command,
            stop_signal: "KILL",
            answers: Box::new(move || accepts(port)),
        };
        Kept::start(program, own.join(name), self.shop.interrupt)
    }

    /// Our script stays where it is: `NODE_PATH` says where the packages are.
    fn node(&self, guard: Guard, script: &str) -> Result<Command> {
        let home = self.shop.node(guard.name(), guard.packages())?;
        let mut node = Command::new("node");
        node.arg(self.shop.adapters().join(script))
            .env("NODE_PATH", home.join("node_modules"))
            .env("NODE_ENV", "production")
            // A line for each request would be measured, too.
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
            .arg(self.shop.adapters().join(config))
            .args(["--upstream", &format!("http://127.0.0.1:{upstream}")])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--admin-listen", "127.0.0.1:0", "--store", &store])
            .env("RUST_LOG", "warn");
        gateway
    }

    /// A server of its own for each subject.
    fn store(&self, server: Server, settings: &[&str], place: &Path) -> Result<Fragile> {
        let mut launch = servers::recipe(server, place, self.shop.may_install)?;
        launch.command.args(settings);
        let version = versions::of_server(&launch.command);
        let (name, signal) = match server {
            Server::Redis => ("redis", "KILL"),
            // What its manual calls an immediate shutdown, and a crash to whoever is connected.
            Server::Postgres | Server::Nats | Server::Rabbitmq => ("postgres", "QUIT"),
        };
        let program = Program {
            name,
            command: launch.command,
            stop_signal: launch.stop_signal,
            answers: launch.answers,
        };
        Ok(Fragile {
            kept: Kept::start(program, place.join("kept"), self.shop.interrupt)?,
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
