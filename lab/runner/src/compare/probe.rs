//! Runs the same probes against every subject with the released binary: `semel check`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::deployment::Deployment;
use super::outcome;
use super::subjects::Guard;
use crate::process::{self, Interrupt, POLL};

/// The request body; every operation has a reference of its own.
pub(super) const BODY: &str =
    r#"{"amount":1000,"currency":"EUR","account":"compare","merchant_reference":"{reference}"}"#;
/// How long an operation may take, and how long a retry is repeated. The slow one takes five
/// seconds, and a store that was taken away is back within five more.
const OPERATION_SECONDS: u32 = 12;
/// The time limit of all probes together.
const CHECK_LIMIT: Duration = Duration::from_mins(5);

/// How much is probed and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    Full,
    /// No disruptive probes, and one short round of load.
    Smoke,
}

/// The program that probes, and what it needs.
pub(super) struct Prober<'a> {
    pub(super) semel: &'a Path,
    pub(super) ledger: &'a str,
    pub(super) interrupt: &'a Interrupt,
    /// The directory for output files.
    pub(super) place: &'a Path,
    pub(super) effort: Effort,
}

impl Prober<'_> {
    /// Runs the probes. Returns their results.
    pub(super) fn check(&self, guard: Guard, deployment: &Deployment) -> Result<Vec<Value>> {
        let [caller, other] = guard.callers();
        let count = format!("{}/effects/count?reference={{reference}}", self.ledger);
        let mut command = Command::new(self.semel);
        command
            .args(["check", &deployment.url, "--json"])
            .args(["--body", BODY, "--header", caller, "--other-header", other])
            .args(["--count-url", &count]);
        if self.effort == Effort::Smoke {
            command.args(["--operation-timeout", "2s"]);
            return self.run_probes(command);
        }
        command
            .arg("--disruptive")
            .args(["--operation-timeout", &format!("{OPERATION_SECONDS}s")])
            .args(["--case", "slow=X-Work: slow:5000"])
            .args(["--case", "linger=X-Work: slow:3000"])
            .args(["--case", "timeout=X-Work: timeout"])
            .args(["--case", "large=X-Work: large:4194304"])
            .args(["--case", "declined=X-Work: declined"])
            .args(["--crash-command", &deployment.crash_command()]);
        if let Some([stop, start]) = deployment.store_commands() {
            command
                .args(["--break-store-command", &stop])
                .args(["--heal-store-command", &start]);
        }
        self.run_probes(command)
    }

    fn run_probes(&self, command: Command) -> Result<Vec<Value>> {
        // Exit status 1 means a failed guarantee, which is a result.
        let report = self.run_json(command, CHECK_LIMIT, &mut |_| {})?;
        let probes = report["probes"].as_array().context("no probes were run")?;
        Ok(probes.iter().map(probe_result).collect())
    }

    /// Runs a command in a bounded time, and parses its output as JSON. Calls `on_poll` repeatedly with
    /// the time since the start.
    pub(super) fn run_json(
        &self,
        mut command: Command,
        limit: Duration,
        on_poll: &mut dyn FnMut(Duration),
    ) -> Result<Value> {
        let path = self.place.join("answer.json");
        let errors = self.place.join("errors");
        let began = process::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(File::create(&path)?)
            .stderr(File::create(&errors)?)
            .spawn()
            .with_context(|| format!("cannot run {}", self.semel.display()))?;
        while child.try_wait()?.is_none() {
            let interrupted = self.interrupt.pause(POLL).err();
            if interrupted.is_some() || began.elapsed() > limit {
                process::stop(&mut child, "KILL");
                bail!(
                    interrupted.unwrap_or_else(|| anyhow::anyhow!("not finished after {limit:?}"))
                );
            }
            on_poll(began.elapsed());
        }
        let text = fs::read(&path)?;
        serde_json::from_slice(&text).with_context(|| {
            let text = fs::read_to_string(&errors).unwrap_or_default();
            format!("no report: {}", text.trim())
        })
    }
}

/// The fields of a probe's result that the tables show.
fn probe_result(probe: &Value) -> Value {
    json!({
        "id": probe["id"],
        "verdict": probe["verdict"],
        "seen": probe["seen"],
        "notes": probe["notes"],
        "end": outcome::final_answer(probe, &format!("{OPERATION_SECONDS} s")),
    })
}
