//! Verification keys that an issuer publishes at a URL.
//!
//! The keys are fetched when they are needed first, when a token names a key that is not among
//! them, and when they are old. While a fetch fails, the keys that were fetched before stay in use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::jwt::{Expected, Keys, Verified};
use crate::client_tls;
use crate::config::{JwksUrl, MAX_FILE};
use crate::reconcile::request::{PollError, PollServer, send};

/// The minimum time between two fetches. Anyone can send tokens with an unknown `kid`, and these
/// must not become requests to the issuer.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum duration of a fetch; the clients whose tokens need it wait for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The age at which keys are fetched again, so that a key that the issuer removed is not accepted
/// for long.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The keys at a URL.
pub struct RemoteKeys {
    url: JwksUrl,
    expected: Expected,
    server: PollServer,
    fetched: ArcSwapOption<FetchedKeys>,
    /// The last fetch. Locked while one runs.
    last_fetch: Mutex<Option<Fetch>>,
    min_interval: Duration,
    max_age: Duration,
}

struct FetchedKeys {
    keys: Keys,
    at: Instant,
}

struct Fetch {
    began_at: Instant,
    succeeded: bool,
}

/// The keys could not be fetched now.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFetched {
    /// When a fetch is possible again.
    pub retry_after: Duration,
}

impl RemoteKeys {
    /// The keys at `url`; nothing is fetched yet.
    ///
    /// # Errors
    /// A message, if its server cannot be verified.
    pub fn new(url: JwksUrl, expected: Expected) -> Result<Self, String> {
        let tls = if url.is_secure() {
            Some(Arc::new(client_tls::with_native_roots()?))
        } else {
            None
        };
        let server =
            PollServer::new(url.authority(), tls).map_err(|error| format!("{url}: {error}"))?;
        Ok(Self {
            url,
            expected,
            server,
            fetched: ArcSwapOption::empty(),
            last_fetch: Mutex::new(None),
            min_interval: MIN_INTERVAL,
            max_age: MAX_AGE,
        })
    }

    /// Whether `other` has the same keys.
    pub fn is_same_source(&self, other: &Self) -> bool {
        self.url == other.url && self.expected == other.expected
    }

    /// Verifies a token with the keys that were fetched. Without keys, every key is unknown.
    pub fn verify(self: &Arc<Self>, token: &str) -> Verified {
        let fetched = self.fetched.load();
        let Some(fetched) = fetched.as_ref() else {
            return Verified::UnknownKey;
        };
        if fetched.at.elapsed() >= self.max_age && self.may_fetch() {
            // The token does not wait for it.
            drop(tokio::spawn(Arc::clone(self).fetch_once(Instant::now())));
        }
        fetched.keys.verify(token)
    }

    /// Fetches the keys. Ends when a fetch has succeeded that began after this call; concurrent
    /// calls share one.
    ///
    /// # Errors
    /// [`NotFetched`], if the fetch fails, or if another one began shortly before this call.
    ///
    /// # Cancellation
    /// The fetch goes on: a client that disconnects must not keep the keys of others away.
    pub async fn fetch(self: &Arc<Self>) -> Result<(), NotFetched> {
        let fetching = tokio::spawn(Arc::clone(self).fetch_once(Instant::now()));
        fetching.await.unwrap_or(Err(NotFetched {
            retry_after: self.min_interval,
        }))
    }

    /// Whether no fetch runs or began shortly before.
    fn may_fetch(&self) -> bool {
        self.last_fetch.try_lock().is_ok_and(|last| {
            last.as_ref()
                .is_none_or(|last| last.began_at.elapsed() >= self.min_interval)
        })
    }

    async fn fetch_once(self: Arc<Self>, asked_at: Instant) -> Result<(), NotFetched> {
        let mut last = self.last_fetch.lock().await;
        if let Some(fetch) = &*last {
            if fetch.succeeded && fetch.began_at >= asked_at {
                return Ok(());
            }
            let retry_after = self.min_interval.saturating_sub(fetch.began_at.elapsed());
            if !retry_after.is_zero() {
                return Err(NotFetched { retry_after });
            }
        }
        let began_at = Instant::now();
        let fetched = timeout(FETCH_TIMEOUT, self.download()).await;
        let fetched = fetched.unwrap_or_else(|_| Err("timed out".to_owned()));
        *last = Some(Fetch {
            began_at,
            succeeded: fetched.is_ok(),
        });
        match fetched {
            Ok(keys) => {
                let at = Instant::now();
                self.fetched.store(Some(Arc::new(FetchedKeys { keys, at })));
                Ok(())
            }
            Err(problem) => {
                let stale = self.fetched.load().is_some();
                tracing::warn!(
                    url = %self.url, problem, stale,
                    "cannot fetch the keys that verify tokens; keys that were fetched before stay in use"
                );
                Err(NotFetched {
                    retry_after: self.min_interval,
                })
            }
        }
    }

    async fn download(&self) -> Result<Keys, String> {
        let limit = usize::try_from(MAX_FILE).unwrap_or(usize::MAX);
        let is_ok = |status| status == StatusCode::OK;
        let path = self.url.path_and_query();
        let response = send(&self.server, path, HeaderMap::new(), is_ok, limit)
            .await
            .map_err(|error| error.to_string())?;
        if !is_ok(response.status) {
            return Err(format!("the status is {}, not 200", response.status));
        }
        let body = response.body.map_err(|error| {
            if error == PollError::TooLarge {
                return format!("it is larger than {MAX_FILE} bytes");
            }
            error.to_string()
        })?;
        let text = std::str::from_utf8(&body).map_err(|error| error.to_string())?;
        Keys::from_jwks(text, &self.expected)
    }
}

impl fmt::Debug for RemoteKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKeys({})", self.url)
    }
}

#[cfg(test)]
mod tests;
