//! Throwaway servers for the tests: finds or installs them, starts them in a temporary directory,
//! stops them and removes the directory.

mod dynamodb;
mod install;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;

use std::env;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::process::{self, Interrupt};
pub use install::install_programs;

/// The servers that `cargo xtask test` starts: those that a store, a cache or a sink connects to. A
/// test that finds no address in its environment prints SKIPPED.
pub const NEEDED: &[Server] = &[
    Server::Postgres,
    Server::Redis,
    Server::Nats,
    Server::Rabbitmq,
    Server::Extenddb,
    Server::Dynoxide,
];

/// How long a server may take until it answers. An idle machine needs about a second, and for
/// RabbitMQ about five; a build machine that compiles at the same time gets ample room.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// Another process may take the port between its choice and the server's start.
const START_ATTEMPTS: u32 = 3;
/// Helper processes have no state to save, so they are killed.
const COMPANION_STOP_SIGNAL: &str = "TERM";
/// The server's log, in its directory.
const LOG: &str = "log";
/// How much of a server's log is shown when it does not start.
const LOG_LINES_SHOWN: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Server {
    Postgres,
    Redis,
    Nats,
    Rabbitmq,
    /// Speaks DynamoDB's protocol, and survives a kill.
    Extenddb,
    /// Speaks DynamoDB's protocol.
    Dynoxide,
}

impl Server {
    /// Tests read the server's address from this variable. A developer's setting wins.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "SEMEL_TEST_POSTGRES_URL",
            Self::Redis => "SEMEL_TEST_REDIS_URL",
            Self::Nats => "SEMEL_TEST_NATS_URL",
            Self::Rabbitmq => "SEMEL_TEST_RABBITMQ_URL",
            Self::Extenddb => "SEMEL_TEST_EXTENDDB_URL",
            Self::Dynoxide => "SEMEL_TEST_DYNOXIDE_URL",
        }
    }

    /// Of Debian, or of npm.
    fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::Redis => "redis-server",
            Self::Nats => "nats-server",
            Self::Rabbitmq => "rabbitmq-server",
            Self::Extenddb => "extenddb",
            Self::Dynoxide => "dynoxide",
        }
    }

    fn is_from_npm(self) -> bool {
        match self {
            Self::Extenddb | Self::Dynoxide => true,
            Self::Postgres | Self::Redis | Self::Nats | Self::Rabbitmq => false,
        }
    }

    fn find_programs(self) -> Option<PathBuf> {
        match self {
            Self::Postgres => postgres::find_programs(),
            Self::Redis => redis::find_programs(),
            Self::Nats => nats::find_programs(),
            Self::Rabbitmq => rabbitmq::find_programs(),
            Self::Extenddb | Self::Dynoxide => dynamodb::find_programs(self.package()),
        }
    }
}

/// Where a server comes from.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// The developer runs one already.
    Given,
    /// The directory that holds its programs.
    Programs(PathBuf),
    Missing,
}

/// The servers of this run. Dropping it stops and removes them.
pub struct Servers {
    started: Vec<Started>,
}

impl Servers {
    /// The variables to add to the environment of the tests.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.started
            .iter()
            .map(|started| (started.server.variable(), started.url.as_str()))
    }

    /// Where a server is: the one that was started, else the one that the developer gave.
    pub fn url(&self, server: Server) -> Option<String> {
        self.started
            .iter()
            .find(|started| started.server == server)
            .map(|started| started.url.clone())
            .or_else(|| env::var(server.variable()).ok())
    }
}

/// One server that we started.
struct Started {
    server: Server,
    url: String,
    child: Child,
    companion: Option<Child>,
    stop_signal: &'static str,
    /// Removed after the server has stopped: fields are dropped after `drop` has run.
    directory: TempDir,
}

impl Started {
    fn last_log_lines(&self) -> String {
        let text = fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        process::stop(&mut self.child, self.stop_signal);
        if let Some(companion) = &mut self.companion {
            process::stop(companion, COMPANION_STOP_SIGNAL);
        }
    }
}

/// How to start a server. Each server's module provides it.
pub struct Launch {
    pub command: Command,
    /// Helper processes: started before it, stopped after it.
    companion: Option<Command>,
    pub url: String,
    /// The signal that ends it without waiting for its clients.
    pub stop_signal: &'static str,
    /// Whether it answers yet.
    pub answers: Box<dyn Fn() -> bool + Send>,
}

