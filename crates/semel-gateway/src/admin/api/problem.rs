//! What the API says when it cannot.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use semel_core::{Error, Status};
use semel_http::TYPE_BASE;
use serde::Serialize;

/// An answer in the form of RFC 9457.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    operation_status: Option<Status>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_status: Option<&'a str>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: String) -> Self {
        Self {
            status,
            code,
            title,
            detail,
            operation_status: None,
        }
    }

    pub(super) fn query(detail: String) -> Self {
        let title = "The query cannot be understood";
        Self::new(
            StatusCode::BAD_REQUEST,
            "admin_query_invalid",
            title,
            detail,
        )
    }

    pub(super) fn decision(detail: impl Into<String>) -> Self {
        let title = "The decision cannot be understood";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "admin_decision_invalid",
            title,
            detail.into(),
        )
    }

    pub(super) fn media_type() -> Self {
        let detail = "send Content-Type: application/json".to_owned();
        let title = "A decision is JSON";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "admin_decision_not_json",
            title,
            detail,
        )
    }

    pub(super) fn not_found() -> Self {
        let detail =
            "No operation has that id. It may have been forgotten when its time was over, \
                      or evicted because nothing had happened."
                .to_owned();
        let title = "There is no such operation";
        Self::new(
            StatusCode::NOT_FOUND,
            "admin_operation_not_found",
            title,
            detail,
        )
    }

    pub(super) fn no_dead_event() -> Self {
        let detail = "No event that waits for a person has that id. It may be waiting to be \
                      published, or be published already."
            .to_owned();
        let title = "There is no such event";
        Self::new(
            StatusCode::NOT_FOUND,
            "admin_event_not_found",
            title,
            detail,
        )
    }

    /// The operation stands elsewhere than where the decision applies.
    pub(super) fn conflict(found: Status, detail: impl Into<String>) -> Self {
        let title = "The operation is not in a state for that";
        Self {
            operation_status: Some(found),
            ..Self::new(
                StatusCode::CONFLICT,
                "admin_operation_conflict",
                title,
                detail.into(),
            )
        }
    }

    pub(super) fn internal(detail: &str) -> Self {
        tracing::error!(detail, "an operator's request failed");
        let title = "The answer cannot be written";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "admin_internal",
            title,
            detail.to_owned(),
        )
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        tracing::warn!(%error, "an operator's request failed");
        let title = "The store cannot answer";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "admin_store_unavailable",
            title,
            error.to_string(),
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Body {
            r#type: format!("{TYPE_BASE}{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            operation_status: self.operation_status.map(Status::as_str),
        };
        // A struct of texts can always be written.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        (self.status, [(CONTENT_TYPE, kind)], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_code_has_its_page() {
        let unavailable = Error::Corrupt { reason: "".into() };
        let problems = [
            Problem::query(String::new()),
            Problem::decision(""),
            Problem::media_type(),
            Problem::not_found(),
            Problem::no_dead_event(),
            Problem::conflict(Status::Completed, ""),
            Problem::internal(""),
            Problem::from(unavailable),
        ];
        let codes: BTreeSet<_> = problems
            .map(|problem| format!("{}.md", problem.code))
            .into();
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let pages = std::fs::read_dir(pages).unwrap();
        let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
        let pages: BTreeSet<_> = names.filter(|name| name.starts_with("admin_")).collect();
        assert_eq!(codes, pages);
    }
}
