//! `cargo xtask mutants`: removes one guard at a time, and checks that a test fails.
//!
//! A passing test suite proves something only if it fails for a broken system. Every mutant is a
//! change to a *copy* of the tree that has no effect unless an environment variable names it. So all
//! of them are built at once, and the released tree contains none.

mod build;
mod campaign;
mod failure_message;
mod list;
mod simulation;
mod source;
mod tree;
mod trial;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::evidence;
use crate::process::{Interrupt, now};
use crate::servers::{self, Server};
use build::Binaries;
use campaign::Campaign;
use list::{Mutant, TestName};
use simulation::Simulation;
use trial::{EndedTrial, Trial};

/// The working directory, below the workspace's root.
const PLACE: &str = "target/mutants";
/// The variable that selects the active mutant.
const VARIABLE: &str = "SEMEL_MUTANT";

/// One mutant and its result.
struct TestedMutant<'a> {
    mutant: &'a Mutant,
    caught: bool,
    message: String,
    seconds: f32,
    /// The findings of the simulation, where it was run.
    simulation: Option<simulation::Findings>,
    /// The findings of the campaign, where it was run.
    campaign: Option<campaign::Findings>,
}

/// Builds the mutants and checks that each is caught: by its tests, by the simulation where that can
/// detect it, and, on request, by the campaign.
pub(crate) fn run_all(
    root: &Path,
    may_install: bool,
    with_campaign: bool,
    names: &[String],
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let began = evidence::began(root, &command_line(with_campaign, names))?;
    let all = list::read(&root.join(list::PLACE))?;
    let chosen = list::choose(&all, names)?;

    let place = root.join(PLACE);
    let tree = place.join("tree");
    // All of them, even if only some are requested: another selection then needs no other build.
    let changed = tree::copy(root, &tree, &source::mutated(root, &all)?)?;
    println!(
        "{} mutants in {}, {changed} file(s) written anew",
        all.len(),
        tree.display()
    );
    let tests: BTreeSet<&TestName> = all.iter().flat_map(|mutant| &mutant.caught_by).collect();
    let binaries = build::build(&tree, &place.join("build"), &tests, &interrupt)?;

    let needed: Vec<Server> = list::needs(&chosen)?;
    let servers = servers::start(&needed, may_install, &interrupt)?;
    let environment: Vec<(String, String)> = servers
        .environment()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();

    let runs = Runs {
        root,
        tree: &tree,
        output: place.join("output"),
        binaries: &binaries,
        environment: &environment,
        interrupt: &interrupt,
    };
    runs.baseline(&chosen)?;
    let mut tested = Vec::new();
    for mutant in &chosen {
        let one = runs.test_mutant(mutant)?;
        println!(
            "{:<9} {:<28} {:>6.1} s  {}",
            if one.caught { "caught" } else { "SURVIVED" },
            mutant.name,
            one.seconds,
            one.message
        );
        tested.push(one);
    }
    let simulation = Simulation::new(&place.join("build"), &place, &interrupt);
    run_simulation(&simulation, &mut tested)?;
    if with_campaign {
        let campaign = Campaign::build(&tree, &place.join("build"), &place, &interrupt)?;
        run_campaign(&campaign, &mut tested)?;
    }

    let survivors: Vec<&str> = tested
        .iter()
        .filter(|one| !one.caught)
        .map(|one| one.mutant.name.as_str())
        .collect();
    if names.is_empty() {
        evidence::record(root, "mutants", &began, &content(&tested))?;
    } else {
        println!("only some mutants were tested, so nothing is recorded");
    }
    println!(
        "{} of {} caught",
        tested.len() - survivors.len(),
        tested.len()
    );
    if !survivors.is_empty() {
        bail!(
            "no test failed without these guards: {}",
            survivors.join(", ")
        );
    }
    Ok(())
}

/// Checks that every mutant still fits the sources.
pub(crate) fn check_list(root: &Path) -> Result<()> {
    let all = list::read(&root.join(list::PLACE))?;
    let changed = source::mutated(root, &all)?;
    for mutant in &all {
        let is_applied = |text: &String| text.contains(&format!("mutant == {:?}", mutant.name));
        if !changed.values().any(is_applied) {
            bail!("the mutant {} changes no source file", mutant.name);
        }
    }
    Ok(())
}

