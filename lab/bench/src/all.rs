//! Everything that has a target, in one run.

use std::path::PathBuf;

use anyhow::Result;

use crate::postgres::Part;
use crate::report::{Output, Report};
use crate::{growth, http, postgres, retention, store};
use growth::small_beside;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The PostgreSQL server, on this machine: its user may create databases.
    #[arg(long)]
    postgres: String,
    /// The `semel` binary, for the gateway.
    #[arg(long)]
    semel: Option<PathBuf>,
    /// The `nginx` binary; looked for without this.
    #[arg(long)]
    nginx: Option<PathBuf>,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// HTTP connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Records of a large store, for growth and retention; about 2 KB each on the disk.
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Where the files are made; a directory on the disk in question.
    #[arg(long)]
    directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let Settings {
        seconds,
        rounds,
        connections,
        records,
        ..
    } = *settings;
    let directory = || settings.directory.clone();
    let store = store::Settings {
        seconds,
        rounds,
        directory: directory(),
        only: Vec::new(),
        output: Output::default(),
    };
    store::run(report, &store)?;
    let http = http::Settings {
        seconds,
        rounds,
        connections,
        directory: directory(),
        only: Vec::new(),
        semel: settings.semel.clone(),
        nginx: settings.nginx.clone(),
        output: Output::default(),
    };
    http::run(report, &http)?;
    let postgres = |part: &[Part]| postgres::Settings {
        postgres: settings.postgres.clone(),
        seconds,
        rounds,
        connections,
        rows: records,
        fill_through_store: false,
        part: part.to_vec(),
        only: Vec::new(),
        quick: false,
        directory: directory(),
        output: Output::default(),
    };
    let requests = [Part::Store, Part::Http, Part::Commits];
    postgres::run(report, &postgres(&requests))?;
    let growth = growth::Settings {
        records: vec![small_beside(records), records],
        seconds,
        rounds,
        directory: directory(),
        plot: None,
        output: Output::default(),
    };
    growth::run(report, &growth)?;
    let retention = retention::Settings {
        records,
        seconds,
        rounds,
        directory: directory(),
        output: Output::default(),
    };
    retention::run(report, &retention)?;
    postgres::run(report, &postgres(&[Part::Growth, Part::Retention]))
}
