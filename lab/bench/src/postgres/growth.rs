//! What an operation costs while the table grows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use semel_core::OperationId;
use tokio::runtime::Runtime;
use tokio_postgres::Client;
use uuid::Uuid;

use super::Extent;
use super::server::{Database, Server, connect};
use super::subject::{self, BenchStore};
use crate::client::Keys;
use crate::load::{
    BODY, Contender, all_at_once, completed, completion, new_operations, replays, request,
};
use crate::measure::{Lines, Measurement};
use crate::report::Report;
use crate::target::{Limit, Target};

const FILL: &str = include_str!("../../queries/fill.sql");
const VACUUM: &str = include_str!("../../queries/vacuum.sql");
const CHECKPOINT: &str = include_str!("../../queries/checkpoint.sql");

/// Callers at once: enough to fill groups.
const CALLERS: usize = 64;

/// Rows a statement while filling, which is not measured; small enough for its arrays to stay
/// in the processor's cache.
const FILL_ROWS: u64 = 5_000;

/// Operations before the table is filled: enough for every connection to settle for a plan.
const FIRST: usize = 256;

/// As many at once as a store lets wait.
const FILL_CALLERS: usize = 4_096;

/// A crash while filling loses the benchmark anyway.
const FILL_SETTINGS: &str = "-c synchronous_commit=off";

/// Keys that are replayed in a round, from all over the table: more than a round has time for,
/// so that hardly any is found twice in the same warm place.
const SAMPLED: u64 = 200_000;

/// Tables of this size are filled once; a round adds little to them. What it adds to a small
/// one would make it a large one, so that is filled anew.
const LARGE: u64 = 1_000_000;

/// A table of a certain size.
pub(super) struct Size<'a, C> {
    /// Opened while the table was empty, and so with plans of that time.
    pub(super) store: C,
    rows: u64,
    keys: Keys,
    /// How long ago they were completed.
    age: Duration,
    /// Dropped last, after all connections.
    database: Database<'a>,
}

pub(super) fn fill<'a>(
    server: &'a Server,
    extent: &Extent,
    rows: u64,
    age: Duration,
) -> Result<Size<'a, impl BenchStore + use<>>> {
    let (runtime, start) = (&server.runtime, Instant::now());
    let database = server.fresh(&format!("growth_{rows}"))?;
    let size = Size {
        store: runtime.block_on(subject::open(database.url.clone()))?,
        rows,
        keys: Keys::new(),
        age,
        database,
    };
    let few = completed(runtime, &size.store, FIRST)?;
    all_at_once(runtime, &size.store, &few, |store, key| async move {
        store.replay(&key).await
    })?;
    if extent.fill_through_store {
        size.complete(runtime)?;
    } else {
        runtime.block_on(size.insert())?;
    }
    size.database.execute(&[VACUUM, CHECKPOINT])?;
    println!("filled with {rows} rows in {:.0?}", start.elapsed());
    Ok(size)
}

/// A database with that many operations, and without connections.
pub(crate) fn filled(server: &Server, rows: u64, age: Duration) -> Result<Database<'_>> {
    let extent = Extent {
        time: Duration::ZERO,
        rounds: 0,
        connections: 0,
        rows: [0, rows],
        counted: 0,
        replayed: 0,
        fill_through_store: false,
        only: Vec::new(),
    };
    Ok(fill(server, &extent, rows, age)?.database)
}

