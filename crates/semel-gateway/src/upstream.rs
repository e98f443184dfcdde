//! The HTTP client for the upstream application.
//!
//! One request, one connection, one attempt. **Invariant:** nothing here sends a request twice. If
//! a pooled connection turns out to be closed before a single byte of the request was written, the
//! client replaces it; from the first byte on, it reports every failure with its [`Stage`], and
//! the caller decides.
//!
//! Why not `hyper_util::client::legacy` or `reqwest`: both retry requests on pooled connections by
//! their own rules, and neither reports how many bytes of a failed request reached the kernel. The
//! gateway needs that count: [`Stage::NothingSent`] proves that the application cannot have
//! executed the request, so the key can be released; anything else is an unknown outcome. So this
//! module uses hyper's connection-level API and counts bytes below TLS.
//!
//! The request's future polls the connection, and afterwards the response body does; there is no
//! task per connection. That saves a hand-over between tasks, and dropping either closes the
//! connection.
//!
//! **Absent:** informational responses (1xx) end here. hyper reports them, but its server cannot
//! forward them. **Absent:** a limit on the time to the response; the caller sets one by dropping
//! the future.

mod address;
mod body;
mod connection;
mod error;
mod forward;
mod pool;
mod stream;
mod tunnel;

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as HttpBody;
use ipnet::IpNet;
use rustls::ClientConfig;
use semel_http::{CloseDelimited, Operation};
use tower_service::Service;

pub use body::Body;
pub use error::{ConfigError, Error, Stage};
pub use forward::Forward;

use crate::hygiene::outbound::{self, Target, Tunnel};
use address::UpstreamAddress;
use body::Outgoing;
use connection::{SendFailure, UpstreamConnection};
use error::BoxError;
use pool::Pool;

/// The address of the application, and how connections to it are kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UpstreamConfig {
    /// `http://host:port` or `https://host:port`, with an optional path that prefixes every request
    /// path.
    pub base: Uri,
    /// TLS settings, with the trusted root certificates. Needed for `https` only.
    pub tls: Option<Arc<ClientConfig>>,
    /// Covers the name lookup, the TCP connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// Connections kept open without a request, per worker.
    pub max_idle: usize,
    /// How long each of them is kept.
    pub idle_timeout: Duration,
    /// A guarded request uses a connection only if it was idle for less than this; zero opens a new
    /// one for each. The server may be closing an idle connection while a request is on its way,
    /// and that request's outcome would be unknown.
    pub guarded_idle: Duration,
    /// Peers whose `Forwarded` and `X-Forwarded-*` headers are kept and extended. Those of others are
    /// replaced.
    pub trusted_proxies: Vec<IpNet>,
}

/// The time that a request may need to reach the application.
const MARGIN: Duration = Duration::from_millis(100);

impl UpstreamConfig {
    /// The kernel retransmits a lost SYN after one and three seconds: two retransmissions fit.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// As many as a busy worker has concurrent requests; more would serve short bursts only.
    pub const MAX_IDLE: usize = 256;
    /// Below the shortest keep-alive of common application servers (5 s in Node), so that the
    /// gateway closes first and no request is written to a connection that the server is closing.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

    /// Half of the shortest keep-alive of common application servers (2 s in gunicorn): a close that
    /// is already on its way takes at most the other half to arrive.
    pub const GUARDED_IDLE: Duration = Duration::from_secs(1);

    /// A proxy on the same machine.
    pub fn trusted_by_default() -> Vec<IpNet> {
        vec![
            IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            IpNet::new_assert(Ipv6Addr::LOCALHOST.into(), 128),
        ]
    }

    /// The defaults, for an application at `base`.
    pub fn new(base: Uri) -> Self {
        Self {
            base,
            tls: None,
            connect_timeout: Self::CONNECT_TIMEOUT,
            max_idle: Self::MAX_IDLE,
            idle_timeout: Self::IDLE_TIMEOUT,
            guarded_idle: Self::GUARDED_IDLE,
            trusted_proxies: Self::trusted_by_default(),
        }
    }
}

/// A client for one application. Cheap to clone; clones share their connections. Make one per
/// worker, so that a connection stays on its thread.
#[derive(Debug, Clone)]
pub struct Upstream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    target: Target,
    pool: Arc<Pool>,
    address: UpstreamAddress,
    config: UpstreamConfig,
}

