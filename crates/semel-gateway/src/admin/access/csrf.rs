//! Whether a request that changes something is meant by whoever sends it.
//!
//! A browser sends the cookie, or reaches this machine, on behalf of any page that asks. Two things
//! a page elsewhere cannot do: say that it is of this origin, and read the secret in our forms.

use axum::body::{self, Body};
use axum::extract::Request;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Method};

use super::secret::same;
use crate::admin::problem::Problem;
use crate::tenant::only;

/// The most bytes of a form: a response that somebody writes by hand, and its reason, each byte
/// of which may become three.
const MAX_FORM: usize = 2 << 20;

/// The field of a form with the secret.
const FIELD: &str = "csrf";

/// The same for a script.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-semel-csrf");

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether the method promises to change nothing.
pub(super) fn is_safe(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Refuses what a browser says is another site's. A program says nothing, and is not refused: it
/// has no cookie but its own.
pub(super) fn refuse_other_sites(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail| Err(Problem::cross_site(detail));
    let site = |value: &HeaderValue| value == "same-origin" || value == "none";
    if !headers.get_all(SEC_FETCH_SITE).iter().all(site) {
        return refused("the browser says that a page of another site sends it");
    }
    // `null` is what a page in a sandbox is, and equals nothing.
    let is_ours = |origin: &HeaderValue| {
        let authority = origin.to_str().ok()?.split_once("://")?.1;
        let host = only(headers, &HOST).ok()??.to_str().ok()?;
        Some(authority.eq_ignore_ascii_case(host))
    };
    if !headers
        .get_all(ORIGIN)
        .iter()
        .all(|origin| is_ours(origin).unwrap_or(false))
    {
        return refused(
            "Origin is not this host; a proxy in front must pass Host on as it came \
             (nginx: proxy_set_header Host $http_host)",
        );
    }
    Ok(())
}

/// Gives the request back if it carries the secret, as a header or in its form. A form is read
/// for that here, so that no handler can forget it.
pub(super) async fn want_secret(request: Request, secret: &str) -> Result<Request, Problem> {
    const MISSING: &str = "the form or the header X-Semel-CSRF must carry the session's csrf; load the page \
         again and send it from there";
    let verdict = |right: bool| right.then_some(()).ok_or(Problem::cross_site(MISSING));
    if let Ok(Some(presented)) = only(request.headers(), &HEADER) {
        verdict(presented.to_str().is_ok_and(|text| same(text, secret)))?;
        return Ok(request);
    }
    if !is_form(request.headers()) {
        return Err(Problem::cross_site(MISSING));
    }
    let (parts, body) = request.into_parts();
    let form = read(body).await?;
    verdict(field(&form, FIELD).is_some_and(|presented| same(&presented, secret)))?;
    Ok(Request::from_parts(parts, Body::from(form)))
}

/// The whole of a form.
pub(super) async fn read(body: Body) -> Result<body::Bytes, Problem> {
    // It does not say which of the two it was, and a connection that broke reads no answer.
    let whole = body::to_bytes(body, MAX_FORM).await;
    whole.map_err(|_| Problem::too_large(MAX_FORM))
}

pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let kind = only(headers, &CONTENT_TYPE).ok().flatten();
    let kind = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
    kind.is_some_and(|kind| {
        kind.trim()
            .eq_ignore_ascii_case("application/x-www-form-urlencoded")
    })
}

/// The only field of that name. Two are none, for two readers may take different ones.
pub(super) fn field(form: &[u8], name: &str) -> Option<String> {
    let mut fields = form_urlencoded::parse(form).filter(|(field, _)| field == name);
    match (fields.next(), fields.next()) {
        (Some((_, value)), None) => Some(value.into_owned()),
        (_, _) => None,
    }
}
