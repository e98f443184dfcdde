//! Faults of a PostgreSQL cluster: its leader is killed, frozen, cut off and replaced.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_testkit::cluster::{Cluster, Options, Partition, TTL};
use semel_testkit::shifted_clock;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::faults::FaultInjector;

/// The disk of each node: several times what a long run writes.
const DISK: u64 = 8 << 30;
/// Where the logs of the nodes go.
const LOGS: &str = "cluster";
/// Shorter than any fault with its repair: one that begins later would outlast the clients.
const SHORTEST: Duration = Duration::from_secs(10);
/// How often the leader's role is handed on until a certain node has it: Patroni chooses one of two.
const HAND_OVERS: usize = 6;
/// How long clients work with a leader whose clock is off.
const WITH_OTHER_CLOCK: Duration = Duration::from_secs(5);
/// The longest pause that a fault may cause: the leader's claim has to run out first.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(TTL.as_secs() + 5);

/// A fault of the cluster. It ends, and the cluster is whole again, before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClusterFault {
    /// SIGKILL for the leader, which is started again after it was replaced.
    Kill,
    /// The leader is stopped for this many milliseconds, and goes on after it was replaced.
    Freeze(u64),
    /// The leader is cut off for this many milliseconds.
    CutOff(Partition, u64),
    SwitchOver,
    /// A standby that acknowledges writes is killed, and started this many milliseconds later.
    LoseStandby(u64),
    /// Both standbys, likewise: nothing can be acknowledged.
    LoseStandbys(u64),
    /// The leader's disk is full for this many milliseconds.
    FillDisk(u64),
    /// A node whose clock is off by so many seconds becomes the leader, and then another one.
    MoveClock(i64),
}

/// How long the gateways had no success because of a fault.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pause {
    pub(crate) at_ms: u64,
    pub(crate) phase: String,
    pub(crate) fault: String,
    /// The longest time without an answer to a new operation, by any gateway.
    pub(crate) longest_ms: u64,
    /// The same for the gateway that took longest.
    pub(crate) worst_gateway_ms: u64,
    /// Whether it must be short.
    pub(crate) is_limited: bool,
}

impl ClusterFault {
    /// The name in the history.
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "cluster_kill",
            Self::Freeze(_) => "cluster_freeze",
            Self::CutOff(..) => "cluster_partition",
            Self::SwitchOver => "cluster_switch_over",
            Self::LoseStandby(_) | Self::LoseStandbys(_) => "cluster_lose_standby",
            Self::FillDisk(_) => "cluster_fill_disk",
            Self::MoveClock(_) => "cluster_move_clock",
        }
    }

    /// Whether another leader must take over.
    fn replaces_leader(self) -> bool {
        match self {
            Self::Kill | Self::SwitchOver | Self::MoveClock(_) => true,
            Self::Freeze(ms) | Self::CutOff(_, ms) => Duration::from_millis(ms) > TTL,
            Self::LoseStandby(_) | Self::LoseStandbys(_) | Self::FillDisk(_) => false,
        }
    }

    /// Whether the cluster ends the pause by a failover. A full disk, and the loss of both standbys, end
    /// only when they are repaired.
    fn ends_by_failover(self) -> bool {
        !matches!(self, Self::LoseStandbys(_) | Self::FillDisk(_))
    }
}

/// Starts a cluster for gateways to use; its logs go below `place`.
pub(crate) async fn start(place: &Path) -> Result<Cluster> {
    let logs = place.join(LOGS);
    fs::create_dir_all(&logs)?;
    let options = Options {
        logs: Some(logs),
        disk_bytes: Some(DISK),
        tls: true,
    };
    let cluster = Cluster::start(options).await.map_err(anyhow::Error::msg);
    cluster.context("a campaign against a cluster needs one")
}

/// Why this machine cannot move the clock of a node, if it cannot.
pub(crate) fn cannot_move_clocks() -> Option<String> {
    let found = shifted_clock::find();
    found
        .is_none()
        .then(|| "libfaketime is missing: install the package `libfaketime`".to_owned())
}

