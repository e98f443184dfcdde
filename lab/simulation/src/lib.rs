//! A deterministic simulation of the core, the layer and the worker, in which a seed decides every
//! fault.
//!
//! A scenario has gateways (each an instance of the layer with an application behind it), workers and
//! clients, over one store; and a provider with a ledger, which is not part of the product. Calls to
//! the store fail, are performed and reported as failed, land late, or take long. Processes are
//! killed, and stopped past their leases. Clients retry, collide, give up and misuse keys. Then all
//! faults end, and everything is compared with the ledger.
//!
//! Time is virtual, one thread runs everything, and every random choice comes from the seed, also the
//! order of tasks that are ready. So a seed gives the same scenario, event for event, in any process
//! on any machine.
//!
//! ```
//! let run = semel_simulation::run(7, semel_simulation::Sabotage::None, false)?;
//! assert!(run.violations.is_empty());
//! # Ok::<(), anyhow::Error>(())
//! ```

mod app;
mod chaos;
mod client;
mod cluster;
mod connection;
mod coverage;
mod many;
mod panics;
mod plan;
mod process;
mod provider;
mod reorder;
mod rng;
mod sabotage;
mod scenario;
mod store;
mod verify;
mod witness;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::sleep;

pub use many::{FIXED_SEEDS, INVARIANTS, Summary, run_many};
pub use sabotage::Sabotage;

use crate::cluster::Cluster;
use crate::reorder::reorder;
use crate::scenario::Scenario;

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// A hash of all events in order.
    pub hash: u64,
    /// How many events there were.
    pub steps: u64,
    /// The injected faults, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// The results of requests, by name.
    pub outcomes: BTreeMap<String, u64>,
    /// The broken invariants, and how.
    pub violations: Vec<(&'static str, String)>,
    /// The events, if they were requested.
    pub trace: Vec<String>,
}

/// Runs the scenario of a seed to its end.
///
/// # Errors
/// Only where the simulation itself cannot be set up.
pub fn run(seed: u64, sabotage: Sabotage, keep_trace: bool) -> anyhow::Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let (log, panics) = panics::watch(|| {
        let log = runtime.block_on(async {
            let scenario = Arc::new(Scenario::new(seed, sabotage, keep_trace));
            run_scenario(&scenario).await?;
            anyhow::Ok(scenario.log())
        });
        // The remaining tasks end with the runtime, and may panic then.
        drop(runtime);
        log
    });
    let mut log = log?;
    let panics = panics.into_iter().map(|how| ("product_panicked", how));
    log.violations.extend(panics);
    Ok(Run {
        hash: log.hash.0,
        steps: log.steps,
        faults: log.faults,
        outcomes: log.outcomes,
        violations: log.violations,
        trace: log.trace,
    })
}

async fn run_scenario(scenario: &Arc<Scenario>) -> anyhow::Result<()> {
    let cluster = Cluster::new(Arc::clone(scenario))?;
    let mut tasks = JoinSet::new();
    for name in 1..=scenario.plan.clients {
        let running = reorder(scenario, client::run(Arc::clone(&cluster), name));
        tasks.spawn(async move {
            running.await;
            Ok(())
        });
    }
    tasks.spawn(chaos::inject_faults(Arc::clone(&cluster)));
    drop(tokio::spawn(chaos::restart_dead_processes(Arc::clone(
        &cluster,
    ))));
    sleep(scenario.plan.length).await;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    verify::heal_and_verify(&cluster).await
}
