use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::uri::PathAndQuery;
use http::{Request, Response};
use semel_http::{Operation, Outcome, Relay};
use tower_service::Service;

use super::error::BoxError;
use super::{Body, Error, Stage, Upstream};
use crate::hygiene::outbound::changes_scheme_only;
use crate::regions::Peers;
use crate::telemetry;

/// Forwards each request to the upstream once. A failure becomes an [`Outcome`] that says whether
/// anything was sent; the layer turns it into the client's response.
#[derive(Debug, Clone)]
pub struct Forward {
    upstream: Upstream,
    timeout: Duration,
    peers: Option<Peers>,
}

impl Forward {
    /// Forwards to `upstream`. `timeout` bounds the wait for the response head of unguarded requests;
    /// guarded requests are bounded by the layer.
    pub fn new(upstream: Upstream, timeout: Duration) -> Self {
        Self {
            upstream,
            timeout,
            peers: None,
        }
    }

    /// Sends the requests for other regions there.
    pub fn with_peers(self, peers: Option<Peers>) -> Self {
        Self { peers, ..self }
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }
}

impl<B> Service<Request<B>> for Forward
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(relay) = request.extensions().get::<Relay>().cloned() {
            let peers = self.peers.clone();
            return Box::pin(async move { Ok(send_home(peers, &relay, request).await) });
        }
        let Self {
            upstream, timeout, ..
        } = self.clone();
        let operation = request.extensions().get::<Operation>().cloned();
        let path = operation
            .as_ref()
            .and_then(|_| request.uri().path_and_query().cloned());
        Box::pin(async move {
            telemetry::request::inject_parent(request.headers_mut());
            let sending = upstream.send(request);
            let answer = if operation.is_some() {
                sending.await
            } else {
                match tokio::time::timeout(timeout, sending).await {
                    Ok(answer) => answer,
                    Err(elapsed) => Err(Error::sent(elapsed)),
                }
            };
            if let (Ok(answer), Some(path)) = (&answer, &path) {
                warn_of_scheme_redirect(answer, path);
            }
            Ok(answer.unwrap_or_else(|error| failed(&error, operation)))
        })
    }
}

/// Sends a request to the region that is its key's home. Nothing executes here, however it fails.
async fn send_home<B>(
    peers: Option<Peers>,
    relay: &Relay,
    mut request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    telemetry::request::inject_parent(request.headers_mut());
    let Some(peers) = peers else {
        return Outcome::unreachable().into_response();
    };
    peers.send(relay, request).await.unwrap_or_else(|error| {
        let home = &*relay.home;
        tracing::warn!(home, error, "cannot forward a request to its home");
        Outcome::unknown("home_unavailable").into_response()
    })
}

/// Logs once that the application redirects guarded requests to themselves under another scheme. It
/// does so when it does not know that the client already uses TLS, and the redirect is then stored
/// and replayed in place of an execution.
fn warn_of_scheme_redirect(answer: &Response<Body>, path: &PathAndQuery) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if answer.status().is_redirection()
        && let Some(location) = answer.headers().get(LOCATION)
        && changes_scheme_only(path, location)
        && !LOGGED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            status = answer.status().as_u16(),
            "the application redirects a guarded request to the same path under another scheme, \
             probably because of a wrong X-Forwarded-Proto: let the proxy in front of the gateway \
             set it, and list that proxy in `trusted_proxies`. Logged once"
        );
    }
}

fn failed(error: &Error, operation: Option<Operation>) -> Response<Body> {
    let id = operation.map(|operation| tracing::field::display(operation.id()));
    let reason = &error.source;
    match error.stage {
        Stage::NothingSent => {
            tracing::warn!(id, reason, "cannot reach the upstream; nothing was sent");
            Outcome::unreachable().into_response()
        }
        Stage::Sent => {
            tracing::warn!(
                id,
                reason,
                "no response from the upstream; the outcome is unknown"
            );
            Outcome::unknown("upstream_broke_off").into_response()
        }
    }
}
