//! `semel demo` as a process, and its provider's ledger.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// The running demo, killed when dropped.
pub(crate) struct Demo {
    child: Child,
    pub(crate) gateway: String,
    provider: String,
}

impl Demo {
    pub(crate) fn start(semel: &Path) -> Result<Self> {
        let mut child = Command::new(semel)
            .args(["demo", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", semel.display()))?;
        let output = child.stdout.take().context("the demo has an output")?;
        let mut lines = BufReader::new(output).lines();
        let (mut gateway, mut provider) = (None, None);
        while gateway.is_none() || provider.is_none() {
            let Some(line) = lines.next() else {
                let _ = child.kill();
                bail!("the demo ended at start");
            };
            let line = line?;
            if let Some(url) = line.strip_prefix("listening gateway ") {
                gateway = Some(url.to_owned());
            }
            if let Some((_, url)) = line.split_once("curl ") {
                provider = url
                    .strip_suffix("/ledger/summary")
                    .map(str::to_owned)
                    .or(provider);
            }
        }
        // The rest is read, so that the demo does not wait for its reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self {
            child,
            gateway: gateway.unwrap_or_default(),
            provider: provider.unwrap_or_default(),
        })
    }

    /// The share of charges whose response is lost after the charge was made.
    pub(crate) async fn lose_responses(&self, probability: f64) -> Result<()> {
        let faults = json!({"fault": "reset_after_success", "probability": probability});
        let sent = client()?
            .put(format!("{}/faults", self.provider))
            .json(&faults)
            .send()
            .await?;
        sent.error_for_status()?;
        Ok(())
    }

    /// How many charges there are with each reference.
    pub(crate) async fn charges(&self) -> Result<BTreeMap<String, usize>> {
        let response = client()?
            .get(format!("{}/ledger", self.provider))
            .send()
            .await?;
        let entries: Vec<Value> = response.error_for_status()?.json().await?;
        let mut charges = BTreeMap::new();
        for entry in entries {
            let reference = entry["reference"]
                .as_str()
                .context("a charge has a reference")?;
            *charges.entry(reference.to_owned()).or_insert(0) += 1;
        }
        Ok(charges)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of a payment.
pub(crate) fn payment(reference: &str) -> String {
    json!({
        "amount": 1000,
        "currency": "EUR",
        "account": "acc_1",
        "merchant_reference": reference,
    })
    .to_string()
}

fn client() -> Result<reqwest::Client> {
    Ok(reqwest::Client::builder().no_proxy().build()?)
}
