//! Runs the simulation with the mutants that it can detect: an invariant must be broken.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::VARIABLE;
use super::list::Mutant;
use crate::process::{Interrupt, Interrupted, run_interruptible};

/// Every mutant that the simulation should detect is detected within these; a debug build runs them
/// in seconds.
const SEEDS: &str = "400";

/// The simulation of the copy, which is built with its tests.
pub(super) struct Simulation<'a> {
    place: &'a Path,
    program: PathBuf,
    interrupt: &'a Interrupt,
}

/// The findings of the simulation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Findings {
    seeds: u64,
    /// The broken invariants, in the order of their names.
    broken: Vec<String>,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(target: &Path, place: &'a Path, interrupt: &'a Interrupt) -> Self {
        Self {
            place,
            program: target.join("debug").join("semel-simulation"),
            interrupt,
        }
    }

    /// Runs the seeds, with an active mutant or none.
    pub(super) fn run(&self, mutant: Option<&Mutant>) -> Result<Findings> {
        let whose = mutant.map_or("none", |mutant| mutant.name.as_str());
        let result = self.place.join(format!("simulation.{whose}.json"));
        // A result of an earlier run must not be read as the result of this one.
        if result.exists() {
            fs::remove_file(&result)?;
        }
        let output = fs::File::create(self.place.join(format!("simulation.{whose}.txt")))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--seeds", SEEDS, "--json"])
            .arg(&result)
            .env_remove(VARIABLE)
            .envs(mutant.map(|mutant| (VARIABLE, &mutant.name)))
            .stdout(output.try_clone()?)
            .stderr(output);
        let ended = run_interruptible(&mut command, self.interrupt);
        if let Err(error) = ended
            && error.is::<Interrupted>()
        {
            return Err(error);
        }
        // A run with violations fails as well as one that could not start, but only the first writes a
        // result.
        let text = fs::read_to_string(&result)
            .with_context(|| format!("the simulation with {whose} left no result"))?;
        Findings::read(&serde_json::from_str(&text)?)
    }
}

impl Findings {
    fn read(result: &Value) -> Result<Self> {
        let (Some(seeds), Some(counts)) =
            (result["seeds"].as_u64(), result["violations"].as_object())
        else {
            bail!("the simulation's result has no `seeds` or `violations`");
        };
        let broken = counts.iter().filter(|(_, count)| **count != 0);
        Ok(Self {
            seeds,
            broken: broken.map(|(name, _)| name.clone()).collect(),
        })
    }

    pub(super) fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }

    /// Whether one of the invariants that the list names for this mutant was broken.
    pub(super) fn is_caught(&self, mutant: &Mutant) -> bool {
        let expected = &mutant.simulation;
        self.broken.iter().any(|name| expected.contains(name))
    }

    pub(super) fn summary(&self) -> String {
        if self.broken.is_empty() {
            return "nothing was violated".to_owned();
        }
        self.broken.join(", ")
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "broken": self.broken, "seeds": self.seeds })
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::parse;
    use super::*;

    #[test]
    fn only_a_listed_invariant_is_a_catch() {
        let found = |duplicates: u64, stuck: u64| {
            let violations = json!({ "duplicate_effects": duplicates, "stuck_keys": stuck });
            Findings::read(&json!({ "seeds": 5, "violations": violations })).unwrap()
        };
        let text = r#"
            [[mutant]]
            name = "a"
            guard = ""
            why = ""
            caught_by = ["a/lib/b"]
            says = ["b"]
            simulation = ["duplicate_effects", "fence_ignored"]
            edit = []
        "#;
        let mutant = &parse(text).unwrap()[0];
        assert!(found(1, 0).is_caught(mutant));
        assert!(!found(0, 1).is_caught(mutant));
        assert!(found(0, 0).is_clean() && !found(0, 1).is_clean());
        assert_eq!(found(2, 1).summary(), "duplicate_effects, stuck_keys");
        let both = json!({ "broken": ["duplicate_effects", "stuck_keys"], "seeds": 5 });
        assert_eq!(found(2, 1).to_json(), both);
        assert!(Findings::read(&json!({})).is_err());
    }
}
