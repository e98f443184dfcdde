//! What can go wrong in a cluster.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

use super::network::Loss;
use super::{Cluster, ETCD, patroni};
use crate::shifted_clock::Shifted;
use crate::small_disk::SmallDisk;

/// How long a switchover may take.
const SWITCHOVER: Duration = Duration::from_mins(1);

/// A way to cut a node off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// It reaches nothing, and nothing reaches it.
    Alone,
    /// It does not reach etcd; its standbys and clients remain.
    FromEtcd,
    /// It reaches neither etcd nor the other nodes; its clients remain.
    FromPeers,
    /// Nothing that is sent to it arrives; what it sends does.
    Incoming,
    /// Nothing that it sends arrives; what is sent to it does.
    Outgoing,
}

impl Partition {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Alone,
        Self::FromEtcd,
        Self::FromPeers,
        Self::Incoming,
        Self::Outgoing,
    ];
}

impl Cluster {
    /// Kills PostgreSQL and Patroni of a node (SIGKILL). They have ended when this returns.
    ///
    /// # Panics
    /// Where its processes cannot be listed.
    ///
    /// # Cancellation
    /// Dropping the future may leave some of them.
    pub async fn kill(&self, node: usize) {
        self.network.kill(self.nodes[node].host).await.unwrap();
        if let Some(mut patroni) = self.state(node).patroni.take() {
            let _ = patroni.wait();
        }
    }

    /// Stops all processes of a node (SIGSTOP).
    ///
    /// # Panics
    /// Where its processes cannot be listed.
    pub fn freeze(&self, node: usize) {
        self.network.stop(self.nodes[node].host).unwrap();
    }

    /// Lets the processes of a frozen node go on.
    ///
    /// # Panics
    /// Where its processes cannot be listed.
    pub fn thaw(&self, node: usize) {
        self.network.resume(self.nodes[node].host).unwrap();
    }

    /// Cuts a node off until [`heal`](Self::heal). Packets are lost silently.
    ///
    /// # Panics
    /// Where its packet filter cannot be set.
    pub fn cut_off(&self, node: usize, partition: Partition) {
        let host = self.nodes[node].host;
        let peers = self.nodes.iter().map(|peer| peer.host);
        let peers = peers.filter(|peer| *peer != host).map(Loss::With);
        let losses = match partition {
            Partition::Alone => vec![Loss::Incoming, Loss::Outgoing],
            Partition::FromEtcd => vec![Loss::With(ETCD)],
            Partition::FromPeers => peers.chain([Loss::With(ETCD)]).collect(),
            Partition::Incoming => vec![Loss::Incoming],
            Partition::Outgoing => vec![Loss::Outgoing],
        };
        for loss in losses {
            self.network.lose(host, loss).unwrap();
        }
    }

    /// Ends the partition of a node.
    ///
    /// # Panics
    /// Where its packet filter cannot be set.
    pub fn heal(&self, node: usize) {
        self.network.heal(self.nodes[node].host).unwrap();
    }

    /// The leader hands over to the synchronous standby. Returns the new leader.
    ///
    /// # Errors
    /// Where Patroni refuses, or there is no leader.
    ///
    /// # Cancellation
    /// Dropping the future may leave the switchover under way.
    pub async fn switch_over(&self) -> io::Result<usize> {
        let no_leader = || io::Error::other("there is no leader");
        let leader = self.leader().await.ok_or_else(no_leader)?;
        let name = &self.nodes[leader].name;
        patroni::switch_over(self.address(leader), name, SWITCHOVER).await?;
        // Patroni may have stopped waiting before the old leader's last checkpoint was written.
        let other = timeout(SWITCHOVER, self.wait_for_other_leader(leader)).await;
        Ok(other?)
    }

    /// Fills the disk of a node. Returns the number of bytes taken.
    ///
    /// # Errors
    /// Where it has no disk of its own, or the disk fails.
    pub fn fill_disk(&self, node: usize) -> io::Result<u64> {
        self.disk(node)?.fill()
    }

    /// Frees the disk of a node.
    ///
    /// # Errors
    /// Where it has no disk of its own, or the disk fails.
    pub fn free_disk(&self, node: usize) -> io::Result<()> {
        self.disk(node)?.free()
    }

    /// Restarts a node with a clock that is off by so many seconds; `None` is the machine's own clock.
    ///
    /// # Errors
    /// Where libfaketime is missing.
    ///
    /// # Cancellation
    /// Dropping the future may leave the node killed.
    pub async fn restart_with_clock(&self, node: usize, offset: Option<i64>) -> io::Result<()> {
        let clock = match offset {
            None => None,
            Some(offset) => {
                let clock = Shifted::new(&self.nodes[node].directory)?;
                clock.set(offset)?;
                Some(clock)
            }
        };
        self.kill(node).await;
        self.state(node).clock = clock;
        self.start_node(node);
        Ok(())
    }

    fn disk(&self, node: usize) -> io::Result<&SmallDisk> {
        let disk = self.nodes[node].disk.as_ref();
        disk.ok_or_else(|| io::Error::other("the node has no disk of its own"))
    }
}
