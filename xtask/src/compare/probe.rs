//! The same probes for everybody, by the released binary: `semel check`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::outcome;
use super::stage::Stage;
use super::subjects::Guard;
use crate::process::{self, Interrupt, POLL};

/// What is sent; every operation has a reference of its own.
pub(super) const BODY: &str =
    r#"{"amount":1000,"currency":"EUR","account":"compare","merchant_reference":"{reference}"}"#;
/// How long an operation may take, and how long a retry is repeated. The slow one takes five
/// seconds, and a store that was taken away is back within five more.
const OPERATION_SECONDS: u32 = 12;
/// All probes against somebody who answers none of them.
const CHECK_LIMIT: Duration = Duration::from_mins(5);

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
            .args(["--operation-timeout", &format!("{OPERATION_SECONDS}s")])
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
        let report = self.asked(command, CHECK_LIMIT, &mut |_| {})?;
        let probes = report["probes"].as_array().context("no probes were run")?;
        Ok(probes.iter().map(kept).collect())
    }

    /// What the command prints as JSON, in a bounded time. `look` is called all the while, with the
    /// time since the start.
    pub(super) fn asked(
        &self,
        mut command: Command,
        limit: Duration,
        look: &mut dyn FnMut(Duration),
    ) -> Result<Value> {
        let path = self.place.join("answer.json");
        let words = self.place.join("words");
        let began = process::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(File::create(&path)?)
            .stderr(File::create(&words)?)
            .spawn()
            .with_context(|| format!("cannot run {}", self.semel.display()))?;
        while child.try_wait()?.is_none() {
            let interrupted = self.interrupt.pause(POLL).err();
            if interrupted.is_some() || began.elapsed() > limit {
                process::stop(&mut child, "KILL");
                bail!(interrupted.unwrap_or_else(|| anyhow::anyhow!("not over in {limit:?}")));
            }
            look(began.elapsed());
        }
        let text = fs::read(&path)?;
        serde_json::from_slice(&text).with_context(|| {
            let said = fs::read_to_string(&words).unwrap_or_default();
            format!("no report: {}", said.trim())
        })
    }
}

/// The part of a finding that the tables have.
fn kept(probe: &Value) -> Value {
    json!({
        "id": probe["id"],
        "verdict": probe["verdict"],
        "seen": probe["seen"],
        "notes": probe["notes"],
        "end": outcome::told(probe, &format!("{OPERATION_SECONDS} s")),
    })
}
