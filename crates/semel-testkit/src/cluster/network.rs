//! A network of hosts on this machine: a namespace each, and a bridge between them and us.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How many networks there can be at a time; each has a number.
const NETWORKS: u8 = 250;
/// Our own address, as the last byte.
const OURS: u8 = 254;
/// The name of each host's only interface to the others.
const INTERFACE: &str = "eth0";
/// The pause before processes that were killed are looked for again.
const POLL: Duration = Duration::from_millis(20);
/// Ends every process of the namespaces and removes them, once its input ends: this process dropped
/// the network, or was killed. Then it removes the directories, each of which may hold a mounted disk.
const JANITOR: &str = r#"
cat > /dev/null
bridge="$1"
shift
while [ "$1" != -- ]; do
    namespace="$1"
    shift
    while processes=$(ip netns pids "$namespace" 2> /dev/null) && [ -n "$processes" ]; do
        kill -s KILL $processes 2> /dev/null
        sleep 0.05
    done
    ip netns delete "$namespace" 2> /dev/null
    # It outlives its namespace while the kernel closes connections in it.
    ip link delete "$namespace" 2> /dev/null
done
ip link delete "$bridge" 2> /dev/null
shift
for directory in "$@"; do
    umount "$directory/disk" 2> /dev/null
    rm -rf --one-file-system "$directory"
done
"#;

/// The last byte of a host's address.
pub type Host = u8;

/// Which packets a host loses, at its own interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All that others send to it.
    Incoming,
    /// All that it sends.
    Outgoing,
    /// All between it and another host, in both directions.
    With(Host),
}

/// Dropping it ends every process in it, and removes it.
#[derive(Debug)]
pub struct Network {
    number: u8,
    janitor: Child,
}

impl Network {
    /// Creates the hosts. The directories are those that their processes use.
    ///
    /// # Errors
    /// This machine allows no namespaces.
    pub fn create(hosts: &[Host], directories: &[&Path]) -> io::Result<Self> {
        let number = (0..NETWORKS)
            .find(|number| {
                // Fails where another run has that number.
                ip(&["link", "add", &bridge(*number), "type", "bridge"]).is_ok()
            })
            .ok_or_else(|| io::Error::other("this machine lets us create no network bridge"))?;
        let namespaces = hosts.iter().map(|host| namespace(number, *host));
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "sh", &bridge(number)])
            .args(namespaces)
            .arg("--")
            .args(directories)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Outlives a signal to the group of this process.
            .process_group(0)
            .spawn()?;
        let network = Self { number, janitor };
        let bridge = bridge(number);
        let ours = format!("{}/24", network.address(OURS));
        ip(&["address", "add", &ours, "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        for host in hosts {
            network.add_host(*host)?;
        }
        Ok(network)
    }

    fn add_host(&self, host: Host) -> io::Result<()> {
        let namespace = namespace(self.number, host);
        let (bridge, cable) = (bridge(self.number), format!("semel{}-{host}", self.number));
        let address = format!("{}/24", self.address(host));
        ip(&["netns", "add", &namespace])?;
        ip(&[
            "link", "add", &cable, "type", "veth", "peer", "name", INTERFACE, "netns", &namespace,
        ])?;
        ip(&["link", "set", &cable, "master", &bridge, "up"])?;
        ip(&[
            "-n", &namespace, "address", "add", &address, "dev", INTERFACE,
        ])?;
        for interface in [INTERFACE, "lo"] {
            ip(&["-n", &namespace, "link", "set", interface, "up"])?;
        }
        Ok(())
    }

    /// The address of a host.
    pub fn address(&self, host: Host) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, host)
    }

    /// A command that runs a program on a host. It replaces itself with the program.
    pub fn command(&self, host: Host) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace(self.number, host)]);
        command
    }

    /// Kills every process of a host. They have ended when this returns.
    ///
    /// # Errors
    /// `ip` fails.
    pub async fn kill(&self, host: Host) -> io::Result<()> {
        loop {
            let processes = self.processes(host)?;
            if processes.is_empty() {
                return Ok(());
            }
            send(&processes, Signal::KILL);
            // sleeps because a process that is not our child ends without an event here.
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops every process of a host, also those that are started meanwhile.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn stop(&self, host: Host) -> io::Result<()> {
        let mut stopped = BTreeSet::new();
        loop {
            let running = self.processes(host)?;
            if running.is_subset(&stopped) {
                return Ok(());
            }
            send(&running, Signal::STOP);
            stopped = running;
        }
    }

    /// Lets the stopped processes of a host go on.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn resume(&self, host: Host) -> io::Result<()> {
        send(&self.processes(host)?, Signal::CONT);
        Ok(())
    }

    /// Loses packets silently until [`heal`](Self::heal).
    ///
    /// # Errors
    /// `iptables` fails.
    pub fn lose(&self, host: Host, loss: Loss) -> io::Result<()> {
        match loss {
            Loss::Incoming => self.filter(host, &format!("-A INPUT -i {INTERFACE} -j DROP")),
            Loss::Outgoing => self.filter(host, &format!("-A OUTPUT -o {INTERFACE} -j DROP")),
            Loss::With(other) => {
                let other = self.address(other);
                self.filter(host, &format!("-A INPUT -s {other} -j DROP"))?;
                self.filter(host, &format!("-A OUTPUT -d {other} -j DROP"))
            }
        }
    }

    /// A host loses no more packets.
    ///
    /// # Errors
    /// `iptables` fails.
    pub fn heal(&self, host: Host) -> io::Result<()> {
        self.filter(host, "-F")
    }

    fn filter(&self, host: Host, rule: &str) -> io::Result<()> {
        // Waits for another process that changes rules.
        let mut command = self.command(host);
        run(command.args(["iptables", "-w"]).args(rule.split(' '))).map(drop)
    }

    fn processes(&self, host: Host) -> io::Result<BTreeSet<i32>> {
        let listed = ip(&["netns", "pids", &namespace(self.number, host)])?;
        Ok(listed
            .lines()
            .filter_map(|id| id.trim().parse().ok())
            .collect())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

fn send(processes: &BTreeSet<i32>, signal: Signal) {
    for id in processes.iter().filter_map(|id| Pid::from_raw(*id)) {
        // Fails only for a process that has ended.
        let _ = kill_process(id, signal);
    }
}

fn bridge(number: u8) -> String {
    format!("semel{number}")
}

fn namespace(number: u8, host: Host) -> String {
    format!("semel{number}-{host}")
}

fn ip(arguments: &[&str]) -> io::Result<String> {
    run(Command::new("ip").args(arguments))
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", errors.trim())))
}
