//! What an operation costs while the store grows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use plotters::prelude::*;
use rusqlite::Connection;
use semel_core::OperationId;
use semel_sqlite::Sqlite;
use tokio::runtime::Runtime;

use crate::load::{BODY, completion, new_operations, request};
use crate::measure::{Lines, Measurement, measure};
use crate::report::{Output, Report};
use crate::store::scratch;
use crate::target::{Limit, Target};

/// Callers at once: enough to fill groups.
const CALLERS: usize = 64;

/// Rows a transaction while filling, which is not measured.
const FILL: u64 = 20_000;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Stored operations at which to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000, 5_000_000])]
    pub(crate) records: Vec<u64>,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Where the files are made; about 1.5 KB a record.
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    /// Where the plot goes.
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let directory = scratch(settings.directory.clone())?;
    let runtime = Runtime::new()?;
    let sizes = &settings.records;
    let place = |records: u64| directory.path().join(format!("{records}.db"));
    for &records in sizes.iter().filter(|records| **records >= LARGE) {
        fill(&runtime, &place(records), records, Duration::ZERO)?;
        println!("filled with {records} records");
    }
    let time = Duration::from_secs_f64(settings.seconds);
    let mut lines = Lines::default();
    // In turns, so that a slow minute slows all sizes; the first warms up and does not count.
    for round in 0..=settings.rounds {
        for &records in sizes {
            let path = place(records);
            if records < LARGE {
                // What a round adds would make a small store a large one: begin anew.
                std::fs::remove_file(&path).or_else(absent)?;
                fill(&runtime, &path, records, Duration::ZERO)?;
            }
            let store = runtime.block_on(Sqlite::open(&path))?;
            let measurement = measure(|| new_operations(&runtime, &store, CALLERS, time))?;
            if round > 0 {
                lines.record(&name(records), measurement);
            }
        }
    }
    let [smallest, .., largest] = sizes[..] else {
        bail!("growth needs two sizes");
    };
    let title = format!("growth of SQLite: {CALLERS} callers");
    report.table(&title, &lines, |_| vec![name(smallest)]);
    // The time an operation takes is what the rate is not.
    let wall = |records| {
        let (name, smallest) = (name(records), name(smallest));
        lines.ratio(&smallest, &name, |one| one.per_second)
    };
    let cpu = |records| lines.ratio(&name(records), &name(smallest), Measurement::cpu);
    report.targets(
        [("time", wall(largest)), ("CPU", cpu(largest))].map(|(cost, ratio)| {
            let name = format!("SQLite, {}: {cost} / smallest", name(largest));
            Target::new(name, ratio, Limit::AtMost(1.3))
        }),
    );
    let Some(path) = &settings.plot else {
        return Ok(());
    };
    let point = |&records: &u64| {
        Some(Point {
            records,
            wall: wall(records)?,
            cpu: cpu(records)?,
        })
    };
    let points: Vec<_> = sizes.iter().filter_map(point).collect();
    draw(path, &points)
}

fn name(records: u64) -> String {
    format!("new, {records} records")
}

/// The size of the small store beside which a large one is measured.
pub(crate) fn small_beside(large: u64) -> u64 {
    (large / 10).min(100_000)
}

/// Stores of this size are filled once; a round adds little to them.
const LARGE: u64 = 1_000_000;

fn absent(error: std::io::Error) -> std::io::Result<()> {
    match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// Cost of one size, and both costs in relation to the smallest.
struct Point {
    records: u64,
    wall: f64,
    cpu: f64,
}

/// Operations completed some time ago, as the store itself would have left them, but in few large
/// commits.
pub(crate) fn fill(runtime: &Runtime, path: &Path, records: u64, age: Duration) -> Result<()> {
    // Opened once to make the schema.
    drop(runtime.block_on(Sqlite::open(path))?);
    let connection = Connection::open(path)?;
    connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000")?;
    let mut insert = connection.prepare(
        "INSERT INTO semel_operations (
             key_hash, id, scope, tenant, operation, key, fingerprint_version, fingerprint,
             status, attempt, owner, locked_until, response_status, response_headers,
             response_body, schema_version, replay_us, body_us, tombstone_us, created_at,
             updated_at, completed_at, expires_at
         ) VALUES (?1, ?2, 'operation', ?3, ?4, ?5, 1, ?6, 'completed', 1, 'host-1/12345', ?7,
             201, ?8, ?9, 0, 86400000000, 86400000000, 2592000000000, ?7, ?7, ?7,
             ?7 + 86400000000)",
    )?;
    let headers = semel_core::headers::encode(&completion().response.headers);
    let now = semel_core::Clock::now(&semel_core::SystemClock).as_micros();
    let completed_at = now - age.as_micros() as i64;
    let mut filled = 0;
    while filled < records {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for _ in 0..FILL.min(records - filled) {
            let request = request(&OperationId::generate().to_string())?;
            let identity = &request.identity;
            insert.execute(rusqlite::params![
                identity.hash().0,
                request.id.as_bytes(),
                identity.tenant(),
                identity.operation(),
                identity.key().as_str(),
                [1u8; 32],
                completed_at,
                &headers[..],
                BODY,
            ])?;
            filled += 1;
        }
        connection.execute_batch("COMMIT")?;
    }
    connection.pragma(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))?;
    // Else the system writes gigabytes to the disk while we measure it.
    std::fs::File::open(path)?.sync_all()?;
    Ok(())
}

/// Both costs over the size, in relation to the smallest.
fn draw(path: &Path, points: &[Point]) -> Result<()> {
    let [smallest, .., largest] = points else {
        bail!("a plot needs two sizes");
    };
    let root = SVGBackend::new(path, (720, 400)).into_drawing_area();
    root.fill(&WHITE)?;
    let highest = points
        .iter()
        .map(|point| point.wall.max(point.cpu))
        .fold(2.0, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Cost of a new operation while the SQLite store grows",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(
            (smallest.records..largest.records).log_scale(),
            0.0..highest,
        )?;
    chart
        .configure_mesh()
        .x_desc("stored operations")
        .y_desc("times the cost at the smallest")
        .x_label_formatter(&|records| format!("{records}"))
        .draw()?;
    let time = |point: &Point| point.wall;
    let processor = |point: &Point| point.cpu;
    let curves = [
        ("time", BLUE, &time as &dyn Fn(&Point) -> f64),
        ("processor time", RED, &processor),
    ];
    for (name, color, cost) in curves {
        chart
            .draw_series(LineSeries::new(
                points.iter().map(|point| (point.records, cost(point))),
                color.stroke_width(2),
            ))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    let bound = [(smallest.records, 1.5), (largest.records, 1.5)];
    chart
        .draw_series(LineSeries::new(bound, BLACK.mix(0.4)))?
        .label("bound")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.mix(0.4)));
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