/// Makes every server in the list available. Prefers one that the developer gives, then one that is
/// installed, and installs the others.
pub fn start(servers: &[Server], may_install: bool, interrupt: &Interrupt) -> Result<Servers> {
    let missing: Vec<Server> = servers
        .iter()
        .copied()
        .filter(|server| locate(*server) == Origin::Missing)
        .collect();
    install::missing(&missing, may_install)?;

    let mut started = Vec::new();
    for server in servers.iter().copied() {
        match locate(server) {
            Origin::Given => println!("{server:?}: given by {}", server.variable()),
            Origin::Programs(programs) => started.push(start_one(server, &programs, interrupt)?),
            Origin::Missing => bail!(explain_missing(&[server])),
        }
    }
    Ok(Servers { started })
}

/// Prepares Postgres or Redis in an empty directory, for a caller that kills and restarts it.
pub fn prepare_launch(server: Server, directory: &Path, may_install: bool) -> Result<Launch> {
    ensure_programs(&[server], may_install)?;
    let programs = server
        .find_programs()
        .with_context(|| explain_missing(&[server]))?;
    let port = free_port()?;
    match server {
        Server::Postgres => postgres::prepare(&programs, directory, port),
        Server::Redis => Ok(redis::prepare(&programs, directory, port)),
        Server::Extenddb => dynamodb::prepare_extenddb(&programs, directory, port),
        Server::Nats | Server::Rabbitmq | Server::Dynoxide => {
            bail!("{server:?} cannot be started on its own")
        }
    }
}

/// Installs the programs of servers where they are missing, for a caller that starts the servers
/// itself. A server that the developer runs is not used, since the caller kills it.
pub fn ensure_programs(servers: &[Server], may_install: bool) -> Result<()> {
    let missing = |server: &&Server| server.find_programs().is_none();
    let missing: Vec<Server> = servers.iter().filter(missing).copied().collect();
    install::missing(&missing, may_install)
}

/// Installs a Debian package where that is allowed and possible. Prints a hint if it is missing
/// afterwards.
pub fn ensure_package(name: &str, is_there: impl Fn() -> bool, may_install: bool) -> bool {
    if !is_there()
        && may_install
        && install::is_possible()
        && let Err(error) = install::packages(&[name])
    {
        println!("{name} cannot be installed: {error:#}");
    }
    let found = is_there();
    if !found {
        println!("missing: install the package `{name}`");
    }
    found
}

/// Finds a program of a Debian package, or installs it where that is allowed and possible. Prints a
/// hint if it is missing afterwards.
pub fn ensure_program(name: &str, package: &str, may_install: bool) -> Option<PathBuf> {
    let find = || find_daemon(name).map(|directory| directory.join(name));
    if let Some(found) = find() {
        return Some(found);
    }
    if may_install
        && install::is_possible()
        && let Err(error) = install::packages(&[package])
    {
        println!("{package} cannot be installed: {error:#}");
    }
    let found = find();
    if found.is_none() {
        println!("{name} is missing: install the package `{package}`");
    }
    found
}

fn locate(server: Server) -> Origin {
    let given = env::var_os(server.variable()).is_some_and(|url| !url.is_empty());
    origin(given, server.find_programs())
}

fn origin(given: bool, programs: Option<PathBuf>) -> Origin {
    match (given, programs) {
        (true, _) => Origin::Given,
        (false, Some(programs)) => Origin::Programs(programs),
        (false, None) => Origin::Missing,
    }
}

fn explain_missing(servers: &[Server]) -> String {
    let hints = servers.iter().map(|server| {
        format!(
            "\n  {server:?}: install the package `{}`, or set {} to one that may be written to",
            server.package(),
            server.variable(),
        )
    });
    format!("these servers are missing:{}", hints.collect::<String>())
}

