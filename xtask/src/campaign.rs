//! `cargo xtask campaign`: the fault campaign, and the simulation beside it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::bench::target;
use crate::evidence;
use crate::process::{Interrupt, cargo, now, run_interruptible};
use crate::servers::{self, Server};

/// What is under test, built as it is shipped: with nothing beside it that could turn on a feature
/// of what they share.
const SHIPPED: &[&str] = &["semel-cli"];
/// What it is tested with.
const HARNESS: &[&str] = &["payments", "semel-campaign", "semel-simulation"];
/// How many seeds the simulation has, in the long run and in the short one.
const SEEDS: &str = "20000";
const FEW_SEEDS: &str = "1000";
/// Where Debian keeps libraries, by architecture.
const LIBRARIES: &str = "/usr/lib";

/// Runs the campaign and the simulation, keeps what came of them, and fails if either did.
///
/// The short one is built as everything else in a build is, without optimisation, and does with
/// what the machine can break. The long one counts only if everything could be broken.
pub(crate) fn run_all(
    root: &Path,
    may_install: bool,
    short: bool,
    seed: Option<u64>,
) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    servers::have_programs(&[Server::Postgres, Server::Redis], may_install)?;
    servers::package("libfaketime", has_libfaketime, may_install);
    servers::program("mkfs.ext4", "e2fsprogs", may_install);

    build(root, short, &interrupt)?;
    let target = target(root)?;
    let programs = target.join(if short { "debug" } else { "release" });
    let place = target.join("campaign");
    fs::create_dir_all(&place)?;

    let started = now();
    let mut campaign = Command::new(programs.join("semel-campaign"));
    campaign
        .current_dir(root)
        .arg("--semel")
        .arg(programs.join("semel"))
        .arg("--payments")
        .arg(programs.join("payments"))
        .arg("--keep")
        .arg(fresh(&place.join("run"))?);
    if short {
        campaign.args(["--short", "--allow-skips"]);
    }
    if let Some(seed) = seed {
        campaign.arg("--seed").arg(seed.to_string());
    }
    let mut simulation = Command::new(programs.join("semel-simulation"));
    simulation
        .current_dir(root)
        .args(["--seeds", if short { FEW_SEEDS } else { SEEDS }]);
    if !short {
        // Other worlds every time, beside those that every run has.
        simulation.arg("--base").arg(any_base().to_string());
    }

    // Both are run, whatever comes of the first: the second may say why.
    let broken = part(root, "campaign", short, &mut campaign, &place, &interrupt)?;
    let simulated = part(
        root,
        "simulation",
        short,
        &mut simulation,
        &place,
        &interrupt,
    )?;
    println!("in {:.0} s", started.elapsed().as_secs_f32());
    match (broken, simulated) {
        (true, true) => Ok(()),
        (false, true) => bail!("the campaign failed, or does not count: see above"),
        (true, false) => bail!("the simulation failed: see above"),
        (false, false) => bail!("the campaign and the simulation failed: see above"),
    }
}

/// The short one runs with what the tests are built of, which a build has anyway.
fn build(root: &Path, short: bool, interrupt: &Interrupt) -> Result<()> {
    if short {
        let mut everything = cargo(root);
        everything.args(["build", "--workspace", "--all-targets"]);
        return run_interruptible(&mut everything, interrupt);
    }
    for packages in [SHIPPED, HARNESS] {
        let mut some = cargo(root);
        some.args(["build", "--release", "--bins"]);
        some.args(packages.iter().flat_map(|package| ["-p", *package]));
        run_interruptible(&mut some, interrupt)?;
    }
    Ok(())
}

/// Runs one part and keeps its result, a bad one as well. Says whether it passed.
fn part(
    root: &Path,
    name: &str,
    short: bool,
    command: &mut Command,
    place: &Path,
    interrupt: &Interrupt,
) -> Result<bool> {
    let path = place.join(format!("{name}.json"));
    // What an earlier run left is no result of this one.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    let called = if short {
        "cargo xtask campaign --short"
    } else {
        "cargo xtask campaign"
    };
    let began = evidence::began(root, called)?;
    let ended = run_interruptible(command.arg("--json").arg(&path), interrupt);
    if !path.exists() {
        ended?;
        bail!("{name} left no result");
    }
    let content: Value = serde_json::from_slice(&fs::read(&path)?)
        .with_context(|| format!("{} is not JSON", path.display()))?;
    evidence::record(root, name, &began, &content)?;
    Ok(ended.is_ok() && content["passed"] == true)
}

/// The directory without what an earlier run left there.
fn fresh(path: &Path) -> Result<&Path> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    Ok(path)
}

/// From the random keys that every process has for its hash tables; small enough to be typed.
fn any_base() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one("simulation") >> 32
}

fn has_libfaketime() -> bool {
    let kinds = fs::read_dir(LIBRARIES).into_iter().flatten();
    kinds
        .filter_map(Result::ok)
        .any(|kind| kind.path().join("faketime/libfaketime.so.1").is_file())
}
