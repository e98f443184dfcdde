//! Authentication and authorization of the admin listener.
//!
//! Programs send a bearer token with each request. People log in with it once at `/login` and
//! receive a session. Without a configured token, every loopback caller has the operator role.

mod caller;
mod cookie;
mod csrf;
mod limit;
mod login;
mod secret;
mod session;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderName};
use http::uri::Authority;
use http::{HeaderMap, Method};
use semel_core::{Clock, Timestamp};

pub(super) use caller::{Caller, MAX_NAME, Role, Session};

use super::problem::Problem;
use super::{METRICS, Token};
use crate::server::Peer;
use crate::tenant::{bearer, single_value};
use cookie::Cookie;
use limit::TokenRateLimit;
use secret::Secret;
use session::Sessions;

/// Marks a request of the console's script. A page that is left open refreshes itself, and must not
/// keep its session alive by that.
const BACKGROUND: HeaderName = HeaderName::from_static("x-semel-background");

/// The configured access to the admin listener.
#[derive(Clone, Debug)]
pub enum Access {
    /// Loopback callers only, all with the operator role.
    Loopback,
    /// Callers with a token.
    Tokens {
        /// Grants the operator role.
        operator: Token,
        /// Grants the viewer role.
        viewer: Option<Token>,
        /// Whether browsers send the session cookie over TLS only.
        secure_cookie: bool,
    },
}

impl Access {
    /// One operator token, no viewer token.
    pub fn token(operator: Token) -> Self {
        Self::Tokens {
            operator,
            viewer: None,
            secure_cookie: false,
        }
    }

    /// The role that a token grants.
    fn role(&self, presented: &str) -> Option<Role> {
        match self {
            Self::Loopback => None,
            Self::Tokens {
                operator, viewer, ..
            } => {
                // Always compares both, so that the timing does not show which one matched.
                let views = viewer.as_ref().is_some_and(|viewer| viewer.is(presented));
                if operator.is(presented) {
                    Some(Role::Operator)
                } else {
                    views.then_some(Role::Viewer)
                }
            }
        }
    }
}

/// Authenticates requests to the admin listener.
pub(super) struct AccessGuard {
    access: Access,
    cookie: Cookie,
    sessions: Arc<Sessions>,
    rate_limit: TokenRateLimit,
    clock: Arc<dyn Clock>,
    /// The CSRF token of loopback callers, who have no session. `None` if the system has no
    /// randomness; then forms are refused.
    csrf: Option<Arc<str>>,
}

impl AccessGuard {
    pub(super) fn new(access: Access, clock: Arc<dyn Clock>) -> Arc<Self> {
        let secure = match &access {
            Access::Loopback => false,
            Access::Tokens {
                operator,
                viewer,
                secure_cookie,
            } => {
                if operator.is_short() || viewer.as_ref().is_some_and(Token::is_short) {
                    tracing::warn!(
                        "an admin token is short and can be guessed; create one with \
                         `openssl rand -hex 32`"
                    );
                }
                *secure_cookie
            }
        };
        let csrf = Secret::random().ok().map(|secret| secret.text().into());
        Arc::new(Self {
            access,
            cookie: Cookie { secure },
            sessions: Arc::default(),
            rate_limit: TokenRateLimit::new(clock.now()),
            clock,
            csrf,
        })
    }

    /// Requires authentication for these routes; handlers receive the [`Caller`].
    pub(super) fn protect(self: &Arc<Self>, routes: Router) -> Router {
        let routes = routes.merge(login::logout_route(self));
        routes.layer(middleware::from_fn_with_state(
            Arc::clone(self),
            authenticate,
        ))
    }

    /// The routes that do not require authentication.
    pub(super) fn login_routes(self: &Arc<Self>) -> Router {
        login::login_route(self)
    }

