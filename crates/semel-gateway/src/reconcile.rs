//! Reconciles unknown outcomes by polling, as configured in `[route.reconcile]`.
//!
//! One request, one response. **Absent:** following redirects, retries, connection reuse. A response
//! whose status the configuration does not list is unclear, and the worker polls again later.

pub(crate) mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::InvalidDnsNameError;
use semel_core::history::MAX_EVIDENCE;
use semel_core::{Code, Completion, Record, Response};
use semel_http::{OperationName, ReplayMode};
use semel_worker::{Lookup, LookupResult, Reconcile, Reconcilers, Schedule, reconcilers};

use crate::client_tls;
use crate::config::{Config, Poll, ReconcileConfig, RouteConfig, Upstream};
use request::{PollError, PollResponse};

pub(crate) use request::{PollServer, send};

/// How much longer than its request a lookup may take before the worker gives up.
const SLACK: Duration = Duration::from_secs(1);

/// Why polling cannot work as configured. Detected at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host of a request is not a valid name in a certificate.
    #[error("cannot call {host} by https: {source}")]
    Host {
        /// As configured.
        host: String,
        /// Why not.
        source: InvalidDnsNameError,
    },
    /// A request names no host, and there is no upstream.
    #[error("\"{0}\" is sent to the upstream, and there is none: set `upstream`")]
    NoUpstream(String),
    /// There are no root certificates to verify the server with.
    #[error("cannot verify the certificate of an https server: {0}")]
    RootCertificates(String),
    /// A header in `store_headers` is never stored.
    #[error(transparent)]
    Route(#[from] semel_http::route::Error),
    /// The schedules contradict each other.
    #[error(transparent)]
    Reconcilers(#[from] reconcilers::Error),
}

/// Polls for the outcome of one operation's records.
#[derive(Debug)]
pub struct Poller {
    poll: Poll,
    server: PollServer,
    completed: BTreeMap<StatusCode, StatusCode>,
    not_executed: Vec<StatusCode>,
    timeout: Duration,
    authorization: Option<HeaderValue>,
    max_response: usize,
    /// Only decides which response headers are stored.
    route: semel_http::Route,
    schema_version: u16,
    /// Whether the body of a success is stored, or fetched for every retry.
    stores_body: bool,
}

/// The reconcilers of a configuration: routes with `[route.reconcile]` are polled, and the other
/// operations that a webhook covers wait for its events. Unknown records of the remaining
/// operations that the configuration names are left to an operator.
///
/// # Errors
/// [`Error`], if polling cannot work as configured.
pub fn reconcilers<S>(config: &Config, store: S) -> Result<Reconcilers<S>, Error> {
    let mut tls = None;
    let mut all = Reconcilers::new(store);
    let mut longest = reconcilers::LOOKUP_TIMEOUT;
    let mut polled = Vec::new();
    for route in &config.routes {
        let (Some(operation), Some(rules)) = (route.identity_name(), &route.reconcile) else {
            continue;
        };
        load_roots(&rules.poll, config.upstream.as_ref(), &mut tls)?;
        let lookup = Poller::new(route, rules, config.upstream.as_ref(), tls.as_ref())?;
        longest = longest.max(rules.timeout.saturating_add(SLACK));
        all = all.poll_with(operation, schedule(rules), lookup)?;
        polled.push(operation);
    }
    for operation in covered_by_webhooks(config) {
        if !polled.contains(&operation) {
            all = all.wait_for_webhook(operation, Schedule::default())?;
        }
    }
    for route in &config.routes {
        let pattern = route.pattern.to_string();
        if let Some(OperationName { stored, .. }) = route.name(&pattern)
            && all.schedule(stored).is_none()
        {
            all = all.leave_to_operator(stored)?;
        }
    }
    Ok(all.lookup_timeout(longest))
}

/// Whether unknown outcomes of a route are polled, or reported by a webhook.
pub(crate) fn is_reconciled(config: &Config, route: &RouteConfig) -> bool {
    let Some(operation) = &route.operation else {
        return false;
    };
    let mut others = config.routes.iter();
    others.any(|other| other.operation.as_ref() == Some(operation) && other.reconcile.is_some())
        || is_covered_by_webhooks(config, operation)
}

/// The operations that a webhook may report on.
fn covered_by_webhooks(config: &Config) -> impl Iterator<Item = &str> {
    let mut names: Vec<&str> = config
        .routes
        .iter()
        .filter(|route| {
            let operation = route.operation.as_deref();
            operation.is_some_and(|name| is_covered_by_webhooks(config, name))
        })
        .filter_map(RouteConfig::identity_name)
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

/// Whether a webhook may report on an operation: one that names none reports on all.
fn is_covered_by_webhooks(config: &Config, operation: &str) -> bool {
    let mut covered = config.webhooks.iter().map(|hook| hook.operation.as_deref());
    covered.any(|covered| covered.is_none_or(|covered| covered == operation))
}

/// Where to send a request: the host that it names, or else the upstream.
fn target<'a>(
    request: &'a Poll,
    upstream: Option<&'a Upstream>,
) -> Result<(&'a Scheme, &'a Authority), Error> {
    let upstream = upstream.map(|upstream| (upstream.scheme(), upstream.authority()));
    let target = request.server().or(upstream);
    target.ok_or_else(|| Error::NoUpstream(request.to_string()))
}

/// Loads the root certificates when the first request needs them.
pub(crate) fn load_roots(
    request: &Poll,
    upstream: Option<&Upstream>,
    tls: &mut Option<Arc<ClientConfig>>,
) -> Result<(), Error> {
    let (scheme, _) = target(request, upstream)?;
    if *scheme == Scheme::HTTPS && tls.is_none() {
        let roots = client_tls::with_native_roots().map_err(Error::RootCertificates)?;
        *tls = Some(Arc::new(roots));
    }
    Ok(())
}

/// The server that a request goes to. `tls` is needed for `https` only.
pub(crate) fn server(
    request: &Poll,
    upstream: Option<&Upstream>,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<PollServer, Error> {
    let (scheme, authority) = target(request, upstream)?;
    let tls = tls.filter(|_| *scheme == Scheme::HTTPS);
    if *scheme == Scheme::HTTPS && tls.is_none() {
        let problem = "no root certificates were given".to_owned();
        return Err(Error::RootCertificates(problem));
    }
    PollServer::new(authority, tls.cloned()).map_err(|source| Error::Host {
        host: authority.to_string(),
        source,
    })
}

fn schedule(rules: &ReconcileConfig) -> Schedule {
    Schedule {
        every: rules.every,
        max_every: rules.max_every,
        attempts: rules.attempts,
        downstream_idempotent: rules.downstream_idempotent,
    }
}

impl Poller {
    /// Polls as `rules` say; polls `upstream` if they name no host. `tls` is needed for `https` only.
    ///
    /// # Errors
    /// [`Error`], if polling cannot work as configured.
    pub fn new(
        route: &RouteConfig,
        rules: &ReconcileConfig,
        upstream: Option<&Upstream>,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, Error> {
        let server = server(&rules.poll, upstream, tls)?;
        // Cookies are never stored here: they belong to the poll, not to the client.
        let stored = route
            .store_headers
            .iter()
            .try_fold(semel_http::Route::default(), |stored, name| {
                stored.store_header(name.as_str())
            })?;
        Ok(Self {
            poll: rules.poll.clone(),
            server,
            completed: rules.completed.clone(),
            not_executed: rules.not_executed.clone(),
            timeout: rules.timeout,
            authorization: rules.authorization.clone(),
            max_response: usize::try_from(route.policy.max_response).unwrap_or(usize::MAX),
            route: stored,
            schema_version: route.replay.schema,
            stores_body: route.replay.mode == ReplayMode::Stored,
        })
    }

    async fn send(&self, operation: &Record, path: &str) -> Result<PollResponse, PollError> {
        let mut headers = HeaderMap::new();
        if let Some(authorization) = &self.authorization {
            headers.insert(http::header::AUTHORIZATION, authorization.clone());
        }
        if let Ok(id) = HeaderValue::from_str(&operation.id.to_string()) {
            headers.insert("semel-operation-id", id);
        }
        let needs_body = |status| self.completed.contains_key(&status);
        let sending = send(&self.server, path, headers, needs_body, self.max_response);
        tokio::time::timeout(self.timeout, sending)
            .await
            .unwrap_or(Err(PollError::TimedOut))
    }

    /// What a response means. Only the statuses that the configuration lists mean anything.
    fn interpret(&self, response: &PollResponse) -> LookupResult {
        let code = || Code::new(format!("poll_status_{}", response.status.as_u16()));
        if let Some(under) = self.completed.get(&response.status) {
            return match &response.body {
                // A response without its body must not be stored; the next poll may get it.
                Err(unread) => LookupResult::Unclear(unread.code()),
                Ok(body) => LookupResult::Completed(Completion {
                    response: Response {
                        status: under.as_u16(),
                        headers: self.route.stored_headers(&response.headers),
                        body: (self.stores_body || !under.is_success()).then(|| body.clone()),
                        schema_version: self.schema_version,
                    },
                    resource: None,
                }),
            };
        }
        if self.not_executed.contains(&response.status) {
            return LookupResult::Absent(code());
        }
        LookupResult::Unclear(code())
    }
}

impl Reconcile for Poller {
    async fn look_up(&self, operation: &Record) -> Lookup {
        let Some(path) = self.poll.path(operation) else {
            let evidence = "the key or the tenant cannot be part of a path\n".into();
            return Lookup {
                result: LookupResult::Unclear("poll_unaskable".into()),
                evidence,
            };
        };
        let polled = format!("GET {}{path}", self.server);
        match self.send(operation, &path).await {
            Ok(response) => Lookup {
                result: self.interpret(&response),
                evidence: evidence(&polled, &response),
            },
            Err(error) => Lookup {
                evidence: format!("{polled} → {error}\n").into(),
                result: LookupResult::Unclear(error.code()),
            },
        }
    }
}

/// The request line and the beginning of the response; never the credentials.
fn evidence(polled: &str, response: &PollResponse) -> Bytes {
    let mut text = format!("{polled} → {}\n", response.status).into_bytes();
    match &response.body {
        Ok(body) => text.extend_from_slice(&body[..body.len().min(MAX_EVIDENCE)]),
        Err(unread) => text.extend_from_slice(unread.to_string().as_bytes()),
    }
    text.truncate(MAX_EVIDENCE);
    text.into()
}

#[cfg(test)]
mod tests;
