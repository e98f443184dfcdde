//! The core, the layer and the worker, in a world whose every accident comes from a seed.
//!
//! A world has gateways (each an instance of the layer with an application behind it), workers and
//! clients, over one store; and a provider with a ledger, which is no part of the product. Calls to
//! the store fail, are performed and reported as failed, come late, or take long. Processes are
//! killed and stopped past their leases. Clients retry, meet, give up and misuse keys. Then it
//! heals, and everything is held against the ledger.
//!
//! Time is virtual, one thread runs it all, and whatever is left to chance is drawn from the seed,
//! also who goes first of those who could: so the same seed is the same world, event for event, in any process on any machine.
//!
//! ```
//! let run = semel_simulation::run(7, semel_simulation::Sabotage::None, false)?;
//! assert!(run.violations.is_empty());
//! # Ok::<(), anyhow::Error>(())
//! ```

mod app;
mod chaos;
mod client;
mod enough;
mod jostle;
mod judge;
mod many;
mod panics;
mod plan;
mod process;
mod provider;
mod rng;
mod sabotage;
mod store;
mod town;
mod wire;
mod witness;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::sleep;

pub use many::{ALWAYS, INVARIANTS, Summary, run_many};
pub use sabotage::Sabotage;

use crate::jostle::jostled;
use crate::town::Town;
use crate::world::World;

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// Over all events in order: equal where the runs are.
    pub hash: u64,
    /// How many events there were.
    pub steps: u64,
    /// The faults that were put in, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// What clients were told, by name.
    pub outcomes: BTreeMap<String, u64>,
    /// The promises that were broken, and how.
    pub violations: Vec<(&'static str, String)>,
    /// The events, where they were asked for.
    pub trace: Vec<String>,
}

/// Runs the world of a seed to its end.
///
/// # Errors
/// Only where the simulation itself cannot be set up.
pub fn run(seed: u64, sabotage: Sabotage, keep_trace: bool) -> anyhow::Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let (account, panics) = panics::watch(|| {
        let account = runtime.block_on(async {
            let world = Arc::new(World::new(seed, sabotage, keep_trace));
            live(&world).await?;
            anyhow::Ok(world.account())
        });
        // Tasks that are still there end with it, and may panic at that.
        drop(runtime);
        account
    });
    let mut account = account?;
    let panics = panics.into_iter().map(|how| ("product_panicked", how));
    account.violations.extend(panics);
    Ok(Run {
        hash: account.hash.0,
        steps: account.steps,
        faults: account.faults,
        outcomes: account.outcomes,
        violations: account.violations,
        trace: account.trace,
    })
}

async fn live(world: &Arc<World>) -> anyhow::Result<()> {
    let town = Town::new(Arc::clone(world))?;
    let mut tasks = JoinSet::new();
    for name in 1..=world.plan.clients {
        let living = jostled(world, client::live(Arc::clone(&town), name));
        tasks.spawn(async move {
            living.await;
            Ok(())
        });
    }
    tasks.spawn(chaos::rage(Arc::clone(&town)));
    drop(tokio::spawn(chaos::keep(Arc::clone(&town))));
    sleep(world.plan.length).await;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    judge::heal_and_judge(&town).await
}
