//! Every response that the layer itself gives, in both dialects.
//!
//! A refusal has a stable code, a page in the documentation, and the same meaning whatever
//! the dialect; only the form differs.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use semel_core::key::Dialect;
use semel_core::{OperationId, Resource};
use serde::Serialize;

use crate::body::{ResponseBody, from_bytes};
use crate::reason::{self, Reason};
use crate::rules::Rules;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// A refusal: its reason, and what is specific to this request.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: &'static Reason,
    /// Instead of the usual detail.
    pub(crate) detail: Option<Cow<'static, str>>,
    pub(crate) operation: Option<OperationId>,
    pub(crate) resource: Option<Resource>,
    /// Seconds.
    pub(crate) retry_after: Option<u64>,
    pub(crate) location: Option<HeaderValue>,
}

/// RFC 9457.
#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<ResourceReference<'a>>,
}

#[derive(Serialize)]
struct ResourceReference<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: &'a str,
}

#[derive(Serialize)]
struct StripeEnvelope<'a> {
    error: StripeError<'a>,
}

#[derive(Serialize)]
struct StripeError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    message: &'a str,
}

impl Refusal {
    pub(crate) fn new(reason: &'static Reason) -> Self {
        Self {
            reason,
            detail: None,
            operation: None,
            resource: None,
            retry_after: reason.retry_after.then_some(1),
            location: None,
        }
    }

    /// 503: two regions do not agree, so nothing executes.
    pub(crate) fn region_mismatch(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(&reason::REGION_MISMATCH).detail(detail)
    }

    pub(crate) fn detail(self, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..self
        }
    }

    pub(crate) fn operation(self, id: OperationId) -> Self {
        Self {
            operation: Some(id),
            ..self
        }
    }

    /// The response in the dialect's form.
    pub(crate) fn render(&self, rules: &Rules) -> Response<Bytes> {
        let (reason, dialect) = (self.reason, rules.dialect);
        let detail = self.detail.as_deref().unwrap_or(reason.detail);
        let mut response = match dialect {
            Dialect::Ietf { .. } => json(
                reason.status,
                "application/problem+json",
                &Problem {
                    kind: match &rules.error_base {
                        Some(base) => format!("{base}{}", reason.code),
                        None => "about:blank".to_owned(),
                    },
                    title: reason.title,
                    status: reason.status,
                    detail,
                    code: reason.code,
                    retryable: reason.retryable,
                    operation_id: self.operation.map(|id| id.to_string()),
                    resource: self.resource.as_ref().map(|resource| ResourceReference {
                        kind: &resource.kind,
                        id: &resource.id,
                    }),
                },
            ),
            Dialect::Stripe => json(
                reason.stripe_status,
                "application/json",
                &StripeEnvelope {
                    error: StripeError {
                        kind: reason.stripe_type,
                        code: reason.stripe_code,
                        message: detail,
                    },
                },
            ),
        };
        self.add_headers(dialect, response.headers_mut());
        response
    }

    fn add_headers(&self, dialect: Dialect, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(location) = &self.location {
            headers.insert(header::LOCATION, location.clone());
        }
        if dialect == Dialect::Stripe
            && let Some(again) = self.reason.stripe_should_retry
        {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static(again));
        }
    }
}

/// Stops Stripe's clients from retrying a replayed failure.
pub(crate) fn forbid_retry(headers: &mut HeaderMap) {
    headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
}

/// 202: an attempt is executing, and the client may poll the status path.
pub(crate) fn accepted(operation: OperationId, location: Option<HeaderValue>) -> Response<Bytes> {
    #[derive(Serialize)]
    struct Accepted {
        operation_id: String,
        status: &'static str,
    }
    let mut response = json(
        202,
        "application/json",
        &Accepted {
            operation_id: operation.to_string(),
            status: "in_progress",
        },
    );
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    if let Some(location) = location {
        headers.insert(header::LOCATION, location);
    }
    response
}

/// A refusal about an operation, with the place to ask for its status.
pub(crate) fn refuse<R>(
    rules: &Rules,
    reason: &'static Reason,
    id: OperationId,
) -> Response<ResponseBody<R>> {
    let location = reason.status_link.then(|| rules.status_of(id)).flatten();
    let refusal = Refusal {
        location,
        ..Refusal::new(reason).operation(id)
    };
    from_bytes(refusal.render(rules))
}

fn json(status: u16, media: &'static str, body: &impl Serialize) -> Response<Bytes> {
    // Neither can fail: the statuses are those of the table above, the bodies are strings.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason;

    /// `type` is a promise: there is a page behind it.
    #[test]
    fn every_code_has_its_page() {
        let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        for reason in reason::ALL {
            let page = pages.join(format!("{}.md", reason.code));
            let text = std::fs::read_to_string(&page).unwrap_or_default();
            assert!(text.contains(reason.code), "no page {}", page.display());
        }
        let known = std::fs::read_dir(&pages).unwrap();
        // The gateway's admin API has codes of its own.
        let admin = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("admin_");
        let known = known
            .filter(|page| !admin(&page.as_ref().unwrap().file_name()))
            .count();
        let codes: std::collections::HashSet<_> =
            reason::ALL.iter().map(|reason| reason.code).collect();
        // One page a code, and the list of them.
        assert_eq!(known, codes.len() + 1, "a page without a code");
    }

    #[test]
    fn a_refusal_without_an_operation_names_none() {
        for reason in reason::ALL {
            for dialect in [Dialect::Ietf { lenient: true }, Dialect::Stripe] {
                let mut rules = Rules::new(|_| None::<Box<str>>);
                rules.dialect = dialect;
                let answer = Refusal::new(reason).render(&rules);
                let body: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
                match dialect {
                    Dialect::Ietf { .. } => {
                        assert_eq!(body["code"], reason.code);
                        assert_eq!(body["status"], answer.status().as_u16());
                        assert_eq!(body["type"], "about:blank");
                        rules.error_base = Some("https://api.example/errors/".into());
                        let answer = Refusal::new(reason).render(&rules);
                        let linked: serde_json::Value =
                            serde_json::from_slice(answer.body()).unwrap();
                        let page = format!("https://api.example/errors/{}", reason.code);
                        assert_eq!(linked["type"], page);
                        assert!(body.get("operation_id").is_none());
                    }
                    Dialect::Stripe => {
                        assert_eq!(body["error"]["code"], reason.stripe_code);
                        assert_eq!(body.as_object().unwrap().len(), 1);
                    }
                }
            }
        }
    }
}