    /// Without a token: refuses requests from other machines.
    pub(super) fn restrict_to_loopback(self: &Arc<Self>, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(
            Arc::clone(self),
            loopback_only,
        ))
    }

    fn is_loopback(&self) -> bool {
        matches!(self.access, Access::Loopback)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn authenticate(&self, request: Request) -> Result<Request, Problem> {
        let (request, caller) = match &self.access {
            Access::Loopback => self.authenticate_loopback(request).await?,
            Access::Tokens { .. } => self.authenticate_credentials(request).await?,
        };
        let mut request = request;
        request.extensions_mut().insert(caller);
        Ok(request)
    }

    async fn authenticate_loopback(&self, request: Request) -> Result<(Request, Caller), Problem> {
        let path = request.uri().path();
        // Metrics contain no personal data, and scrapers address this machine by other names.
        if path != METRICS && !has_loopback_host(request.headers()) {
            return Err(Problem::not_local(
                "no admin token is set, so Host must be localhost or a loopback address; to use \
                 another name, set SEMEL_ADMIN_TOKEN",
            ));
        }
        let caller = Caller::loopback(self.csrf.clone());
        if csrf::is_safe(request.method()) {
            return Ok((request, caller));
        }
        csrf::check_origin(request.headers())?;
        // The API accepts only JSON, which a form of another site cannot send.
        if path.starts_with("/api/") {
            return Ok((request, caller));
        }
        let request = csrf::require_token(request, caller.csrf()).await?;
        Ok((request, caller))
    }

    async fn authenticate_credentials(
        &self,
        request: Request,
    ) -> Result<(Request, Caller), Problem> {
        let headers = request.headers();
        if headers.contains_key(AUTHORIZATION) {
            let role = token(headers).and_then(|token| self.access.role(token));
            return match role {
                // Browsers do not add this header by themselves: no CSRF check.
                Some(role) => Ok((request, Caller::bearer(role))),
                None => Err(self.reject_token(peer(&request))),
            };
        }
        let id = self.cookie.read(headers);
        let id = id.ok_or_else(Problem::unauthenticated)?;
        let seen = !headers.contains_key(BACKGROUND);
        let session = self.sessions.find(id, self.now(), seen);
        let session = session.ok_or_else(Problem::unauthenticated)?;
        let caller = Caller::session(session, Arc::clone(&self.sessions), secret::hash(id));
        if csrf::is_safe(request.method()) {
            return Ok((request, caller));
        }
        csrf::check_origin(headers)?;
        let request = csrf::require_token(request, caller.csrf()).await?;
        Ok((request, caller))
    }

    /// Refuses a wrong bearer token. It counts against the rate limit as a failed login does, and is
    /// logged while within it. The response is always 401, never 429: the token stays wrong.
    fn reject_token(&self, peer: IpAddr) -> Problem {
        if self.rate_limit.take(peer, self.now()).is_ok() {
            tracing::warn!(%peer, via = "bearer", "a wrong admin token was presented");
        }
        Problem::unauthenticated()
    }
}

async fn authenticate(
    State(guard): State<Arc<AccessGuard>>,
    request: Request,
    next: Next,
) -> Response {
    let return_to = wants_page(&request).then(|| login::return_path(request.uri()));
    match (guard.authenticate(request).await, return_to) {
        (Ok(request), _) => next.run(request).await,
        // Without a token there is nothing to log in with.
        (Err(problem), Some(return_to)) if !guard.is_loopback() => {
            login::login_page_for(&problem, &return_to)
        }
        (Err(problem), _) => problem.into_response(),
    }
}

/// Refuses viewers. A layer around all routes that change or reveal something, so that no handler
/// can forget the check.
pub(super) async fn operators_only(caller: Caller, request: Request, next: Next) -> Response {
    match caller.require_operator() {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// A second check besides the configuration's: a supervisor may pass a listener on any address.
async fn loopback_only(
    State(guard): State<Arc<AccessGuard>>,
    request: Request,
    next: Next,
) -> Response {
    match &guard.access {
        Access::Loopback if !peer(&request).is_loopback() => Problem::not_local(
            "no admin token is set, so only loopback connections are served; set SEMEL_ADMIN_TOKEN",
        )
        .into_response(),
        Access::Loopback | Access::Tokens { .. } => next.run(request).await,
    }
}

/// The peer address; 0.0.0.0, which is not loopback, if it is not known.
fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<Peer>();
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| {
        peer.address().ip().to_canonical()
    })
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let line = single_value(headers, &AUTHORIZATION).ok().flatten()?;
    bearer(line.to_str().ok()?)
}

/// Whether a browser asks for a page.
fn wants_page(request: &Request) -> bool {
    let accepts = request.headers().get_all(ACCEPT).iter();
    request.method() == Method::GET
        && !request.uri().path().starts_with("/api/")
        && accepts
            .filter_map(|line| line.to_str().ok())
            .any(|line| line.contains("text/html"))
}

/// Protects against DNS rebinding: a foreign page can reach this listener under a name that resolves
/// to loopback, but cannot choose the `Host` that the browser sends.
fn has_loopback_host(headers: &HeaderMap) -> bool {
    let host = single_value(headers, &HOST).ok().flatten();
    let authority = host.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost")
            || host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}
