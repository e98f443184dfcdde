//! Restarts a process when it dies, until it is dropped. The probes kill it with shell commands from
//! this module, which communicate with the supervisor through files in its directory.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Interrupt, POLL};

/// Holds the process id while it runs.
const PID: &str = "pid";
/// Exists while the process answers.
const READY: &str = "ready";
/// While this file exists, the process is not started again.
const HOLD: &str = "hold";
const LOG: &str = "log";

/// How long a start may take. Restate's server and a recovering Postgres need some seconds.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// How often it may end before its first answer: another process may have taken its port. A process
/// that answered once is restarted without a limit, since its store may be down.
const MAX_FALSE_STARTS: u32 = 3;
/// The pause after a failed start.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How long a shell command waits for a file, in tenths of a second.
const SHELL_PATIENCE: u32 = 600;
const LOG_LINES_SHOWN: usize = 12;

/// The program to supervise.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) command: Command,
    /// The signal that stops it cleanly.
    pub(super) stop_signal: &'static str,
    /// Whether it answers yet.
    pub(super) answers: Box<dyn Fn() -> bool + Send>,
}

/// A supervised process. Dropping it stops the process.
pub(super) struct SupervisedProcess {
    name: &'static str,
    place: PathBuf,
    stopping: Arc<AtomicBool>,
    false_starts: Arc<AtomicU32>,
    supervisor: Option<JoinHandle<()>>,
}

impl SupervisedProcess {
    /// Starts it, and waits until it answers.
    pub(super) fn start(program: Program, place: PathBuf, interrupt: &Interrupt) -> Result<Self> {
        fs::create_dir_all(&place)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let false_starts = Arc::new(AtomicU32::new(0));
        let process = Self {
            name: program.name,
            place: place.clone(),
            stopping: Arc::clone(&stopping),
            false_starts: Arc::clone(&false_starts),
            supervisor: Some(thread::spawn(move || {
                supervise(program, &place, &stopping, &false_starts);
            })),
        };
        let deadline = process::now() + START_PATIENCE;
        while !process.is_ready() {
            if process.false_starts.load(Ordering::Relaxed) >= MAX_FALSE_STARTS {
                bail!(
                    "{} ends when it is started: {}",
                    process.name,
                    process.log_tail()
                );
            }
            if process::now() > deadline {
                bail!(
                    "{} does not answer in {START_PATIENCE:?}: {}",
                    process.name,
                    process.log_tail(),
                );
            }
            interrupt.pause(POLL)?;
        }
        Ok(process)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.place.join(READY).exists()
    }

    /// The process that runs now.
    pub(super) fn pid(&self) -> Option<u32> {
        let text = fs::read_to_string(self.place.join(PID)).ok()?;
        text.trim().parse().ok()
    }

    /// The command that kills it, and waits until it answers again.
    pub(super) fn crash_command(&self) -> String {
        format!(
            "cd {} && rm -f {READY}; kill -KILL $(cat {PID}); {}",
            quoted(&self.place),
            until(&format!("-e {READY}")),
        )
    }

    /// The command that ends it with a signal, and keeps it down.
    pub(super) fn break_command(&self, signal: &str) -> String {
        format!(
            "cd {} && touch {HOLD}; rm -f {READY}; kill -{signal} $(cat {PID}); {}",
            quoted(&self.place),
            until(&format!("! -e {PID}")),
        )
    }

    /// The command that starts it again, and waits until it answers.
    pub(super) fn heal_command(&self) -> String {
        format!(
            "cd {} && rm -f {HOLD}; {}",
            quoted(&self.place),
            until(&format!("-e {READY}")),
        )
    }

    /// The end of its log.
    pub(super) fn log_tail(&self) -> String {
        let text = fs::read(self.place.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join(" | ")
    }
}

impl Drop for SupervisedProcess {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(supervisor) = self.supervisor.take() {
            // A panic of the thread was printed already.
            let _ = supervisor.join();
        }
    }
}

/// A shell loop that waits for a condition, for a bounded time.
pub(super) fn until(condition: &str) -> String {
    format!(
        "i=0; while ! [ {condition} ] && [ $i -lt {SHELL_PATIENCE} ]; do sleep 0.1; i=$((i+1)); done"
    )
}

pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn supervise(mut program: Program, place: &Path, stopping: &AtomicBool, false_starts: &AtomicU32) {
    let mut answered_once = false;
    while !stopping.load(Ordering::Relaxed) {
        if place.join(HOLD).exists() || false_starts.load(Ordering::Relaxed) >= MAX_FALSE_STARTS {
            process::block_for(POLL);
            continue;
        }
        let answered = match spawn(&mut program.command, place) {
            Ok(child) => watch(child, &program, place, stopping),
            Err(error) => {
                let _ = fs::write(place.join(LOG), format!("{error:#}"));
                false
            }
        };
        for file in [READY, PID] {
            // The crash command may have removed `ready` already.
            let _ = fs::remove_file(place.join(file));
        }
        answered_once |= answered;
        if !answered_once {
            false_starts.fetch_add(1, Ordering::Relaxed);
        }
        if !answered {
            process::block_for(RESTART_PAUSE);
        }
    }
}

fn spawn(command: &mut Command, place: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(place.join(LOG))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A process group of its own, so that Ctrl-C at the terminal does not reach it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    fs::write(place.join(PID), child.id().to_string())?;
    Ok(child)
}

/// Waits until the process ends, or stops it. Returns whether it ever answered.
fn watch(mut child: Child, program: &Program, place: &Path, stopping: &AtomicBool) -> bool {
    let mut answered = false;
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return answered;
        }
        if stopping.load(Ordering::Relaxed) {
            process::stop(&mut child, program.stop_signal);
            return answered;
        }
        if !answered && (program.answers)() {
            answered = true;
            let _ = fs::write(place.join(READY), "");
        }
        process::block_for(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) {
        let status = Command::new("sh").args(["-c", line]).status().unwrap();
        assert!(status.success());
    }

    fn sleeper(place: &Path) -> SupervisedProcess {
        let mut command = Command::new("sleep");
        command.arg("600");
        let program = Program {
            name: "sleep",
            command,
            stop_signal: "TERM",
            answers: Box::new(|| true),
        };
        SupervisedProcess::start(program, place.to_path_buf(), &Interrupt::never()).unwrap()
    }

    #[test]
    fn a_killed_process_is_restarted_and_stopped_on_drop() {
        let place = tempfile::tempdir().unwrap();
        let pid = || fs::read_to_string(place.path().join(PID)).unwrap_or_default();
        let process = sleeper(place.path());
        let first = pid();
        shell(&process.crash_command());
        let second = pid();
        assert!(process.is_ready() && first != second);
        drop(process);
        assert!(!Path::new("/proc").join(second).exists());
    }

    #[test]
    fn a_broken_process_stays_down_until_it_is_healed() {
        let place = tempfile::tempdir().unwrap();
        let process = sleeper(place.path());
        shell(&process.break_command("KILL"));
        assert!(!process.is_ready() && !place.path().join(PID).exists());
        shell(&process.heal_command());
        assert!(process.is_ready());
    }

    #[test]
    fn a_process_that_cannot_start_is_an_error_with_the_end_of_its_log() {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no database; exit 1"]);
        let program = Program {
            name: "app",
            command,
            stop_signal: "TERM",
            answers: Box::new(|| false),
        };
        let place = place.path().to_path_buf();
        let error = SupervisedProcess::start(program, place, &Interrupt::never())
            .err()
            .unwrap();
        assert!(error.to_string().contains("no database"), "{error}");
    }
}
