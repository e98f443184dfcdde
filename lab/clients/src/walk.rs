//! A client is recorded by `strace`. Then it is killed at each system call of the recording, by name and
//! number in its thread, and started again until it ends.
//!
//! Afterwards there is one charge in the provider's ledger, the client printed the one response, and a third run prints the
//! same without a request. Any program is walked that takes `URL INTENT JOURNAL BODY`, prints the response body, and ends with 0
//! after a final success, such as `pay.py` and `pay.mjs` of `packages/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::demo::{Demo, payment};

/// Where a client that is killed may leave something half done: files and connections.
const EFFECTS: [&str; 11] = [
    "connect",
    "fdatasync",
    "fsync",
    "link",
    "pwrite64",
    "recvfrom",
    "sendmsg",
    "sendto",
    "unlink",
    "write",
    "writev",
];
/// A share of responses that the provider loses, so that some walks meet an unknown outcome.
const LOST: f64 = 0.03;
/// How often a killed client is started again before it must have ended.
const RESTARTS: usize = 5;
/// A point that the killed run does not reach is tried again so often: threads are not deterministic.
const TRIES: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The built `semel`, which serves the demo and, as `semel call`, is the client
    #[arg(long)]
    semel: PathBuf,
    /// Another client, with its arguments: it gets URL INTENT JOURNAL BODY
    #[arg(long, value_name = "COMMAND")]
    client: Option<String>,
    /// Only system calls that write, sync, connect, send or receive
    #[arg(long)]
    effects: bool,
    /// At most so many kills at one system call, in each of the two recordings
    #[arg(long, default_value_t = usize::MAX)]
    each: usize,
    /// How many walk at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

/// Whether the client creates its journal. Where it does not, another thread is the first to write, and can be killed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JournalFile {
    Missing,
    Used,
}

/// One system call of one thread.
#[derive(Clone, Debug)]
struct Point {
    journal: JournalFile,
    call: String,
    nth: usize,
}

enum Killed {
    /// The client was killed there, and everything held afterwards.
    Yes,
    /// It ended before it came there.
    Missed,
}

struct Walk<'a> {
    args: &'a Args,
    url: String,
    directory: TempDir,
    intents: AtomicUsize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let strace = Command::new("strace").arg("-V").output();
    if !strace.is_ok_and(|output| output.status.success()) {
        bail!("strace is missing: install it, for example with apt-get install strace");
    }
    let demo = Demo::start(&args.semel)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(demo.lose_responses(LOST))?;
    let walk = Walk {
        args,
        url: format!("{}/payments", demo.gateway),
        directory: tempfile::tempdir()?,
        intents: AtomicUsize::new(0),
    };
    let mut recorded = walk.record(JournalFile::Missing)?;
    recorded.extend(walk.record(JournalFile::Used)?);
    let points = Mutex::new(recorded);
    let all = points.lock().map_or(0, |points| points.len());
    ensure!(all >= 10, "only {all} system calls were recorded");
    let (killed, missed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..args.jobs)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some(point) = points.lock().ok().and_then(|mut points| points.pop()) {
                        match walk.kill_at(&point).with_context(|| format!("{point:?}"))? {
                            Killed::Yes => killed.fetch_add(1, Ordering::Relaxed),
                            Killed::Missed => missed.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(ended) => ended?,
                Err(_) => bail!("a walker panicked"),
            }
        }
        Ok(())
    })?;
    let (killed, missed) = (killed.into_inner(), missed.into_inner());
    let intents = walk.intents.into_inner();
    let charges = runtime.block_on(demo.charges())?;
    let once = charges.values().filter(|count| **count == 1).count();
    ensure!(
        once == intents && charges.len() == intents,
        "{intents} intents, but {once} of {} references are charged once",
        charges.len()
    );
    ensure!(
        missed * 5 < all,
        "{missed} of {all} points were not reached"
    );
    println!(
        "{killed} kills at {all} system calls, {missed} not reached: {intents} intents, {once} charges, \
         one response each"
    );
    Ok(())
}

