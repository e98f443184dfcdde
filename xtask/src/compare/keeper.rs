//! A process that is started again when it dies, until it is let go. The probes kill it by shell
//! commands that this module gives out; they speak to the keeper by files in its directory.

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

/// The process's number, while it runs.
const PID: &str = "pid";
/// Is there while it answers.
const READY: &str = "ready";
/// Somebody wants it down: it is not started again while this is there.
const HOLD: &str = "hold";
const LOG: &str = "log";

/// How long a start may take. Restate's server and a recovering Postgres need some seconds.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// How often it may end before it ever answered. A port may have been taken in between. One that
/// did answer once is started again for as long as it takes: its store may be down.
const MAX_FALSE_STARTS: u32 = 3;
/// Between two starts of which the first was false.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// How long a shell command waits for a file, in tenths of a second.
const SHELL_PATIENCE: u32 = 600;
const LOG_LINES_SHOWN: usize = 12;

/// What is kept running.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) command: Command,
    /// The signal that ends it in an orderly way, when all is over.
    pub(super) stop_signal: &'static str,
    /// Whether it answers yet.
    pub(super) answers: Box<dyn Fn() -> bool + Send>,
}

/// Dropping it stops the process.
pub(super) struct Kept {
    name: &'static str,
    place: PathBuf,
    let_go: Arc<AtomicBool>,
    false_starts: Arc<AtomicU32>,
    keeper: Option<JoinHandle<()>>,
}

impl Kept {
    /// Starts it, and waits until it answers.
    pub(super) fn start(program: Program, place: PathBuf, interrupt: &Interrupt) -> Result<Self> {
        fs::create_dir_all(&place)?;
        let let_go = Arc::new(AtomicBool::new(false));
        let false_starts = Arc::new(AtomicU32::new(0));
        let kept = Self {
            name: program.name,
            place: place.clone(),
            let_go: Arc::clone(&let_go),
            false_starts: Arc::clone(&false_starts),
            keeper: Some(thread::spawn(move || {
                keep(program, &place, &let_go, &false_starts);
            })),
        };
        let deadline = process::now() + START_PATIENCE;
        while !kept.is_ready() {
            if kept.false_starts.load(Ordering::Relaxed) >= MAX_FALSE_STARTS {
                bail!(
                    "{} ends when it is started: {}",
                    kept.name,
                    kept.last_words()
                );
            }
            if process::now() > deadline {
                bail!(
                    "{} does not answer in {START_PATIENCE:?}: {}",
                    kept.name,
                    kept.last_words(),
                );
            }
            interrupt.pause(POLL)?;
        }
        Ok(kept)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.place.join(READY).exists()
    }

    /// The process that runs now.
    pub(super) fn pid(&self) -> Option<u32> {
        let text = fs::read_to_string(self.place.join(PID)).ok()?;
        text.trim().parse().ok()
    }

    /// Kills it, and waits until it is there again.
    pub(super) fn crash_command(&self) -> String {
        format!(
            "cd {} && rm -f {READY}; kill -KILL $(cat {PID}); {}",
            quoted(&self.place),
            until(&format!("-e {READY}")),
        )
    }

    /// Ends it by the signal, and keeps it down.
    pub(super) fn break_command(&self, signal: &str) -> String {
        format!(
            "cd {} && touch {HOLD}; rm -f {READY}; kill -{signal} $(cat {PID}); {}",
            quoted(&self.place),
            until(&format!("! -e {PID}")),
        )
    }

    /// Starts it again, and waits until it answers.
    pub(super) fn heal_command(&self) -> String {
        format!(
            "cd {} && rm -f {HOLD}; {}",
            quoted(&self.place),
            until(&format!("-e {READY}")),
        )
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = fs::read(self.place.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join(" | ")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.let_go.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // It would only have panicked, and that was shown.
            let _ = keeper.join();
        }
    }
}

/// What a shell waits with, for a bounded time.
pub(super) fn until(condition: &str) -> String {
    format!(
        "i=0; while ! [ {condition} ] && [ $i -lt {SHELL_PATIENCE} ]; do sleep 0.1; i=$((i+1)); done"
    )
}

pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn keep(mut program: Program, place: &Path, let_go: &AtomicBool, false_starts: &AtomicU32) {
    let mut answered_once = false;
    while !let_go.load(Ordering::Relaxed) {
        if place.join(HOLD).exists() || false_starts.load(Ordering::Relaxed) >= MAX_FALSE_STARTS {
            process::nap(POLL);
            continue;
        }
        let answered = match spawn(&mut program.command, place) {
            Ok(child) => watch(child, &program, place, let_go),
            Err(error) => {
                let _ = fs::write(place.join(LOG), format!("{error:#}"));
                false
            }
        };
        for file in [READY, PID] {
            // It may be gone: whoever killed the process removes the first.
            let _ = fs::remove_file(place.join(file));
        }
        answered_once |= answered;
        if !answered_once {
            false_starts.fetch_add(1, Ordering::Relaxed);
        }
        if !answered {
            process::nap(RESTART_PAUSE);
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
        // A Ctrl-C at the terminal reaches our own group only, and we stop it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    fs::write(place.join(PID), child.id().to_string())?;
    Ok(child)
}

/// Until it dies, or is let go and stopped. Whether it ever answered.
fn watch(mut child: Child, program: &Program, place: &Path, let_go: &AtomicBool) -> bool {
    let mut answered = false;
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return answered;
        }
        if let_go.load(Ordering::Relaxed) {
            process::stop(&mut child, program.stop_signal);
            return answered;
        }
        if !answered && (program.answers)() {
            answered = true;
            let _ = fs::write(place.join(READY), "");
        }
        process::nap(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) {
        let status = Command::new("sh").args(["-c", line]).status().unwrap();
        assert!(status.success());
    }

    fn sleeper(place: &Path) -> Kept {
        let mut command = Command::new("sleep");
        command.arg("600");
        let program = Program {
            name: "sleep",
            command,
            stop_signal: "TERM",
            answers: Box::new(|| true),
        };
        Kept::start(program, place.to_path_buf(), &Interrupt::never()).unwrap()
    }

    #[test]
    fn what_is_killed_comes_back_as_another_process_and_goes_when_it_is_let_go() {
        let place = tempfile::tempdir().unwrap();
        let pid = || fs::read_to_string(place.path().join(PID)).unwrap_or_default();
        let kept = sleeper(place.path());
        let first = pid();
        shell(&kept.crash_command());
        let second = pid();
        assert!(kept.is_ready() && first != second);
        drop(kept);
        assert!(!Path::new("/proc").join(second).exists());
    }

    #[test]
    fn what_is_broken_stays_down_until_it_is_healed() {
        let place = tempfile::tempdir().unwrap();
        let kept = sleeper(place.path());
        shell(&kept.break_command("KILL"));
        assert!(!kept.is_ready() && !place.path().join(PID).exists());
        shell(&kept.heal_command());
        assert!(kept.is_ready());
    }

    #[test]
    fn what_cannot_start_is_given_up_with_its_last_words() {
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
        let error = Kept::start(program, place, &Interrupt::never())
            .err()
            .unwrap();
        assert!(error.to_string().contains("no database"), "{error}");
    }
}
