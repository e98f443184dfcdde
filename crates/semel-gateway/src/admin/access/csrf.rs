//! CSRF protection: an origin check and a token in every form.
//!
//! A browser sends the session cookie, or reaches a loopback listener, on behalf of any page. A
//! foreign page can neither claim our origin nor read the token in our forms.
//!
//! `tower_http::csrf` (0.7) has a similar origin check, but guarantees less: it ignores `Origin`
//! where `Sec-Fetch-Site` is `same-origin` or `none`, reads only the first of several header
//! lines, and has no token. As a layer it would also run before authentication, where bearer
//! requests must be exempt. So the check here stays.

use axum::body::{self, Body};
use axum::extract::Request;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Method};

use super::secret::constant_time_eq;
use crate::admin::problem::Problem;
use crate::tenant::single_value;

/// The maximum size of a form: a response written by hand and its reason, percent-encoded.
const MAX_FORM: usize = 2 << 20;

/// The form field of the token.
const FIELD: &str = "csrf";

/// The header of the token, for scripts.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-semel-csrf");

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the method is safe in the sense of RFC 9110.
pub(super) fn is_safe(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Refuses requests that the browser marks as cross-site. Programs send neither header and pass:
/// they hold no cookies of other users.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail| Err(Problem::cross_site(detail));
    let site = |value: &HeaderValue| value == "same-origin" || value == "none";
    if !headers.get_all(SEC_FETCH_SITE).iter().all(site) {
        return refused("Sec-Fetch-Site says that a page of another site sent the request");
    }
    // `null`, the origin of a sandboxed page, never matches.
    let is_ours = |origin: &HeaderValue| {
        let authority = origin.to_str().ok()?.split_once("://")?.1;
        let host = single_value(headers, &HOST).ok()??.to_str().ok()?;
        Some(authority.eq_ignore_ascii_case(host))
    };
    if !headers
        .get_all(ORIGIN)
        .iter()
        .all(|origin| is_ours(origin).unwrap_or(false))
    {
        return refused(
            "Origin does not match Host; a reverse proxy must forward Host unchanged \
             (nginx: proxy_set_header Host $http_host)",
        );
    }
    Ok(())
}

/// Returns the request if it carries the CSRF token in the header or in its form. The guard reads
/// the form for this, so that no handler can forget the check.
pub(super) async fn require_token(request: Request, token: &str) -> Result<Request, Problem> {
    const MISSING: &str = "the CSRF token is missing or wrong, in the form field `csrf` or the header \
         X-Semel-CSRF; reload the page and try again";
    let check = |valid: bool| valid.then_some(()).ok_or(Problem::cross_site(MISSING));
    if let Ok(Some(presented)) = single_value(request.headers(), &HEADER) {
        check(
            presented
                .to_str()
                .is_ok_and(|text| constant_time_eq(text, token)),
        )?;
        return Ok(request);
    }
    if !is_form(request.headers()) {
        return Err(Problem::cross_site(MISSING));
    }
    let (parts, body) = request.into_parts();
    let form = read_form(body).await?;
    check(field(&form, FIELD).is_some_and(|presented| constant_time_eq(&presented, token)))?;
    Ok(Request::from_parts(parts, Body::from(form)))
}

pub(super) async fn read_form(body: Body) -> Result<body::Bytes, Problem> {
    // The error does not say whether the body was too large or the connection broke; in the second
    // case the client does not read the response.
    let form = body::to_bytes(body, MAX_FORM).await;
    form.map_err(|_| Problem::body_too_large(MAX_FORM))
}

pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let kind = single_value(headers, &CONTENT_TYPE).ok().flatten();
    let kind = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    kind.is_some_and(|kind| {
        kind.trim()
            .eq_ignore_ascii_case("application/x-www-form-urlencoded")
    })
}

/// The only field of that name; `None` if there are two, since two readers might differ.
pub(super) fn field(form: &[u8], name: &str) -> Option<String> {
    let mut fields = form_urlencoded::parse(form).filter(|(field, _)| field == name);
    match (fields.next(), fields.next()) {
        (Some((_, value)), None) => Some(value.into_owned()),
        (_, _) => None,
    }
}
