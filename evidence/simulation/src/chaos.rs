//! Blows: processes are killed, stopped and drained, and the store goes away, when the seed says.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::LATEST;
use crate::process::Process;
use crate::town::Town;
use crate::world::World;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    KillGateway,
    StopGateway,
    DrainGateway,
    KillWorker,
    StopWorker,
    StoreOutage,
}

/// Deals as many blows as the seed wants, until its time is over.
pub(crate) async fn rage(town: Arc<Town>) -> anyhow::Result<()> {
    let world = &town.world;
    let plan = &world.plan;
    let most = u64::try_from(plan.length.as_millis()).unwrap_or(0) / plan.blows.max(1);
    for _ in 0..plan.blows {
        world.dawdle(0, most).await;
        let blow = world.draw(|rng| {
            rng.pick(
                Blow::KillGateway,
                &[
                    Blow::KillGateway,
                    Blow::StopGateway,
                    Blow::StopGateway,
                    Blow::DrainGateway,
                    Blow::KillWorker,
                    Blow::StopWorker,
                    Blow::StoreOutage,
                ],
            )
        });
        let at = world.draw(|rng| rng.index(8));
        // Well beyond the lease, and not beyond all bounds.
        let lease = u64::try_from(plan.lease.as_millis()).unwrap_or(0);
        let time = world.draw(|rng| rng.millis(10, 4 * lease)).min(LATEST / 2);
        world.tell(format_args!("blow: {blow:?} {at} {time:?}"));
        deal(&town, blow, at, time)?;
    }
    Ok(())
}

fn deal(town: &Arc<Town>, blow: Blow, at: usize, time: Duration) -> anyhow::Result<()> {
    let world = &town.world;
    let gateway = town.gateway(at);
    match blow {
        Blow::KillGateway => {
            world.kill(gateway.map(|gateway| gateway.process).as_deref());
            Ok(())
        }
        Blow::StopGateway => {
            world.stop(gateway.map(|gateway| gateway.process).as_deref(), time);
            Ok(())
        }
        Blow::DrainGateway => {
            let Some(gateway) = gateway else {
                return Ok(());
            };
            world.fault("gateway_drained");
            // New ones go to its successor at once.
            town.restart_gateway(at)?;
            drop(tokio::spawn(async move {
                gateway.layer.drain(time / 2).await;
                gateway.process.kill();
            }));
            Ok(())
        }
        Blow::KillWorker => {
            world.kill(town.worker(at).as_deref());
            Ok(())
        }
        Blow::StopWorker => {
            world.stop(town.worker(at).as_deref(), time);
            Ok(())
        }
        Blow::StoreOutage => {
            world.store_outage(time / 2);
            Ok(())
        }
    }
}

/// Whoever restarts what died, a while later.
pub(crate) async fn keep(town: Arc<Town>) -> anyhow::Result<()> {
    while !town.world.is_healed() {
        town.world.dawdle(50, 1500).await;
        town.restart_dead()?;
    }
    Ok(())
}

impl World {
    /// Something may happen to a process just now, in the middle of what it does.
    pub(crate) fn mishap(&self, process: &Process) {
        let rate = self.plan.mishaps;
        if self.is_healed() || !self.draw(|rng| rng.in_thousand(rate)) {
            return;
        }
        if self.draw(|rng| rng.in_thousand(300)) {
            self.kill(Some(process));
        } else {
            let lease = u64::try_from(self.plan.lease.as_millis()).unwrap_or(0);
            let time = self.draw(|rng| rng.millis(lease / 2, 4 * lease));
            self.stop(Some(process), time);
        }
    }

    fn kill(&self, process: Option<&Process>) {
        if let Some(process) = process {
            self.fault(process.kind.killed());
            self.tell(format_args!("{} is killed", process.name));
            process.kill();
        }
    }

    fn stop(&self, process: Option<&Process>, time: Duration) {
        if let Some(process) = process {
            self.fault(process.kind.stopped());
            self.tell(format_args!("{} is stopped for {time:?}", process.name));
            process.stop_for(time);
        }
    }
}
