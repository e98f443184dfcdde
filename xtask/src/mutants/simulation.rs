//! The same mutants in simulated worlds: of those that it can see, the simulation has to break a
//! promise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::VARIABLE;
use super::list::Mutant;
use crate::process::{Interrupt, Interrupted, run_interruptible};

/// Every mutant that is said to be seen is seen within these; a debug build runs them in seconds.
const SEEDS: &str = "400";

/// The simulation of the copy, which is built with its tests.
pub(super) struct Simulation<'a> {
    place: &'a Path,
    program: PathBuf,
    interrupt: &'a Interrupt,
}

/// What the simulation found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    seeds: u64,
    /// Which promises were broken, in the order of their names.
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

    /// Runs the worlds, with a mutant alive or none.
    pub(super) fn run(&self, mutant: Option<&Mutant>) -> Result<Found> {
        let whose = mutant.map_or("none", |mutant| mutant.name.as_str());
        let result = self.place.join(format!("simulation.{whose}.json"));
        // One from an earlier run would be taken for this one's.
        if result.exists() {
            fs::remove_file(&result)?;
        }
        let words = fs::File::create(self.place.join(format!("simulation.{whose}.txt")))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--seeds", SEEDS, "--json"])
            .arg(&result)
            .env_remove(VARIABLE)
            .envs(mutant.map(|mutant| (VARIABLE, &mutant.name)))
            .stdout(words.try_clone()?)
            .stderr(words);
        let ended = run_interruptible(&mut command, self.interrupt);
        if let Err(error) = ended
            && error.is::<Interrupted>()
        {
            return Err(error);
        }
        // One that found something fails, and so does one that could not be run: only the first
        // leaves a result.
        let text = fs::read_to_string(&result)
            .with_context(|| format!("the simulation with {whose} left no result"))?;
        Found::read(&serde_json::from_str(&text)?)
    }
}

impl Found {
    fn read(result: &Value) -> Result<Self> {
        let (Some(seeds), Some(counts)) =
            (result["seeds"].as_u64(), result["violations"].as_object())
        else {
            bail!("the simulation's result does not say what it found");
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

    /// Whether one of the promises was broken that this mutant is said to break.
    pub(super) fn is_caught(&self, mutant: &Mutant) -> bool {
        let said = &mutant.simulation;
        self.broken.iter().any(|name| said.contains(name))
    }

    pub(super) fn words(&self) -> String {
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
    fn only_a_promise_that_is_named_is_a_catch() {
        let found = |duplicates: u64, stuck: u64| {
            let violations = json!({ "duplicate_effects": duplicates, "stuck_keys": stuck });
            Found::read(&json!({ "seeds": 5, "violations": violations })).unwrap()
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
        assert_eq!(found(2, 1).words(), "duplicate_effects, stuck_keys");
        let both = json!({ "broken": ["duplicate_effects", "stuck_keys"], "seeds": 5 });
        assert_eq!(found(2, 1).to_json(), both);
        assert!(Found::read(&json!({})).is_err());
    }
}
