//! Faults of processes and of the store: kills, stops, drains and outages, at times from the seed.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::plan::LATEST;
use crate::process::Process;
use crate::scenario::Scenario;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessFault {
    KillGateway,
    StopGateway,
    DrainGateway,
    KillWorker,
    StopWorker,
    StoreOutage,
}

/// Injects the faults of the seed.
pub(crate) async fn inject_faults(cluster: Arc<Cluster>) -> anyhow::Result<()> {
    let scenario = &cluster.scenario;
    let plan = &scenario.plan;
    let most = u64::try_from(plan.length.as_millis()).unwrap_or(0) / plan.process_faults.max(1);
    for _ in 0..plan.process_faults {
        scenario.sleep_random(0, most).await;
        let fault = scenario.draw(|rng| {
            rng.pick(
                ProcessFault::KillGateway,
                &[
                    ProcessFault::KillGateway,
                    ProcessFault::StopGateway,
                    ProcessFault::StopGateway,
                    ProcessFault::DrainGateway,
                    ProcessFault::KillWorker,
                    ProcessFault::StopWorker,
                    ProcessFault::StoreOutage,
                ],
            )
        });
        let at = scenario.draw(|rng| rng.index(8));
        // Up to several leases, but bounded.
        let lease = u64::try_from(plan.lease.as_millis()).unwrap_or(0);
        let time = scenario
            .draw(|rng| rng.millis(10, 4 * lease))
            .min(LATEST / 2);
        scenario.record_event(format_args!("fault: {fault:?} {at} {time:?}"));
        inject(&cluster, fault, at, time)?;
    }
    Ok(())
}

fn inject(
    cluster: &Arc<Cluster>,
    fault: ProcessFault,
    at: usize,
    time: Duration,
) -> anyhow::Result<()> {
    let scenario = &cluster.scenario;
    let gateway = cluster.gateway(at);
    match fault {
        ProcessFault::KillGateway => {
            scenario.kill(gateway.map(|gateway| gateway.process).as_deref());
            Ok(())
        }
        ProcessFault::StopGateway => {
            scenario.stop(gateway.map(|gateway| gateway.process).as_deref(), time);
            Ok(())
        }
        ProcessFault::DrainGateway => {
            let Some(gateway) = gateway else {
                return Ok(());
            };
            scenario.fault("gateway_drained");
            // New requests go to its replacement at once.
            cluster.restart_gateway(at)?;
            drop(tokio::spawn(async move {
                gateway.layer.drain(time / 2).await;
                gateway.process.kill();
            }));
            Ok(())
        }
        ProcessFault::KillWorker => {
            scenario.kill(cluster.worker(at).as_deref());
            Ok(())
        }
        ProcessFault::StopWorker => {
            scenario.stop(cluster.worker(at).as_deref(), time);
            Ok(())
        }
        ProcessFault::StoreOutage => {
            scenario.store_outage(time / 2);
            Ok(())
        }
    }
}

/// The supervisor: replaces dead processes after a while.
pub(crate) async fn restart_dead_processes(cluster: Arc<Cluster>) -> anyhow::Result<()> {
    while !cluster.scenario.is_healed() {
        cluster.scenario.sleep_random(50, 1500).await;
        cluster.restart_dead()?;
    }
    Ok(())
}

impl Scenario {
    /// May kill or stop a process in the middle of its work.
    pub(crate) fn inject_mishap(&self, process: &Process) {
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
            self.record_event(format_args!("{} is killed", process.name));
            process.kill();
        }
    }

    fn stop(&self, process: Option<&Process>, time: Duration) {
        if let Some(process) = process {
            self.fault(process.kind.stopped());
            self.record_event(format_args!("{} is stopped for {time:?}", process.name));
            process.stop_for(time);
        }
    }
}
