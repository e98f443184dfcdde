//! The same probes and the same load for everybody, by the released binary: `semel check` and
//! `semel bench`.

use std::env;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::stage::Stage;
use super::subjects::Guard;
use crate::process::{self, Interrupt, Interrupted, POLL};

/// What is sent; every operation has a reference of its own.
const BODY: &str =
    r#"{"amount":1000,"currency":"EUR","account":"compare","merchant_reference":"{reference}"}"#;
/// How long an operation may take. The slow one takes five seconds, and a store that was taken
/// away is back within five more.
const OPERATION_TIMEOUT: &str = "12s";
/// All probes against somebody who answers none of them.
const CHECK_LIMIT: Duration = Duration::from_mins(5);
const CONNECTIONS: &str = "64";
/// Of each part of the load.
const BENCH_DURATION: &str = "8s";
/// Before anything is measured: some compile while they run, and Restate's first answers take
/// seconds.
const WARM_UP: &str = "2s";
/// Another duration, for development.
const DURATION_VARIABLE: &str = "SEMEL_COMPARE_DURATION";
/// The load is over after its own time; the rest is for a subject that hangs.
const BENCH_LIMIT: Duration = Duration::from_mins(2);

/// Who is asked, and with what.
pub(super) struct Prober<'a> {
    pub(super) semel: &'a Path,
    pub(super) ledger: &'a str,
    pub(super) interrupt: &'a Interrupt,
    /// Where output goes until it is read.
    pub(super) place: &'a Path,
}

impl Prober<'_> {
    /// The probes, each with what was seen.
    pub(super) fn check(&self, guard: Guard, stage: &Stage) -> Result<Vec<Value>> {
        let [caller, other] = guard.callers();
        let count = format!("{}/effects/count?reference={{reference}}", self.ledger);
        let mut command = Command::new(self.semel);
        command
            .args(["check", &stage.url, "--json", "--disruptive"])
            .args(["--body", BODY, "--header", caller, "--other-header", other])
            .args(["--operation-timeout", OPERATION_TIMEOUT])
            .args(["--count-url", &count])
            .args(["--case", "slow=X-Work: slow:5000"])
            .args(["--case", "linger=X-Work: slow:3000"])
            .args(["--case", "timeout=X-Work: timeout"])
            .args(["--case", "large=X-Work: large:4194304"])
            .args(["--case", "declined=X-Work: declined"])
            .args(["--crash-command", &stage.crash_command()]);
        if let Some([take, give]) = stage.store_commands() {
            command
                .args(["--break-store-command", &take])
                .args(["--heal-store-command", &give]);
        }
        // A failed guarantee is exit 1, and a result like any other.
        let report = self.asked(command, CHECK_LIMIT)?;
        let probes = report["probes"].as_array().context("no probes were run")?;
        Ok(probes
            .iter()
            .map(|probe| {
                json!({
                    "id": probe["id"],
                    "verdict": probe["verdict"],
                    "seen": probe["seen"],
                })
            })
            .collect())
    }

    /// New keys and replays: `{"new": …, "replay": …}`.
    pub(super) fn bench(&self, guard: Guard, stage: &Stage) -> Result<Value> {
        let duration = env::var(DURATION_VARIABLE);
        let duration = duration.as_deref().unwrap_or(BENCH_DURATION);
        // Whoever cannot even be warmed up shows so in what is measured.
        if let Err(error) = self.load(guard, stage, WARM_UP)
            && error.is::<Interrupted>()
        {
            return Err(error);
        }
        let report = self.load(guard, stage, duration)?;
        Ok(json!({
            "new": figures(&report["new"])?,
            "replay": figures(&report["replay"])?,
        }))
    }

    fn load(&self, guard: Guard, stage: &Stage, duration: &str) -> Result<Value> {
        let [caller, _] = guard.callers();
        let mut command = Command::new(self.semel);
        command
            .args(["bench", &stage.url, "--json", "--body", BODY])
            .args(["--header", caller, "--header", "X-Work: quick"])
            .args(["--connections", CONNECTIONS, "--duration", duration]);
        self.asked(command, BENCH_LIMIT)
    }

    /// What the command prints as JSON, in a bounded time.
    fn asked(&self, mut command: Command, limit: Duration) -> Result<Value> {
        let path = self.place.join("answer.json");
        let words = self.place.join("words");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(File::create(&path)?)
            .stderr(File::create(&words)?)
            .spawn()
            .with_context(|| format!("cannot run {}", self.semel.display()))?;
        let deadline = process::now() + limit;
        while child.try_wait()?.is_none() {
            let interrupted = self.interrupt.pause(POLL).err();
            if interrupted.is_some() || process::now() > deadline {
                process::stop(&mut child, "KILL");
                bail!(interrupted.unwrap_or_else(|| anyhow::anyhow!("not over in {limit:?}")));
            }
        }
        let text = fs::read(&path)?;
        serde_json::from_slice(&text).with_context(|| {
            let said = fs::read_to_string(&words).unwrap_or_default();
            format!("no report: {}", said.trim())
        })
    }
}

/// The part of the figures that the tables have.
fn figures(part: &Value) -> Result<Value> {
    let requests = part["requests"]
        .as_u64()
        .context("no requests were counted")?;
    let errors = part["errors"].as_u64().unwrap_or_default();
    // Refusals are quick: their rate would say nothing.
    if errors * 100 > requests {
        bail!("{errors} of {requests} requests of the load failed");
    }
    Ok(json!({
        "per_second": part["per_second"],
        "p50_ms": part["p50_ms"],
        "p99_ms": part["p99_ms"],
        "errors": errors,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_was_refused_has_no_rate() {
        let part = |errors| json!({"requests": 1000, "errors": errors, "per_second": 10.0});
        assert_eq!(figures(&part(3)).unwrap()["per_second"], 10.0);
        assert!(figures(&part(11)).is_err());
        assert!(figures(&json!({})).is_err());
    }
}
