//! A process that is killed, stopped and started again.

use std::fs::{self, File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use semel_testkit::shifted_clock::Shifted;
use tokio::time::{Instant, sleep};

/// Below those that the system gives to outgoing connections: while a process is down, one of them
/// could take its port, and it could not start again.
const PORTS: Range<u16> = 20_000..32_000;
/// More than one process uses.
const PORTS_APART: u32 = 64;
const POLL: Duration = Duration::from_millis(50);
/// Passed on, so that the campaign can be run against a build with one guard removed.
const MUTANT: &str = "SEMEL_MUTANT";

/// A process with its command. Clones share it; dropping the last one kills it.
#[derive(Clone, Debug)]
pub(crate) struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    /// The certificate that it trusts.
    trusted: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    child: Option<Child>,
    clock: Option<Arc<Shifted>>,
    /// Whether it is meant to run.
    wanted: bool,
}

impl Process {
    pub(crate) fn new(
        name: &str,
        program: PathBuf,
        arguments: Vec<String>,
        log: PathBuf,
        trusted: PathBuf,
    ) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            program,
            arguments,
            log,
            trusted,
            state: Mutex::default(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&self) -> Result<()> {
        let mut state = self.state();
        state.wanted = true;
        if state.child.is_none() {
            state.child = Some(self.spawn(state.clock.as_deref())?);
        }
        Ok(())
    }

    /// Kills it (SIGKILL), and waits for its end.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        state.wanted = false;
        if let Some(mut child) = state.child.take() {
            // Both fail only if the child has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it with SIGTERM, or kills it if it does not end in time.
    pub(crate) async fn stop(&self, patience: Duration) -> Result<()> {
        self.state().wanted = false;
        self.signal(Signal::TERM);
        let until = Instant::now() + patience;
        while !self.has_ended()? && Instant::now() < until {
            sleep(POLL).await;
        }
        self.kill();
        Ok(())
    }

    /// Starts it, although it may end by itself.
    pub(crate) fn try_start(&self) -> Result<()> {
        self.start()?;
        self.state().wanted = false;
        Ok(())
    }

    /// Whether it does not run. Such a process can be started again.
    pub(crate) fn has_ended(&self) -> Result<bool> {
        self.state().has_ended()
    }

    /// Its resident memory, in MiB.
    pub(crate) fn memory_mib(&self) -> Option<u64> {
        let status = fs::read_to_string(self.in_proc("status")?).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib >> 10)
    }

    /// How many files and sockets it has open.
    pub(crate) fn open_files(&self) -> Option<usize> {
        Some(fs::read_dir(self.in_proc("fd")?).ok()?.count())
    }

    fn in_proc(&self, name: &str) -> Option<String> {
        let id = self.id()?;
        Some(format!("/proc/{}/{name}", id.as_raw_nonzero()))
    }

    /// How often its log has this text.
    pub(crate) fn logged(&self, text: &str) -> Result<usize> {
        Ok(fs::read_to_string(&self.0.log)?.matches(text).count())
    }

    /// Sets the clock that it uses from its next start on.
    pub(crate) fn set_clock(&self, clock: Option<Arc<Shifted>>) {
        self.state().clock = clock;
    }

    /// Sends a signal. Returns the process, if it runs.
    pub(crate) fn signal(&self, signal: Signal) -> Option<Pid> {
        let id = self.id()?;
        kill_process(id, signal).is_ok().then_some(id)
    }

    /// Whether the running process has loaded this library.
    pub(crate) fn has_mapped(&self, library: &Path) -> bool {
        let maps = self.in_proc("maps");
        let maps = maps.and_then(|maps| fs::read_to_string(maps).ok());
        let library = library.to_string_lossy();
        maps.is_some_and(|maps| maps.contains(library.as_ref()))
    }

    fn id(&self) -> Option<Pid> {
        let id = self.state().child.as_ref().map(Child::id)?;
        Pid::from_raw(i32::try_from(id).ok()?)
    }

    /// Restarts it if it exited. Returns whether it had.
    pub(crate) fn revive(&self) -> Result<bool> {
        let mut state = self.state();
        if !state.wanted || !state.has_ended()? {
            return Ok(false);
        }
        state.child = Some(self.spawn(state.clock.as_deref())?);
        Ok(true)
    }

    fn spawn(&self, clock: Option<&Shifted>) -> Result<Child> {
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.0.log)
            .with_context(|| format!("cannot write {}", self.0.log.display()))?;
        let mut command = Command::new(&self.0.program);
        command
            .args(&self.0.arguments)
            .env_clear()
            .env("RUST_LOG", "warn")
            .env("SSL_CERT_FILE", &self.0.trusted)
            // Only DynamoDB's server looks at them, and only at their presence.
            .envs(crate::dynamodb::ACCESS_KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(mutant) = std::env::var_os(MUTANT) {
            command.env(MUTANT, mutant);
        }
        if let Some(clock) = clock {
            clock.apply(&mut command);
        }
        command
            .spawn()
            .with_context(|| format!("cannot start {}", self.0.program.display()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether no process runs. One that ended is forgotten.
    fn has_ended(&mut self) -> Result<bool> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
        {
            return Ok(false);
        }
        self.child = None;
        Ok(true)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = state.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A free port outside of the ephemeral range. Processes that are started one after the other begin far
/// from each other: a server that is killed gets its port back.
pub(crate) fn free_address() -> Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let length = PORTS.end - PORTS.start;
    let begin = std::process::id().wrapping_mul(PORTS_APART) % u32::from(length);
    let begin = u16::try_from(begin).unwrap_or_default();
    for _ in 0..length {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + begin.wrapping_add(next) % length;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    anyhow::bail!("there is no free port")
}