/// Runs the simulation with every mutant that it should detect.
fn run_simulation(simulation: &Simulation<'_>, tested: &mut [TestedMutant<'_>]) -> Result<()> {
    let mut expected = tested
        .iter_mut()
        .filter(|one| !one.mutant.simulation.is_empty())
        .peekable();
    if expected.peek().is_none() {
        return Ok(());
    }
    let without = simulation.run(None)?;
    if !without.is_clean() {
        bail!(
            "the simulation fails without any mutant, so it catches nothing: {}",
            without.summary()
        );
    }
    for one in expected {
        let found = simulation.run(Some(one.mutant))?;
        one.caught &= found.is_caught(one.mutant);
        println!("simulated {:<28} {}", one.mutant.name, found.summary());
        one.simulation = Some(found);
    }
    Ok(())
}

/// Runs the campaign with every mutant that it should detect.
fn run_campaign(campaign: &Campaign<'_>, tested: &mut [TestedMutant<'_>]) -> Result<()> {
    let mut passed = BTreeSet::new();
    for one in tested
        .iter_mut()
        .filter(|one| !one.mutant.campaign.is_empty())
    {
        let name = &one.mutant.name;
        // Phases that several mutants share are run only once without a mutant.
        if passed.insert(&one.mutant.campaign) {
            let without = campaign.run(one.mutant, false)?;
            if !without.passed {
                bail!(
                    "the campaign for {name} fails without any mutant: {}",
                    without.summary()
                );
            }
        }
        let found = campaign.run(one.mutant, true)?;
        one.caught &= found.is_caught();
        println!("campaign  {name:<28} {}", found.summary());
        one.campaign = Some(found);
    }
    Ok(())
}

/// The context of every trial.
struct Runs<'a> {
    root: &'a Path,
    tree: &'a Path,
    /// The directory of the tests' output.
    output: PathBuf,
    binaries: &'a Binaries,
    environment: &'a [(String, String)],
    interrupt: &'a Interrupt,
}

impl Runs<'_> {
    /// Checks that every test passes without a mutant: a test that always fails catches nothing.
    fn baseline(&self, chosen: &[&Mutant]) -> Result<()> {
        let tests: BTreeSet<&TestName> =
            chosen.iter().flat_map(|mutant| &mutant.caught_by).collect();
        println!("{} test(s) without any mutant", tests.len());
        for test in tests {
            let ended = self.run(test, None)?;
            match ended.verdict()? {
                trial::Verdict::Passed => {}
                trial::Verdict::Failed => bail!(
                    "{test} fails without any mutant, so it catches nothing: {}",
                    failure_message::extract(&ended.output, &test.name, &self.hidden())
                ),
                trial::Verdict::Hung => bail!("{test} does not end, without any mutant"),
            }
        }
        Ok(())
    }

    /// Runs the tests that should fail with a mutant.
    fn test_mutant<'m>(&self, mutant: &'m Mutant) -> Result<TestedMutant<'m>> {
        let began = now();
        let mut caught = true;
        let mut messages = Vec::new();
        for (test, expected) in mutant.tests() {
            let ended = self.run(test, Some(mutant))?;
            let message = match ended.verdict()? {
                trial::Verdict::Passed => {
                    caught = false;
                    format!("{test} passes")
                }
                trial::Verdict::Failed => {
                    failure_message::extract(&ended.output, &test.name, &self.hidden())
                }
                trial::Verdict::Hung => {
                    caught &= mutant.may_hang;
                    format!("did not end in {} s", mutant.patience_seconds)
                }
            };
            if !message.contains(expected) {
                caught = false;
                println!(
                    "{test} fails without `{expected}` for {}: {message}",
                    mutant.name
                );
            }
            messages.push(message);
        }
        messages.dedup();
        Ok(TestedMutant {
            mutant,
            caught,
            message: messages.join("; "),
            seconds: began.elapsed().as_secs_f32(),
            simulation: None,
            campaign: None,
        })
    }

    fn run(&self, test: &TestName, mutant: Option<&Mutant>) -> Result<EndedTrial> {
        let binary = self.binaries.of(test)?;
        let whose = mutant.map_or("none", |mutant| &mutant.name);
        fs::create_dir_all(&self.output)?;
        let trial = Trial {
            binary,
            directory: self.tree.join(test.package_directory()),
            test,
            mutant: mutant.map(|mutant| mutant.name.as_str()),
            environment: self.environment,
            output: self.output.join(format!("{whose}.{}", test.as_file_name())),
            patience: mutant.map_or(list::PATIENCE, Mutant::patience),
        };
        trial
            .run(self.interrupt)
            .with_context(|| format!("cannot try {test} with {whose}"))
    }

    /// The paths of this machine, which must not be in a report.
    fn hidden(&self) -> Vec<String> {
        [
            self.tree.to_path_buf(),
            self.root.to_path_buf(),
            std::env::temp_dir(),
        ]
        .iter()
        .map(|path| path.display().to_string())
        .collect()
    }
}

