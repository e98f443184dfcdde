//! What is measured: a server, and what it is sent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::client::{Client, Expect, Keyed, Keys, Latencies, Plan, Request, Shot, Until};
use crate::measure::Measurement;
use crate::nginx;
use crate::process::{Process, Tree};
use crate::serve::LISTENING;

/// Keys that are replayed: more than any shortcut for a hot key, and few enough for every
/// cache.
const REPLAYED: u64 = 1_000;

/// The share of a measurement's time that comes before it and does not count.
const WARM_UP: f64 = 0.2;

/// One line of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) traffic: Traffic,
    server: Rc<Process>,
    /// Which other process works for the answer: the application behind a proxy, the database of
    /// an application.
    behind: Option<Tree>,
    /// The application behind a proxy.
    upstream: Option<Rc<Process>>,
}

impl Case {
    pub(crate) fn new(name: &'static str, server: Rc<Process>, traffic: Traffic) -> Self {
        Self {
            name,
            traffic,
            server,
            behind: None,
            upstream: None,
        }
    }

    /// A proxy in front of this application.
    pub(crate) fn proxy_to(mut self, upstream: &Rc<Process>) -> Self {
        self.behind = Some(upstream.tree());
        self.upstream = Some(Rc::clone(upstream));
        self
    }

    pub(crate) fn in_front_of(mut self, behind: Tree) -> Self {
        self.behind = Some(behind);
        self
    }

    /// Executes what will be replayed, and replays it once: the first replay fills the cache.
    pub(crate) fn fill(&mut self, connections: usize, latencies: &mut Latencies) -> Result<()> {
        let replays = match &self.traffic.keys {
            Some(keys) if self.traffic.expect == Expect::Replay => keys.clone(),
            _ => return Ok(()),
        };
        let mut client = self.connect(connections)?;
        let mut first = Traffic::of(replays, Expect::First);
        for traffic in [&mut first, &mut self.traffic] {
            client
                .closed(traffic, Until::Requests(REPLAYED), latencies)
                .with_context(|| format!("{}, while its keys are stored", self.name))?;
        }
        latencies.clear();
        Ok(())
    }

    /// As many requests as the server answers in this time.
    pub(crate) fn measure(
        &mut self,
        connections: usize,
        time: Duration,
        latencies: &mut Latencies,
    ) -> Result<Measurement> {
        let mut client = self.connect(connections)?;
        let mut closed = |time, latencies: &mut Latencies| {
            latencies.clear();
            client
                .closed(&mut self.traffic, Until::Time(time), latencies)
                .with_context(|| self.name)
        };
        closed(time.mul_f64(WARM_UP), latencies)?;
        let server = self.server.tree();
        let behind = || self.behind.map_or(Ok(Duration::ZERO), Tree::cpu_time);

        let (cpu, cpu_behind) = (server.cpu_time()?, behind()?);
        let start = Instant::now();
        let requests = closed(time, latencies)? as f64;
        let elapsed = start.elapsed();
        let per_request = |time: Duration| time.as_secs_f64() * 1e6 / requests;
        Ok(Measurement {
            per_second: requests / elapsed.as_secs_f64(),
            cpu_own: per_request(server.cpu_time()?.saturating_sub(cpu)),
            cpu_behind: per_request(behind()?.saturating_sub(cpu_behind)),
            latencies: Some(latencies.percentiles([0.5, 0.99])),
            log_bytes: None,
        })
    }

    /// Median and 99th percentile in microseconds, at a fixed rate.
    pub(crate) fn measure_paced(
        &mut self,
        connections: usize,
        per_second: f64,
        time: Duration,
        latencies: &mut Latencies,
    ) -> Result<[f64; 2]> {
        let mut client = self.connect(connections)?;
        for time in [time.mul_f64(WARM_UP), time] {
            latencies.clear();
            client
                .paced(&mut self.traffic, per_second, time, latencies)
                .with_context(|| format!("{} at {per_second}/s", self.name))?;
        }
        Ok(latencies.percentiles([0.5, 0.99]))
    }

