//! The way of one delivery.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use semel_core::inbox::{Handling, Message, Receipt};
use semel_core::{Inbox, Inspect, Maintain, Timestamp};

use super::{MAX_BODY, Meaning, Source, Sources};
use crate::notice::{self, Applied, Notice};

/// Deliveries, by source and by what became of them.
pub const RECEIVED: &str = "semel_webhook_received_total";

/// When a worker looks at an event that the one who received it left: after it would have been
/// done, and before anybody asks.
pub const LOOK_AFTER: Duration = Duration::from_secs(5);

/// What the sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Senders take 2xx for received, and send again after anything else.
    pub status: StatusCode,
    /// For whoever reads the sender's log of deliveries.
    pub text: &'static str,
}

/// Takes a delivery: verified, durable, and applied where that can be done now. What is not yet
/// to be applied is left to the worker.
///
/// # Cancellation
/// Dropping the future loses nothing that the sender was told: it sends again, or the worker
/// finds the event.
pub async fn receive<S: Inbox + Maintain + Inspect>(
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
            // Anybody can make this line appear, so it is no alarm; the counter is.
            tracing::info!(source = source.name(), %refused, "an event was refused");
            return Answer::REFUSED;
        }
    };
    let reading = match source.read(&verified) {
        Ok(reading) => reading,
        Err(problem) => {
            count(source, "unreadable");
            tracing::error!(source = source.name(), %problem, "an event cannot be read");
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
                "nothing can be made of an event"
            );
            Answer::TAKEN
        }
        Meaning::Notice(notice) => take(store, source, &reading.id, &notice).await,
    }
}

async fn take<S: Inbox + Maintain + Inspect>(
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
    match store.receive(message, handling).await {
        Ok(Receipt::New) => {}
        Ok(Receipt::Repeated) => {
            count(source, "repeated");
            return Answer::TAKEN;
        }
        Err(error) => {
            count(source, "store_error");
            tracing::error!(source = source.name(), event, %error, "an event could not be kept");
            return Answer::UNAVAILABLE;
        }
    }
    // From here on it is kept: whatever fails, the worker does it.
    match apply(store, source, event, notice).await {
        Ok(result) => count(source, result),
        Err(error) => {
            count(source, "left");
            tracing::warn!(source = source.name(), event, %error, "an event is left to the worker");
        }
    }
    Answer::TAKEN
}

async fn apply<S: Inbox + Maintain + Inspect>(
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
    store.settle(source.name(), event).await?;
    Ok(result)
}

/// The source is one of ours: a name that a stranger made up is no label.
fn count(source: &Source, result: &'static str) {
    let source = source.name().to_owned();
    metrics::counter!(RECEIVED, "source" => source, "result" => result).increment(1);
}

impl Answer {
    /// It arrived, for the first time or again.
    pub const TAKEN: Self = Self::new(StatusCode::NO_CONTENT, "");
    /// Nobody here is called so.
    pub const UNKNOWN_SOURCE: Self =
        Self::new(StatusCode::NOT_FOUND, "there is no source of this name\n");
    /// It is larger than [`MAX_BODY`].
    pub const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "the event is larger than 1 MiB\n",
    );
    /// Says neither which secret nor which check: that would help only who has no secret.
    pub const REFUSED: Self = Self::new(
        StatusCode::UNAUTHORIZED,
        "the signature or its time was not accepted\n",
    );
    /// It is signed, and no event.
    pub const UNREADABLE: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "the event cannot be read; the log of the gateway says why\n",
    );
    /// It is not kept, and has to be sent again.
    pub const UNAVAILABLE: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the event could not be kept; send it again\n",
    );

    const fn new(status: StatusCode, text: &'static str) -> Self {
        Self { status, text }
    }
}