impl FaultInjector {
    /// Injects a fault into the cluster and repairs it. Counted only if it had the effect that it is
    /// there for.
    pub(crate) async fn break_cluster(&self, fault: ClusterFault, ends: Instant) -> Result<()> {
        let Some(cluster) = &self.test_bed.cluster else {
            return Ok(());
        };
        let _recovering = self.recovering.cluster().lock().await;
        cluster.wait_until_whole().await;
        if Instant::now() + SHORTEST > ends {
            return Ok(());
        }
        let leader = cluster.leader().await.context("a leader")?;
        let (recorder, at_ms) = (&self.recorder, self.recorder.now_ms());
        let store_errors = recorder.store_errors();
        recorder.begin_pause();
        let other = inject(cluster, fault, leader).await?;
        cluster.wait_until_whole().await;
        let (pause_ms, worst_gateway_ms) = recorder.end_pause(ends).await;
        let name = cluster.name(leader);
        println!(
            "{:>4} s  {fault:?} at {name}: no success for {:.1} s, at one gateway for {:.1} s",
            at_ms / 1_000,
            seconds(pause_ms),
            seconds(worst_gateway_ms),
        );
        let unnoticed =
            matches!(fault, ClusterFault::FillDisk(_)) && recorder.store_errors() == store_errors;
        if unnoticed || (fault.replaces_leader() && !other) {
            println!("the fault had no effect: not counted");
            return Ok(());
        }
        recorder.fault(fault.name(), name);
        recorder.pause(Pause {
            at_ms,
            phase: recorder.phase(),
            fault: format!("{fault:?}"),
            longest_ms: pause_ms,
            worst_gateway_ms,
            is_limited: fault.ends_by_failover(),
        });
        Ok(())
    }
}

/// Injects a fault and undoes it. Returns whether another node was the leader meanwhile.
async fn inject(cluster: &Arc<Cluster>, fault: ClusterFault, leader: usize) -> Result<bool> {
    let pause = |ms| sleep(Duration::from_millis(ms));
    let replaced = async || cluster.leader().await.is_some_and(|other| other != leader);
    let other = match fault {
        ClusterFault::Kill => {
            cluster.kill(leader).await;
            let other = cluster.wait_for_other_leader(leader).await;
            cluster.start_node(leader);
            other != leader
        }
        ClusterFault::Freeze(ms) => {
            cluster.freeze(leader);
            pause(ms).await;
            let other = replaced().await;
            cluster.thaw(leader);
            other
        }
        ClusterFault::CutOff(partition, ms) => {
            cluster.cut_off(leader, partition);
            pause(ms).await;
            let other = replaced().await;
            cluster.heal(leader);
            other
        }
        ClusterFault::SwitchOver => switch_over(cluster).await.is_some(),
        ClusterFault::LoseStandby(ms) => {
            let standby = cluster.synchronous_standby().await.context("a standby")?;
            cluster.kill(standby).await;
            pause(ms).await;
            cluster.start_node(standby);
            false
        }
        ClusterFault::LoseStandbys(ms) => {
            let standbys = (0..semel_testkit::cluster::NODES).filter(|node| *node != leader);
            for standby in standbys.clone() {
                cluster.kill(standby).await;
            }
            pause(ms).await;
            for standby in standbys {
                cluster.start_node(standby);
            }
            false
        }
        ClusterFault::FillDisk(ms) => {
            cluster.fill_disk(leader)?;
            pause(ms).await;
            cluster.free_disk(leader)?;
            replaced().await
        }
        ClusterFault::MoveClock(offset) => return move_clock(cluster, offset, leader).await,
    };
    Ok(other)
}

/// A standby with another clock becomes the leader; then one with the right clock is the leader again.
async fn move_clock(cluster: &Arc<Cluster>, offset: i64, leader: usize) -> Result<bool> {
    let shifted = (leader + 1) % semel_testkit::cluster::NODES;
    cluster.restart_with_clock(shifted, Some(offset)).await?;
    cluster.wait_until_whole().await;
    let mut is_leader = false;
    for _ in 0..HAND_OVERS {
        if switch_over(cluster).await == Some(shifted) {
            is_leader = true;
            break;
        }
        cluster.wait_until_whole().await;
    }
    sleep(WITH_OTHER_CLOCK).await;
    cluster.wait_until_whole().await;
    if is_leader {
        switch_over(cluster).await;
        cluster.wait_until_whole().await;
    }
    cluster.restart_with_clock(shifted, None).await?;
    Ok(is_leader)
}

/// Returns the new leader. Patroni may refuse a switchover that it does not consider safe.
async fn switch_over(cluster: &Cluster) -> Option<usize> {
    match cluster.switch_over().await {
        Ok(leader) => Some(leader),
        Err(error) => {
            println!("no switchover: {error}");
            None
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "printed with one decimal")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
