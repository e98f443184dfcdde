//! The layer and the gateway, beside plain axum and nginx.

mod case;
mod targets;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;

pub(crate) use case::{Case, Starter, Traffic, knows_gateway};
use targets::Added;

use crate::client::Latencies;
use crate::measure::Lines;
use crate::process::{Process, find_program};
use crate::report::{Output, Report};
use crate::store::scratch;

const PLAIN: &str = "plain axum";
const NGINX: &str = "nginx, plain proxy";
const GATEWAY_PASS: &str = "gateway, pass-through";
const GATEWAY_NEW: &str = "gateway, new keys";
const GATEWAY_REPLAY: &str = "gateway, replay";
const LAYER_NEW: &str = "layer, new keys";
const LAYER_REPLAY: &str = "layer, replay";
const LAYER_REPLAY_SQLITE: &str = "layer, replay from SQLite";

/// How far the order of the cases moves on from round to round; prime to their number.
const STRIDE: usize = 3;

/// The rate at which latencies are compared: far from what either side can do, so that they
/// show the path of a request and not a queue.
const PACED_PER_SECOND: f64 = 1_500.0;

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// How often everything is measured; the middle one counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Connections that are kept alive, each with one request under way.
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: usize,
    /// Where the files are made; a directory on the disk in question.
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    /// Measures only the lines whose name contains one of these.
    #[arg(long)]
    pub(crate) only: Vec<String>,
    /// The `semel` binary, for the gateway.
    #[arg(long)]
    pub(crate) semel: Option<PathBuf>,
    /// The `nginx` binary; looked for without this.
    #[arg(long)]
    pub(crate) nginx: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

pub(crate) fn run(report: &mut Report, settings: &Settings) -> Result<()> {
    let directory = scratch(settings.directory.clone())?;
    let mut cases = cases(settings, directory.path())?;
    let mut latencies = Latencies::new();
    for case in &mut cases {
        case.fill(settings.connections, &mut latencies)?;
    }

    let time = Duration::from_secs_f64(settings.seconds);
    let mut lines = Lines::default();
    // In turns, each round beginning with another case: a slow minute is slow for all, and no case
    // always runs after the one that leaves the disk the most work.
    for round in 0..settings.rounds {
        for turn in 0..cases.len() {
            let at = (turn + round * STRIDE) % cases.len();
            let measured = cases[at].measure(settings.connections, time, &mut latencies)?;
            lines.record(cases[at].name, measured);
        }
    }
    let added = added(&mut cases, settings, time, &mut latencies)?;

    let title = format!("HTTP on SQLite: {} connections", settings.connections);
    report.table(&title, &lines, |_| [PLAIN, NGINX].map(str::to_owned).into());
    if let Some(added) = &added {
        targets::print_added(added, PACED_PER_SECOND);
    }
    report.targets(targets::targets(&lines, added.as_ref()));
    Ok(())
}

/// The servers and what they are sent. What cannot be started is left out, and said.
fn cases(settings: &Settings, directory: &Path) -> Result<Vec<Case>> {
    let start = Starter { directory };
    let wanted = |name: &str| {
        let only = &settings.only;
        only.is_empty() || only.iter().any(|only| name.contains(only.as_str()))
    };
    let plain = Rc::new(start.plain()?);
    let mut cases = Vec::new();
    if wanted(PLAIN) {
        cases.push(Case::new(PLAIN, Rc::clone(&plain), Traffic::without_keys()));
    }

    let mut proxy = |name, server: Process, traffic| {
        cases.push(Case::new(name, Rc::new(server), traffic).proxy_to(&plain));
    };
    if wanted(NGINX) {
        match settings.nginx.clone().or_else(|| find_program("nginx")) {
            Some(program) => {
                let server = start.nginx(&program, &plain)?;
                proxy(NGINX, server, Traffic::without_keys());
            }
            None => println!("skipped: {NGINX}, since it is not installed"),
        }
    }
    let gateways = [
        (GATEWAY_PASS, Traffic::without_keys as fn() -> Traffic),
        (GATEWAY_NEW, Traffic::new_keys),
        (GATEWAY_REPLAY, Traffic::replays),
    ];
    let gateways: Vec<_> = gateways.into_iter().filter(|it| wanted(it.0)).collect();
    if !gateways.is_empty()
        && let Some(semel) = knows_gateway(settings.semel.as_deref())
    {
        for (name, traffic) in gateways {
            proxy(name, start.gateway(name, semel, &plain)?, traffic());
        }
    }

    let layers = [
        (LAYER_NEW, None, Traffic::new_keys as fn() -> Traffic),
        (LAYER_REPLAY, None, Traffic::replays),
        (LAYER_REPLAY_SQLITE, Some(0), Traffic::replays),
    ];
    for (name, cache_bytes, traffic) in layers {
        if wanted(name) {
            let server = Rc::new(start.layer(name, cache_bytes)?);
            cases.push(Case::new(name, server, traffic()));
        }
    }
    Ok(cases)
}

/// What a cached replay adds to the latency of the plain application, if both are measured.
fn added(
    cases: &mut [Case],
    settings: &Settings,
    time: Duration,
    latencies: &mut Latencies,
) -> Result<Option<Added>> {
    let find = |name| cases.iter().position(|case| case.name == name);
    let (Some(plain), Some(replay)) = (find(PLAIN), find(LAYER_REPLAY)) else {
        return Ok(None);
    };
    let mut added = Added::default();
    for round in 0..settings.rounds {
        let mut paced = |at: usize| {
            cases[at].measure_paced(settings.connections, PACED_PER_SECOND, time, latencies)
        };
        // The second of the two finds the processor awake.
        if round % 2 == 0 {
            added.plain.push(paced(plain)?);
            added.replay.push(paced(replay)?);
        } else {
            added.replay.push(paced(replay)?);
            added.plain.push(paced(plain)?);
        }
    }
    Ok(Some(added))
}
