//! Runs one test, with one active mutant or none, in a bounded time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::VARIABLE;
use super::list::TestName;
use crate::process::{self, Interrupt};

/// The prefix of the line that a skipped test prints.
const SKIPPED: &str = "SKIPPED";

pub(super) struct Trial<'a> {
    pub(super) binary: &'a Path,
    /// The directory in which cargo would run it.
    pub(super) directory: PathBuf,
    pub(super) test: &'a TestName,
    pub(super) mutant: Option<&'a str>,
    pub(super) environment: &'a [(String, String)],
    /// The file for its output.
    pub(super) output: PathBuf,
    pub(super) patience: Duration,
}

/// How a trial ended.
#[derive(Debug)]
pub(super) struct EndedTrial {
    /// `None` where it did not end in time.
    success: Option<bool>,
    /// Its standard output and error.
    pub(super) output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    Failed,
    Hung,
}

impl Trial<'_> {
    pub(super) fn run(&self, interrupt: &Interrupt) -> Result<EndedTrial> {
        let output = File::create(&self.output)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
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
            .stdout(output.try_clone()?)
            .stderr(output);
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
        let output = fs::read(&self.output)?;
        Ok(EndedTrial {
            success,
            output: String::from_utf8_lossy(&output).into_owned(),
        })
    }
}

impl EndedTrial {
    /// The verdict. An error where the test did not run or skipped itself.
    pub(super) fn verdict(&self) -> Result<Verdict> {
        let ran = self.output.lines().any(|line| line == "running 1 test");
        if !ran {
            bail!("no test of that name ran; its output:\n{}", self.output);
        }
        match self.success {
            None => Ok(Verdict::Hung),
            Some(false) => Ok(Verdict::Failed),
            Some(true) if self.output.contains(SKIPPED) => {
                bail!("the test skipped itself; its output:\n{}", self.output)
            }
            Some(true) if self.output.contains("test result: ok. 1 passed") => Ok(Verdict::Passed),
            Some(true) => bail!("no test passed or failed; its output:\n{}", self.output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(success: Option<bool>, output: &str) -> Result<Verdict> {
        let output = output.to_owned();
        EndedTrial { success, output }.verdict()
    }

    #[test]
    fn only_a_test_that_ran_has_a_verdict() {
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
        assert!(error.starts_with("the test skipped itself"));
    }

    fn shell(script: &str, patience: Duration) -> EndedTrial {
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
            output: place.path().join("output"),
            patience,
        };
        trial.run(&Interrupt::never()).unwrap()
    }

    #[test]
    fn a_trial_gets_its_mutant_and_its_output_is_read() {
        let ended = shell("echo $SEMEL_MUTANT $*; exit 1", Duration::from_mins(1));
        assert_eq!(ended.success, Some(false));
        assert_eq!(
            ended.output,
            "a-guard b --exact --nocapture --test-threads=1\n"
        );
    }

    #[test]
    fn a_trial_that_hangs_is_killed() {
        let ended = shell(
            "echo running 1 test; exec sleep 600",
            Duration::from_millis(500),
        );
        assert_eq!(ended.verdict().unwrap(), Verdict::Hung);
    }
}
