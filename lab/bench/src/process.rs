//! Servers under test, each in its own process, so that its processor time can be measured
//! from that of the load generator.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a server may take until it listens, and until it is gone.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// The unit of /proc/PID/stat: always 100 on Linux, independent of the kernel's own tick rate.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running server; dropping it ends it.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
    /// For a server with workers, which would outlive it if it were just killed.
    stop: Option<Command>,
}

impl Process {
    /// Starts a server that prints its address on standard output, in a line that begins with `prefix`.
    /// Its standard error goes to a file in `directory`.
    pub(crate) fn announced(
        mut command: Command,
        prefix: &'static str,
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join("server.log");
        let mut child = command
            // Closed when this process ends in any way: our own servers end by it.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}", render(&command)))?;
        let output = child.stdout.take().context("there is an output")?;
        let (sender, lines) = channel();
        // Goes on reading to the end: a full pipe would stop the server.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(url) = line.strip_prefix(prefix) {
                    // Only the first is waited for.
                    let _ = sender.send(url.trim().to_owned());
                }
            }
        });
        let mut process = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            child,
            stop: None,
        };
        let url = lines.recv_timeout(PATIENCE).map_err(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => "did not listen in time",
                RecvTimeoutError::Disconnected => "ended instead of listening",
            };
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            anyhow::anyhow!("{} {why}:\n{log}", render(&command))
        })?;
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        process.address = address
            .parse()
            .with_context(|| format!("{url:?} is no address"))?;
        Ok(process)
    }

    /// Starts a server that listens at `address` when it can be connected to.
    pub(crate) fn connectable(
        mut command: Command,
        stop: Command,
        address: SocketAddr,
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join("server.log");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_file(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}", render(&command)))?;
        let mut process = Self {
            address,
            child,
            stop: Some(stop),
        };
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            if process.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("{} did not listen:\n{log}", render(&command));
            }
            std::thread::sleep(POLL);
        }
        Ok(process)
    }

    /// The process and its children.
    pub(crate) fn tree(&self) -> Tree {
        Tree(self.child.id())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(stop) = &mut self.stop
            && stop.stderr(Stdio::null()).status().is_ok()
        {
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline {
                if let Ok(Some(_)) = self.child.try_wait() {
                    return;
                }
                std::thread::sleep(POLL);
            }
        }
        // Both fail only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process with all its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree(u32);

impl Tree {
    /// The tree of a process's parent: for a server that reports only the process that serves the
    /// connection. It must run on this machine, and its name must be `name`.
    pub(crate) fn around(child: u32, name: &str) -> Result<Self> {
        let root = Stat::of(child).map(|stat| stat.parent);
        let named = root.filter(|root| {
            std::fs::read_to_string(format!("/proc/{root}/comm"))
                .is_ok_and(|found| found.trim() == name)
        });
        let root = named.with_context(|| {
            format!("{name} has no process {child} here: it must run on this machine, or its processor time is not known")
        })?;
        Ok(Self(root))
    }

    /// Processor time, in user space and in the kernel. Those that ended count as well, as soon
    /// as their parents took notice.
    pub(crate) fn cpu_time(self) -> Result<Duration> {
        let mut children: HashMap<u32, Vec<(u32, Stat)>> = HashMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // Processes may end while we look.
            if let Some(stat) = Stat::of(id) {
                children.entry(stat.parent).or_default().push((id, stat));
            }
        }
        let mut ticks = Stat::of(self.0).context("a server has ended")?.ticks();
        let mut parents = vec![self.0];
        while let Some(parent) = parents.pop() {
            for (id, stat) in children.remove(&parent).unwrap_or_default() {
                ticks += stat.ticks();
                parents.push(id);
            }
        }
        Ok(Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
    }
}

/// Resident memory of any process, in bytes.
pub(crate) fn resident(id: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))
        .context("the server under test has ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    let kibibytes: u64 = kibibytes.context("no VmRSS")?.parse()?;
    Ok(kibibytes << 10)
}

/// A program in the search path or where Debian keeps daemons.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// The contents of /proc/PID/stat.
struct Stat {
    parent: u32,
    own_ticks: u64,
    /// Of the children that ended.
    ended_ticks: u64,
}

impl Stat {
    fn of(id: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may contain anything, and ends with the last parenthesis.
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        // Fields 14 to 17 of the manual page: user and system time, own and of the ended.
        let mut times = fields.skip(9).map_while(|field| field.parse::<u64>().ok());
        let own_ticks = times.next()? + times.next()?;
        let ended_ticks = times.next()? + times.next()?;
        Some(Self {
            parent,
            own_ticks,
            ended_ticks,
        })
    }

    fn ticks(&self) -> u64 {
        self.own_ticks + self.ended_ticks
    }
}

fn log_file(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn render(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    program.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_moves_no_field() {
        let text = "7 (a ) b) S 42 7 7 0 -1 4194304 100 0 0 0 30 12 9 8 20 0 1 0 5";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(
            (stat.parent, stat.own_ticks, stat.ended_ticks),
            (42, 42, 17)
        );
    }

    #[test]
    fn children_count_while_they_live_and_after() {
        // The shell's own child burns some time and ends; then the shell waits for its input.
        let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut shell = Command::new("sh")
            .args(["-c", &format!("({burn}); echo done; read line")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let tree = Tree(shell.id());
        let used = tree.cpu_time().unwrap();
        assert!(used > Duration::ZERO, "{used:?}");
        assert_eq!(Tree::around(shell.id(), "no such name").ok(), None);

        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(tree.cpu_time().is_err());
    }

    #[test]
    fn a_server_that_does_not_listen_is_an_error_with_its_words() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such flag >&2"]);
        let started = Process::announced(command, "listening ", directory.path());
        let error = started.err().unwrap().to_string();
        assert!(error.contains("no such flag"), "{error}");
    }
}
