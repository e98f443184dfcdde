//! `/login` and `/logout`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use http::header::{LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::secret::Secret;
use super::{AccessGuard, caller, csrf, peer};
use crate::admin::console::login::{LoginView, render_login};
use crate::admin::problem::Problem;

const LOGIN: &str = "/login";

/// The page after a login without `next`.
const HOME: &str = "/";

/// The maximum length of `next`.
const MAX_NEXT: usize = 2048;

pub(super) fn login_route(guard: &Arc<AccessGuard>) -> Router {
    Router::new()
        .route(LOGIN, get(show).post(log_in))
        .with_state(Arc::clone(guard))
}

/// Behind authentication and the CSRF check, so that other sites cannot end a session.
pub(super) fn logout_route(guard: &Arc<AccessGuard>) -> Router {
    Router::new()
        .route("/logout", post(log_out))
        .with_state(Arc::clone(guard))
}

/// The login page in place of a page that was refused.
pub(super) fn login_page_for(problem: &Problem, next: &str) -> Response {
    let error = match problem.status() {
        // The first visit is not an error.
        StatusCode::UNAUTHORIZED => None,
        _ => Some(problem.detail()),
    };
    let mut response = page(error, next, "");
    let refusal = problem.response();
    *response.status_mut() = refusal.status();
    for (name, value) in refusal.headers() {
        if !response.headers().contains_key(name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// The path to return to after a login.
pub(super) fn return_path(uri: &Uri) -> String {
    let path = uri.path_and_query().map_or(HOME, |path| path.as_str());
    local_path(path).to_owned()
}

async fn show(State(guard): State<Arc<AccessGuard>>, uri: Uri) -> Response {
    let next = csrf::field(uri.query().unwrap_or_default().as_bytes(), "next");
    let next = local_path(next.as_deref().unwrap_or(HOME));
    if guard.is_loopback() {
        redirect(HOME)
    } else {
        page(None, next, "")
    }
}

async fn log_in(State(guard): State<Arc<AccessGuard>>, request: Request) -> Response {
    // Another site must not log a browser in under another name.
    if let Err(problem) = csrf::check_origin(request.headers()) {
        return login_page_for(&problem, HOME);
    }
    if guard.is_loopback() {
        return redirect(HOME);
    }
    let peer = peer(&request);
    let (parts, body) = request.into_parts();
    if !csrf::is_form(&parts.headers) {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    let form = match csrf::read_form(body).await {
        Ok(form) => form,
        Err(problem) => return login_page_for(&problem, HOME),
    };
    let given = |field| csrf::field(&form, field).unwrap_or_default();
    let (next, name) = (given("next"), given("name"));
    let next = local_path(&next);
    let Some(name) = caller::parse_name(&name) else {
        let error = "Invalid name: use at most 64 bytes without control characters.";
        let mut response = page(Some(error), next, "");
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        return response;
    };
    let now = guard.now();
    if let Err(limited) = guard.rate_limit.take(peer, now) {
        let seconds = limited.retry_after_seconds;
        tracing::warn!(%peer, "refused a login: too many wrong tokens");
        return login_page_for(&Problem::too_many_attempts(seconds), next);
    }
    let Some(role) = guard.access.role(given("token").trim()) else {
        tracing::warn!(%peer, via = "login", "a wrong admin token was presented");
        let mut response = login_page_for(&Problem::unauthenticated(), next);
        let error = "Wrong token.";
        *response.body_mut() = page(Some(error), next, name).into_body();
        return response;
    };
    guard.rate_limit.give_back(peer);
    // Always a new session id, against session fixation.
    if let Some(old) = guard.cookie.read(&parts.headers) {
        guard.sessions.end(old);
    }
    let (Ok(id), Ok(csrf)) = (Secret::random(), Secret::random()) else {
        return Problem::internal("the operating system provides no randomness for a session")
            .into_response();
    };
    let name_or_none = (!name.is_empty()).then_some(name);
    guard.sessions.begin(&id, &csrf, role, name_or_none, now);
    tracing::info!(%peer, role = role.as_str(), name, "login");
    with_cookie(redirect(next), guard.cookie.set(&id))
}

async fn log_out(State(guard): State<Arc<AccessGuard>>, headers: HeaderMap) -> Response {
    if let Some(id) = guard.cookie.read(&headers) {
        guard.sessions.end(id);
    }
    with_cookie(redirect(LOGIN), guard.cookie.remove())
}

fn page(error: Option<&str>, next: &str, name: &str) -> Response {
    Html(render_login(&LoginView { error, next, name })).into_response()
}

fn redirect(path: &str) -> Response {
    let path = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static(HOME));
    (StatusCode::SEE_OTHER, [(LOCATION, path)]).into_response()
}

fn with_cookie(mut response: Response, cookie: Option<HeaderValue>) -> Response {
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

/// `next` if it is a path of this listener, else home. Browsers resolve `//host`, `/\host` and
/// `/<tab>/host` to another host.
fn local_path(next: &str) -> &str {
    let path = next.split(['?', '#']).next().unwrap_or_default();
    let is_local = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains('\\')
        && next.bytes().all(|byte| byte.is_ascii_graphic())
        && next.len() <= MAX_NEXT
        && !matches!(path, LOGIN | "/logout");
    if is_local { next } else { HOME }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_redirects_only_within_this_listener() {
        for path in ["/", "/operations?status=unknown", "/operations/7#history"] {
            assert_eq!(local_path(path), path);
        }
        for elsewhere in [
            "",
            "operations",
            "//evil.example",
            "/\\evil.example",
            "\\/evil.example",
            "/operations\\..",
            "https://evil.example/",
            "/\t/evil.example",
            "\t//evil.example",
            "/a\r\nSet-Cookie: b",
            "/ä",
            "/login",
            "/login?next=/login",
            "/logout",
            "javascript:alert(1)",
        ] {
            assert_eq!(local_path(elsewhere), HOME, "{elsewhere:?}");
        }
        assert_eq!(local_path(&"/a".repeat(MAX_NEXT)), HOME);
    }
}
