//! Runs other programs: prints the command, measures the time, and stops it cleanly.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The interval at which a waiting function polls.
pub const POLL: Duration = Duration::from_millis(50);
/// How long a program may take to end after it was asked to, before it is killed.
/// Ample for a Postgres that writes its last checkpoint to a slow disk.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

/// The cargo that runs us, at the root of the workspace.
pub fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// What cargo knows about the workspace.
///
/// # Errors
/// Where cargo fails.
pub fn cargo_metadata(root: &Path, arguments: &[&str]) -> Result<Value> {
    let output = cargo(root)
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata wrote no JSON")
}

/// Where cargo puts what it builds.
pub fn target_directory(root: &Path) -> Result<PathBuf> {
    let metadata = cargo_metadata(root, &["--no-deps"])?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(target.into())
}

/// Whether a cargo subcommand such as `nextest` is installed.
pub fn has_cargo_tool(root: &Path, tool: &str) -> bool {
    cargo(root)
        .args([tool, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Shows the command, runs it with our own input and output, and fails if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", render(command));
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", render(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", render(command));
    }
    Ok(())
}

/// Like [`run`], but Ctrl-C or a termination signal ends the command and comes back as an
/// error, so that the caller's servers are stopped on the way out.
pub fn run_interruptible(command: &mut Command, interrupt: &Interrupt) -> Result<()> {
    println!("$ {}", render(command));
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", render(command)))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(interrupted) = interrupt.pause(POLL) {
            stop(&mut child, "TERM");
            return Err(interrupted);
        }
    };
    if !status.success() {
        bail!("{} failed: {status}", render(command));
    }
    Ok(())
}

/// Runs one named step under a heading and prints how long it took.
pub fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("\n==> {name}");
    let started = now();
    let result = work();
    let seconds = started.elapsed().as_secs_f32();
    let verdict = if result.is_ok() { "passed" } else { "FAILED" };
    println!("<== {name} {verdict} in {seconds:.1} s");
    result
}

/// Asks a child to end, waits for a bounded time, then kills it.
///
/// The child is ours and not yet reaped, so its process id cannot belong to anyone else.
pub fn stop(child: &mut Child, signal: &str) {
    // The shell's builtin: a minimal system has no `kill` program.
    let asked = Command::new("sh")
        .args([
            "-c",
            "kill -s \"$1\" \"$2\"",
            "sh",
            signal,
            &child.id().to_string(),
        ])
        .status();
    if asked.is_ok_and(|status| status.success()) {
        let deadline = now() + STOP_PATIENCE;
        while now() < deadline {
            if let Ok(Some(_)) = child.try_wait() {
                return;
            }
            block_for(POLL);
        }
    }
    // Both fail only if the child has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The steps that receive the signals.
static LISTENERS: Mutex<Vec<Sender<()>>> = Mutex::new(Vec::new());

fn listeners() -> MutexGuard<'static, Vec<Sender<()>>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives Ctrl-C and termination signals, which then do not end the process.
pub struct Interrupt {
    requests: Receiver<()>,
    /// Keeps the channel open, so that `pause` always waits.
    _sender: Sender<()>,
}

impl Interrupt {
    /// Takes the signals over for the rest of the process.
    pub fn listen() -> Result<Self> {
        let (sender, requests) = channel();
        let mut listeners = listeners();
        // There is one handler for a process, and one listener for each of its steps.
        if listeners.is_empty() {
            ctrlc::set_handler(|| {
                for listener in self::listeners().iter() {
                    // The step may have ended.
                    let _ = listener.send(());
                }
            })
            .context("cannot listen for Ctrl-C")?;
        }
        listeners.push(sender.clone());
        Ok(Self {
            requests,
            _sender: sender,
        })
    }

    /// An interrupt that never comes, for tests.
    #[doc(hidden)]
    pub fn never() -> Self {
        let (sender, requests) = channel();
        Self {
            requests,
            _sender: sender,
        }
    }

    #[cfg(test)]
    fn requested() -> Self {
        let (sender, requests) = channel();
        sender.send(()).unwrap();
        Self {
            requests,
            _sender: sender,
        }
    }

    /// Waits for a duration. Fails at once on Ctrl-C or a termination signal.
    pub fn pause(&self, duration: Duration) -> Result<()> {
        if self.requests.recv_timeout(duration).is_ok() {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}

/// The user asked to stop. Callers must not handle this like an ordinary failure.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

#[expect(
    clippy::disallowed_methods,
    reason = "times build steps and bounds waits, no lease"
)]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "another process's end has no event to wait for"
)]
pub fn block_for(duration: Duration) {
    std::thread::sleep(duration);
}

fn render(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        // Writing to a String cannot fail.
        let _ = write!(text, " {}", argument.to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error() {
        assert!(run(&mut Command::new("true")).is_ok());
        assert!(run(&mut Command::new("false")).is_err());
        let interrupt = Interrupt::never();
        assert!(run_interruptible(&mut Command::new("true"), &interrupt).is_ok());
        assert!(run_interruptible(&mut Command::new("false"), &interrupt).is_err());
    }

    #[test]
    fn an_interrupt_ends_the_command() {
        let result = run_interruptible(Command::new("sleep").arg("60"), &Interrupt::requested());
        assert_eq!(result.unwrap_err().to_string(), "interrupted");
    }
}
