//! `cargo xtask campaign`: the fault campaign, and the simulation beside it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::evidence;
use crate::process::{Interrupt, cargo, now, run_interruptible, target_directory};
use crate::servers::{self, Server};
use xtask::{DIST, FEATURES, sdks};

/// The product, built as it is shipped and by itself: other packages could enable features of shared
/// dependencies.
const SHIPPED: &[&str] = &["semel-cli"];
/// The test programs.
const HARNESS: &[&str] = &["payments", "semel-campaign", "semel-simulation"];
/// The number of simulation seeds, in the long run and in the short one.
const SEEDS: &str = "20000";
const FEW_SEEDS: &str = "1000";
/// What a cluster needs besides PostgreSQL and Patroni, with the packages that hold them.
const CLUSTER_PROGRAMS: [(&str, &str); 4] = [
    ("etcd", "etcd-server"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("mkfs.ext4", "e2fsprogs"),
];
/// Where Debian keeps libraries, by architecture.
const LIBRARIES: &str = "/usr/lib";

/// Which run it is.
pub(crate) struct Run {
    pub(crate) short: bool,
    /// Repeats the schedule of another run.
    pub(crate) seed: Option<u64>,
    pub(crate) clients: Option<usize>,
    pub(crate) phases: Option<String>,
}

/// Runs the campaign and the simulation, records their results, and fails if either fails.
///
/// The short form uses an unoptimised build and skips faults that the machine does not support. The
/// long form requires every fault.
pub(crate) fn run_all(root: &Path, may_install: bool, run: &Run) -> Result<()> {
    let short = run.short;
    let interrupt = Interrupt::listen()?;
    let needed = [Server::Postgres, Server::Redis, Server::Nats];
    servers::ensure_programs(&needed, may_install)?;
    servers::ensure_package("libfaketime", has_libfaketime, may_install);
    servers::ensure_program("mkfs.ext4", "e2fsprogs", may_install);

    build(root, short, &interrupt)?;
    let target = target_directory(root)?;
    let programs = target.join(if short { "debug" } else { DIST });
    let place = target.join("campaign");
    fs::create_dir_all(&place)?;

    let started = now();
    let mut campaign = command(root, &programs, fresh(&place.join("run"))?, run);
    let mut simulation = Command::new(programs.join("semel-simulation"));
    simulation
        .current_dir(root)
        .args(["--seeds", if short { FEW_SEEDS } else { SEEDS }]);
    if !short {
        // New seeds in every run, in addition to the fixed ones.
        simulation.arg("--base").arg(any_base().to_string());
    }

    // Run both even if the first fails: the second may show the cause.
    let called = called("cargo xtask campaign", run);
    let broken = part(root, "campaign", &called, &mut campaign, &place, &interrupt)?;
    let simulated = part(
        root,
        "simulation",
        &called,
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

/// Runs the campaign against a PostgreSQL cluster with failover, records its result, and fails if it
/// fails.
pub(crate) fn run_cluster(root: &Path, may_install: bool, run: &Run) -> Result<()> {
    let short = run.short;
    let interrupt = Interrupt::listen()?;
    servers::ensure_programs(&[Server::Postgres, Server::Redis], may_install)?;
    servers::ensure_package("libfaketime", has_libfaketime, may_install);
    for (program, package) in CLUSTER_PROGRAMS {
        servers::ensure_program(program, package, may_install);
    }
    let patroni = sdks::install_for(&[sdks::PATRONI], root, may_install, &interrupt)?;

    build(root, short, &interrupt)?;
    let target = target_directory(root)?;
    let programs = target.join(if short { "debug" } else { DIST });
    let place = target.join("campaign");
    fs::create_dir_all(&place)?;
    let mut campaign = command(root, &programs, fresh(&place.join("cluster"))?, run);
    campaign.arg("--cluster").envs(patroni.environment());
    let called = called("cargo xtask campaign --cluster", run);
    if !part(root, "cluster", &called, &mut campaign, &place, &interrupt)? {
        bail!("the campaign against a cluster failed, or does not count: see above");
    }
    Ok(())
}

/// Runs the campaign against a DynamoDB table, records its result, and fails if it fails.
pub(crate) fn run_dynamodb(root: &Path, may_install: bool, run: &Run) -> Result<()> {
    let short = run.short;
    let interrupt = Interrupt::listen()?;
    servers::ensure_programs(&[Server::Redis, Server::Extenddb], may_install)?;
    servers::ensure_package("libfaketime", has_libfaketime, may_install);
    build(root, short, &interrupt)?;
    let target = target_directory(root)?;
    let programs = target.join(if short { "debug" } else { DIST });
    let place = target.join("campaign");
    fs::create_dir_all(&place)?;
    let mut campaign = command(root, &programs, fresh(&place.join("dynamodb"))?, run);
    campaign.arg("--dynamodb");
    if let Some(servers) = sdks::directory_of(sdks::DYNAMODB, root) {
        campaign.env(sdks::DYNAMODB, servers);
    }
    let called = called("cargo xtask campaign --dynamodb", run);
    if !part(root, "dynamodb", &called, &mut campaign, &place, &interrupt)? {
        bail!("the campaign against DynamoDB failed, or does not count: see above");
    }
    Ok(())
}

/// Runs the campaign of three regions, records its result, and fails if it fails.
pub(crate) fn run_regions(root: &Path, may_install: bool, run: &Run) -> Result<()> {
    let short = run.short;
    let interrupt = Interrupt::listen()?;
    for (program, package) in &CLUSTER_PROGRAMS[1..3] {
        servers::ensure_program(program, package, may_install);
    }
    build(root, short, &interrupt)?;
    let target = target_directory(root)?;
    let programs = target.join(if short { "debug" } else { DIST });
    let place = target.join("campaign");
    fs::create_dir_all(&place)?;
    let mut campaign = command(root, &programs, fresh(&place.join("regions"))?, run);
    campaign.arg("--regions");
    let called = called("cargo xtask campaign --regions", run);
    if !part(root, "regions", &called, &mut campaign, &place, &interrupt)? {
        bail!("the campaign of several regions failed, or does not count: see above");
    }
    Ok(())
}

/// The campaign, which keeps its files in a directory.
fn command(root: &Path, programs: &Path, keep: &Path, run: &Run) -> Command {
    let mut campaign = Command::new(programs.join("semel-campaign"));
    campaign
        .current_dir(root)
        .arg("--semel")
        .arg(programs.join("semel"))
        .arg("--payments")
        .arg(programs.join("payments"))
        .arg("--keep")
        .arg(keep);
    if run.short {
        campaign.args(["--short", "--allow-skips"]);
    }
    if let Some(seed) = run.seed {
        campaign.arg("--seed").arg(seed.to_string());
    }
    if let Some(clients) = run.clients {
        campaign.arg("--clients").arg(clients.to_string());
    }
    if let Some(phases) = &run.phases {
        campaign.args(["--phases", phases]);
    }
    campaign
}

/// The command line as the evidence names it.
fn called(command: &str, run: &Run) -> String {
    let form = if run.short { " --short" } else { "" };
    let clients = run.clients.map(|clients| format!(" --clients {clients}"));
    let phases = run
        .phases
        .as_ref()
        .map(|phases| format!(" --phases {phases}"));
    format!(
        "{command}{form}{}{}",
        clients.unwrap_or_default(),
        phases.unwrap_or_default()
    )
}

/// The short form uses the features of the tests, which are built anyway.
pub(crate) fn build(root: &Path, short: bool, interrupt: &Interrupt) -> Result<()> {
    if short {
        let mut everything = cargo(root);
        everything
            .args(["build", "--workspace", "--all-targets"])
            .args(FEATURES);
        return run_interruptible(&mut everything, interrupt);
    }
    for packages in [SHIPPED, HARNESS] {
        let mut some = cargo(root);
        some.args(["build", "--profile", DIST, "--bins"]);
        some.args(packages.iter().flat_map(|package| ["-p", *package]));
        if packages == SHIPPED {
            some.args(["--features", DIST]);
        }
        run_interruptible(&mut some, interrupt)?;
    }
    Ok(())
}

/// Runs one part and records its result, also a failure. Returns whether it passed.
fn part(
    root: &Path,
    name: &str,
    called: &str,
    command: &mut Command,
    place: &Path,
    interrupt: &Interrupt,
) -> Result<bool> {
    let path = place.join(format!("{name}.json"));
    // A result of an earlier run must not be read as the result of this one.
    if path.exists() {
        fs::remove_file(&path)?;
    }
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

/// Empties the directory.
fn fresh(path: &Path) -> Result<&Path> {
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    Ok(path)
}

/// A random seed, from the random keys of the standard hash tables; small enough to type.
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