    /// Anew for each measurement: servers close connections that were idle for long.
    fn connect(&self, connections: usize) -> Result<Client> {
        Client::connect(self.server.address, connections)
    }
}

/// Payments: without keys, under new keys, or under stored ones in turn.
pub(crate) struct Traffic {
    request: Request,
    expect: Expect,
    keys: Option<Keys>,
    sent: u64,
}

impl Traffic {
    pub(crate) fn without_keys() -> Self {
        Self {
            request: Request::payment(Keyed::No),
            expect: Expect::First,
            keys: None,
            sent: 0,
        }
    }

    pub(crate) fn new_keys() -> Self {
        Self::of(Keys::new(), Expect::First)
    }

    pub(crate) fn replays() -> Self {
        Self::of(Keys::new(), Expect::Replay)
    }

    fn of(keys: Keys, expect: Expect) -> Self {
        Self {
            request: Request::payment(Keyed::Yes),
            expect,
            keys: Some(keys),
            sent: 0,
        }
    }
}

impl Plan for Traffic {
    fn next(&mut self) -> Shot<'_> {
        let number = match self.expect {
            Expect::First => self.sent,
            Expect::Replay => self.sent % REPLAYED,
        };
        self.sent += 1;
        Shot {
            request: &self.request,
            key: self.keys.as_ref().map(|keys| keys.text(number)),
            expect: self.expect,
        }
    }
}

/// Starts servers, each in a directory of its own.
pub(crate) struct Starter<'a> {
    pub(crate) directory: &'a Path,
}

impl Starter<'_> {
    pub(crate) fn plain(&self) -> Result<Process> {
        self.own("plain", |_| vec!["plain".into()])
    }

    pub(crate) fn layer(&self, name: &str, cache_bytes: Option<u64>) -> Result<Process> {
        self.own(name, |directory| {
            let mut arguments = vec!["layer".into(), "--store".into()];
            arguments.push(directory.join("semel.db").into_os_string());
            if let Some(bytes) = cache_bytes {
                arguments.extend(["--cache-bytes".into(), bytes.to_string().into()]);
            }
            arguments
        })
    }

    pub(crate) fn gateway(&self, name: &str, semel: &Path, upstream: &Process) -> Result<Process> {
        let directory = self.directory_of(name)?;
        let mut command = Command::new(semel);
        command
            .args([
                "gateway",
                "--listen",
                "127.0.0.1:0",
                "--tenant=authorization",
            ])
            .args(["--admin-listen", "127.0.0.1:0", "--upstream"])
            .arg(format!("http://{}", upstream.address))
            .arg("--store")
            .arg(format!("sqlite:{}", directory.join("semel.db").display()));
        Process::announced(command, "listening gateway ", &directory)
    }

    pub(crate) fn nginx(&self, program: &Path, upstream: &Process) -> Result<Process> {
        nginx::start(program, upstream.address, &self.directory_of("nginx")?)
    }

    /// One of the [applications](crate::serve::Application) in this program.
    pub(crate) fn own(
        &self,
        name: &str,
        arguments: impl FnOnce(&Path) -> Vec<std::ffi::OsString>,
    ) -> Result<Process> {
        let directory = self.directory_of(name)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args(arguments(&directory));
        Process::announced(command, LISTENING, &directory)
    }

    fn directory_of(&self, name: &str) -> Result<PathBuf> {
        let directory = self.directory.join(name);
        std::fs::create_dir(&directory)?;
        Ok(directory)
    }
}

/// Whether the binary has a gateway. Prints a line if not.
pub(crate) fn knows_gateway(semel: Option<&Path>) -> Option<&Path> {
    let Some(semel) = semel else {
        println!("skipped: the gateway, since --semel is not given");
        return None;
    };
    let asked = Command::new(semel).args(["gateway", "--help"]).output();
    if asked.is_ok_and(|answer| answer.status.success()) {
        return Some(semel);
    }
    println!(
        "skipped: the gateway, since {} has none",
        semel.file_name().unwrap_or_default().display()
    );
    None
}
