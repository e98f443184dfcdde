//! Handles one delivery.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use semel_core::Store;
use semel_core::Timestamp;
use semel_core::inbox::{Handling, Message, Receipt};

use super::{MAX_BODY, Meaning, Source, Sources};
use crate::notice::{self, Applied, Notice, NoticeTarget};

/// Deliveries, by `source` and `result`.
pub const RECEIVED: &str = "semel_webhook_received_total";

/// When the worker picks up an event that its receiver did not finish.
pub const LOOK_AFTER: Duration = Duration::from_secs(5);

/// The response to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Senders retry after anything but 2xx.
    pub status: StatusCode,
    /// The body, for the sender's delivery log.
    pub text: &'static str,
}

/// Verifies a delivery, stores it, and applies it if possible. The worker applies the rest later.
///
/// # Cancellation
/// Nothing is lost: either the sender retries, or the worker applies the stored event.
pub async fn receive<S: Store>(
    store: &S,
    sources: &Sources,
    source: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Answer {
    let Some(source) = sources.find(source) else {
        return Answer::UNKNOWN_SOURCE;
    };
    if body.len() > MAX_BODY {
        count(source, "too_large");
        return Answer::TOO_LARGE;
    }
    let verified = match source.verify(headers, body, now) {
        Ok(verified) => verified,
        Err(refused) => {
            count(source, "refused");
            // Anyone can cause this line, so it is not an error; alert on the counter.
            tracing::info!(source = source.name(), %refused, "refused a webhook event");
            return Answer::REFUSED;
        }
    };
    let reading = match source.read(&verified) {
        Ok(reading) => reading,
        Err(problem) => {
            count(source, "unreadable");
            tracing::error!(source = source.name(), %problem, "a signed webhook event cannot be parsed");
            return Answer::UNREADABLE;
        }
    };
    match reading.meaning {
        Meaning::Nothing => {
            count(source, "ignored");
            Answer::TAKEN
        }
        Meaning::Unusable(problem) => {
            count(source, "unusable");
            let event = &*reading.id;
            tracing::warn!(
                source = source.name(),
                event,
                problem,
                "ignored a webhook event that matches a rule but cannot be used"
            );
            Answer::TAKEN
        }
        Meaning::Notice(notice) => store_and_apply(store, source, &reading.id, &notice).await,
    }
}

/// What a verified event reports on, if its record is not in this store: with several stores it may
/// be in another one. `None` for every event that [`receive`] should have.
///
/// # Errors
/// The answer to the sender where the store cannot be asked.
pub async fn find_elsewhere<S: Store>(
    store: &S,
    sources: &Sources,
    source: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> Result<Option<NoticeTarget>, Answer> {
    let reading = sources.find(source).and_then(|source| {
        let verified = source.verify(headers, body, now).ok()?;
        Some((source, source.read(&verified).ok()?))
    });
    let Some((source, reading)) = reading else {
        return Ok(None);
    };
    let Meaning::Notice(notice) = reading.meaning else {
        return Ok(None);
    };
    match notice::is_known(store, &notice.target).await {
        Ok(true) => Ok(None),
        Ok(false) => {
            count(source, "elsewhere");
            Ok(Some(notice.target))
        }
        Err(error) => {
            count(source, "store_error");
            tracing::error!(source = source.name(), %error, "the record of a webhook event could not be looked up; the sender retries");
            Err(Answer::UNAVAILABLE)
        }
    }
}

async fn store_and_apply<S: Store>(
    store: &S,
    source: &Source,
    event: &str,
    notice: &Notice,
) -> Answer {
    let message = Message {
        source: source.name().into(),
        id: event.into(),
        payload: notice.to_bytes(),
    };
    let handling = Handling {
        look_after: LOOK_AFTER,
        remember: source.remember,
    };
    match store.receive_message(message, handling).await {
        Ok(Receipt::New) => {}
        Ok(Receipt::Repeated) => {
            count(source, "repeated");
            return Answer::TAKEN;
        }
        Err(error) => {
            count(source, "store_error");
            tracing::error!(source = source.name(), event, %error, "a webhook event could not be stored; the sender retries");
            return Answer::UNAVAILABLE;
        }
    }
    // The event is durable now: if applying fails, the worker does it later.
    match apply(store, source, event, notice).await {
        Ok(result) => count(source, result),
        Err(error) => {
            count(source, "left");
            tracing::warn!(source = source.name(), event, %error, "a webhook event could not be applied yet; the worker retries it");
        }
    }
    Answer::TAKEN
}

async fn apply<S: Store>(
    store: &S,
    source: &Source,
    event: &str,
    notice: &Notice,
) -> semel_core::store::Result<&'static str> {
    let result = match notice::apply(store, source.name(), notice).await? {
        Applied::Parked => return Ok("parked"),
        Applied::Resolved => "resolved",
        Applied::Moot => "moot",
        Applied::Contradicted => "contradicted",
    };
    store.settle_message(source.name(), event).await?;
    Ok(result)
}

/// `source` is a configured name, so callers cannot create labels.
fn count(source: &Source, result: &'static str) {
    let source = source.name().to_owned();
    metrics::counter!(RECEIVED, "source" => source, "result" => result).increment(1);
}

impl Answer {
    /// Received, for the first time or again.
    pub const TAKEN: Self = Self::new(StatusCode::NO_CONTENT, "");
    /// No source has this name.
    pub const UNKNOWN_SOURCE: Self =
        Self::new(StatusCode::NOT_FOUND, "there is no source of this name\n");
    /// Larger than [`MAX_BODY`].
    pub const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "the event is larger than 1 MiB\n",
    );
    /// Does not say which check failed: that would only help an attacker.
    pub const REFUSED: Self = Self::new(
        StatusCode::UNAUTHORIZED,
        "the signature or its time was not accepted\n",
    );
    /// Signed, but not a readable event.
    pub const UNREADABLE: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "the event cannot be read; see the log of the gateway for the reason\n",
    );
    /// Not stored; the sender must retry.
    pub const UNAVAILABLE: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the event could not be stored; send it again\n",
    );

    const fn new(status: StatusCode, text: &'static str) -> Self {
        Self { status, text }
    }
}
