//! How the truth is found where the outcome is unknown: by asking, as `[route.reconcile]` says.
//!
//! One request, one answer. **Absent:** redirects that are followed, requests that are sent again,
//! connections that are kept. Whatever is not one of the answers that the configuration names is
//! unclear, and the worker asks again later.

mod wire;

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
use semel_worker::{Finding, Found, Reconcile, Reconcilers, Schedule, reconcilers};

use crate::config::{Config, Poll, ReconcileConfig, RouteConfig, Upstream};
use crate::trust;
use wire::{Answer, Server, Unanswered};

/// What a look may take longer than its request, before the worker gives it up.
const SLACK: Duration = Duration::from_secs(1);

/// Why the ways to find out cannot be used. Found at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host of a poll cannot have a certificate.
    #[error("{host} cannot be asked by https: {source}")]
    Host {
        /// As configured.
        host: String,
        /// Why not.
        source: InvalidDnsNameError,
    },
    /// Nobody's certificate would be believed.
    #[error("a poll goes to https, and {0}")]
    Certificates(String),
    /// A header that is never stored.
    #[error(transparent)]
    Route(#[from] semel_http::route::Error),
    /// The schedules contradict each other.
    #[error(transparent)]
    Reconcilers(#[from] reconcilers::Error),
}

/// Asks about one command's operations.
#[derive(Debug)]
pub struct Poller {
    poll: Poll,
    server: Server,
    completed: BTreeMap<StatusCode, StatusCode>,
    not_executed: Vec<StatusCode>,
    timeout: Duration,
    authorization: Option<HeaderValue>,
    max_response: usize,
    /// Only for what it stores of an answer's head.
    route: semel_http::Route,
}

/// All ways to find out that a configuration has: routes with `[route.reconcile]` are asked about,
/// and what a webhook may tell of waits for it.
///
/// # Errors
/// [`Error`], where it cannot be done as configured.
pub fn reconcilers<S>(config: &Config, store: S) -> Result<Reconcilers<S>, Error> {
    let mut tls = None;
    let mut all = Reconcilers::new(store);
    let mut longest = reconcilers::LOOK_MAX;
    let mut asked_about = Vec::new();
    for route in &config.routes {
        let (Some(operation), Some(rules)) = (&route.operation, &route.reconcile) else {
            continue;
        };
        let (scheme, _) = asked(rules, &config.upstream);
        let secure = *scheme == Scheme::HTTPS;
        if secure && tls.is_none() {
            tls = Some(Arc::new(trust::client().map_err(Error::Certificates)?));
        }
        let poller = Poller::new(route, rules, &config.upstream, tls.as_ref())?;
        longest = longest.max(rules.timeout.saturating_add(SLACK));
        all = all.by_looking(operation.clone(), schedule(rules), poller)?;
        asked_about.push(&**operation);
    }
    for operation in awaited(config) {
        if !asked_about.contains(&operation) {
            all = all.by_webhook(operation, Schedule::default())?;
        }
    }
    Ok(all.look_max(longest))
}

/// What webhooks may tell of.
fn awaited(config: &Config) -> impl Iterator<Item = &str> {
    let any = config.webhooks.iter().any(|hook| hook.operation.is_none());
    let mut names: Vec<&str> = config
        .routes
        .iter()
        .filter_map(|route| route.operation.as_deref())
        .filter(|name| {
            any || config
                .webhooks
                .iter()
                .any(|hook| hook.operation.as_deref() == Some(name))
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

/// Who is asked: whom the poll names, or else the application.
fn asked<'a>(rules: &'a ReconcileConfig, upstream: &'a Upstream) -> (&'a Scheme, &'a Authority) {
    rules
        .poll
        .server()
        .unwrap_or((upstream.scheme(), upstream.authority()))
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
    /// Asks as the route says; `upstream` where it names no host of its own. `tls` is needed for
    /// `https` only.
    ///
    /// # Errors
    /// [`Error`], where it cannot be done as configured.
    pub fn new(
        route: &RouteConfig,
        rules: &ReconcileConfig,
        upstream: &Upstream,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, Error> {
        let (scheme, authority) = asked(rules, upstream);
        let tls = tls.filter(|_| *scheme == Scheme::HTTPS);
        if *scheme == Scheme::HTTPS && tls.is_none() {
            let problem = "there is nobody to believe".to_owned();
            return Err(Error::Certificates(problem));
        }
        let server = Server::new(authority, tls.cloned()).map_err(|source| Error::Host {
            host: authority.to_string(),
            source,
        })?;
        // Cookies are left out, whatever the route says: these are the poll's own.
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
        })
    }

    async fn ask(&self, operation: &Record, path: &str) -> Result<Answer, Unanswered> {
        let mut headers = HeaderMap::new();
        if let Some(authorization) = &self.authorization {
            headers.insert(http::header::AUTHORIZATION, authorization.clone());
        }
        if let Ok(id) = HeaderValue::from_str(&operation.id.to_string()) {
            headers.insert("semel-operation-id", id);
        }
        let whole = |status| self.completed.contains_key(&status);
        let asking = wire::ask(&self.server, path, headers, whole, self.max_response);
        tokio::time::timeout(self.timeout, asking)
            .await
            .unwrap_or(Err(Unanswered::TimedOut))
    }

    /// What an answer means. Only the answers that the configuration names mean anything.
    fn judge(&self, answer: &Answer) -> Finding {
        let code = || Code::new(format!("poll_status_{}", answer.status.as_u16()));
        if let Some(under) = self.completed.get(&answer.status) {
            return match &answer.body {
                // An answer without its body would be stored for good; the next look may get it.
                Err(unread) => Finding::Unclear(unread.code()),
                Ok(body) => Finding::Completed(Completion {
                    response: Response {
                        status: under.as_u16(),
                        headers: self.route.stored_headers(&answer.headers),
                        body: Some(body.clone()),
                        schema_version: 0,
                    },
                    resource: None,
                }),
            };
        }
        if self.not_executed.contains(&answer.status) {
            return Finding::Absent(code());
        }
        Finding::Unclear(code())
    }
}

impl Reconcile for Poller {
    async fn look(&self, operation: &Record) -> Found {
        let Some(path) = self.poll.path(operation) else {
            let evidence = "the key or the tenant cannot be part of an address\n".into();
            return Found {
                finding: Finding::Unclear("poll_unaskable".into()),
                evidence,
            };
        };
        let asked = format!("GET {}{path}", self.server);
        match self.ask(operation, &path).await {
            Ok(answer) => Found {
                finding: self.judge(&answer),
                evidence: evidence(&asked, &answer),
            },
            Err(unanswered) => Found {
                evidence: format!("{asked} → {unanswered}\n").into(),
                finding: Finding::Unclear(unanswered.code()),
            },
        }
    }
}

/// What was asked, and the beginning of what was answered. Never what we are known by.
fn evidence(asked: &str, answer: &Answer) -> Bytes {
    let mut text = format!("{asked} → {}\n", answer.status).into_bytes();
    match &answer.body {
        Ok(body) => text.extend_from_slice(&body[..body.len().min(MAX_EVIDENCE)]),
        Err(unread) => text.extend_from_slice(unread.to_string().as_bytes()),
    }
    text.truncate(MAX_EVIDENCE);
    text.into()
}

#[cfg(test)]
mod tests;
