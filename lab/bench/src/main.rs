//! What Semel reaches, beside its peers and its limits, in one run.
//!
//! Absolute rates move with the machine and its neighbours, by a factor for anything that
//! waits for a disk. So every result is shown beside the one that it is compared with, measured in
//! turns within the same minutes, and the ratio is what counts.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the results are the output"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::wildcard_enum_match_arm,
    reason = "results are rounded anyway, and any unexpected answer ends the run"
)]

mod bare;
mod client;
mod console;
mod fingerprint;
mod growth;
mod http;
mod load;
mod measure;
mod memory;
mod nginx;
mod outbox;
mod postgres;
mod process;
mod retention;
mod serve;
mod store;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// The embedded store, beside bare SQLite and bare appends.
    Store {
        /// Seconds for each measurement.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// How often everything is measured; the middle one counts.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where the files are made; a directory on the disk in question.
        #[arg(long)]
        directory: Option<PathBuf>,
        /// Measures only the lines whose name contains one of these.
        #[arg(long)]
        only: Vec<String>,
    },
    /// What an operation costs while the store grows, and a plot of it.
    Growth {
        /// Stored operations at which to measure.
        #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000, 5_000_000])]
        records: Vec<u64>,
        /// Seconds for each measurement.
        #[arg(long, default_value_t = 3.0)]
        seconds: f64,
        /// How often everything is measured; the middle one counts.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Where the files are made; about 1.5 KB a record.
        #[arg(long)]
        directory: Option<PathBuf>,
        /// Where the plot goes.
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// A fingerprint, beside the crates that a service would otherwise take.
    Fingerprint {
        /// How often everything is measured; the best one counts.
        #[arg(long, default_value_t = 25)]
        rounds: usize,
    },
    /// The layer and the gateway, beside plain axum and nginx.
    Http(http::Settings),
    /// The gateway's memory under a mixed load, which must not grow.
    Memory(memory::Settings),
    /// The store in Postgres, beside what is written by hand and beside the server's limit.
    Postgres(postgres::Settings),
    /// Events from transactions into a broker, beside the broker alone.
    Outbox(outbox::Settings),
    /// How long an operator waits for the console, with millions of operations stored.
    Console(console::Settings),
    /// What callers feel while millions of records expire in the embedded store.
    Retention(retention::Settings),
    /// One of the applications that the others measure.
    #[command(hide = true)]
    Serve {
        #[command(subcommand)]
        application: serve::Application,
    },
}

fn main() -> ExitCode {
    match perform(Arguments::parse().benchmark) {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace: a missed target or an unexpected answer has no place in here.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(benchmark: Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Store {
            seconds,
            rounds,
            directory,
            only,
        } => store::run(seconds, rounds, directory, &only),
        Benchmark::Growth {
            records,
            seconds,
            rounds,
            directory,
            plot,
        } => growth::run(&records, seconds, rounds, directory, plot.as_deref()),
        Benchmark::Fingerprint { rounds } => fingerprint::run(rounds),
        Benchmark::Http(settings) => http::run(&settings),
        Benchmark::Memory(settings) => memory::run(&settings),
        Benchmark::Postgres(settings) => postgres::run(&settings),
        Benchmark::Outbox(settings) => outbox::run(&settings),
        Benchmark::Console(settings) => console::run(&settings),
        Benchmark::Retention(settings) => retention::run(&settings),
        Benchmark::Serve { application } => serve::run(&application),
    }
}
