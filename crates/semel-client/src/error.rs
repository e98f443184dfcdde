//! How a call can end without a response.

use crate::journal;
use crate::request::Response;

/// How a call ended without a final response. Each says whether the operation may have happened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It may or may not have happened, and the server does not know either. The intent stays open with its key: call
    /// again later, and never under another intent.
    #[error(
        "the outcome is unknown{}: it may or may not have happened; call again later with the same intent",
        .operation_id.as_deref().map(|id| format!(" (operation {id})")).unwrap_or_default()
    )]
    Unknown {
        /// The server's id of the operation, for its operator.
        operation_id: Option<String>,
    },
    /// The key was used for another request. This client stores a random key for each intent, so another program used
    /// this journal's key, or the server's fingerprint changed. Nothing was executed for this request now.
    #[error("the server knows the key with another request (status {})", .0.status)]
    KeyReused(Box<Response>),
    /// It was executed too long ago for the server to repeat its response. Look the result up.
    #[error("the server knows the key, but no longer the response (status {})", .0.status)]
    KeyExpired(Box<Response>),
    /// The final response is not stored: the server says so of an operation that it executed, or the response was too long for the
    /// journal. Then it is here without its body, and was executed if its status is a success.
    #[error("{}", not_stored(.0))]
    ResponseNotStored(Box<Response>),
    /// The call gave up before a final response. It may have happened. The intent stays open with its key: call again
    /// later, unless the key's lifetime is over.
    #[error("gave up ({reason}){}; {}", .last.as_deref().map(|last| format!(": {last}")).unwrap_or_default(), .reason.advice())]
    GaveUp {
        /// Why.
        reason: GaveUp,
        /// What came back last.
        last: Option<String>,
    },
    /// The intent is known with another request. Nothing was sent.
    #[error(
        "the intent is known with another request (method, URL, content type or body differ); nothing was sent: use a new intent for a new operation"
    )]
    IntentConflict,
    /// A request without a key got no response, and was not retried. It may have happened.
    #[error("no response, and a request without a key is not retried: {0}")]
    Failed(String),
    /// The request cannot be sent. Nothing was.
    #[error("{0}")]
    Request(String),
    /// The journal failed. If it could not store the intent, nothing was sent; if it could not store the final response, the
    /// next call gets that from the server.
    #[error("the journal failed: {0}")]
    Journal(#[from] journal::Error),
}

fn not_stored(response: &Response) -> String {
    let status = response.status;
    if (200..300).contains(&status) {
        format!(
            "it was executed (status {status}), but the response was too long to be stored; look the result up"
        )
    } else if response.body.is_empty() {
        format!("the final response (status {status}) was too long to be stored")
    } else {
        "it was executed, but the server does not have its response any more; look the result up"
            .to_owned()
    }
}

/// Why a call gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// The next attempt would be after the call's deadline, or after the key's lifetime.
    Deadline,
    /// The key's lifetime is over, and nothing is sent with it any more. Look the outcome up, then
    /// [forget](crate::Journal::forget) the intent.
    KeyLifetime,
    /// The last response refused the request without regard to its key, such as a 401, and an earlier request may have been executed.
    Refused,
    /// The quota for retries is used up: the server fails for many calls.
    Quota,
}

impl GaveUp {
    /// What to do.
    fn advice(self) -> &'static str {
        match self {
            Self::Deadline | Self::Quota => "call again later with the same intent",
            Self::Refused => {
                "it may have happened before: remove the reason, and call again with the same intent"
            }
            Self::KeyLifetime => {
                "the lifetime of its key is over: look the outcome up, then forget the intent"
            }
        }
    }
}

impl std::fmt::Display for GaveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deadline => "deadline",
            Self::KeyLifetime => "key_lifetime",
            Self::Refused => "refused",
            Self::Quota => "quota",
        })
    }
}