fn content(tested: &[TestedMutant<'_>]) -> Value {
    let mutants: Vec<Value> = tested
        .iter()
        .map(|one| {
            let tests: Vec<String> = one
                .mutant
                .caught_by
                .iter()
                .map(ToString::to_string)
                .collect();
            let mut files: Vec<&str> = one
                .mutant
                .edits
                .iter()
                .map(|edit| edit.file.as_str())
                .collect();
            files.dedup();
            json!({
                "name": one.mutant.name,
                "guard": one.mutant.guard,
                "why": one.mutant.why,
                "file": files.first(),
                "files": files,
                "caught": one.caught,
                "by": tests.join(", "),
                "said": one.message,
                "seconds": (f64::from(one.seconds) * 10.0).round() / 10.0,
                "simulation": one.simulation.as_ref().map(simulation::Findings::to_json),
                "campaign": one.campaign.as_ref().map(campaign::Findings::summary),
            })
        })
        .collect();
    json!({
        "mutants": mutants,
        "passed": tested.iter().all(|one| one.caught),
    })
}

fn command_line(with_campaign: bool, names: &[String]) -> String {
    let mut parts = vec!["cargo xtask mutants"];
    parts.extend(with_campaign.then_some("--campaign"));
    parts.extend(names.iter().map(String::as_str));
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mutants that must be in the list.
    const EXPECTED: [&str; 24] = [
        "ambiguous-commit",
        "cached-bytes",
        "detached-execution",
        "fail-closed",
        "fail-closed-in-silence",
        "fence-on-complete",
        "fence-on-release",
        "first-byte",
        "forget-later-attempt",
        "late-owner-rule",
        "misuse-check",
        "misuse-order",
        "one-grant",
        "outbox-confirm",
        "phase-call-once",
        "prune-guard",
        "release-after-commit",
        "replay-header-filter",
        "store-before-send",
        "tenant-in-identity",
        "truncated-body",
        "unanswered-journal",
        "unknown-on-lease-expiry",
        "webhook-signature",
    ];

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap()
    }

    /// The text of all Rust files below a directory.
    fn sources(place: &Path) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(place).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                text.push_str(&sources(&path));
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                text.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
        text
    }

    /// Detects a renamed test without a long build.
    #[test]
    fn every_listed_test_exists() {
        let suites = sources(&root().join("crates/semel-testkit/src/conformance"));
        for mutant in list::read(&root().join(list::PLACE)).unwrap() {
            for test in &mutant.caught_by {
                let package = root().join(test.package_directory());
                let own = sources(&package.join("tests")) + &sources(&package.join("src"));
                let name = test.name.rsplit("::").next().unwrap();
                // A suite's cases are generic, and all of them are in its list.
                let heads = [format!("fn {name}("), format!(" {name},\n")];
                let written = |text: &str| heads.iter().any(|head| text.contains(head));
                assert!(written(&own) || written(&suites), "{test}");
            }
        }
    }

    /// Detects a stale list without running the mutants.
    #[test]
    fn the_list_fits_the_tree() {
        let root = root();
        check_list(root).unwrap();
        let all = list::read(&root.join(list::PLACE)).unwrap();
        for name in EXPECTED {
            assert!(all.iter().any(|mutant| mutant.name == name), "{name}");
        }
    }
}
