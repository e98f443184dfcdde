//! Three PostgreSQL servers with failover: Patroni, with etcd to elect the leader, each in a network
//! namespace of its own. For tests that break what operators call high availability.
//!
//! Writes are acknowledged once any standby has them (`synchronous_mode: quorum`, strict), and the most
//! advanced standby becomes the leader. The servers have PostgreSQL's default settings otherwise: with `fsync` off a crash would prove nothing.
//!
//! ```no_run
//! # async fn demo() {
//! use semel_testkit::cluster::Cluster;
//!
//! if let Some(cluster) = Cluster::start_or_skip().await {
//!     // … a client at `cluster.url()` writes …
//!     let leader = cluster.leader().await.unwrap();
//!     cluster.kill(leader).await;
//!     cluster.wait_for_other_leader(leader).await;
//!     // … and what was acknowledged is there.
//! }
//! # }
//! ```

mod faults;
pub mod network;
mod patroni;
mod start;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::postgres_server::User;
use crate::shifted_clock::Shifted;
use crate::small_disk::SmallDisk;
pub use faults::Partition;
use network::{Host, Network};
use patroni::Member;

/// The environment variable with a Python interpreter that has Patroni.
pub const VARIABLE: &str = "SEMEL_PATRONI";

/// How Patroni calls a standby that acknowledges writes.
const STANDBY: &str = "quorum_standby";
/// How many servers a cluster has.
pub const NODES: usize = 3;

/// How long the leader's claim lasts without being renewed: a leader that is killed, frozen or cut off
/// is replaced after this time.
pub const TTL: Duration = patroni::TTL;

/// The host of etcd; those of the nodes are 1, 2, 3.
const ETCD: Host = 10;
/// How long the cluster may take to become whole: a new standby copies the leader's data.
const PATIENCE: Duration = Duration::from_mins(3);
/// How long a node may take to answer Patroni's requests.
const ANSWER: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(250);

/// How a [`Cluster`] is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the logs go, if they are to be kept.
    pub logs: Option<PathBuf>,
    /// Puts each node's data on a disk of this size, so that it can be [filled](Cluster::fill_disk).
    pub disk_bytes: Option<u64>,
    /// Gives the nodes a certificate, which [`url`](Cluster::url) then requires.
    pub tls: bool,
}

/// The cluster. Dropping it, or the end of this process, ends every process of it and removes its
/// network.
#[derive(Debug)]
pub struct Cluster {
    // Dropped first: nothing may run in the directories when they are removed.
    network: Network,
    nodes: [Node; NODES],
    etcd: Mutex<Child>,
    python: PathBuf,
    user: User,
    logs: PathBuf,
    /// The certificate of the nodes, if they have one.
    certificate: Option<PathBuf>,
    _etcd_data: TempDir,
    _directory: TempDir,
}

#[derive(Debug)]
struct Node {
    name: String,
    host: Host,
    directory: PathBuf,
    configuration: PathBuf,
    disk: Option<SmallDisk>,
    state: Mutex<NodeState>,
}

#[derive(Debug, Default)]
struct NodeState {
    patroni: Option<Child>,
    clock: Option<Shifted>,
}

impl Cluster {
    /// Where it is: all nodes, of which a client looks for the one that takes writes.
    pub fn url(&self) -> String {
        let address = |node: &Node| {
            let address = self.network.address(node.host);
            format!("{address}:{}", patroni::POSTGRES_PORT)
        };
        let hosts: Vec<String> = self.nodes.iter().map(address).collect();
        let hosts = hosts.join(",");
        let tls = self.certificate.as_ref().map(|certificate| {
            let certificate = certificate.display();
            format!("&sslmode=verify-full&sslrootcert={certificate}")
        });
        format!(
            "postgres://postgres@{hosts}/postgres?target_session_attrs=read-write{}",
            tls.unwrap_or_default()
        )
    }

    /// The address of one node.
    pub fn node_url(&self, node: usize) -> String {
        let address = self.address(node);
        format!(
            "postgres://postgres@{address}:{}/postgres",
            patroni::POSTGRES_PORT
        )
    }

    /// The node that holds the leader's claim in etcd.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn leader(&self) -> Option<usize> {
        self.find(&self.members().await, "leader")
    }

    /// A node that acknowledges the leader's writes.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn synchronous_standby(&self) -> Option<usize> {
        self.find(&self.members().await, STANDBY)
    }

    /// Waits until another node than this one is the leader, and returns it.
    ///
    /// # Panics
    /// Where that takes minutes.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn wait_for_other_leader(&self, than: usize) -> usize {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(leader) = self.leader().await
                && leader != than
            {
                return leader;
            }
            assert!(
                Instant::now() < until,
                "no new leader:\n{}",
                self.last_log_lines()
            );
            // sleeps because an election in other processes has no event here.
            sleep(POLL).await;
        }
    }

    /// Waits until there is a leader, and both other nodes stream from it and acknowledge its writes.
    ///
    /// # Panics
    /// Where that takes minutes.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn wait_until_whole(&self) {
        if let Err(reason) = self.try_wait_until_whole().await {
            panic!("{reason}");
        }
    }

    async fn try_wait_until_whole(&self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        while !self.is_whole().await {
            if Instant::now() > until {
                let members = self.members().await;
                let logs = self.last_log_lines();
                return Err(format!("the cluster is not whole: {members:?}\n{logs}"));
            }
            // sleeps because the state of other processes has no event here.
            sleep(POLL).await;
        }
        Ok(())
    }

    async fn is_whole(&self) -> bool {
        let members = self.members().await;
        let count = |role: &str, state: &str| {
            let alike = |member: &&Member| member.role == role && member.state == state;
            members.iter().filter(alike).count()
        };
        if count("leader", "running") != 1 || count(STANDBY, "streaming") != NODES - 1 {
            return false;
        }
        // What etcd knows of a node that was just killed is old.
        for node in 0..NODES {
            if !patroni::is_running(self.address(node), ANSWER).await {
                return false;
            }
        }
        true
    }

    /// The name of a node, as in the logs.
    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    fn address(&self, node: usize) -> Ipv4Addr {
        self.network.address(self.nodes[node].host)
    }

    /// The members, from the first node that can read them in etcd; none where no node can.
    async fn members(&self) -> Vec<Member> {
        for node in 0..NODES {
            if let Ok(members) = patroni::members(self.address(node), ANSWER).await {
                return members;
            }
        }
        Vec::new()
    }

    fn find(&self, members: &[Member], role: &str) -> Option<usize> {
        let found = members.iter().find(|member| member.role == role)?;
        self.nodes.iter().position(|node| node.name == found.name)
    }

    fn state(&self, node: usize) -> MutexGuard<'_, NodeState> {
        let state = self.nodes[node].state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Of every node.
    fn last_log_lines(&self) -> String {
        const LINES: usize = 15;
        let names = self.nodes.iter().map(|node| node.name.as_str());
        let last = names.chain(["etcd"]).map(|name| {
            let log = fs::read_to_string(log_path(&self.logs, name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            format!("{name}:\n{last}\n")
        });
        last.collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The network kills what runs in it; these are waited for, so that no zombie stays.
        for node in 0..NODES {
            if let Some(mut patroni) = self.state(node).patroni.take() {
                let _ = patroni.kill();
                let _ = patroni.wait();
            }
        }
        let etcd = self.etcd.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = etcd.kill();
        let _ = etcd.wait();
    }
}

fn log_path(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}