impl Upstream {
    /// A client for the application at `config.base`.
    ///
    /// # Errors
    /// [`ConfigError`] if `base` is not an `http://` or `https://` URI with a host, or if the host
    /// is not a valid name in a certificate.
    pub fn new(config: &UpstreamConfig) -> Result<Self, ConfigError> {
        let secure = match config.base.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(ConfigError::Scheme),
        };
        let authority = config.base.authority().ok_or(ConfigError::Host)?;
        if config.base.query().is_some() {
            return Err(ConfigError::Query);
        }
        let target = Target {
            prefix: config.base.path().trim_end_matches('/').to_owned(),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| ConfigError::Host)?,
            trusted_proxies: config.trusted_proxies.clone(),
        };
        let address = UpstreamAddress::new(authority, secure, config.tls.as_ref())?;
        Ok(Self(Arc::new(Inner {
            target,
            pool: Arc::new(Pool::new(address.clone(), config)),
            address,
            config: config.clone(),
        })))
    }

    /// A client for the same application with a separate connection pool.
    pub fn with_own_pool(&self) -> Self {
        let Inner {
            target,
            address,
            config,
            ..
        } = &*self.0;
        Self(Arc::new(Inner {
            target: target.clone(),
            pool: Arc::new(Pool::new(address.clone(), config)),
            address: address.clone(),
            config: config.clone(),
        }))
    }

    /// Sends a request and waits for the response head. Hop-by-hop headers are removed in both
    /// directions.
    ///
    /// # Errors
    /// [`Error`], whose [`Stage`] says whether the application may have seen the request.
    ///
    /// # Cancellation
    /// Dropping the future closes the connection it used. The application may have seen the
    /// request.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Error>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let inner = &*self.0;
        let (mut parts, body) = request.into_parts();
        let tunnel =
            outbound::request(&mut parts, &body, &inner.target).map_err(Error::nothing_sent)?;
        let client = (tunnel == Tunnel::Requested)
            .then(|| parts.extensions.remove::<hyper::upgrade::OnUpgrade>())
            .flatten();
        let head = parts.method == Method::HEAD;
        let max_idle = if parts.extensions.get::<Operation>().is_some() {
            less_margin(inner.config.guarded_idle)
        } else {
            inner.config.idle_timeout
        };
        // hyper's client reads none of them, and they may hold large values.
        parts.extensions = http::Extensions::new();
        let request = Request::from_parts(parts, Outgoing::new(body));

        let (connection, response) = exchange(&inner.pool, max_idle, request).await?;
        let (mut parts, incoming) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            let client = client.ok_or_else(|| {
                Error::sent("the upstream upgraded a request that did not ask for it")
            })?;
            tunnel::open(connection, client).await?;
            outbound::response(&mut parts);
            return Ok(Response::from_parts(parts, Body::empty()));
        }
        let body = Body::new(incoming, connection, &inner.pool);
        if !head
            && !body.is_end_stream()
            && !parts.headers.contains_key(CONTENT_LENGTH)
            && !parts.headers.contains_key(TRANSFER_ENCODING)
        {
            parts.extensions.insert(CloseDelimited);
        }
        outbound::response(&mut parts);
        Ok(Response::from_parts(parts, body))
    }
}

/// Less than `guarded_idle` by enough for the way there and back, and for a busy scheduler: a server
/// that closes its connections after exactly that time may be doing so while the request travels.
fn less_margin(idle: Duration) -> Duration {
    idle.saturating_sub(MARGIN.min(idle / 2))
}

type Exchanged = (Box<UpstreamConnection>, Response<hyper::body::Incoming>);

/// Sends the request on a connection that was idle for less than `max_idle`, or on a new one.
async fn exchange(
    pool: &Arc<Pool>,
    max_idle: Duration,
    mut request: Request<Outgoing>,
) -> Result<Exchanged, Error> {
    while let Some(mut connection) = pool.check_out(max_idle) {
        match connection.send(request).await {
            Ok(response) => return Ok((connection, response)),
            // hyper did not take the request and no byte was written: the connection was already
            // closed.
            Err(SendFailure {
                request: Some(untouched),
                error,
            }) if error.stage == Stage::NothingSent => {
                request = *untouched;
            }
            Err(failure) => return Err(failure.error),
        }
    }
    let mut connection = pool.connect().await?;
    match connection.send(request).await {
        Ok(response) => Ok((connection, response)),
        Err(failure) => Err(failure.error),
    }
}

impl<B> Service<Request<B>> for Upstream
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let upstream = self.clone();
        Box::pin(async move { upstream.send(request).await })
    }
}
