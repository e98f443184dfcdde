//! `cargo xtask smoke`: every benchmark and every verification tool, each for a few seconds.
//!
//! It shows that the programs run, and measures nothing: they are built in the dev profile, with
//! the features that the tests have, so that a build which ran the tests compiles little more.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Interrupt, Interrupted, POLL, cargo, now};
use crate::servers::{self, Server};
use crate::{bench, campaign, compare, mutants};
use xtask::{FEATURES, packages, sdks};

/// Far longer than any of the programs takes: one that runs this long hangs.
const LIMIT: Duration = Duration::from_mins(2);
/// How much of a failed program's output is shown.
const LINES_SHOWN: usize = 30;

/// The benchmarks, each with the least that it can measure.
const BENCHMARKS: [(&str, &[&str]); 5] = [
    (
        "all",
        &[
            "--seconds",
            "0.05",
            "--rounds",
            "1",
            "--connections",
            "4",
            "--records",
            "1000",
        ],
    ),
    ("fingerprint", &["--rounds", "1"]),
    (
        "memory",
        &[
            "--minutes",
            "0.03",
            "--sample-ms",
            "100",
            "--rate",
            "100",
            "--connections",
            "4",
        ],
    ),
    (
        "outbox",
        &[
            "--seconds",
            "0.2",
            "--rounds",
            "1",
            "--backlog",
            "1000",
            "--publishers",
            "4",
        ],
    ),
    ("console", &["--records", "1000", "--times", "2"]),
];
/// Enough seeds for every part of the simulation to run.
const SEEDS: &str = "40";
/// A short phase of the campaign in which something fails, after one in which nothing does.
const PHASES: &str = "warm_up,terminated_backends";

/// A few kills at each system call with an effect.
const WALK: [&str; 3] = ["--effects", "--each", "8"];
/// Fewer of another client: it takes longer to start.
const OTHER_WALK: [&str; 3] = ["--effects", "--each", "2"];
/// Enough intents to meet every fault, and an outage.
const LOAD: [&str; 4] = ["--intents", "300", "--down", "2"];

/// Runs every program, and fails with the names of those that failed.
pub(crate) fn run_all(root: &Path, may_install: bool, may_build: bool) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let began = now();
    servers::ensure_programs(&[Server::Redis], may_install)?;
    servers::ensure_package("strace", has_strace, may_install);
    if may_build {
        campaign::build(root, true, &interrupt)?;
    }
    let clients = sdks::install_for(
        &[sdks::PYTHON_CLIENT, sdks::NODE_CLIENT],
        root,
        may_install,
        &interrupt,
    )?;
    packages::install(root, &clients, &interrupt)?;
    let programs = process::target_directory(root)?.join("debug");
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let servers = servers::start(&[Server::Postgres, Server::Nats], may_install, &interrupt)?;
    let postgres = servers.url(Server::Postgres).context("PostgreSQL runs")?;
    let nats = servers.url(Server::Nats).context("NATS runs")?;
    let run_half = |half| {
        let interrupt = Interrupt::listen()?;
        let smoke = Smoke {
            root,
            programs: &programs,
            directory: directory.path(),
            postgres: postgres.clone(),
            nats: nats.clone(),
            clients: client_commands(root, &clients),
            interrupt: &interrupt,
        };
        run_checks(match half {
            Half::Benchmarks => smoke.benchmarks(),
            Half::Tools => smoke.tools(),
        })
    };
    // Both wait for their own processes most of the time.
    let failed = thread::scope(|scope| -> Result<Vec<String>> {
        let benchmarks = scope.spawn(|| run_half(Half::Benchmarks));
        let mut failed = run_half(Half::Tools)?;
        match benchmarks.join() {
            Ok(also) => failed.extend(also?),
            Err(_) => bail!("the benchmarks' thread panicked"),
        }
        Ok(failed)
    })?;
    println!("smoke: {:.0} s", began.elapsed().as_secs_f32());
    if !failed.is_empty() {
        bail!("these programs failed: {}", failed.join(", "));
    }
    Ok(())
}

