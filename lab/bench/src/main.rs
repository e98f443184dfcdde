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

mod all;
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
mod report;
mod retention;
mod serve;
mod store;
mod target;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use report::Report;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Everything that has a target, in one run.
    All(all::Settings),
    /// The embedded store, beside bare SQLite, bare appends, and what is written by hand.
    Store(store::Settings),
    /// What an operation costs while the store grows, and a plot of it.
    Growth(growth::Settings),
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
    let mut report = Report::default();
    let (output, all_asked_for) = match benchmark {
        Benchmark::All(settings) => {
            all::run(&mut report, &settings)?;
            (settings.output, true)
        }
        Benchmark::Store(settings) => {
            store::run(&mut report, &settings)?;
            (settings.output, settings.only.is_empty())
        }
        Benchmark::Growth(settings) => {
            growth::run(&mut report, &settings)?;
            (settings.output, true)
        }
        Benchmark::Http(settings) => {
            http::run(&mut report, &settings)?;
            (settings.output, settings.only.is_empty())
        }
        Benchmark::Postgres(settings) => {
            postgres::run(&mut report, &settings)?;
            let all = settings.asks_for_all();
            (settings.output, all)
        }
        Benchmark::Retention(settings) => {
            retention::run(&mut report, &settings)?;
            (settings.output, true)
        }
        Benchmark::Fingerprint { rounds } => return fingerprint::run(rounds),
        Benchmark::Memory(settings) => return memory::run(&settings),
        Benchmark::Outbox(settings) => return outbox::run(&settings),
        Benchmark::Console(settings) => return console::run(&settings),
        Benchmark::Serve { application } => return serve::run(&application),
    };
    report.finish(&output, all_asked_for)
}
