//! Error responses of the admin listener (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use semel_core::{Error, Status};
use serde::Serialize;
use utoipa::ToSchema;

use super::api::StatusView;
use crate::error_pages::ERROR_PATH;

/// An error response. It also travels in the response's extensions, from which the console renders
/// a page.
#[derive(Clone, Debug)]
pub(in crate::admin) struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    operation_status: Option<Status>,
    retry_after_seconds: Option<u64>,
}

/// An error as described by RFC 9457.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::admin) struct Body<'a> {
    /// The documentation of `code`.
    #[schema(format = "uri-reference")]
    r#type: String,
    /// A short summary.
    title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong with this request, and what to do.
    detail: &'a str,
    /// A stable code for programs.
    #[schema(pattern = "^admin_[a-z_]+$")]
    code: &'a str,
    /// The record's status, where it is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    operation_status: Option<StatusView>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: String) -> Self {
        Self {
            status,
            code,
            title,
            detail,
            operation_status: None,
            retry_after_seconds: None,
        }
    }

    pub(in crate::admin) fn unauthenticated() -> Self {
        let detail = "send the admin token (Authorization: Bearer TOKEN), or log in at /login";
        let title = "Authentication required";
        Self::new(
            StatusCode::UNAUTHORIZED,
            "admin_unauthenticated",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn too_many_attempts(retry_after_seconds: u64) -> Self {
        let detail = format!("too many wrong tokens; try again in {retry_after_seconds} seconds");
        let title = "Too many wrong tokens";
        Self {
            retry_after_seconds: Some(retry_after_seconds),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "admin_too_many_attempts",
                title,
                detail,
            )
        }
    }

    pub(in crate::admin) fn not_local(detail: &str) -> Self {
        let title = "Only local requests are served without an admin token";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_not_local",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn not_an_operator() -> Self {
        let detail =
            "the viewer role is read-only; actions and stored bodies require the operator \
                      token"
                .to_owned();
        let title = "Operator role required";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_not_an_operator",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn cross_site(detail: &str) -> Self {
        let title = "Possible cross-site request";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_cross_site",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn path_not_found() -> Self {
        let detail = "no such path; see /openapi.json".to_owned();
        let title = "Not found";
        Self::new(StatusCode::NOT_FOUND, "admin_nothing_here", title, detail)
    }

    pub(in crate::admin) fn method_not_allowed() -> Self {
        let detail = "see the Allow header for the methods of this path".to_owned();
        let title = "Method not allowed";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "admin_method_not_allowed",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn body_too_large(limit: usize) -> Self {
        let detail = format!("the body exceeds {limit} bytes");
        let title = "Request body too large";
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "admin_body_too_large",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn body_incomplete() -> Self {
        let detail = "the connection ended before the body was complete; send it again".to_owned();
        let title = "Request body incomplete";
        Self::new(
            StatusCode::BAD_REQUEST,
            "admin_body_incomplete",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn status(&self) -> StatusCode {
        self.status
    }

    pub(in crate::admin) fn title(&self) -> &'static str {
        self.title
    }

    pub(in crate::admin) fn detail(&self) -> &str {
        &self.detail
    }

    pub(in crate::admin) fn invalid_query(detail: String) -> Self {
        let title = "Invalid query";
        Self::new(
            StatusCode::BAD_REQUEST,
            "admin_query_invalid",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn invalid_decision(detail: impl Into<String>) -> Self {
        let title = "Invalid decision";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "admin_decision_invalid",
            title,
            detail.into(),
        )
    }

    pub(in crate::admin) fn not_json() -> Self {
        let detail = "send Content-Type: application/json".to_owned();
        let title = "Request body must be JSON";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "admin_decision_not_json",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn record_not_found() -> Self {
        let detail =
            "No record has that id. It may have expired and been purged, or been evicted because \
                      the operation was not executed."
                .to_owned();
        let title = "Record not found";
        Self::new(
            StatusCode::NOT_FOUND,
            "admin_operation_not_found",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn dead_event_not_found() -> Self {
        let detail =
            "No dead-lettered event has that id. It may be waiting to be published, or be \
                      published already."
                .to_owned();
        let title = "Event not found";
        Self::new(
            StatusCode::NOT_FOUND,
            "admin_event_not_found",
            title,
            detail,
        )
    }

    /// The record's status does not allow the action.
    pub(in crate::admin) fn conflict(found: Status, detail: impl Into<String>) -> Self {
        let title = "Not possible in the record's current status";
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

    pub(in crate::admin) fn internal(detail: &str) -> Self {
        tracing::error!(detail, "an admin request failed");
        let title = "Internal error";
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
        tracing::warn!(%error, "an admin request failed");
        let title = "Store unavailable";
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
        self.response()
    }
}

impl Problem {
    pub(in crate::admin) fn response(&self) -> Response {
        let body = Body {
            r#type: format!("{ERROR_PATH}{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            operation_status: self.operation_status.map(StatusView::from),
        };
        // Serializing a struct of strings cannot fail.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, [(CONTENT_TYPE, kind)], body).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
        }
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self.clone());
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_code_has_a_page_in_docs_errors() {
        let unavailable = Error::Corrupt { reason: "".into() };
        let problems = [
            Problem::invalid_query(String::new()),
            Problem::invalid_decision(""),
            Problem::not_json(),
            Problem::record_not_found(),
            Problem::dead_event_not_found(),
            Problem::conflict(Status::Completed, ""),
            Problem::internal(""),
            Problem::unauthenticated(),
            Problem::too_many_attempts(1),
            Problem::not_local(""),
            Problem::not_an_operator(),
            Problem::cross_site(""),
            Problem::path_not_found(),
            Problem::method_not_allowed(),
            Problem::body_too_large(1),
            Problem::body_incomplete(),
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
