//! `cargo xtask mutants`: the product with one guard removed, and what notices.
//!
//! A green run proves something only if a broken system would have been red. Every mutant is a
//! change to a *copy* of the tree that does nothing unless the environment names it: so all of them
//! are built at once, and none of them is in the tree that is released.

mod build;
mod campaign;
mod list;
mod said;
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
use trial::{Ended, Trial};

/// Where all of this happens, below the workspace's root.
const PLACE: &str = "target/mutants";
/// The variable that says which mutant is alive.
const VARIABLE: &str = "SEMEL_MUTANT";

/// One mutant, and what became of it.
struct Judged<'a> {
    mutant: &'a Mutant,
    caught: bool,
    said: String,
    seconds: f32,
    /// What the simulation found, where it was asked.
    simulation: Option<simulation::Found>,
    /// What the campaign found, where it was asked.
    campaign: Option<campaign::Found>,
}

/// Builds the mutants and sees each of them caught: by its tests, by the simulation where that can
/// see it, and, where it is asked for, by the campaign.
pub(crate) fn run_all(
    root: &Path,
    may_install: bool,
    with_campaign: bool,
    names: &[String],
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let began = evidence::began(root, &shown(with_campaign, names))?;
    let all = list::read(&root.join(list::PLACE))?;
    let chosen = list::choose(&all, names)?;

    let place = root.join(PLACE);
    let tree = place.join("tree");
    // All of them, also where only some are asked for: another choice is not another build.
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
        words: place.join("said"),
        binaries: &binaries,
        environment: &environment,
        interrupt: &interrupt,
    };
    runs.baseline(&chosen)?;
    let mut judged = Vec::new();
    for mutant in &chosen {
        let one = runs.judge(mutant)?;
        println!(
            "{:<9} {:<28} {:>6.1} s  {}",
            if one.caught { "caught" } else { "SURVIVED" },
            mutant.name,
            one.seconds,
            one.said
        );
        judged.push(one);
    }
    let simulation = Simulation::new(&place.join("build"), &place, &interrupt);
    ask_simulation(&simulation, &mut judged)?;
    if with_campaign {
        let campaign = Campaign::build(&tree, &place.join("build"), &place, &interrupt)?;
        ask_campaign(&campaign, &mut judged)?;
    }

    let survivors: Vec<&str> = judged
        .iter()
        .filter(|one| !one.caught)
        .map(|one| one.mutant.name.as_str())
        .collect();
    if names.is_empty() {
        evidence::record(root, "mutants", &began, &content(&judged))?;
    } else {
        println!("only some were tried, so nothing is recorded");
    }
    println!(
        "{} of {} caught",
        judged.len() - survivors.len(),
        judged.len()
    );
    if !survivors.is_empty() {
        bail!(
            "nothing noticed that these guards were gone: {}",
            survivors.join(", ")
        );
    }
    Ok(())
}

/// Asks the simulation about every mutant that it should notice.
fn ask_simulation(simulation: &Simulation<'_>, judged: &mut [Judged<'_>]) -> Result<()> {
    let mut asked = judged
        .iter_mut()
        .filter(|one| !one.mutant.simulation.is_empty())
        .peekable();
    if asked.peek().is_none() {
        return Ok(());
    }
    let without = simulation.run(None)?;
    if !without.is_clean() {
        bail!(
            "the simulation fails without any mutant, so it catches nothing: {}",
            without.words()
        );
    }
    for one in asked {
        let found = simulation.run(Some(one.mutant))?;
        one.caught &= found.is_caught(one.mutant);
        println!("simulated {:<28} {}", one.mutant.name, found.words());
        one.simulation = Some(found);
    }
    Ok(())
}

/// Asks the campaign about every mutant that it should notice.
fn ask_campaign(campaign: &Campaign<'_>, judged: &mut [Judged<'_>]) -> Result<()> {
    let mut passed = BTreeSet::new();
    for one in judged
        .iter_mut()
        .filter(|one| !one.mutant.campaign.is_empty())
    {
        let name = &one.mutant.name;
        // Phases that several mutants share need to pass without them only once.
        if passed.insert(&one.mutant.campaign) {
            let without = campaign.run(one.mutant, false)?;
            if !without.passed {
                bail!(
                    "the campaign for {name} fails without any mutant: {}",
                    without.words()
                );
            }
        }
        let found = campaign.run(one.mutant, true)?;
        one.caught &= found.is_caught();
        println!("campaign  {name:<28} {}", found.words());
        one.campaign = Some(found);
    }
    Ok(())
}

