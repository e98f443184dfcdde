//! The status of an operation, for its client.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use semel_core::{OperationId, Record, State, Store, Timestamp, store};
use serde::Serialize;

use crate::extract::resolve_tenant;
use crate::layer::Layer;
use crate::reason;
use crate::refusal::Refusal;
use crate::rules::Rules;

/// The body of the response.
#[derive(Serialize)]
struct StatusBody {
    operation_id: String,
    status: &'static str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<StatusResponse>,
}

#[derive(Serialize)]
struct StatusResponse {
    status: u16,
    headers: Vec<(String, String)>,
    /// `null` where it is not stored or not text.
    body: Option<String>,
}

impl<S: Store> Layer<S> {
    /// Answers a request for the operation whose id follows the [status path](Layer::status_path),
    /// for the tenant that it belongs to. `None` where the request is for another path.
    ///
    /// # Cancellation
    /// Only reads.
    pub async fn status(&self, head: &Parts) -> Option<Response<Bytes>> {
        let prefix = self.rules.status_path.as_deref()?;
        let id = head.uri.path().strip_prefix(prefix)?;
        if head.method != Method::GET && head.method != Method::HEAD {
            return Some(plain(StatusCode::METHOD_NOT_ALLOWED));
        }
        let found = match id.parse::<OperationId>() {
            Ok(id) => self.state.store.find(id).await,
            Err(_) => Ok(None),
        };
        let tenant = match resolve_tenant((self.rules.tenant)(head)).await {
            Ok(tenant) => Some(tenant),
            Err(refusal) if refusal.reason.retryable => {
                return Some(refusal.render(&self.rules));
            }
            Err(_) => None,
        };
        Some(match found {
            Ok(Some(record)) if tenant.as_deref() == Some(record.identity.tenant()) => {
                let asks = self.rules.asks_before_replay(record.identity.operation());
                render(&record, &self.rules, self.state.clock.now(), !asks)
            }
            // Not 403: another tenant must not learn that the operation exists.
            Ok(_) => plain(StatusCode::NOT_FOUND),
            Err(error) => self.unavailable(&error),
        })
    }

    fn unavailable(&self, error: &store::Error) -> Response<Bytes> {
        tracing::error!(%error, "could not look an operation up");
        Refusal::new(&reason::STORE_UNAVAILABLE)
            .detail("The operation cannot be looked up now. Ask again.")
            .render(&self.rules)
    }
}

/// The status of a record; its response only where the caller may see it without a question.
fn render(record: &Record, rules: &Rules, now: Timestamp, shows_response: bool) -> Response<Bytes> {
    let retry_after = match &record.state {
        State::Unknown(unresolved) if unresolved.dead_lettered_at.is_some() => {
            Some(rules.dead_letter_retry_after.as_secs().max(1))
        }
        State::InProgress(_) | State::Unknown(_) => Some(1),
        State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => None,
    };
    let response = match &record.state {
        State::Completed(completed) if shows_response && now < completed.expires_at => {
            let stored = &completed.response;
            Some(StatusResponse {
                status: stored.status,
                headers: stored
                    .headers
                    .iter()
                    .map(|(name, value)| {
                        (
                            name.to_string(),
                            String::from_utf8_lossy(value).into_owned(),
                        )
                    })
                    .collect(),
                body: stored
                    .body
                    .as_ref()
                    .filter(|_| completed.body_expires_at.is_none_or(|at| now < at))
                    .and_then(|body| String::from_utf8(body.to_vec()).ok()),
            })
        }
        State::Completed(_)
        | State::InProgress(_)
        | State::FailedRetryable { .. }
        | State::Unknown(_)
        | State::Expired { .. } => None,
    };
    let body = StatusBody {
        operation_id: record.id.to_string(),
        status: record.state.status().as_str(),
        created_at: rfc3339(record.created_at),
        retry_after,
        response,
    };
    // Serializing a struct of strings cannot fail.
    let mut answer = Response::new(Bytes::from(serde_json::to_vec(&body).unwrap_or_default()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// A timestamp in the format of RFC 3339, in UTC.
pub fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.as_micros())
        .map_or_else(|_| String::new(), |at| at.to_string())
}

fn plain(status: StatusCode) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = status;
    answer
}
