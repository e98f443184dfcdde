//! The simulation, from the command line.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is a command for a person or a build log to read"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "how long it took is measured in real time"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser;
use semel_simulation::{FIXED_SEEDS, Sabotage, run, run_many};

/// Simulates the core, the layer and the worker with faults that a seed decides.
#[derive(Parser)]
#[command(name = "semel-simulation")]
struct Arguments {
    /// Number of seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Run the fixed seeds, 1 to 2000, and then `--seeds` more from this one
    #[arg(long, conflicts_with_all = ["first_seed", "seed"])]
    base: Option<u64>,
    /// Run this seed only
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event of the one seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write the results to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Remove a guard from the simulated store, to see the simulation fail
    #[arg(long, value_parser = sabotage)]
    sabotage: Option<Sabotage>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let sabotage = arguments.sabotage.unwrap_or_default();
    match arguments.seed {
        Some(seed) => one(seed, sabotage, arguments.trace),
        None => many(&arguments, sabotage),
    }
}

fn one(seed: u64, sabotage: Sabotage, trace: bool) -> Result<ExitCode> {
    let run = run(seed, sabotage, trace)?;
    for line in &run.trace {
        println!("{line}");
    }
    println!("seed {seed}: {} events, hash {:016x}", run.steps, run.hash);
    println!("faults {:?}", run.faults);
    println!("outcomes {:?}", run.outcomes);
    for (name, how) in &run.violations {
        println!("VIOLATION {name}: {how}");
    }
    Ok(verdict(run.violations.is_empty()))
}

fn many(arguments: &Arguments, sabotage: Sabotage) -> Result<ExitCode> {
    let range = |first: u64| first..first.saturating_add(arguments.seeds);
    let (first, ranges) = match arguments.base {
        Some(base) => (FIXED_SEEDS.start, vec![FIXED_SEEDS, range(base)]),
        None => (arguments.first_seed, vec![range(arguments.first_seed)]),
    };
    let began = Instant::now();
    let summary = run_many(&ranges, arguments.threads, sabotage, |done| {
        if done % 1000 == 0 {
            eprintln!("{done} seeds, {:.0} s", began.elapsed().as_secs_f64());
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{} seeds in {ranges:?}, {} events, {seconds:.1} s; {} run twice and compared",
        summary.seeds, summary.steps, summary.replayed_twice
    );
    for (name, count) in &summary.faults {
        println!("  fault      {count:>9} {name}");
    }
    for (name, count) in &summary.outcomes {
        println!("  outcome    {count:>9} {name}");
    }
    for (name, count) in &summary.violations {
        println!("  violation  {count:>9} {name}");
    }
    if let Some(path) = &arguments.json {
        let results = summary.to_json(first, arguments.base, seconds);
        let results = serde_json::to_string_pretty(&results)?;
        std::fs::write(path, results)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    for (seed, how) in &summary.failing {
        println!("seed {seed}: {how}");
    }
    for lacking in summary.missing_coverage() {
        println!("too rare: {lacking}");
    }
    if let Some((seed, _)) = summary.failing.first_key_value() {
        let broken = arguments.sabotage.map(|it| format!(" --sabotage {it:?}"));
        let broken = broken.unwrap_or_default();
        println!("to repeat: semel-simulation --seed {seed} --trace{broken}");
    }
    Ok(verdict(summary.passed()))
}

fn verdict(passed: bool) -> ExitCode {
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn sabotage(name: &str) -> Result<Sabotage, String> {
    Sabotage::from_name(name).ok_or_else(|| format!("expected one of {:?}", Sabotage::ALL))
}
