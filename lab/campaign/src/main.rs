//! The fault campaign: injects every known fault into a running Semel, and counts the effects.
//!
//! Three gateways and a worker share a PostgreSQL store, and one gateway has a SQLite store. All are
//! in front of the payments example, whose provider keeps a ledger on the disk and never fails.
//! Clients retry, some of them over TLS and HTTP/2. The shared store has a Redis with a replica as cache
//! and NATS behind its outbox. [`plan`] schedules the faults, [`faults`] injects them, and [`heal`]
//! finishes every operation at the end. The checker then compares the clients' history with the ledger.
//!
//! With `--cluster` the gateways and the worker share a PostgreSQL cluster with failover instead
//! ([`cluster`]), and the phases are those of its faults. With `--regions` there are three stores, each
//! in a network of its own ([`regions`]).
#![allow(
    clippy::print_stdout,
    reason = "this is a command for a person or a build log to read"
)]

mod answer;
mod chaos;
mod client;
mod cluster;
mod deploy;
mod dynamodb;
mod faults;
mod heal;
mod hostile;
mod http;
mod http2;
mod launcher;
mod messages;
mod operation;
mod plan;
mod process;
mod random;
mod record;
mod redis;
mod redis_pair;
mod regions;
mod result;
mod test_bed;
mod tls;
mod witness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use semel_campaign_checker::history::Run;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use client::{Client, Shared};
use faults::FaultInjector;
use heal::Recovery;
use launcher::Programs;
use operation::Operations;
use plan::{Mode, Phase};
use random::Random;
use record::Recorder;
use result::Skipped;
use test_bed::{LEDGER, TestBed};

/// Far longer than it takes: a run that is not over by then hangs.
const LONG_LIMIT: Duration = Duration::from_mins(30);
const SHORT_LIMIT: Duration = Duration::from_mins(10);
/// Each of its faults waits for an election.
const CLUSTER_LIMIT: Duration = Duration::from_hours(2);

/// Injects every known fault into a running Semel, and counts the effects.
#[derive(Parser)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Arguments {
    /// The program under test
    #[arg(long)]
    semel: PathBuf,
    /// The payments example
    #[arg(long)]
    payments: PathBuf,
    /// Where the result goes
    #[arg(long)]
    json: PathBuf,
    /// Where schedule, history, ledger and logs are kept; removed at the end if it is not given
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The seed of everything random; a new one each time if absent
    #[arg(long)]
    seed: Option<u64>,
    /// Under three minutes
    #[arg(long)]
    short: bool,
    /// Only these phases; such a run requires no number of faults
    #[arg(long, value_delimiter = ',')]
    phases: Vec<String>,
    /// A PostgreSQL cluster with failover instead of one server, and its faults
    #[arg(long)]
    cluster: bool,
    /// A DynamoDB table instead of a PostgreSQL server, and its faults
    #[arg(long, conflicts_with = "cluster")]
    dynamodb: bool,
    /// Three regions, each with its own store, and cut links between them
    #[arg(long, conflicts_with_all = ["cluster", "dynamodb", "phases"])]
    regions: bool,
    /// Pass although this machine cannot inject every fault
    #[arg(long)]
    allow_skips: bool,
    /// How many clients there are
    #[arg(long, default_value_t = 64)]
    clients: usize,
}

/// Exits with 0 where no rule was broken and the run counts, else with 1.
fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("the campaign could not be run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn perform(arguments: &Arguments) -> Result<bool> {
    let limit = match (arguments.short, arguments.cluster) {
        (true, _) => SHORT_LIMIT,
        (false, false) => LONG_LIMIT,
        (false, true) => CLUSTER_LIMIT,
    };
    // Installed first: dropping the run stops every process that it started.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = timeout(limit, campaign(arguments)) => {
            ended.unwrap_or_else(|_| bail!("it still runs after {} s", limit.as_secs()))
        }
        _ = interrupted.recv() => bail!("interrupted"),
        _ = terminated.recv() => bail!("interrupted"),
    }
}