/// What every trial needs.
struct Runs<'a> {
    root: &'a Path,
    tree: &'a Path,
    /// Where what the tests say is kept.
    words: PathBuf,
    binaries: &'a Binaries,
    environment: &'a [(String, String)],
    interrupt: &'a Interrupt,
}

impl Runs<'_> {
    /// Every test passes while no mutant is alive: a test that fails anyway catches nothing.
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
                    said::last_words(&ended.words, &test.name, &self.hidden())
                ),
                trial::Verdict::Hung => bail!("{test} does not end, without any mutant"),
            }
        }
        Ok(())
    }

    /// Whether every test that should notice does.
    fn judge<'m>(&self, mutant: &'m Mutant) -> Result<Judged<'m>> {
        let began = now();
        let mut caught = true;
        let mut heard = Vec::new();
        for (test, says) in mutant.tests() {
            let ended = self.run(test, Some(mutant))?;
            let words = match ended.verdict()? {
                trial::Verdict::Passed => {
                    caught = false;
                    format!("{test} passes")
                }
                trial::Verdict::Failed => {
                    said::last_words(&ended.words, &test.name, &self.hidden())
                }
                trial::Verdict::Hung => {
                    caught &= mutant.may_hang;
                    format!("did not end in {} s", mutant.patience_seconds)
                }
            };
            if !words.contains(says) {
                caught = false;
                println!("{test} does not say `{says}` of {}: {words}", mutant.name);
            }
            heard.push(words);
        }
        heard.dedup();
        Ok(Judged {
            mutant,
            caught,
            said: heard.join("; "),
            seconds: began.elapsed().as_secs_f32(),
            simulation: None,
            campaign: None,
        })
    }

    fn run(&self, test: &TestName, mutant: Option<&Mutant>) -> Result<Ended> {
        let binary = self.binaries.of(test)?;
        let whose = mutant.map_or("none", |mutant| &mutant.name);
        fs::create_dir_all(&self.words)?;
        let trial = Trial {
            binary,
            directory: self.tree.join(test.package_directory()),
            test,
            mutant: mutant.map(|mutant| mutant.name.as_str()),
            environment: self.environment,
            words: self.words.join(format!("{whose}.{}", test.as_file_name())),
            patience: mutant.map_or(list::PATIENCE, Mutant::patience),
        };
        trial
            .run(self.interrupt)
            .with_context(|| format!("cannot try {test} with {whose}"))
    }

    /// What must not be in a report: where this machine keeps things.
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

fn content(judged: &[Judged<'_>]) -> Value {
    let mutants: Vec<Value> = judged
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
                "said": one.said,
                "seconds": (f64::from(one.seconds) * 10.0).round() / 10.0,
                "simulation": one.simulation.as_ref().map(simulation::Found::to_json),
                "campaign": one.campaign.as_ref().map(campaign::Found::words),
            })
        })
        .collect();
    json!({
        "mutants": mutants,
        "passed": judged.iter().all(|one| one.caught),
    })
}

fn shown(with_campaign: bool, names: &[String]) -> String {
    let mut words = vec!["cargo xtask mutants"];
    words.extend(with_campaign.then_some("--campaign"));
    words.extend(names.iter().map(String::as_str));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has to be tried, whatever else is.
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
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    /// The text of all that is written in Rust below a directory.
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

    /// A test that was renamed is found out here, and not after a build of a quarter of an hour.
    #[test]
    fn every_test_that_is_named_is_written_somewhere() {
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

    /// Found out here in a second, and not by whoever runs the mutants next.
    #[test]
    fn the_list_fits_the_tree() {
        let root = root();
        let all = list::read(&root.join(list::PLACE)).unwrap();
        let changed = source::mutated(root, &all).unwrap();
        for mutant in &all {
            let lives = |text: &String| text.contains(&format!("mutant == {:?}", mutant.name));
            assert!(changed.values().any(lives), "{}", mutant.name);
        }
        for name in EXPECTED {
            assert!(all.iter().any(|mutant| mutant.name == name), "{name}");
        }
    }
}
