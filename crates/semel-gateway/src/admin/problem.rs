//! What the listener says when it cannot, or will not.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use semel_core::{Error, Status};
use semel_http::TYPE_BASE;
use serde::Serialize;
use utoipa::ToSchema;

use super::api::StatusWord;

/// An answer in the form of RFC 9457.
#[derive(Debug)]
pub(in crate::admin) struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    operation_status: Option<Status>,
    retry_after_seconds: Option<u64>,
}

/// Why something was refused, in the form of RFC 9457.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::admin) struct Body<'a> {
    /// The page about `code`.
    #[schema(format = "uri")]
    r#type: String,
    /// In short.
    title: &'a str,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong this time, and the way out.
    detail: &'a str,
    /// For programs.
    #[schema(pattern = "^admin_[a-z_]+$")]
    code: &'a str,
    /// Where the operation stands, if that is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    operation_status: Option<StatusWord>,
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
        let detail = "send the admin token: Authorization: Bearer TOKEN; or log in at /login";
        let title = "Say who you are";
        Self::new(
            StatusCode::UNAUTHORIZED,
            "admin_unauthenticated",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn too_many_attempts(retry_after_seconds: u64) -> Self {
        let detail = format!(
            "too many wrong tokens were presented; the next attempt counts in \
             {retry_after_seconds} seconds"
        );
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
        let title = "Without an admin token only this machine is served";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_not_local",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn not_an_operator() -> Self {
        let detail = "a viewer looks; for decisions, and to see a stored body, come with the \
                      operator's token"
            .to_owned();
        let title = "Only an operator may do that";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_not_an_operator",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn cross_site(detail: &str) -> Self {
        let title = "The request may be another site's";
        Self::new(
            StatusCode::FORBIDDEN,
            "admin_cross_site",
            title,
            detail.to_owned(),
        )
    }

    pub(in crate::admin) fn nothing_here() -> Self {
        let detail = "what there is, is in /openapi.json".to_owned();
        let title = "There is nothing here";
        Self::new(StatusCode::NOT_FOUND, "admin_nothing_here", title, detail)
    }

    pub(in crate::admin) fn method() -> Self {
        let detail = "the methods of this path are in Allow".to_owned();
        let title = "Not with this method";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "admin_method_not_allowed",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn too_large(most: usize) -> Self {
        let detail = format!("the body has more than {most} bytes");
        let title = "The body is too large";
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "admin_body_too_large",
            title,
            detail,
        )
    }

    /// A body that broke off, or was no body.
    pub(in crate::admin) fn incomplete() -> Self {
        let detail = "the body did not arrive as a whole".to_owned();
        let title = "The body cannot be read";
        Self::new(
            StatusCode::BAD_REQUEST,
            "admin_body_incomplete",
            title,
            detail,
        )
    }

    /// The status that it is answered with.
    pub(in crate::admin) fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong in general.
    pub(in crate::admin) fn title(&self) -> &'static str {
        self.title
    }

    /// What is wrong in this case.
    pub(in crate::admin) fn detail(&self) -> &str {
        &self.detail
    }

    pub(in crate::admin) fn query(detail: String) -> Self {
        let title = "The query cannot be understood";
        Self::new(
            StatusCode::BAD_REQUEST,
            "admin_query_invalid",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn decision(detail: impl Into<String>) -> Self {
        let title = "The decision cannot be understood";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "admin_decision_invalid",
            title,
            detail.into(),
        )
    }

    pub(in crate::admin) fn media_type() -> Self {
        let detail = "send Content-Type: application/json".to_owned();
        let title = "A decision is JSON";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "admin_decision_not_json",
            title,
            detail,
        )
    }

    pub(in crate::admin) fn not_found() -> Self {
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

    pub(in crate::admin) fn no_dead_event() -> Self {
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
    pub(in crate::admin) fn conflict(found: Status, detail: impl Into<String>) -> Self {
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

    pub(in crate::admin) fn internal(detail: &str) -> Self {
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
        self.response()
    }
}

impl Problem {
    /// The whole answer.
    pub(in crate::admin) fn response(&self) -> Response {
        let body = Body {
            r#type: format!("{TYPE_BASE}{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            operation_status: self.operation_status.map(StatusWord::from),
        };
        // A struct of texts can always be written.
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut answer = (self.status, [(CONTENT_TYPE, kind)], body).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, bearer);
        }
        if let Some(seconds) = self.retry_after_seconds {
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        answer
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
            Problem::unauthenticated(),
            Problem::too_many_attempts(1),
            Problem::not_local(""),
            Problem::not_an_operator(),
            Problem::cross_site(""),
            Problem::nothing_here(),
            Problem::method(),
            Problem::too_large(1),
            Problem::incomplete(),
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
