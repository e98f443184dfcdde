//! The `semel` process, and what is around it in these tests.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::print_stdout, reason = "a seed is printed")]

pub(crate) mod http;
pub(crate) mod paying;
pub(crate) mod shop;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use semel_core::store::{Query, Summary};
use semel_core::{Inspect as _, Status};
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::sync::watch;

/// Far longer than anything here takes on a busy machine: a test that hangs should say where.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A directory with a configuration and a store, for one gateway after another.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    /// `config` is TOML; where it listens and what it stores in is added to it.
    pub(crate) fn new(config: &str) -> Self {
        let place = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        place.configure(config);
        place
    }

    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.path("semel.toml"), config).unwrap();
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

    /// With a store that others may share.
    pub(crate) fn start_on(&self, upstream: &str, store: &str) -> Gateway {
        Gateway::start(self.command_on(upstream, store))
    }

    /// What is recorded, newest first; of one status, or all.
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

/// `semel gateway`, with nothing of the environment that the tests run in.
pub(crate) fn semel(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("gateway").current_dir(directory).env_clear();
    command
}

/// A running gateway. Dropped, it is killed.
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
        let log = collect(child.stderr.take().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut listening = |prefix: &str| -> SocketAddr {
            let line = lines.next().and_then(Result::ok).unwrap_or_default();
            let Some(address) = line.strip_prefix(prefix) else {
                panic!("instead of {prefix:?} it said {line:?}; {}", *log.borrow());
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

    /// Killed with SIGKILL, and gone when this returns.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// How it ended by itself, and everything it logged.
    pub(crate) async fn ended(mut self) -> (ExitStatus, String) {
        // The log ends with the process, and is waited for without blocking.
        let mut log = self.log.clone();
        let end = async { while log.changed().await.is_ok() {} };
        tokio::time::timeout(PATIENCE, end)
            .await
            .expect("the gateway does not end");
        (self.child.wait().unwrap(), self.log.borrow().clone())
    }

    /// Waits until it has logged this.
    pub(crate) async fn logged(&self, text: &str) {
        let mut log = self.log.clone();
        let seen = log.wait_for(|log| log.contains(text));
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        assert!(matches!(seen, Ok(Ok(_))), "no {text:?} was logged");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already; both fail then, and nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all the time, since a full pipe would stop the gateway.
fn collect(stderr: ChildStderr) -> watch::Receiver<String> {
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

/// Random enough, and the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    /// `SEMEL_SEED` repeats a run. The seed is printed, and shown where the test fails.
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