impl<C: Contender> Size<'_, C> {
    fn key(&self, number: u64) -> String {
        String::from_utf8_lossy(&self.keys.text(number)).into_owned()
    }

    /// Makes all rows as callers make them.
    fn complete(&self, runtime: &Runtime) -> Result<()> {
        for first in (0..self.rows).step_by(FILL_CALLERS) {
            let last = self.rows.min(first + FILL_CALLERS as u64);
            let keys: Vec<_> = (first..last).map(|number| self.key(number)).collect();
            all_at_once(runtime, &self.store, &keys, |store, key| async move {
                store.complete_new(&key).await
            })?;
        }
        Ok(())
    }

    /// Writes all rows, a half on each of two connections: one of them always computes.
    async fn insert(&self) -> Result<()> {
        let half = self.rows / 2;
        let connect = || connect(&self.database.url, FILL_SETTINGS);
        let (one, other) = tokio::try_join!(connect(), connect())?;
        tokio::try_join!(
            self.insert_some(&one, 0, half),
            self.insert_some(&other, half, self.rows)
        )?;
        Ok(())
    }

    async fn insert_some(&self, client: &Client, from: u64, to: u64) -> Result<()> {
        let insert = client
            .prepare(FILL)
            .await
            .context("fill.sql does not fit the table of the store")?;
        let headers = semel_core::headers::encode(&completion().response.headers);
        let now = semel_core::Clock::now(&semel_core::SystemClock).as_micros();
        let now = now - self.age.as_micros() as i64;
        let mut first = from;
        while first < to {
            let last = to.min(first + FILL_ROWS);
            let (mut hashes, mut ids, mut keys) = (Vec::new(), Vec::new(), Vec::new());
            for number in first..last {
                let key = self.key(number);
                let identity = request(&key)?.identity;
                hashes.push(Uuid::from_bytes(identity.hash().0));
                ids.push(Uuid::from_bytes(*OperationId::generate().as_bytes()));
                keys.push(key);
            }
            let sample = request(&self.key(first))?;
            let fingerprint = sample.fingerprints.newest();
            let (tenant, operation) = (sample.identity.tenant(), sample.identity.operation());
            client
                .execute(
                    &insert,
                    &[
                        &hashes,
                        &ids,
                        &keys,
                        &tenant,
                        &operation,
                        &&fingerprint.digest()[..],
                        &now,
                        &&headers[..],
                        &&BODY[..],
                    ],
                )
                .await?;
            first = last;
        }
        Ok(())
    }

    /// Keys from all over the table, others in every round.
    fn sample(&self, round: usize) -> Arc<[String]> {
        let step = self.rows.div_ceil(SAMPLED);
        (round as u64 % step..self.rows)
            .step_by(step as usize)
            .map(|number| self.key(number))
            .collect()
    }
}

pub(super) fn run(report: &mut Report, server: &Server, extent: &Extent) -> Result<()> {
    let [small, large] = extent.rows;
    ensure!(
        small < large,
        "more than {small} rows are needed to grow to"
    );
    let runtime = &server.runtime;
    let mut lines = Lines::default();
    let mut sizes = [small, large].map(|rows| (rows, None));
    // In turns, so that a slow minute slows both sizes; the first warms up and does not count.
    for round in 0..=extent.rounds {
        for (rows, kept) in &mut sizes {
            // The old one goes first: they have the same name.
            let size = match kept.take().filter(|_| *rows >= LARGE) {
                Some(size) => size,
                None => fill(server, extent, *rows, Duration::ZERO)?,
            };
            let (store, keys) = (&size.store, size.sample(round));
            let replay = server.measure(|| replays(runtime, store, &keys, CALLERS, extent.time))?;
            let new = server.measure(|| new_operations(runtime, store, CALLERS, extent.time))?;
            if round > 0 {
                lines.record(&name("new", *rows), new);
                lines.record(&name("replay", *rows), replay);
            }
            *kept = Some(size);
        }
    }
    let title = format!("growth of PostgreSQL: {CALLERS} callers");
    report.table(&title, &lines, |line| {
        let what = line.split(',').next().unwrap_or_default();
        vec![name(what, small)]
    });
    report.targets(targets(&lines, extent.rows));
    Ok(())
}

fn name(what: &str, rows: u64) -> String {
    format!("{what}, {rows} rows")
}

fn targets(lines: &Lines, [small, large]: [u64; 2]) -> Vec<Target> {
    let mut targets = Vec::new();
    for what in ["new", "replay"] {
        let (small, large) = (name(what, small), name(what, large));
        let costs = [
            ("CPU", lines.ratio(&large, &small, Measurement::cpu)),
            // The time an operation takes is what the rate is not.
            ("time", lines.ratio(&small, &large, |one| one.per_second)),
        ];
        for (cost, ratio) in costs {
            targets.push(Target::new(
                format!("PostgreSQL, {large}: {cost} / smallest"),
                ratio,
                Limit::AtMost(1.3),
            ));
        }
    }
    targets
}
