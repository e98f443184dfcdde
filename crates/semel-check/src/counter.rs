//! Counts effects with the owner's counter.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::Address;
use crate::client::ProbeClient;
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::{ProbeLog, Stop};
use crate::secrets::hide;
use crate::target::Counter;
use crate::wire::Connection;

/// Timeout of one count.
const PATIENCE: Duration = Duration::from_secs(10);
/// Every count waits this many times the measured lag.
const LAGS: u32 = 3;

/// The counter before an operation; `None` without a counter that knows the operation.
pub(crate) struct EffectBaseline {
    before: Option<u64>,
    /// How long after the last response the counter shows all effects.
    lag: Duration,
}

impl ProbeClient<'_> {
    /// Whether the effects of an operation are counted. A counter by `{key}` finds nothing for a
    /// request without a key.
    pub(crate) fn counts(&self, operation: &Operation) -> bool {
        let counter = self.target.counter.as_ref();
        counter.is_some_and(|counter| operation.key.is_some() || !counter.has("{key}"))
    }

    /// Whether operations are counted separately.
    pub(crate) fn counts_each(&self) -> bool {
        let counter = self.target.counter.as_ref();
        counter.is_some_and(|counter| counter.has("{reference}") || counter.has("{key}"))
    }

    /// Reads the counter before an operation.
    pub(crate) async fn effect_baseline(
        &self,
        operation: &Operation,
        variant: RequestVariant<'_>,
    ) -> Result<EffectBaseline, Stop> {
        self.wait_for_lag().await;
        let before = self.read_counter(operation).await?;
        let lag = self.timing(variant).unwrap_or(self.profile.usual).lag * LAGS;
        Ok(EffectBaseline { before, lag })
    }

    /// Waits until earlier effects show, if the counter would include them.
    pub(crate) async fn wait_for_lag(&self) {
        if self.target.counter.is_some() && !self.counts_each() {
            sleep(self.profile.usual.lag * LAGS).await;
        }
    }

    /// The effects since the baseline, after the counter's lag.
    pub(crate) async fn effects(
        &self,
        operation: &Operation,
        since: &EffectBaseline,
        log: &mut ProbeLog,
    ) -> Result<Option<u64>, Stop> {
        let effects = self.effects_after_lag(operation, since, log).await?;
        if let Some(effects) = effects {
            log.observe(format!("effects: {effects}"));
        }
        Ok(effects)
    }

    /// The same, without an entry in the log.
    pub(crate) async fn effects_after_lag(
        &self,
        operation: &Operation,
        since: &EffectBaseline,
        log: &mut ProbeLog,
    ) -> Result<Option<u64>, Stop> {
        if since.before.is_some() && !since.lag.is_zero() {
            sleep(since.lag).await;
            log.note(format!(
                "the counter shows effects late: it was read {} ms after the last response",
                since.lag.as_millis()
            ));
        }
        self.effects_since(operation, since).await
    }

    /// The effects since the baseline that the counter shows now.
    pub(crate) async fn effects_since(
        &self,
        operation: &Operation,
        since: &EffectBaseline,
    ) -> Result<Option<u64>, Stop> {
        let now = self.read_counter(operation).await?;
        Ok(now
            .zip(since.before)
            .map(|(now, before)| now.saturating_sub(before)))
    }

    async fn read_counter(&self, operation: &Operation) -> Result<Option<u64>, Stop> {
        let failed = |reason: String| {
            // The counter may echo secrets.
            let reason = hide(&reason, self.target.secrets());
            Stop::NotSeen(format!("the counter failed: {reason}"))
        };
        self.count(operation).await.map_err(failed)
    }

    /// Reads the counter, if it knows the operation.
    pub(crate) async fn count(&self, operation: &Operation) -> Result<Option<u64>, String> {
        let Some(counter) = self
            .target
            .counter
            .as_ref()
            .filter(|_| self.counts(operation))
        else {
            return Ok(None);
        };
        let baseline = async {
            match counter {
                Counter::Url { url, pointer } => {
                    let text = self.ask_counter(operation, url).await?;
                    read(&text, pointer.as_deref())
                }
                Counter::Command(command) => {
                    let printed = self.environment.output(&operation.fill(command)).await;
                    read(&printed.map_err(|error| error.to_string())?, None)
                }
            }
        };
        let answer = timeout(PATIENCE, baseline).await;
        let late = |_| format!("no response within {} seconds", PATIENCE.as_secs());
        answer.map_err(late)?.map(Some)
    }

    async fn ask_counter(&self, operation: &Operation, url: &str) -> Result<String, String> {
        let url = operation.fill(url);
        let address: Address = url
            .parse()
            .map_err(|error: crate::Error| error.to_string())?;
        let mut request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n",
            address.path, address.authority
        );
        // Credentials go only to the target's own host and port.
        if address.endpoint() == self.target.address.endpoint() {
            for header in &self.target.headers {
                let value = operation.fill(&header.value);
                // Writing to a string cannot fail.
                let _ = write!(request, "{}: {value}\r\n", header.name);
            }
        }
        request.push_str("\r\n");
        let failed = |error: std::io::Error| format!("{url}: {error}");
        let mut connection =
            Connection::new(self.environment.connect(&address).await.map_err(failed)?);
        connection.send(request.as_bytes()).await.map_err(failed)?;
        let answer = connection.read().await.map_err(failed)?;
        // Many APIs return 404 for an operation without effects.
        if answer.status == 404 {
            return Ok("0".to_owned());
        }
        if !answer.is_success() {
            return Err(format!("{url} responded with {}", answer.status));
        }
        String::from_utf8(answer.body)
            .map_err(|_| format!("{url} responded with bytes that are not UTF-8"))
    }
}

impl Counter {
    /// Whether it contains this placeholder.
    fn has(&self, place: &str) -> bool {
        match self {
            Self::Url { url, .. } => url.contains(place),
            Self::Command(command) => command.contains(place),
        }
    }
}

fn read(text: &str, pointer: Option<&str>) -> Result<u64, String> {
    let short = || crate::text::cut(text.trim(), 80);
    let document: Value =
        serde_json::from_str(text.trim()).map_err(|_| format!("not a number: {:?}", short()))?;
    let counted = match pointer {
        // A missing value counts as zero.
        Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
        None => &document,
    };
    match counted {
        Value::Array(list) => Ok(list.len() as u64),
        Value::Null if pointer.is_some() => Ok(0),
        Value::Number(number) => number
            .as_u64()
            .ok_or_else(|| format!("not a count: {number}")),
        Value::String(text) => text.parse().map_err(|_| format!("not a number: {text:?}")),
        Value::Null | Value::Bool(_) | Value::Object(_) => Err(format!(
            "neither a number nor an array: {:?}; select one with --count-pointer",
            short()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_arrays_and_pointers_are_counted() {
        for (text, pointer, count) in [
            ("3\n", None, 3),
            ("[1, {}, 3]", None, 3),
            (r#"{"a": {"b": 2}}"#, Some("/a/b"), 2),
            (r#"{"a": [1]}"#, Some("/a"), 1),
            (r#"{"a": [1]}"#, Some("/b"), 0),
            ("\"7\"", None, 7),
        ] {
            assert_eq!(read(text, pointer), Ok(count), "{text}");
        }
        for wrong in ["", "many", "-1", "1.5", "{}", "null", "true"] {
            assert!(read(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
