//! Starting a cluster and its processes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use tokio::time::{Instant, sleep};

use super::network::{Host, Network};
use super::{ANSWER, Cluster, ETCD, NODES, Node, Options, PATIENCE, POLL, VARIABLE};
use super::{log_path, patroni};
use crate::postgres_server::{User, find_programs, unprivileged_user};
use crate::small_disk::SmallDisk;

/// The programs that it needs besides those of PostgreSQL and Python.
const PROGRAMS: [(&str, &str); 4] = [
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("etcd", "etcd-server"),
    ("setpriv", "util-linux"),
];
/// The hosts of the nodes.
const HOSTS: [Host; NODES] = [1, 2, 3];
/// Where etcd keeps its data, if it exists: it is never crashed, and a busy disk would make it slow.
const MEMORY: &str = "/dev/shm";
/// Starts Patroni with libfaketime.
const WITH_CLOCK: &str = include_str!("patroni_with_clock.py");

impl Cluster {
    /// Starts a cluster. Prints SKIPPED and returns `None` where this machine cannot.
    ///
    /// # Cancellation
    /// Dropping the future ends what was started.
    pub async fn start_or_skip() -> Option<Self> {
        match Self::start(Options::default()).await {
            Ok(cluster) => Some(cluster),
            Err(reason) => {
                println!("SKIPPED: {reason}");
                None
            }
        }
    }

    /// Starts a cluster, and waits until it is whole.
    ///
    /// # Errors
    /// Where this machine cannot; with the reason.
    ///
    /// # Cancellation
    /// Dropping the future ends what was started.
    pub async fn start(options: Options) -> Result<Self, String> {
        let python = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let python = python.ok_or_else(|| {
            format!("{VARIABLE} names no Python that has Patroni; run `cargo xtask test`")
        })?;
        let programs = find_programs().ok_or("the PostgreSQL programs are missing")?;
        for (program, package) in PROGRAMS {
            if !is_program(program) {
                return Err(format!(
                    "{program} is missing: install the package `{package}`"
                ));
            }
        }
        let user = unprivileged_user().flatten().ok_or(
            "a cluster needs root for its network namespaces, and another user for PostgreSQL",
        )?;
        let cluster = Self::prepare(options, python.into(), &programs, user);
        let cluster = cluster.map_err(|error| error.to_string())?;
        let until = Instant::now() + PATIENCE;
        while !patroni::etcd_is_up(cluster.network.address(ETCD), ANSWER).await {
            if Instant::now() > until {
                return Err(format!(
                    "etcd does not answer:\n{}",
                    cluster.last_log_lines()
                ));
            }
            // sleeps because etcd is another process.
            sleep(POLL).await;
        }
        for node in 0..NODES {
            cluster.start_node(node);
        }
        cluster.try_wait_until_whole().await?;
        Ok(cluster)
    }

