//! Runs the fault campaign with the mutants that it can detect.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::VARIABLE;
use super::list::Mutant;
use crate::process::{Interrupt, Interrupted, cargo, run_interruptible};

/// A fixed seed, so that two runs differ only in the mutant.
const SEED: &str = "1";

/// The programs of the copy, built beside the tests.
pub(super) struct Campaign<'a> {
    place: &'a Path,
    programs: PathBuf,
    interrupt: &'a Interrupt,
}

/// The findings of a campaign.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) passed: bool,
    /// The violated rules, and how often.
    pub(super) violations: Vec<(String, u64)>,
}

impl<'a> Campaign<'a> {
    /// Builds the programs of `tree`.
    pub(super) fn build(
        tree: &Path,
        target: &Path,
        place: &'a Path,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let mut command = cargo(tree);
        command
            .args(["build", "--locked"])
            .args(["--package", "semel-cli", "--package", "payments"])
            .args(["--package", "semel-campaign", "--bins"])
            .args(["--features", "semel-cli/dist,payments/shop"])
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_INCREMENTAL", "0")
            .env_remove(VARIABLE);
        run_interruptible(&mut command, interrupt)?;
        Ok(Self {
            place,
            programs: target.join("debug"),
            interrupt,
        })
    }

    /// Runs the phases that should detect this mutant, with it or without any.
    pub(super) fn run(&self, mutant: &Mutant, alive: bool) -> Result<Findings> {
        let whose = if alive { mutant.name.as_str() } else { "none" };
        let result = self
            .place
            .join(format!("campaign.{}.{whose}.json", mutant.name));
        // A result of an earlier run must not be read as the result of this one.
        if result.exists() {
            fs::remove_file(&result)?;
        }
        let mut command = Command::new(self.programs.join("semel-campaign"));
        command
            .arg("--semel")
            .arg(self.programs.join("semel"))
            .arg("--payments")
            .arg(self.programs.join("payments"))
            .arg("--json")
            .arg(&result)
            .args(["--short", "--allow-skips", "--seed", SEED])
            .args(["--phases", &mutant.campaign.join(",")])
            .env_remove(VARIABLE)
            .envs(alive.then_some((VARIABLE, whose)));
        let ended = run_interruptible(&mut command, self.interrupt);
        if let Err(error) = ended
            && error.is::<Interrupted>()
        {
            return Err(error);
        }
        // A campaign with violations fails as well as one that could not start, but only the first
        // writes a result.
        let text = fs::read_to_string(&result)
            .with_context(|| format!("the campaign with {whose} left no result"))?;
        Findings::read(&serde_json::from_str(&text)?)
    }
}

impl Findings {
    fn read(result: &Value) -> Result<Self> {
        let (Some(passed), Some(counts)) =
            (result["passed"].as_bool(), result["violations"].as_object())
        else {
            bail!("the campaign's result has no `passed` or `violations`");
        };
        let violations = counts
            .iter()
            .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Ok(Self { passed, violations })
    }

    /// Only a violation is a catch: a campaign may also fail because too little happened.
    pub(super) fn is_caught(&self) -> bool {
        !self.passed && !self.violations.is_empty()
    }

    pub(super) fn summary(&self) -> String {
        if self.violations.is_empty() {
            return "nothing was violated".to_owned();
        }
        let counts: Vec<String> = self
            .violations
            .iter()
            .map(|(name, count)| format!("{name}: {count}"))
            .collect();
        counts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_violation_is_a_catch() {
        let found = |passed: bool, duplicates: u64| {
            let violations = json!({ "duplicate_effects": duplicates, "stuck_keys": 0 });
            Findings::read(&json!({ "passed": passed, "violations": violations })).unwrap()
        };
        assert!(found(false, 2).is_caught());
        assert_eq!(found(false, 2).summary(), "duplicate_effects: 2");
        assert!(!found(false, 0).is_caught(), "too few operations, perhaps");
        assert!(!found(true, 0).is_caught());
        assert!(Findings::read(&json!({})).is_err());
    }
}
