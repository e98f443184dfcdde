//! How a client is set up.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::client::Client;
use crate::core::Core;
use crate::environment::{Environment, System};
use crate::journal::Journal;
use crate::profile::Profile;
use crate::quota::QuotaOptions;
use crate::transport::Transport;

/// What a client may be given. The defaults suit payments.
#[derive(Clone, Debug)]
pub struct Options {
    /// The dialect of the provider.
    pub profile: Profile,
    /// How long a call may take. An open intent continues with the next call.
    pub deadline: Duration,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// How long the server is assumed to know a key; `Idempotency-Key-Expires` shortens it. After it nothing is sent, because the
    /// key might execute again. Semel and Stripe keep keys for at least 24 hours.
    pub key_lifetime: Duration,
    /// The quota of retries.
    pub quota: QuotaOptions,
    /// The longest response that the journal keeps.
    pub max_response: usize,
    /// The longest request body.
    pub max_request: usize,
    /// How many intents [`Client::resume`] finishes at a time. A server that hangs keeps each for a whole deadline.
    pub resume_at_once: usize,
    /// Headers of every request, such as credentials. They are not in the journal.
    pub headers: HeaderMap,
    /// The origins (`https://api.example`) of the stored requests that [`Client::resume`] and [`Client::finish`] send: `resume` leaves
    /// out others, and `finish` refuses them. Name them where clients for several APIs share a journal, so that no server gets the
    /// credentials of another. Without any, a client with `headers` resumes nothing while intents of several origins are open.
    pub origins: Vec<Url>,
    /// Request headers whose values the journal does not keep, besides those of `headers`: credentials. An intent with one of them is
    /// resumed only by a client that has it in `headers`.
    pub secret_headers: Vec<HeaderName>,
}

/// The usual names of credentials.
pub(crate) const SECRET_HEADERS: [&str; 5] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-auth-token",
];

impl Default for Options {
    fn default() -> Self {
        Self {
            profile: Profile::ietf(),
            deadline: Duration::from_mins(10),
            attempt_timeout: Duration::from_secs(30),
            key_lifetime: Duration::from_hours(24),
            quota: QuotaOptions::default(),
            max_response: 1024 * 1024,
            max_request: 8 * 1024 * 1024,
            resume_at_once: 8,
            headers: HeaderMap::new(),
            origins: Vec::new(),
            secret_headers: SECRET_HEADERS.map(HeaderName::from_static).to_vec(),
        }
    }
}

/// Sets a [`Client`] up.
pub struct Builder {
    journal: Journal,
    options: Options,
    environment: Arc<dyn Environment>,
}

impl Builder {
    pub(crate) fn new(journal: Journal) -> Self {
        Self {
            journal,
            options: Options::default(),
            environment: Arc::new(System),
        }
    }

    /// Replaces all options.
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Sets the dialect of the provider.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.options.profile = profile;
        self
    }

    /// Sets how long a call may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// Adds a header to every request, such as a credential. It is not in the journal.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.options.headers.append(name, value);
        self
    }

    /// Adds an origin whose stored requests this client sends. See [`Options::origins`].
    pub fn origin(mut self, origin: Url) -> Self {
        self.options.origins.push(origin);
        self
    }

    /// Replaces clock, sleep and random numbers: for tests.
    pub fn environment(self, environment: Arc<dyn Environment>) -> Self {
        Self {
            environment,
            ..self
        }
    }

    /// A client that sends with `reqwest`.
    ///
    /// # Errors
    /// [`Error::Request`](crate::Error::Request) where TLS cannot be set up.
    #[cfg(feature = "reqwest")]
    pub fn build(self) -> Result<Client, crate::Error> {
        let transport =
            crate::Reqwest::new().map_err(|error| crate::Error::Request(error.to_string()))?;
        Ok(self.build_with(transport))
    }

    /// A client that sends with a transport of one's own.
    pub fn build_with(self, transport: impl Transport + 'static) -> Client {
        Client {
            transport: Arc::new(transport),
            core: self.core(),
        }
    }

    pub(crate) fn core(self) -> Core {
        Core::new(self.journal, self.options, self.environment)
    }

    /// Middleware for `reqwest-middleware`.
    #[cfg(feature = "middleware")]
    pub fn middleware(self) -> crate::Middleware {
        crate::Middleware::new(self.core())
    }

    /// A layer for tower services.
    #[cfg(feature = "tower")]
    pub fn layer(self) -> crate::Layer {
        crate::Layer::new(self.core())
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").finish_non_exhaustive()
    }
}
