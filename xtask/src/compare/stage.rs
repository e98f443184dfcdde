//! One subject, running: its store, what it stands in front of, and itself, each kept by a keeper.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::install::Shop;
use super::keeper::{Kept, Program, quoted, until};
use super::subjects::{Adapter, Guard, Store, Subject};
use crate::servers::{self, Server};

/// A program on the same machine that needs longer to accept is not there yet.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// Restate looks at the service before it answers.
const REGISTER_PATIENCE: Duration = Duration::from_secs(30);
/// Service and handler, as the adapter names them.
const RESTATE_PATH: &str = "/app/work";

/// Dropping it stops everything, the subject first: fields are dropped in their order.
pub(super) struct Stage {
    /// Where the probes go.
    pub(super) url: String,
    subject: Kept,
    _beside: Vec<Kept>,
    store: Option<Fragile>,
    /// What a store without a server is taken away by.
    locks: Option<[String; 2]>,
    _cache: Option<Fragile>,
    _places: Vec<TempDir>,
}

/// A store that can be taken away.
struct Fragile {
    kept: Kept,
    url: String,
    signal: &'static str,
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
            Store::Memory | Store::Sqlite | Store::Restate => [None, None],
            Store::Postgres => [Some(hall.store(Server::Postgres, &place()?)?), None],
            Store::Redis => [Some(hall.store(Server::Redis, &place()?)?), None],
            Store::PostgresAndRedis => [
                Some(hall.store(Server::Postgres, &place()?)?),
                Some(hall.store(Server::Redis, &place()?)?),
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
        let mut beside = Vec::new();
        let mut deployments = None;
        let command = match guard.adapter() {
            Adapter::Gateway => {
                let upstream = servers::free_port()?;
                let plain = Command::new(hall.shop.rust("rust", "app", "plain")?);
                let plain = hall.told(plain, upstream, "");
                beside.push(hall.keep("plain", plain, upstream, &own)?);
                hall.gateway(port, upstream, &store_url, cache.as_ref())
            }
            Adapter::Rust { workspace, package } => {
                let binary = hall.shop.rust(workspace, package, package)?;
                hall.told(Command::new(binary), port, &store_url)
            }
            Adapter::Node(script) => hall.told(hall.node(guard, script)?, port, &store_url),
            Adapter::Restate(script) => {
                let (kept, ingress, admin) = hall.restate(&own)?;
                url = format!("http://127.0.0.1:{ingress}{RESTATE_PATH}");
                deployments = Some((admin, ingress));
                store = Some(Fragile {
                    kept,
                    url: String::new(),
                    signal: "KILL",
                });
                hall.told(hall.node(guard, script)?, port, "")
            }
            Adapter::Python(script) => {
                let home = hall.shop.python(guard.name(), guard.packages())?;
                let mut python = Command::new(home.join("bin/python"));
                python.arg(hall.shop.adapters().join(script));
                hall.told(python, port, &store_url)
            }
        };
        let kept = hall.keep(guard.name(), command, port, &own)?;
        if let Some((admin, ingress)) = deployments {
            register(admin, ingress, port)?;
        }
        Ok(Self {
            url,
            subject: kept,
            _beside: beside,
            locks: (subject.store == Store::Sqlite).then(|| hall.locks(&own)),
            store,
            _cache: cache,
            _places: places,
        })
    }
}

impl Hall<'_> {
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

    fn keep(&self, name: &'static str, command: Command, port: u16, own: &Path) -> Result<Kept> {
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

    fn gateway(&self, port: u16, upstream: u16, store: &str, cache: Option<&Fragile>) -> Command {
        let store = if store.starts_with("postgres://") {
            store.to_owned()
        } else {
            format!("sqlite:{store}")
        };
        let mut gateway = Command::new(self.semel);
        gateway
            .arg("gateway")
            .arg("--config")
            .arg(self.shop.adapters().join("semel.toml"))
            .args(["--upstream", &format!("http://127.0.0.1:{upstream}")])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--admin-listen", "127.0.0.1:0", "--store", &store])
            .env("RUST_LOG", "warn");
        if let Some(cache) = cache {
            gateway.env("SEMEL_CACHE", &cache.url);
        }
        gateway
    }

    /// Restate's server, which is the store and the entrance at once, with the ports of its
    /// ingress and of its admin API.
    fn restate(&self, own: &Path) -> Result<(Kept, u16, u16)> {
        let home = self.shop.node("restate", Guard::Restate.packages())?;
        let place = home.join("node_modules/@restatedev");
        let binary = fs::read_dir(&place)?
            .filter_map(|entry| Some(entry.ok()?.path().join("bin/restate-server")))
            .find(|path| path.is_file())
            .context("Restate has no server for this system")?;
        let [ingress, admin, fabric] = [
            servers::free_port()?,
            servers::free_port()?,
            servers::free_port()?,
        ];
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new(binary);
        command
            .args(["--no-logo", "--base-dir"])
            .arg(own.join("restate-data"))
            .env("RESTATE_INGRESS__BIND_ADDRESS", address(ingress))
            .env("RESTATE_ADMIN__BIND_ADDRESS", address(admin))
            .env("RESTATE_BIND_ADDRESS", address(fabric))
            .env("DO_NOT_TRACK", "1")
            .env("RUST_LOG", "warn");
        let kept = self.keep("restate-server", command, ingress, own)?;
        Ok((kept, ingress, admin))
    }

    /// A server of its own for each subject, with its durable settings.
    fn store(&self, server: Server, place: &Path) -> Result<Fragile> {
        let mut launch = servers::recipe(server, place, self.shop.may_install)?;
        let (name, signal) = match server {
            Server::Redis => {
                launch
                    .command
                    .args(["--appendonly", "yes", "--appendfsync", "always"]);
                ("redis", "KILL")
            }
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
        })
    }
}

fn accepts(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    TcpStream::connect_timeout(&address, CONNECT_PATIENCE).is_ok()
}

/// Tells Restate's server where the service is, and waits for a first answer: it gets under way
/// only then.
fn register(admin: u16, ingress: u16, service: u16) -> Result<()> {
    let place = format!(r#"{{"uri":"http://127.0.0.1:{service}"}}"#);
    let answer = posted(admin, "/deployments", &place)?;
    ensure!(
        answer == "201",
        "Restate does not take the service: {answer}"
    );
    let answer = posted(ingress, RESTATE_PATH, "{}")?;
    ensure!(answer == "200", "Restate does not answer: {answer}");
    Ok(())
}

/// The status of the answer.
fn posted(port: u16, path: &str, body: &str) -> Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    stream.set_read_timeout(Some(REGISTER_PATIENCE))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-work: quick\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split_whitespace().nth(1);
    Ok(status.unwrap_or("nothing").to_owned())
}
