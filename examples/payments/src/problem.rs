//! Problem documents, `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The media type of a problem document.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// A problem document with a code for programs and a sentence for people.
pub(crate) fn problem(status: StatusCode, code: &str, detail: &str) -> Response {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "code": code,
        "detail": detail,
    });
    let mut response = (status, Json(body)).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    response
}

/// 400 for a body that is not JSON; 422 for JSON with invalid values.
pub(crate) fn unreadable(error: &serde_json::Error) -> Response {
    match error.classify() {
        serde_json::error::Category::Data => invalid(&error.to_string()),
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => problem(
            StatusCode::BAD_REQUEST,
            "body_malformed",
            &error.to_string(),
        ),
    }
}

/// A request with invalid values.
pub(crate) fn invalid(detail: &str) -> Response {
    problem(StatusCode::UNPROCESSABLE_ENTITY, "request_invalid", detail)
}

/// An invalid header.
pub(crate) fn bad_header(detail: &str) -> Response {
    problem(StatusCode::BAD_REQUEST, "header_malformed", detail)
}

/// A resource that does not exist.
pub(crate) fn not_found(detail: &str) -> Response {
    problem(StatusCode::NOT_FOUND, "not_found", detail)
}
