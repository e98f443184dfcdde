//! A PostgreSQL server of a test's own, for tests that crash it.
//!
//! ```no_run
//! use semel_testkit::postgres_server::Server;
//!
//! if let Some(server) = Server::start() {
//!     // … a client at `server.url()` writes …
//!     server.stop_immediate();
//!     server.start_again();
//!     // … and what was acknowledged is there.
//! }
//! ```

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Debian keeps the programs of each version out of the search path.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";
const PROGRAMS: [&str; 3] = ["initdb", "postgres", "pg_ctl"];
/// PostgreSQL refuses to run as root; the first of these that exists runs it instead.
const UNPRIVILEGED_USERS: [&str; 2] = ["postgres", "nobody"];
/// How long it may take to start, recovery and all, or to stop; in seconds.
const PATIENCE: &str = "60";
/// Between choosing a free port and the server's taking it another process may take it.
const START_ATTEMPTS: usize = 3;

const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A server with PostgreSQL's default settings except directory and port: with `fsync` off a crash
/// would prove nothing. Dropping it stops and removes it.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    user: Option<User>,
    port: u16,
    directory: TempDir,
}

#[derive(Debug)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

impl Server {
    /// Creates and starts a server. Prints SKIPPED and returns `None` where the programs or a user to
    /// run them are missing.
    ///
    /// # Panics
    /// Where the programs are there and fail.
    pub fn start() -> Option<Self> {
        let programs = find_programs();
        let user = unprivileged_user();
        let (Some(programs), Some(user)) = (programs, user) else {
            println!(
                "SKIPPED: the PostgreSQL programs, or an unprivileged user to run them, are missing"
            );
            return None;
        };
        let mut server = Self {
            programs,
            user,
            port: free_port(),
            directory: tempfile::tempdir().unwrap(),
        };
        server.create();
        for _ in 1..START_ATTEMPTS {
            if server.try_start() {
                return Some(server);
            }
            server.port = free_port();
        }
        server.start_again();
        Some(server)
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Crashes the server: every process ends at once, without another write. It has ended when this
    /// returns.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn stop_immediate(&self) {
        assert!(self.stop(), "{}", self.log());
    }

    /// Starts it on the same port with the same data, and waits until it accepts connections.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_again(&self) {
        assert!(self.try_start(), "{}", self.log());
    }

    fn create(&self) {
        for path in [self.path("data"), self.path("sockets")] {
            fs::create_dir(&path).unwrap();
            if let Some(user) = &self.user {
                chown(&path, Some(user.id), Some(user.group)).unwrap();
            }
        }
        if let Some(user) = &self.user {
            // The other user has to pass through and to write a log, and need see nothing else.
            chown(self.directory.path(), Some(user.id), Some(user.group)).unwrap();
            fs::set_permissions(self.directory.path(), Permissions::from_mode(0o711)).unwrap();
        }
        let created = self
            .command("initdb")
            .args(["--auth=trust", "--username=postgres"])
            .args(["--encoding=UTF8", "--no-locale"])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&created.stderr);
        assert!(created.status.success(), "initdb: {stderr}");
    }

    fn try_start(&self) -> bool {
        let sockets = self.path("sockets");
        let options = format!("-h 127.0.0.1 -p {} -k {}", self.port, sockets.display());
        let mut command = self.command("pg_ctl");
        command.args(["start", "-w", "-t", PATIENCE, "-o", &options]);
        runs(command.arg("-l").arg(self.path("log")))
    }

    fn stop(&self) -> bool {
        let mut command = self.command("pg_ctl");
        runs(command.args(["stop", "-m", "immediate", "-w", "-t", PATIENCE]))
    }

    /// A server program, run as the right user.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = match &self.user {
            None => Command::new(program),
            Some(user) => {
                let mut setpriv = Command::new("setpriv");
                setpriv
                    .arg(format!("--reuid={}", user.id))
                    .arg(format!("--regid={}", user.group))
                    .args(["--clear-groups", "--"])
                    .arg(program);
                setpriv
            }
        };
        // The caller's directory may be closed to the other user.
        command.current_dir(self.directory.path());
        command.arg("-D").arg(self.path("data"));
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test may have stopped it already.
        self.stop();
    }
}

/// Without pipes: the server would keep them open, and the wait would not end.
fn runs(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// The newest complete version, or else the one in the search path.
pub(crate) fn find_programs() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten();
    let newest = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, directory)| is_complete(directory))
        .max();
    if let Some((_, directory)) = newest {
        return Some(directory);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|directory| is_complete(directory))
}

fn is_complete(directory: &Path) -> bool {
    PROGRAMS
        .iter()
        .all(|program| directory.join(program).is_file())
}

/// The user to switch to: only if we are root; `None` if no unprivileged user exists.
#[allow(clippy::option_option, reason = "whether it can run, and as whom")]
pub(crate) fn unprivileged_user() -> Option<Option<User>> {
    if numeric_id("-u", None)? != 0 {
        return Some(None);
    }
    let user = UNPRIVILEGED_USERS.iter().find_map(|name| {
        Some(User {
            id: numeric_id("-u", Some(name))?,
            group: numeric_id("-g", Some(name))?,
        })
    });
    user.map(Some)
}

/// The user (`-u`) or group (`-g`) id of a user, or our own.
fn numeric_id(which: &str, user: Option<&str>) -> Option<u32> {
    let output = Command::new("id").arg(which).args(user).output().ok()?;
    if !output.status.success() {
        return None;
    }
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Below the ephemeral ports: an outgoing connection could take the server's port while it is down.
fn free_port() -> u16 {
    let begin = std::process::id() % u32::from(PORTS.end - PORTS.start);
    let ports = PORTS.clone().chain(PORTS).skip(begin as usize);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.into_iter().find(free).unwrap()
}