    /// Creates the network, starts etcd and writes the configuration of each node.
    fn prepare(options: Options, python: PathBuf, programs: &Path, user: User) -> io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("semel-cluster-")
            .tempdir()?;
        // PostgreSQL's user passes through, and need see nothing else.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711))?;
        let etcd_data = tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir())?;
        let logs = options.logs.unwrap_or_else(|| directory.path().to_owned());
        let mut disks = Vec::new();
        for _ in 0..NODES {
            disks.push(options.disk_bytes.map(SmallDisk::mount).transpose()?);
        }
        let mut directories = vec![directory.path(), etcd_data.path()];
        directories.extend(disks.iter().flatten().map(SmallDisk::home));
        let hosts = [&HOSTS[..], &[ETCD]].concat();
        let network = Network::create(&hosts, &directories)?;
        let tls = options
            .tls
            .then(|| create_certificate(&network, directory.path(), &user))
            .transpose()?;
        let etcd = start_etcd(&network, etcd_data.path(), &logs)?;
        let mut nodes = Vec::new();
        for (host, disk) in HOSTS.into_iter().zip(disks) {
            let name = format!("node{host}");
            let home = directory.path().join(&name);
            fs::create_dir(&home)?;
            let places = disk.iter().map(SmallDisk::path).chain([home.as_path()]);
            for place in places {
                chown(place, Some(user.id), Some(user.group))?;
            }
            let data = disk
                .as_ref()
                .map_or(home.as_path(), SmallDisk::path)
                .join("data");
            let configuration = directory.path().join(format!("{name}.yml"));
            let (own, etcd) = (network.address(host), network.address(ETCD));
            let content =
                patroni::configuration(&name, own, etcd, programs, &home, &data, tls.as_ref());
            fs::write(&configuration, content.to_string())?;
            nodes.push(Node {
                name,
                host,
                directory: home,
                configuration,
                disk,
                state: Mutex::default(),
            });
        }
        Ok(Self {
            network,
            nodes: nodes
                .try_into()
                .map_err(|_| io::Error::other("three nodes"))?,
            etcd: Mutex::new(etcd),
            python,
            user,
            logs,
            certificate: tls.map(|tls| tls.certificate),
            _etcd_data: etcd_data,
            _directory: directory,
        })
    }

    /// Starts a node that was killed, with its data.
    ///
    /// # Panics
    /// Where Patroni cannot be started.
    pub fn start_node(&self, node: usize) {
        let Node {
            name,
            host,
            directory,
            configuration,
            ..
        } = &self.nodes[node];
        let mut state = self.state(node);
        assert!(state.patroni.is_none(), "{name} runs");
        let User { id, group } = &self.user;
        let mut command = self.network.command(*host);
        command
            .arg("setpriv")
            .arg(format!("--reuid={id}"))
            .arg(format!("--regid={group}"))
            // The interpreter may be in a directory that only we may read.
            .args(["--clear-groups", "--inh-caps=+dac_read_search"])
            .args(["--ambient-caps=+dac_read_search", "--", "env"]);
        if let Some(clock) = &state.clock {
            for (variable, value) in clock.variables() {
                let mut assignment = OsStr::new(variable).to_owned();
                assignment.push("=");
                assignment.push(value);
                command.arg(assignment);
            }
        }
        command.arg(&self.python);
        match state.clock {
            None => command.args(["-m", "patroni"]),
            Some(_) => command.args(["-c", WITH_CLOCK]),
        };
        command.arg(configuration);
        command.current_dir(directory);
        let log = log_file(&self.logs, name).unwrap();
        state.patroni = Some(spawn(&mut command, log).unwrap());
    }
}

/// One certificate for the addresses of all nodes, which PostgreSQL's user can read.
fn create_certificate(
    network: &Network,
    directory: &Path,
    user: &User,
) -> io::Result<patroni::Tls> {
    let addresses: Vec<String> = HOSTS
        .iter()
        .map(|host| network.address(*host).to_string())
        .collect();
    let certified = rcgen::generate_simple_self_signed(addresses).map_err(io::Error::other)?;
    let tls = patroni::Tls {
        certificate: directory.join("certificate.pem"),
        key: directory.join("key.pem"),
    };
    fs::write(&tls.certificate, certified.cert.pem())?;
    fs::write(&tls.key, certified.signing_key.serialize_pem())?;
    // PostgreSQL refuses a key that others can read.
    fs::set_permissions(&tls.key, Permissions::from_mode(0o600))?;
    chown(&tls.key, Some(user.id), Some(user.group))?;
    Ok(tls)
}

fn start_etcd(network: &Network, data: &Path, logs: &Path) -> io::Result<Child> {
    let address = network.address(ETCD);
    let clients = format!("http://{address}:{}", patroni::ETCD_PORT);
    let peers = format!("http://{address}:2380");
    let mut command = network.command(ETCD);
    command
        .args(["etcd", "--name", "etcd", "--data-dir"])
        .arg(data)
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("etcd={peers}")]);
    spawn(&mut command, log_file(logs, "etcd")?)
}

fn spawn(command: &mut Command, log: File) -> io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

fn log_file(logs: &Path, name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).open(log_path(logs, name))
}

fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|place| place.join(name).is_file())
}
