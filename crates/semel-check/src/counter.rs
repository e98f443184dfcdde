//! How many effects there are.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::Address;
use crate::caller::Caller;
use crate::operation::{Operation, Shape};
use crate::record::{Record, Stop};
use crate::secrets::hide;
use crate::target::Counter;
use crate::wire::Connection;

/// A counter that takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(10);
/// A counter that lagged by so much once may lag by so many times more.
const LAGS: u32 = 3;

/// The counter before an operation; none where nobody counts it.
pub(crate) struct Counting {
    before: Option<u64>,
    /// So long after the last answer all effects show.
    lag: Duration,
}

impl Caller<'_> {
    /// Whether the effects of an operation are counted. A counter that looks for a key finds
    /// nothing where none is sent.
    pub(crate) fn counts(&self, operation: &Operation) -> bool {
        let counter = self.target.counter.as_ref();
        counter.is_some_and(|counter| operation.key.is_some() || !counter.has("{key}"))
    }

    /// Whether operations are counted apart from each other.
    pub(crate) fn counts_each(&self) -> bool {
        let counter = self.target.counter.as_ref();
        counter.is_some_and(|counter| counter.has("{reference}") || counter.has("{key}"))
    }

    /// Reads the counter before an operation.
    pub(crate) async fn counting(
        &self,
        operation: &Operation,
        shape: Shape<'_>,
    ) -> Result<Counting, Stop> {
        self.until_quiet().await;
        let before = self.counted(operation).await?;
        let lag = self.pace(shape).unwrap_or(self.learned.usual).lag * LAGS;
        Ok(Counting { before, lag })
    }

    /// Waits until what happened before shows, where it would be counted along.
    pub(crate) async fn until_quiet(&self) {
        if self.target.counter.is_some() && !self.counts_each() {
            sleep(self.learned.usual.lag * LAGS).await;
        }
    }

    /// How many effects there were since, and all of them.
    pub(crate) async fn effects(
        &self,
        operation: &Operation,
        since: &Counting,
        record: &mut Record,
    ) -> Result<Option<u64>, Stop> {
        let effects = self.effects_at_last(operation, since, record).await?;
        if let Some(effects) = effects {
            record.saw(format!("effects: {effects}"));
        }
        Ok(effects)
    }

    /// The same, for who tells of it in words of their own.
    pub(crate) async fn effects_at_last(
        &self,
        operation: &Operation,
        since: &Counting,
        record: &mut Record,
    ) -> Result<Option<u64>, Stop> {
        if since.before.is_some() && !since.lag.is_zero() {
            sleep(since.lag).await;
            record.note(format!(
                "the counter shows effects late: it was read {} ms after the last answer",
                since.lag.as_millis()
            ));
        }
        self.effects_since(operation, since).await
    }

    /// How many effects there were since, as far as the counter shows by now.
    pub(crate) async fn effects_since(
        &self,
        operation: &Operation,
        since: &Counting,
    ) -> Result<Option<u64>, Stop> {
        let now = self.counted(operation).await?;
        Ok(now
            .zip(since.before)
            .map(|(now, before)| now.saturating_sub(before)))
    }

    async fn counted(&self, operation: &Operation) -> Result<Option<u64>, Stop> {
        let failed = |reason: String| {
            // It may repeat what it was sent.
            let reason = hide(&reason, self.target.secrets());
            Stop::NotSeen(format!("the counter failed: {reason}"))
        };
        self.count(operation).await.map_err(failed)
    }

    /// Asks the counter, where there is one that knows the operation.
    pub(crate) async fn count(&self, operation: &Operation) -> Result<Option<u64>, String> {
        let Some(counter) = self
            .target
            .counter
            .as_ref()
            .filter(|_| self.counts(operation))
        else {
            return Ok(None);
        };
        let counting = async {
            match counter {
                Counter::Url { url, pointer } => {
                    let text = self.ask_counter(operation, url).await?;
                    read(&text, pointer.as_deref())
                }
                Counter::Command(command) => {
                    let printed = self.world.ask(&operation.fill(command)).await;
                    read(&printed.map_err(|error| error.to_string())?, None)
                }
            }
        };
        let answer = timeout(PATIENCE, counting).await;
        let late = |_| format!("no answer in {} seconds", PATIENCE.as_secs());
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
        // Credentials are for the target, and only go elsewhere where that is the same place.
        if address.endpoint() == self.target.address.endpoint() {
            for header in &self.target.headers {
                let value = operation.fill(&header.value);
                // Writing to a string cannot fail.
                let _ = write!(request, "{}: {value}\r\n", header.name);
            }
        }
        request.push_str("\r\n");
        let told = |error: std::io::Error| format!("{url}: {error}");
        let mut connection = Connection::new(self.world.connect(&address).await.map_err(told)?);
        connection.send(request.as_bytes()).await.map_err(told)?;
        let answer = connection.read().await.map_err(told)?;
        // What does not exist has no effects: many APIs say so with a 404.
        if answer.status == 404 {
            return Ok("0".to_owned());
        }
        if !answer.is_success() {
            return Err(format!("{url} answered {}", answer.status));
        }
        String::from_utf8(answer.body).map_err(|_| format!("{url} answered no text"))
    }
}

impl Counter {
    /// Whether it has such a place to fill.
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
        serde_json::from_str(text.trim()).map_err(|_| format!("no number: {:?}", short()))?;
    let counted = match pointer {
        // Nothing at that place yet is nothing counted yet.
        Some(pointer) => document.pointer(pointer).unwrap_or(&Value::Null),
        None => &document,
    };
    match counted {
        Value::Array(list) => Ok(list.len() as u64),
        Value::Null if pointer.is_some() => Ok(0),
        Value::Number(number) => number.as_u64().ok_or_else(|| format!("no count: {number}")),
        Value::String(text) => text.parse().map_err(|_| format!("no number: {text:?}")),
        Value::Null | Value::Bool(_) | Value::Object(_) => Err(format!(
            "neither a number nor an array: {:?}; --count-pointer says where it is",
            short()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_arrays_and_places_are_counted() {
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
