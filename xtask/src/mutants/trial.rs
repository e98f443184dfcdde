//! One test, with one mutant alive or none, and never for longer than it may take.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::VARIABLE;
use super::list::TestName;
use crate::process::{self, Interrupt};

/// What a test prints that could not do its work here.
const SKIPPED: &str = "SKIPPED";

pub(super) struct Trial<'a> {
    pub(super) binary: &'a Path,
    /// Where cargo would have run it.
    pub(super) directory: PathBuf,
    pub(super) test: &'a TestName,
    pub(super) mutant: Option<&'a str>,
    pub(super) environment: &'a [(String, String)],
    /// Where its words are kept.
    pub(super) words: PathBuf,
    pub(super) patience: Duration,
}

/// How a trial ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None` where it did not.
    success: Option<bool>,
    /// All that it printed.
    pub(super) words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    Hung,
}

impl Trial<'_> {
    pub(super) fn run(&self, interrupt: &Interrupt) -> Result<Ended> {
        let words = File::create(&self.words)
            .with_context(|| format!("cannot write {}", self.words.display()))?;
        let mut command = Command::new(self.binary);
        command
            .args([
                &self.test.name,
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .env_remove("RUST_BACKTRACE")
            .env_remove(VARIABLE)
            .envs(self.mutant.map(|name| (VARIABLE, name)))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(words.try_clone()?)
            .stderr(words);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        let deadline = process::now() + self.patience;
        let success = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status.success());
            }
            if process::now() > deadline {
                process::stop(&mut child, "KILL");
                break None;
            }
            if let Err(interrupted) = interrupt.pause(process::POLL) {
                process::stop(&mut child, "KILL");
                return Err(interrupted);
            }
        };
        let words = fs::read(&self.words)?;
        Ok(Ended {
            success,
            words: String::from_utf8_lossy(&words).into_owned(),
        })
    }
}

impl Ended {
    /// What this says of the mutant. A test that did not run, or not here, says nothing at all.
    pub(super) fn verdict(&self) -> Result<Verdict> {
        let ran = self.words.lines().any(|line| line == "running 1 test");
        if !ran {
            bail!("no test of that name ran; it said:\n{}", self.words);
        }
        match self.success {
            None => Ok(Verdict::Hung),
            Some(false) => Ok(Verdict::Failed),
            Some(true) if self.words.contains(SKIPPED) => {
                bail!("the test left itself out; it said:\n{}", self.words)
            }
            Some(true) if self.words.contains("test result: ok. 1 passed") => Ok(Verdict::Passed),
            Some(true) => bail!("no test passed or failed; it said:\n{}", self.words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(success: Option<bool>, words: &str) -> Result<Verdict> {
        let words = words.to_owned();
        Ended { success, words }.verdict()
    }

    #[test]
    fn only_a_test_that_ran_says_anything() {
        let passed = "\nrunning 1 test\nok\n\ntest result: ok. 1 passed; 0 failed;";
        assert_eq!(ended(Some(true), passed).unwrap(), Verdict::Passed);
        assert_eq!(ended(None, passed).unwrap(), Verdict::Hung);
        let failed = "\nrunning 1 test\nthread 'a' panicked";
        assert_eq!(ended(Some(false), failed).unwrap(), Verdict::Failed);

        let none = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed;";
        let error = ended(Some(true), none).unwrap_err().to_string();
        assert!(error.starts_with("no test of that name ran"));
        // The loader, or an unknown argument.
        assert!(ended(Some(false), "cannot open shared object").is_err());
        let ignored = "running 1 test\ntest a ... ignored\ntest result: ok. 0 passed;";
        assert!(ended(Some(true), ignored).is_err());
        let skipped = passed.replace("ok\n\n", "SKIPPED: no Redis\n");
        let error = ended(Some(true), &skipped).unwrap_err().to_string();
        assert!(error.starts_with("the test left itself out"));
    }

    fn shell(script: &str, patience: Duration) -> Ended {
        let place = tempfile::tempdir().unwrap();
        let binary = place.path().join("test");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&binary, mode).unwrap();
        let trial = Trial {
            binary: &binary,
            directory: place.path().to_path_buf(),
            test: &TestName::try_from("a/lib/b".to_owned()).unwrap(),
            mutant: Some("a-guard"),
            environment: &[],
            words: place.path().join("words"),
            patience,
        };
        trial.run(&Interrupt::never()).unwrap()
    }

    #[test]
    fn a_trial_is_told_its_mutant_and_is_heard() {
        let ended = shell("echo $SEMEL_MUTANT $*; exit 1", Duration::from_mins(1));
        assert_eq!(ended.success, Some(false));
        assert_eq!(
            ended.words,
            "a-guard b --exact --nocapture --test-threads=1\n"
        );
    }

    #[test]
    fn a_trial_without_end_is_ended() {
        let ended = shell(
            "echo running 1 test; exec sleep 600",
            Duration::from_millis(500),
        );
        assert_eq!(ended.verdict().unwrap(), Verdict::Hung);
    }
}