impl Walk<'_> {
    /// A new intent with a journal of its own.
    fn next_intent(&self, file: JournalFile) -> Result<(String, PathBuf)> {
        let nth = self.intents.fetch_add(1, Ordering::Relaxed);
        let intent = format!("walk-{nth}");
        let journal = self.directory.path().join(&intent);
        if file == JournalFile::Used {
            // The first recorded run made it. Where it ended while SQLite was closing it, there is a log, without which
            // the file alone may be incomplete.
            for suffix in ["", "-wal"] {
                let from = self.directory.path().join(format!("walk-0{suffix}"));
                if suffix.is_empty() || from.exists() {
                    let to = self.directory.path().join(format!("{intent}{suffix}"));
                    std::fs::copy(from, to)?;
                }
            }
        }
        Ok((intent, journal))
    }

    /// The client's program and arguments.
    fn client(&self, intent: &str, journal: &Path) -> Vec<String> {
        let (journal, body) = (journal.display().to_string(), payment(intent));
        if let Some(client) = &self.args.client {
            let words = client.split_whitespace().map(str::to_owned);
            return words
                .chain([self.url.clone(), intent.to_owned(), journal, body])
                .collect();
        }
        let semel = self.args.semel.display().to_string();
        [
            &semel,
            "call",
            "--intent",
            intent,
            "--journal",
            &journal,
            "-X",
            "POST",
            &self.url,
            "--deadline",
            "2m",
            "-d",
            &body,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// The system calls of a run that is not disturbed, by name; each as often as the thread that makes most of them.
    fn record(&self, file: JournalFile) -> Result<Vec<Point>> {
        let (intent, journal) = self.next_intent(file)?;
        let log = self.directory.path().join("strace.log");
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o"]).arg(&log);
        command.args(self.client(&intent, &journal));
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "the recorded run failed: {output:?}"
        );
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for line in std::fs::read_to_string(&log)?.lines() {
            let Some((thread, rest)) = line.split_once(' ') else {
                continue;
            };
            let Some((call, _)) = rest.trim_start().split_once('(') else {
                continue;
            };
            // Not `<... read resumed>` and `+++ exited`.
            if call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                *counts
                    .entry((call.to_owned(), thread.to_owned()))
                    .or_default() += 1;
            }
        }
        let mut most: BTreeMap<&str, usize> = BTreeMap::new();
        for ((call, _), count) in &counts {
            let of_call = most.entry(call).or_default();
            *of_call = (*of_call).max(*count);
        }
        let effects = BTreeSet::from(EFFECTS);
        let wanted = |call: &&str| !self.args.effects || effects.contains(call);
        let points = most
            .into_iter()
            // The first `execve` is before the client, and a client that has exited is not killed.
            .filter(|(call, _)| wanted(call) && !call.starts_with("exit") && *call != "execve")
            .flat_map(|(call, count)| spread(count, self.args.each).map(move |nth| (call, nth)))
            .map(|(call, nth)| Point {
                journal: file,
                call: call.to_owned(),
                nth,
            })
            .collect();
        Ok(points)
    }

    fn kill_at(&self, point: &Point) -> Result<Killed> {
        for _ in 0..TRIES {
            let (intent, journal) = self.next_intent(point.journal)?;
            let client = self.client(&intent, &journal);
            let is_killed = kill(&client, point)?;
            let body = restart(&client)?;
            let again = run_client(&client)?;
            ensure!(again.status.success() && again.stdout == body, "{again:?}");
            if is_killed {
                return Ok(Killed::Yes);
            }
        }
        Ok(Killed::Missed)
    }
}

/// Numbers from 1 to `count`, at most `each` of them, evenly.
fn spread(count: usize, each: usize) -> impl Iterator<Item = usize> {
    let step = count.div_ceil(each.max(1)).max(1);
    (1..=count).step_by(step)
}

/// Runs the client and kills it before the system call; `false` if it ended before.
fn kill(client: &[String], point: &Point) -> Result<bool> {
    let inject = format!("inject={}:signal=KILL:when={}", point.call, point.nth);
    let output = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &inject])
        .args(client)
        .stdin(Stdio::null())
        .output()?;
    // strace ends by the signal that its child ended by.
    Ok(!output.status.success())
}

/// Starts it until it ends with success, and returns what it printed.
fn restart(client: &[String]) -> Result<Vec<u8>> {
    let mut last = None;
    for _ in 0..RESTARTS {
        let output = run_client(client)?;
        if output.status.success() {
            ensure!(!output.stdout.is_empty(), "it printed no response");
            return Ok(output.stdout);
        }
        last = Some(output);
    }
    bail!("it did not end: {last:?}")
}

fn run_client(client: &[String]) -> Result<Output> {
    let (program, arguments) = client.split_first().context("a client has a program")?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))
}