fn start_one(server: Server, programs: &Path, interrupt: &Interrupt) -> Result<Started> {
    let mut attempt = 1;
    loop {
        match try_start(server, programs, interrupt) {
            Err(error) if attempt < START_ATTEMPTS && error.is::<EndedEarly>() => {
                println!("{error:#}; trying another port");
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn try_start(server: Server, programs: &Path, interrupt: &Interrupt) -> Result<Started> {
    let mut builder = tempfile::Builder::new();
    let prefix = format!("semel-{}-", server.package());
    let builder = builder.prefix(&prefix);
    // ExtendDB waits for the disk at every write, and its tests are not about power loss.
    let memory = Path::new("/dev/shm");
    let directory = if server == Server::Extenddb && memory.is_dir() {
        builder.tempdir_in(memory)
    } else {
        builder.tempdir()
    };
    let directory = directory.context("cannot create a temporary directory")?;
    let port = free_port()?;
    let mut launch = match server {
        Server::Postgres => postgres::prepare(programs, directory.path(), port)?,
        Server::Redis => redis::prepare(programs, directory.path(), port),
        Server::Nats => nats::prepare(programs, directory.path(), port),
        Server::Rabbitmq => rabbitmq::prepare(programs, directory.path(), port)?,
        Server::Extenddb => dynamodb::prepare_extenddb(programs, directory.path(), port)?,
        Server::Dynoxide => dynamodb::prepare_dynoxide(programs, directory.path(), port),
    };

    let log = File::create(directory.path().join(LOG))?;
    let spawn = |command: &mut Command| {
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            // A process group of its own, so that Ctrl-C at the terminal does not reach it: the server
            // must outlive the tests, and `drop` stops it.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {server:?} from {}", programs.display()))
    };
    let mut companion = launch.companion.as_mut().map(spawn).transpose()?;
    let child = spawn(&mut launch.command).inspect_err(|_| {
        if let Some(companion) = &mut companion {
            process::stop(companion, COMPANION_STOP_SIGNAL);
        }
    })?;
    let mut started = Started {
        server,
        url: launch.url,
        child,
        companion,
        stop_signal: launch.stop_signal,
        directory,
    };

    let deadline = process::now() + START_PATIENCE;
    while !(launch.answers)() {
        if let Some(status) = started.child.try_wait()? {
            let log = started.last_log_lines();
            return Err(EndedEarly(format!("{server:?} ended with {status}:\n{log}")).into());
        }
        if process::now() > deadline {
            bail!(
                "{server:?} did not answer in {START_PATIENCE:?}:\n{}",
                started.last_log_lines()
            );
        }
        interrupt.pause(process::POLL)?;
    }
    println!("{server:?}: started for this run at {}", started.url);
    Ok(started)
}

/// A server that ended instead of answering; most likely its port was taken.
#[derive(Debug)]
struct EndedEarly(String);

impl std::fmt::Display for EndedEarly {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for EndedEarly {}

pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Finds a daemon. The search path of a user often lacks the directories of daemons.
fn find_daemon(program: &str) -> Option<PathBuf> {
    find_in_path(program).or_else(|| {
        let daemons = PathBuf::from("/usr/sbin");
        daemons.join(program).is_file().then_some(daemons)
    })
}

/// The first directory of the search path that holds the program.
fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).find(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    /// Never installs anything: a test must not change the machine.
    fn starts_answers_and_stops(server: Server) {
        let Some(programs) = server.find_programs() else {
            println!("SKIPPED: {}", explain_missing(&[server]));
            return;
        };
        let started = start_one(server, &programs, &Interrupt::never()).unwrap();
        let directory = started.directory.path().to_path_buf();
        let (_, address) = started.url.split_once("127.0.0.1:").unwrap();
        let port: u16 = address.split('/').next().unwrap().parse().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(directory.exists());

        let companion = started.companion.as_ref().map(Child::id);

        drop(started);
        let gone = |id: u32| !Path::new("/proc").join(id.to_string()).exists();
        assert!(companion.is_none_or(gone));
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(!directory.exists());
    }

    #[test]
    fn postgres_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Postgres);
    }

    #[test]
    fn redis_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Redis);
    }

    #[test]
    fn nats_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Nats);
    }

    #[test]
    fn rabbitmq_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Rabbitmq);
    }

    #[test]
    fn extenddb_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Extenddb);
    }

    #[test]
    fn dynoxide_starts_answers_and_stops() {
        starts_answers_and_stops(Server::Dynoxide);
    }

    #[test]
    fn a_given_server_wins_over_an_installed_one() {
        let programs = PathBuf::from("bin");
        assert_eq!(origin(true, Some(programs.clone())), Origin::Given);
        assert_eq!(
            origin(false, Some(programs.clone())),
            Origin::Programs(programs)
        );
        assert_eq!(origin(false, None), Origin::Missing);
    }

    #[test]
    fn the_message_about_a_missing_server_names_package_and_variable() {
        let text = explain_missing(&[Server::Postgres, Server::Redis]);
        for expected in [
            "postgresql",
            "SEMEL_TEST_POSTGRES_URL",
            "redis-server",
            "SEMEL_TEST_REDIS_URL",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_server_that_ends_early_is_tried_again_and_then_reported() {
        // `false` takes the arguments of redis-server and ends at once.
        let programs = TempDir::new().unwrap();
        let program = programs.path().join("redis-server");
        std::os::unix::fs::symlink(find_in_path("false").unwrap().join("false"), program).unwrap();
        let result = start_one(Server::Redis, programs.path(), &Interrupt::never());
        let error = result.err().unwrap().to_string();
        assert!(error.contains("Redis ended with"), "{error}");
    }
}