fn has_strace() -> bool {
    let version = Command::new("strace").arg("-V").output();
    version.is_ok_and(|output| output.status.success())
}

/// What runs one after the other, beside the other half.
#[derive(Clone, Copy)]
enum Half {
    Benchmarks,
    Tools,
}

/// Runs each check, prints how it ended, and returns the names of those that failed.
fn run_checks(checks: Vec<Check<'_>>) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for (name, run) in checks {
        let started = now();
        let ended = run();
        let seconds = started.elapsed().as_secs_f32();
        match ended {
            Ok(()) => println!("passed  {seconds:>5.1} s  {name}"),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                println!("FAILED  {seconds:>5.1} s  {name}\n{error:#}");
                failed.push(name);
            }
        }
    }
    Ok(failed)
}

/// Something that either runs or fails, and its name.
type Check<'a> = (String, Box<dyn Fn() -> Result<()> + 'a>);

/// What `semel-clients walk` starts.
fn client_commands(root: &Path, installed: &sdks::Sdks) -> Vec<(&'static str, String)> {
    let python = root.join("packages/python/examples/pay.py");
    installed
        .environment()
        .filter_map(|(variable, tools)| match variable {
            sdks::PYTHON_CLIENT => Some((
                "python",
                format!("{} {}", tools.display(), python.display()),
            )),
            sdks::NODE_CLIENT => {
                let pay = tools.join("examples/pay.mjs");
                Some(("node", format!("node {}", pay.display())))
            }
            _ => None,
        })
        .collect()
}

struct Smoke<'a> {
    root: &'a Path,
    /// Where the built programs are.
    programs: &'a Path,
    /// Where output goes.
    directory: &'a Path,
    postgres: String,
    nats: String,
    /// The example of each installed client in another language, as a command.
    clients: Vec<(&'static str, String)>,
    interrupt: &'a Interrupt,
}

