//! Services over HTTP: one behind the layer, one written by hand.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;

use super::Extent;
use super::server::Server;
use crate::client::Latencies;
use crate::http::{Case, Starter, Traffic};
use crate::measure::{Lines, Measurement};
use crate::report::Report;
use crate::store::scratch;
use crate::target::{Limit, Target};

const LAYER_NEW: &str = "layer, new keys";
const HAND_NEW: &str = "hand-written, new keys";
const LAYER_REPLAY: &str = "layer, replay from Postgres";
const HAND_REPLAY: &str = "hand-written, replay";

/// Who serves, and what it is sent.
struct Measured {
    name: &'static str,
    /// Of [`crate::serve::Application`].
    application: &'static str,
    traffic: fn() -> Traffic,
}

const MEASURED: [Measured; 4] = [
    Measured {
        name: LAYER_NEW,
        application: "postgres-layer",
        traffic: Traffic::new_keys,
    },
    Measured {
        name: HAND_NEW,
        application: "hand-written",
        traffic: Traffic::new_keys,
    },
    Measured {
        name: LAYER_REPLAY,
        application: "postgres-layer",
        traffic: Traffic::replays,
    },
    Measured {
        name: HAND_REPLAY,
        application: "hand-written",
        traffic: Traffic::replays,
    },
];

pub(super) fn run(
    report: &mut Report,
    server: &Server,
    extent: &Extent,
    directory: Option<PathBuf>,
) -> Result<()> {
    let directory = scratch(directory)?;
    let start = Starter {
        directory: directory.path(),
    };
    let mut lines = Lines::default();
    let mut latencies = Latencies::new();
    for round in 0..extent.rounds {
        for turn in 0..MEASURED.len() {
            let Measured {
                name,
                application,
                traffic,
            } = MEASURED[(turn + round) % MEASURED.len()];
            if !extent.wants(name) {
                continue;
            }
            let database = server.fresh("http")?;
            let service = start.own(&format!("{name}, round {round}"), |_| {
                vec![application.into(), "--url".into(), (&database.url).into()]
            })?;
            let mut case = Case::new(name, Rc::new(service), traffic()).in_front_of(server.tree);
            case.fill(extent.connections, &mut latencies)?;
            let round = case.measure(extent.connections, extent.time, &mut latencies)?;
            lines.record(name, round);
        }
    }
    let title = format!("HTTP on PostgreSQL: {} connections", extent.connections);
    report.table(&title, &lines, |name| {
        let peer = match name {
            LAYER_NEW => HAND_NEW,
            LAYER_REPLAY => HAND_REPLAY,
            _ => return Vec::new(),
        };
        vec![peer.into()]
    });
    report.targets(targets(&lines));
    Ok(())
}

fn targets(lines: &Lines) -> Vec<Target> {
    let rate = |name, other| lines.ratio(name, other, |one| one.per_second);
    vec![
        Target::new(
            "HTTP, new keys: rate / hand-written",
            rate(LAYER_NEW, HAND_NEW),
            Limit::AtLeast(4.0),
        ),
        Target::new(
            "HTTP, new keys: CPU / hand-written",
            lines.ratio(LAYER_NEW, HAND_NEW, Measurement::cpu),
            Limit::AtMost(0.25),
        ),
        Target::new(
            "HTTP, replay: rate / hand-written",
            rate(LAYER_REPLAY, HAND_REPLAY),
            Limit::AtLeast(6.0),
        ),
    ]
}