async fn campaign(arguments: &Arguments) -> Result<bool> {
    let mode = if arguments.cluster {
        Mode::Cluster
    } else if arguments.dynamodb {
        Mode::Dynamodb
    } else {
        Mode::Server
    };
    let unknown = |name: &&String| !mode.names().any(|known| known == name.as_str());
    if let Some(name) = arguments.phases.iter().find(unknown) {
        bail!("there is no phase {name}");
    }
    let temporary = tempfile::tempdir()?;
    let place = arguments.keep.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(place)?;
    if place.join(LEDGER).exists() {
        // The provider appends to its ledger: the charges of both runs would look like duplicates.
        bail!("{} holds an earlier run: remove it", place.display());
    }
    let seed = arguments.seed.unwrap_or_else(any_seed);
    if arguments.regions {
        let programs = Programs {
            semel: absolute(&arguments.semel)?,
            payments: absolute(&arguments.payments)?,
        };
        return regions::campaign(arguments, &programs, &absolute(place)?, seed).await;
    }
    let mut phases = plan::draw(seed, mode, arguments.short, &arguments.phases);
    let schedule = place.join("schedule.json");
    // Before anything is started, so that a run that dies can be repeated.
    fs::write(
        &schedule,
        serde_json::to_vec_pretty(&plan::schedule(&phases))?,
    )?;
    println!("{}", result::announce(seed, &phases, &schedule));

    let programs = Programs {
        semel: absolute(&arguments.semel)?,
        payments: absolute(&arguments.payments)?,
    };
    let test_bed = Arc::new(TestBed::prepare(&programs, &absolute(place)?, seed, mode).await?);
    let skipped = skip(&mut phases, &test_bed);
    let schedule = plan::schedule(&phases);
    let history = place.join("history.jsonl");
    let run = Run {
        seed,
        short: arguments.short,
        all_replayed: true,
    };
    let (recorder, writing) = Recorder::create(&history, run)?;
    test_bed.chaos.witness().begin(recorder.clone());
    run_all(arguments, &test_bed, recorder.clone(), &phases, seed).await?;
    let pauses = recorder.pauses();
    drop(recorder);
    let ledger = test_bed.ledger.clone();
    drop(test_bed);
    writing.finish()?;

    let mut report = semel_campaign_checker::check(&history, &[ledger])?;
    if arguments.phases.is_empty() {
        result::require(&mut report, mode, arguments.short, &skipped);
    }
    let mut result = result::to_json(&report, schedule, &skipped, arguments.allow_skips)?;
    if arguments.cluster {
        result::add_pauses(&mut result, &pauses, arguments.phases.is_empty());
    }
    fs::write(&arguments.json, serde_json::to_vec_pretty(&result)?)
        .with_context(|| format!("cannot write {}", arguments.json.display()))?;
    println!("{}", result::summary(&result));
    Ok(result["passed"] == true)
}

/// Leaves out the faults that this machine cannot inject.
fn skip(phases: &mut Vec<Phase>, test_bed: &TestBed) -> Vec<Skipped> {
    let no_clocks = cluster::cannot_move_clocks();
    let reasons = [
        ("clocks", test_bed.clock.as_ref().err()),
        ("disk_full", test_bed.disk.as_ref().err()),
        ("brokers", test_bed.broker.as_ref().err()),
        ("cluster_clocks", no_clocks.as_ref()),
    ];
    let mut skipped = Vec::new();
    for (phase, reason) in reasons {
        if let Some(reason) = reason
            && phases.iter().any(|planned| planned.name == phase)
        {
            phases.retain(|planned| planned.name != phase);
            println!("SKIPPED: {phase}: {reason}");
            skipped.push(Skipped {
                phase,
                reason: reason.clone(),
            });
        }
    }
    skipped
}

async fn run_all(
    arguments: &Arguments,
    test_bed: &Arc<TestBed>,
    recorder: Recorder,
    phases: &[Phase],
    seed: u64,
) -> Result<()> {
    let (postgres, sqlite) = test_bed.addresses();
    let shared = Shared {
        recorder: recorder.clone(),
        operations: Arc::new(Operations::default()),
        postgres,
        sqlite,
        admin: test_bed.gateways[0].admin,
    };
    let injector = FaultInjector::new(Arc::clone(test_bed), recorder.clone());
    // A separate generator for the clients: what they draw depends on the answers.
    let mut random = Random::new(!seed);
    let course = async {
        for phase in phases {
            run_phase(arguments.clients, &injector, &shared, phase, &mut random).await?;
        }
        recorder.enter("heal");
        let recovery = Recovery {
            test_bed: Arc::clone(test_bed),
            shared: shared.clone(),
            clients: arguments.clients,
        };
        recovery.heal(&mut random).await?;
        report("heal", &shared);
        Ok(())
    };
    tokio::select! {
        ended = course => ended,
        failed = injector.supervise() => failed,
    }
}

async fn run_phase(
    clients: usize,
    injector: &FaultInjector,
    shared: &Shared,
    phase: &Phase,
    random: &mut Random,
) -> Result<()> {
    shared.recorder.enter(phase.name);
    let began = Instant::now();
    let until = began + Duration::from_millis(phase.ms);
    let mut working = JoinSet::new();
    for _ in 0..clients {
        let mut client = Client::new(shared.clone(), random.fork());
        let traffic = phase.traffic;
        working.spawn(async move { client.work(traffic, until).await });
    }
    injector.perform(phase, began).await?;
    working.join_all().await;
    report(phase.name, shared);
    Ok(())
}

/// Prints one line for each phase.
fn report(phase: &str, shared: &Shared) {
    let (calls, answered) = shared.recorder.calls();
    let seconds = shared.recorder.now_ms() / 1_000;
    let (operations, open) = (shared.operations.count(), shared.operations.open().len());
    let faults = shared.recorder.faults();
    let kills = faults.get("kill").copied().unwrap_or_default();
    let cuts = faults.get("cut_after_commit").copied().unwrap_or_default();
    println!(
        "{seconds:>4} s  {phase:<20} {operations} operations ({open} open), {calls} calls, \
         {answered} answers, {kills} kills, {cuts} ambiguous commits"
    );
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let found = fs::canonicalize(path);
    found.with_context(|| format!("there is no {}", path.display()))
}

/// A random seed, from the keys of the standard library's hash tables.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one("campaign") >> 16
}