impl Smoke<'_> {
    fn benchmarks(&self) -> Vec<Check<'_>> {
        let mut checks: Vec<Check<'_>> = Vec::new();
        for (name, arguments) in BENCHMARKS {
            let run = move || self.run(name, self.benchmark(name).args(arguments));
            checks.push((format!("bench {name}"), Box::new(run)));
        }
        checks
    }

    fn tools(&self) -> Vec<Check<'_>> {
        vec![
            (
                "simulation".to_owned(),
                Box::new(|| {
                    let mut simulation = self.program("semel-simulation");
                    self.run("simulation", simulation.args(["--seeds", SEEDS]))
                }),
            ),
            (
                "campaign".to_owned(),
                Box::new(|| self.run("campaign", &mut self.campaign())),
            ),
            (
                "campaign: regions".to_owned(),
                Box::new(|| self.run("campaign-regions", &mut self.regions())),
            ),
            (
                "kill walk".to_owned(),
                Box::new(|| {
                    let mut tests = cargo(self.root);
                    // The whole workspace, for the features that everything else was built with.
                    tests.args(["test", "--quiet", "--workspace", "--test", "killwalk"]);
                    tests.args(FEATURES);
                    self.run("killwalk", tests.arg("provider_calls::"))
                }),
            ),
            (
                "clients: kill walk".to_owned(),
                Box::new(|| {
                    let mut walk = self.clients("walk");
                    self.run("clients-walk", walk.args(WALK))
                }),
            ),
            (
                "clients: kill walk in other languages".to_owned(),
                Box::new(|| {
                    self.clients.iter().try_for_each(|(language, client)| {
                        let mut walk = self.clients("walk");
                        walk.args(OTHER_WALK).args(["--client", client]);
                        self.run(&format!("clients-walk-{language}"), &mut walk)
                    })
                }),
            ),
            (
                "clients: load".to_owned(),
                Box::new(|| {
                    let mut load = self.clients("load");
                    self.run("clients-load", load.args(LOAD))
                }),
            ),
            (
                "compare".to_owned(),
                Box::new(|| {
                    compare::smoke(self.root, &self.programs.join("semel"), self.interrupt)
                }),
            ),
            (
                "mutants".to_owned(),
                Box::new(|| mutants::check_list(self.root)),
            ),
        ]
    }

    fn benchmark(&self, name: &str) -> Command {
        let mut command = self.program("semel-bench");
        command.arg(name);
        if bench::NEED_SEMEL.contains(&name) {
            command.arg("--semel").arg(self.programs.join("semel"));
        }
        if bench::NEED_POSTGRES.contains(&name) {
            command.args(["--postgres", &self.postgres]);
        }
        if bench::NEED_NATS.contains(&name) {
            command.args(["--nats", &self.nats]);
        }
        command
    }

    fn clients(&self, name: &str) -> Command {
        let mut command = self.program("semel-clients");
        command
            .arg(name)
            .arg("--semel")
            .arg(self.programs.join("semel"));
        command
    }

    fn campaign(&self) -> Command {
        let mut command = self.program("semel-campaign");
        command
            .arg("--semel")
            .arg(self.programs.join("semel"))
            .arg("--payments")
            .arg(self.programs.join("payments"))
            .arg("--json")
            .arg(self.directory.join("campaign.json"))
            .args(["--short", "--allow-skips", "--clients", "8"])
            .args(["--phases", PHASES]);
        command
    }

    fn regions(&self) -> Command {
        let mut command = self.program("semel-campaign");
        command
            .arg("--semel")
            .arg(self.programs.join("semel"))
            .arg("--payments")
            .arg(self.programs.join("payments"))
            .arg("--json")
            .arg(self.directory.join("regions.json"))
            .args(["--regions", "--short", "--allow-skips", "--clients", "8"]);
        command
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(self.root);
        command
    }

    /// Runs a program in a bounded time. The error has the end of its output.
    fn run(&self, name: &str, command: &mut Command) -> Result<()> {
        let log = self.directory.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let deadline = now() + LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let interrupted = self.interrupt.pause(POLL).err();
            if interrupted.is_some() || now() > deadline {
                process::stop(&mut child, "TERM");
                let hung = || anyhow::anyhow!("it still runs after {LIMIT:?}:\n{}", tail(&log));
                return Err(interrupted.unwrap_or_else(hung));
            }
        };
        if !status.success() {
            bail!("{status}:\n{}", tail(&log));
        }
        Ok(())
    }
}

/// The last lines of a file.
fn tail(path: &PathBuf) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smoke<'a>(directory: &'a Path, interrupt: &'a Interrupt) -> Smoke<'a> {
        Smoke {
            root: directory,
            programs: directory,
            directory,
            postgres: String::new(),
            nats: String::new(),
            clients: Vec::new(),
            interrupt,
        }
    }

    #[test]
    fn a_failing_program_is_an_error_with_the_end_of_its_output() {
        let directory = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let smoke = smoke(directory.path(), &interrupt);
        assert!(smoke.run("true", &mut Command::new("true")).is_ok());
        let mut failing = Command::new("sh");
        failing.args(["-c", "seq 100; echo no column named resume_us >&2; exit 3"]);
        let error = smoke.run("sh", &mut failing).unwrap_err().to_string();
        assert!(error.contains("no column named resume_us"), "{error}");
        assert!(
            error.contains("100\n") && !error.contains("\n50\n"),
            "{error}"
        );
    }

    #[test]
    fn every_benchmark_of_the_program_is_run() {
        let source = include_str!("../../bench/src/main.rs");
        let all = include_str!("../../bench/src/all.rs");
        let names: Vec<&str> = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Benchmark::"))
            .filter_map(|line| line.split(|end: char| !end.is_alphanumeric()).next())
            .filter(|name| *name != "Serve")
            .collect();
        assert_eq!(names.len(), 10, "{names:?}");
        for name in names {
            let is_run = |(run, _): &(&str, &[&str])| run.eq_ignore_ascii_case(name);
            let part = format!("{}::run(", name.to_lowercase());
            assert!(
                BENCHMARKS.iter().any(is_run) || all.contains(&part),
                "{name}"
            );
        }
    }
}
