//! The `semel` process, and the clients and application around it.

pub(crate) mod http;
pub(crate) mod retrying_client;
pub(crate) mod shop;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use semel_core::Status;
use semel_core::Store as _;
use semel_core::store::{Query, Summary};
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::sync::watch;

/// Far longer than any step takes on a busy machine: a test that hangs fails with a message.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// A directory with the configuration and the store of a gateway, which survive its restarts.
pub(crate) struct GatewayDirectory {
    directory: TempDir,
}

impl GatewayDirectory {
    /// `config` is TOML without the addresses and the store, which are command-line arguments.
    pub(crate) fn new(config: &str) -> Self {
        let gateway_dir = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        gateway_dir.configure(config);
        gateway_dir
    }

    pub(crate) fn configure(&self, config: &str) {
        let tenant = if config.contains("[tenant]") {
            ""
        } else {
            "\n[tenant]\nfrom = \"authorization\"\n"
        };
        std::fs::write(self.path("semel.toml"), format!("{config}{tenant}")).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("semel.db")
    }

    pub(crate) fn command(&self, upstream: &str) -> Command {
        self.command_on(upstream, "sqlite:semel.db")
    }

    pub(crate) fn command_on(&self, upstream: &str, store: &str) -> Command {
        let mut command = semel(self.directory.path());
        command.args(["--upstream", upstream, "--config", "semel.toml"]);
        command.args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
        command.args(["--store", store]);
        command
    }

    pub(crate) fn start(&self, upstream: &str) -> Gateway {
        Gateway::start(self.command(upstream))
    }

    /// Starts a gateway with a store that other gateways may share.
    pub(crate) fn start_on(&self, upstream: &str, store: &str) -> Gateway {
        Gateway::start(self.command_on(upstream, store))
    }

    /// The records, newest first; those of one status, or all.
    pub(crate) async fn records(&self, status: Option<Status>) -> Vec<Summary> {
        let store = Sqlite::open(self.store()).await.unwrap();
        let mut query = Query {
            status,
            ..Query::default()
        };
        let mut records = Vec::new();
        loop {
            let page = store.list(query.clone()).await.unwrap();
            records.extend(page.operations);
            match page.next {
                None => return records,
                next => query.before = next,
            }
        }
    }
}

/// `semel gateway`, with an empty environment.
pub(crate) fn semel(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("gateway").current_dir(directory).env_clear();
    command
}

/// A running gateway, killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: watch::Receiver<String>,
}

impl Gateway {
    /// Returns when both listeners are announced.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = collect_log(child.stderr.take().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut listening = |prefix: &str| -> SocketAddr {
            let line = lines.next().and_then(Result::ok).unwrap_or_default();
            let Some(address) = line.strip_prefix(prefix) else {
                panic!("expected {prefix:?}, got {line:?}; {}", *log.borrow());
            };
            address.parse().unwrap()
        };
        Self {
            address: listening("listening gateway http://"),
            admin: listening("listening admin http://"),
            child,
            log: log.clone(),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process ends by itself; returns its status and its whole log.
    pub(crate) async fn wait_for_exit(mut self) -> (ExitStatus, String) {
        // The log ends with the process; this waits for it without blocking.
        let mut log = self.log.clone();
        let end = async { while log.changed().await.is_ok() {} };
        tokio::time::timeout(TEST_TIMEOUT, end)
            .await
            .expect("the gateway does not end");
        (self.child.wait().unwrap(), self.log.borrow().clone())
    }

    /// Waits until the gateway has logged a text.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        let mut log = self.log.clone();
        let seen = log.wait_for(|log| log.contains(text));
        let seen = tokio::time::timeout(TEST_TIMEOUT, seen).await;
        assert!(matches!(seen, Ok(Ok(_))), "no {text:?} was logged");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Both fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads continuously, because a full pipe would block the gateway.
fn collect_log(stderr: ChildStderr) -> watch::Receiver<String> {
    let (sender, receiver) = watch::channel(String::new());
    std::thread::spawn(move || {
        let mut stderr = BufReader::new(stderr);
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]);
            sender.send_modify(|log| log.push_str(&text));
        }
    });
    receiver
}

/// A deterministic random number generator.
pub(crate) struct Random(u64);

impl Random {
    /// `SEMEL_SEED` repeats a run. The seed is printed, so a failed test shows it.
    pub(crate) fn seeded() -> Self {
        let chosen = std::env::var("SEMEL_SEED").ok();
        let fresh = || u64::from(std::process::id()) << 20 | 1;
        let seed = chosen.map_or_else(fresh, |seed| seed.parse().unwrap());
        println!("SEMEL_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}
