//! Who may come in, and what they may do here.
//!
//! A program presents a token with each request. A person presents it once, at `/login`, and is
//! given a session. Without a token everybody on this machine is the operator.

mod caller;
mod cookie;
mod csrf;
mod limit;
mod login;
mod secret;
mod session;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderName};
use http::uri::Authority;
use http::{HeaderMap, Method};
use semel_core::{Clock, Timestamp};

pub(super) use caller::{Caller, MAX_NAME, Role, Session};

use super::problem::Problem;
use super::{METRICS, Token};
use crate::tenant::{bearer, only};
use cookie::Cookie;
use limit::Limit;
use secret::Secret;
use session::Sessions;

/// Says that nobody asked: a page that is left open fetches what is new, and must not keep its
/// session alive by that.
const BACKGROUND: HeaderName = HeaderName::from_static("x-semel-background");

/// Who may come in, as configured.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody on this machine, as operator.
    Loopback,
    /// Whoever has a token.
    Tokens {
        /// Of those who decide.
        operator: Token,
        /// Of those who look.
        viewer: Option<Token>,
        /// Whether browsers are to send the session's cookie by TLS only.
        secure_cookie: bool,
    },
}

impl Access {
    /// One token, for operators.
    pub fn token(operator: Token) -> Self {
        Self::Tokens {
            operator,
            viewer: None,
            secure_cookie: false,
        }
    }

    /// What a token opens.
    fn role(&self, presented: &str) -> Option<Role> {
        match self {
            Self::Loopback => None,
            Self::Tokens {
                operator, viewer, ..
            } => {
                // Both are looked at, whichever it is.
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

/// What stands before the listener's paths.
pub(super) struct Gate {
    access: Access,
    cookie: Cookie,
    sessions: Sessions,
    limit: Limit,
    clock: Arc<dyn Clock>,
    /// What forms carry where nobody logs in. Without randomness there is none, and no form is
    /// taken.
    csrf: Option<Arc<str>>,
}

impl Gate {
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
                        "an admin token is short, and can be guessed; `openssl rand -hex 32` \
                         makes one that cannot"
                    );
                }
                *secure_cookie
            }
        };
        let csrf = Secret::random().ok().map(|secret| secret.text().into());
        Arc::new(Self {
            access,
            cookie: Cookie { secure },
            sessions: Sessions::default(),
            limit: Limit::new(clock.now()),
            clock,
            csrf,
        })
    }

    /// Lets requests to these paths in as some [`Caller`], or not at all.
    pub(super) fn guard(self: &Arc<Self>, paths: Router) -> Router {
        let paths = paths.merge(login::inside(self));
        paths.layer(middleware::from_fn_with_state(Arc::clone(self), guard))
    }

    /// The paths that lead in.
    pub(super) fn entrance(self: &Arc<Self>) -> Router {
        login::outside(self)
    }

    /// Refuses other machines where there is no token.
    pub(super) fn local(self: &Arc<Self>, paths: Router) -> Router {
        paths.layer(middleware::from_fn_with_state(Arc::clone(self), local))
    }

    fn is_loopback(&self) -> bool {
        matches!(self.access, Access::Loopback)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn admit(&self, request: Request) -> Result<Request, Problem> {
        let (request, caller) = match &self.access {
            Access::Loopback => self.admit_neighbour(request).await?,
            Access::Tokens { .. } => self.admit_known(request).await?,
        };
        let mut request = request;
        request.extensions_mut().insert(caller);
        Ok(request)
    }

    async fn admit_neighbour(&self, request: Request) -> Result<(Request, Caller), Problem> {
        let path = request.uri().path();
        // What is counted names nobody, and scrapers have names of their own for this machine.
        if path != METRICS && !names_this_machine(request.headers()) {
            return Err(Problem::not_local(
                "without an admin token only requests to localhost are served, by that name or \
                 its address; set SEMEL_ADMIN_TOKEN to use another",
            ));
        }
        let caller = Caller::neighbour(self.csrf.clone());
        if csrf::is_safe(request.method()) {
            return Ok((request, caller));
        }
        csrf::refuse_other_sites(request.headers())?;
        // The API takes JSON only, which another site's form cannot be.
        if path.starts_with("/api/") {
            return Ok((request, caller));
        }
        let request = csrf::want_secret(request, caller.csrf()).await?;
        Ok((request, caller))
    }

    async fn admit_known(&self, request: Request) -> Result<(Request, Caller), Problem> {
        let headers = request.headers();
        if headers.contains_key(AUTHORIZATION) {
            let role = token(headers).and_then(|token| self.access.role(token));
            return match role {
                // No browser sends this on its own, so it need not prove what it means.
                Some(role) => Ok((request, Caller::bearer(role))),
                None => Err(self.wrong(peer(&request))),
            };
        }
        let known = self
            .cookie
            .read(headers)
            .and_then(|id| {
                self.sessions
                    .find(id, self.now(), !headers.contains_key(BACKGROUND))
            })
            .ok_or_else(Problem::unauthenticated)?;
        let caller = Caller::session(known);
        if csrf::is_safe(request.method()) {
            return Ok((request, caller));
        }
        csrf::refuse_other_sites(headers)?;
        let request = csrf::want_secret(request, caller.csrf()).await?;
        Ok((request, caller))
    }

    /// A wrong token that came with a request. It counts as one at the form does, and is logged as
    /// long as it counts; the answer stays the same, since waiting would make it no better.
    fn wrong(&self, peer: IpAddr) -> Problem {
        if self.limit.take(peer, self.now()).is_ok() {
            tracing::warn!(%peer, how = "by bearer", "a wrong admin token was presented");
        }
        Problem::unauthenticated()
    }
}

async fn guard(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let asked = wants_page(&request).then(|| login::next_of(request.uri()));
    match (gate.admit(request).await, asked) {
        (Ok(request), _) => next.run(request).await,
        // Where there is no token, there is nothing to log in with.
        (Err(problem), Some(asked)) if !gate.is_loopback() => login::refused(&problem, &asked),
        (Err(problem), _) => problem.into_response(),
    }
}

/// Refuses viewers; around the routes of decisions, so that no handler can forget it.
pub(super) async fn operators_only(caller: Caller, request: Request, next: Next) -> Response {
    match caller.operator() {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// A second check besides that of the configuration: a listener can be handed over.
async fn local(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    match &gate.access {
        Access::Loopback if !peer(&request).is_loopback() => Problem::not_local(
            "without an admin token only this machine is served; set SEMEL_ADMIN_TOKEN",
        )
        .into_response(),
        Access::Loopback | Access::Tokens { .. } => next.run(request).await,
    }
}

/// Who is at the other end; nobody on this machine where that is not known.
fn peer(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(peer)| {
        peer.ip().to_canonical()
    })
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let line = only(headers, &AUTHORIZATION).ok().flatten()?;
    bearer(line.to_str().ok()?)
}

/// Whether a person asks for something to look at.
fn wants_page(request: &Request) -> bool {
    let accepts = request.headers().get_all(ACCEPT).iter();
    request.method() == Method::GET
        && !request.uri().path().starts_with("/api/")
        && accepts
            .filter_map(|line| line.to_str().ok())
            .any(|line| line.contains("text/html"))
}

/// A page in a browser on this machine reaches this listener as well, under a name that its author
/// lets point here. It cannot choose the `Host` that the browser then sends.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = only(headers, &HOST).ok().flatten();
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
