//! The fault campaign: breaks a running Semel in every way we know, and counts what happened.
//!
//! Three gateways and a worker share a PostgreSQL store, one gateway has a SQLite store; all stand
//! in front of the payments example, whose provider keeps a ledger on the disk and is never broken.
//! Clients retry. What breaks when is in [`plan`], how in [`faults`]; in the end everything is
//! [healed](heal), and the checker compares what the clients saw with what the ledger says.
#![allow(
    clippy::print_stdout,
    reason = "this is a command for a person or a build log to read"
)]

mod chaos;
mod client;
mod clock;
mod disk;
mod faults;
mod ground;
mod heal;
mod http;
mod operation;
mod plan;
mod process;
mod random;
mod record;
mod redis;
mod result;
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

use client::{Client, World};
use faults::Breaker;
use ground::{Ground, Programs};
use heal::Healer;
use operation::Operations;
use plan::Phase;
use random::Random;
use record::Recorder;
use result::Skipped;

/// Far longer than it takes: what is not over by then hangs.
const LONG_LIMIT: Duration = Duration::from_mins(30);
const SHORT_LIMIT: Duration = Duration::from_mins(10);

/// Breaks a running Semel in every way we know, and counts what happened.
#[derive(Parser)]
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
    /// What everything random comes from; another each time if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// Under three minutes
    #[arg(long)]
    short: bool,
    /// Only these phases; such a run asks for no number of faults
    #[arg(long, value_delimiter = ',')]
    phases: Vec<String>,
    /// Pass although this machine cannot break everything
    #[arg(long)]
    allow_skips: bool,
    /// How many clients there are
    #[arg(long, default_value_t = 64)]
    clients: usize,
}

/// 0 where nothing was violated and the run counts; 1 where not, or where it could not be run.
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
    let limit = if arguments.short {
        SHORT_LIMIT
    } else {
        LONG_LIMIT
    };
    // From the very beginning: dropped on the way out, everything that was started ends.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = timeout(limit, campaign(arguments)) => {
            ended.unwrap_or_else(|_| bail!("it is not over after {} s", limit.as_secs()))
        }
        _ = interrupted.recv() => bail!("interrupted"),
        _ = terminated.recv() => bail!("interrupted"),
    }
}

async fn campaign(arguments: &Arguments) -> Result<bool> {
    let unknown = |name: &&String| !plan::names().any(|known| known == name.as_str());
    if let Some(name) = arguments.phases.iter().find(unknown) {
        bail!("there is no phase {name}");
    }
    let temporary = tempfile::tempdir()?;
    let place = arguments.keep.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(place)?;
    let seed = arguments.seed.unwrap_or_else(any_seed);
    let mut phases = plan::draw(seed, arguments.short, &arguments.phases);
    let schedule = place.join("schedule.json");
    // Before anything is started: a run that dies can be repeated, too.
    fs::write(
        &schedule,
        serde_json::to_vec_pretty(&plan::schedule(&phases))?,
    )?;
    println!("{}", result::announce(seed, &phases, &schedule));

    let programs = Programs {
        semel: absolute(&arguments.semel)?,
        payments: absolute(&arguments.payments)?,
    };
    let ground = Arc::new(Ground::prepare(&programs, &absolute(place)?, seed).await?);
    let skipped = skip(&mut phases, &ground);
    let schedule = plan::schedule(&phases);
    let history = place.join("history.jsonl");
    let run = Run {
        seed,
        short: arguments.short,
        all_replayed: true,
    };
    let (recorder, writing) = Recorder::create(&history, run)?;
    ground.chaos.witness().begin(recorder.clone());
    run_all(arguments, &ground, recorder, &phases, seed).await?;
    let ledger = ground.ledger.clone();
    drop(ground);
    writing.finish()?;

    let mut report = semel_campaign_checker::check(&history, &[ledger])?;
    if arguments.phases.is_empty() {
        result::require(&mut report, arguments.short, &skipped);
    }
    let whole = result::whole(&report, schedule, &skipped, arguments.allow_skips)?;
    fs::write(&arguments.json, serde_json::to_vec_pretty(&whole)?)
        .with_context(|| format!("cannot write {}", arguments.json.display()))?;
    println!("{}", result::summary(&whole));
    Ok(whole["passed"] == true)
}

/// Leaves out what cannot be broken here.
fn skip(phases: &mut Vec<Phase>, ground: &Ground) -> Vec<Skipped> {
    let reasons = [
        ("clocks", ground.clock.as_ref().err()),
        ("disk_full", ground.disk.as_ref().err()),
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
    ground: &Arc<Ground>,
    recorder: Recorder,
    phases: &[Phase],
    seed: u64,
) -> Result<()> {
    let (postgres, sqlite) = ground.addresses();
    let world = World {
        recorder: recorder.clone(),
        operations: Arc::new(Operations::default()),
        postgres,
        sqlite,
    };
    let breaker = Breaker::new(Arc::clone(ground), recorder.clone());
    // The clients' chance is another one: what they draw depends on what they are answered.
    let mut random = Random::new(!seed);
    let course = async {
        for phase in phases {
            run_phase(arguments.clients, &breaker, &world, phase, &mut random).await?;
        }
        recorder.enter("heal");
        let healer = Healer {
            ground: Arc::clone(ground),
            world: world.clone(),
            clients: arguments.clients,
        };
        healer.heal(&mut random).await?;
        report("heal", &world);
        Ok(())
    };
    tokio::select! {
        ended = course => ended,
        failed = breaker.supervise() => failed,
    }
}

async fn run_phase(
    clients: usize,
    breaker: &Breaker,
    world: &World,
    phase: &Phase,
    random: &mut Random,
) -> Result<()> {
    world.recorder.enter(phase.name);
    let began = Instant::now();
    let until = began + Duration::from_millis(phase.ms);
    let mut working = JoinSet::new();
    for _ in 0..clients {
        let mut client = Client::new(world.clone(), random.fork());
        let traffic = phase.traffic;
        working.spawn(async move { client.work(traffic, until).await });
    }
    breaker.perform(phase, began).await?;
    working.join_all().await;
    report(phase.name, world);
    Ok(())
}

/// One line a phase, so that somebody who waits sees something.
fn report(phase: &str, world: &World) {
    let (calls, answered) = world.recorder.calls();
    let seconds = world.recorder.now_ms() / 1_000;
    let (operations, open) = (world.operations.count(), world.operations.open().len());
    let faults = world.recorder.faults();
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

/// From the random keys that every process has for its hash tables.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one("campaign") >> 16
}
