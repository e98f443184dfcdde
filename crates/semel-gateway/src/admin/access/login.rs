//! In by `/login`, out by `/logout`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use http::header::{LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use super::secret::Secret;
use super::{Gate, caller, csrf, peer};
use crate::admin::console::login::{LoginView, login_page};
use crate::admin::problem::Problem;

/// Where one logs in.
const LOGIN: &str = "/login";

/// Where one goes who wanted nothing in particular.
const HOME: &str = "/";

/// The longest path that somebody is led back to.
const MAX_NEXT: usize = 2048;

/// The paths that lead in.
pub(super) fn outside(gate: &Arc<Gate>) -> Router {
    Router::new()
        .route(LOGIN, get(show).post(log_in))
        .with_state(Arc::clone(gate))
}

/// The path that leads out. Inside, so that no other site can end a session.
pub(super) fn inside(gate: &Arc<Gate>) -> Router {
    Router::new()
        .route("/logout", post(log_out))
        .with_state(Arc::clone(gate))
}

/// The page instead of one that is not shown.
pub(super) fn refused(problem: &Problem, next: &str) -> Response {
    let error = match problem.status() {
        // Who comes for the first time did nothing wrong.
        StatusCode::UNAUTHORIZED => None,
        _ => Some(problem.detail()),
    };
    let mut answer = page(error, next, "");
    let said = problem.response();
    *answer.status_mut() = said.status();
    for (name, value) in said.headers() {
        if !answer.headers().contains_key(name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer
}

/// Where to go back to, of a request that was refused.
pub(super) fn next_of(uri: &Uri) -> String {
    let asked = uri.path_and_query().map_or(HOME, |asked| asked.as_str());
    local(asked).to_owned()
}

async fn show(State(gate): State<Arc<Gate>>, uri: Uri) -> Response {
    let next = csrf::field(uri.query().unwrap_or_default().as_bytes(), "next");
    let next = local(next.as_deref().unwrap_or(HOME));
    if gate.is_loopback() {
        to(HOME)
    } else {
        page(None, next, "")
    }
}

async fn log_in(State(gate): State<Arc<Gate>>, request: Request) -> Response {
    // Being logged in as somebody else is harm enough.
    if let Err(problem) = csrf::refuse_other_sites(request.headers()) {
        return refused(&problem, HOME);
    }
    if gate.is_loopback() {
        return to(HOME);
    }
    let peer = peer(&request);
    let (parts, body) = request.into_parts();
    if !csrf::is_form(&parts.headers) {
        return StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response();
    }
    let form = match csrf::read(body).await {
        Ok(form) => form,
        Err(problem) => return refused(&problem, HOME),
    };
    let given = |field| csrf::field(&form, field).unwrap_or_default();
    let (next, said) = (given("next"), given("name"));
    let next = local(&next);
    let Some(name) = caller::name(&said) else {
        let error = "That is no name: it is too long, or has control characters.";
        let mut answer = page(Some(error), next, "");
        *answer.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        return answer;
    };
    let now = gate.now();
    if let Err(too_often) = gate.limit.take(peer, now) {
        let seconds = too_often.retry_after_seconds;
        tracing::warn!(%peer, "a login was refused: too many wrong tokens");
        return refused(&Problem::too_many_attempts(seconds), next);
    }
    let Some(role) = gate.access.role(given("token").trim()) else {
        tracing::warn!(%peer, how = "by login", "a wrong admin token was presented");
        let mut answer = refused(&Problem::unauthenticated(), next);
        let error = "That is not a token of this gateway.";
        *answer.body_mut() = page(Some(error), next, name).into_body();
        return answer;
    };
    gate.limit.give_back(peer);
    // Whatever the request came with, it leaves with another: nobody can choose it beforehand.
    if let Some(old) = gate.cookie.read(&parts.headers) {
        gate.sessions.end(old);
    }
    let (Ok(id), Ok(csrf)) = (Secret::random(), Secret::random()) else {
        return Problem::internal("there is no randomness to make a session of").into_response();
    };
    let named = (!name.is_empty()).then_some(name);
    gate.sessions.begin(&id, &csrf, role, named, now);
    tracing::info!(%peer, role = role.as_str(), name, "somebody logged in");
    with_cookie(to(next), gate.cookie.set(&id))
}

async fn log_out(State(gate): State<Arc<Gate>>, headers: HeaderMap) -> Response {
    if let Some(id) = gate.cookie.read(&headers) {
        gate.sessions.end(id);
    }
    with_cookie(to(LOGIN), gate.cookie.remove())
}

fn page(error: Option<&str>, next: &str, name: &str) -> Response {
    Html(login_page(&LoginView { error, next, name })).into_response()
}

fn to(path: &str) -> Response {
    let path = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static(HOME));
    (StatusCode::SEE_OTHER, [(LOCATION, path)]).into_response()
}

fn with_cookie(mut answer: Response, cookie: Option<HeaderValue>) -> Response {
    if let Some(cookie) = cookie {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

/// A path of this listener, or home. A browser takes `//host`, `/\host` and `/<tab>/host` to
/// another one.
fn local(next: &str) -> &str {
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
    fn one_is_led_back_to_this_listener_only() {
        for path in ["/", "/operations?status=unknown", "/operations/7#history"] {
            assert_eq!(local(path), path);
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
            assert_eq!(local(elsewhere), HOME, "{elsewhere:?}");
        }
        assert_eq!(local(&"/a".repeat(MAX_NEXT)), HOME);
    }
}
