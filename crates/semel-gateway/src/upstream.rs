//! The side towards the application.
//!
//! One request, one connection, one try. **Invariant:** nothing here sends a request twice. A
//! pooled connection that proves dead before a single byte of the request was written is
//! replaced; from the first byte on, every failure is reported, with its [`Stage`], and the
//! decision is the caller's.
//!
//! The connection is polled by the request's own future and afterwards by the answer's body, not
//! by a task of its own: no hand-over between tasks, and dropping either closes the connection.
//!
//! **Absent:** informational answers (1xx) end here. hyper reports them, but its server cannot
//! send them on. **Absent:** a limit on the time to the answer; who waits sets it, by dropping.

mod body;
mod error;
mod forward;
mod link;
mod place;
mod pool;
mod stream;
mod tunnel;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as HttpBody;
use rustls::ClientConfig;
use semel_http::Unframed;
use tower_service::Service;

pub use body::Body;
pub use error::{ConfigError, Error, Stage};
pub use forward::Forward;

use crate::hygiene::outbound::{self, Target, Tunnel};
use body::Outgoing;
use error::BoxError;
use link::{Link, Lost};
use place::Place;
use pool::Pool;

/// Where the application is, and how to keep connections to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UpstreamConfig {
    /// `http://host:port` or `https://host:port`, with a path to put in front of every other, if
    /// any.
    pub base: Uri,
    /// Whose certificates are believed. Needed for `https` only.
    pub tls: Option<Arc<ClientConfig>>,
    /// For the name lookup, the connection and TLS together.
    pub connect_timeout: Duration,
    /// Connections kept open without a request, per worker.
    pub max_idle: usize,
    /// How long each of them is kept.
    pub idle_timeout: Duration,
}

impl UpstreamConfig {
    /// A SYN that was lost is sent again after one and three seconds: two tries fit.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// As many as a busy worker has requests under way; more would be opened for a burst only.
    pub const MAX_IDLE: usize = 256;
    /// Below the shortest keep-alive that common application servers have (5 s in Node), so that
    /// it is we who close, and no request meets a connection that is being closed.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

    /// The defaults, for an application at `base`.
    pub fn new(base: Uri) -> Self {
        Self {
            base,
            tls: None,
            connect_timeout: Self::CONNECT_TIMEOUT,
            max_idle: Self::MAX_IDLE,
            idle_timeout: Self::IDLE_TIMEOUT,
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
    place: Place,
    config: UpstreamConfig,
}

impl Upstream {
    /// A client for the application at `config.base`.
    ///
    /// # Errors
    /// [`ConfigError`] when the base is no `http://` or `https://` URI with a host, or the host
    /// cannot have a certificate.
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
        };
        let place = Place::new(authority, secure, config.tls.as_ref())?;
        Ok(Self(Arc::new(Inner {
            target,
            pool: Arc::new(Pool::new(place.clone(), config)),
            place,
            config: config.clone(),
        })))
    }

    /// A client for the same application, with connections of its own.
    pub fn apart(&self) -> Self {
        let Inner {
            target,
            place,
            config,
            ..
        } = &*self.0;
        Self(Arc::new(Inner {
            target: target.clone(),
            pool: Arc::new(Pool::new(place.clone(), config)),
            place: place.clone(),
            config: config.clone(),
        }))
    }

    /// Sends a request and waits for the head of the answer. Headers are cleaned in both
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
        let client = (tunnel == Tunnel::Wanted)
            .then(|| parts.extensions.remove::<hyper::upgrade::OnUpgrade>())
            .flatten();
        let head = parts.method == Method::HEAD;
        // hyper's client looks for nothing in them, and they may be costly to carry.
        parts.extensions = http::Extensions::new();
        let request = Request::from_parts(parts, Outgoing::new(body));

        let (link, response) = exchange(&inner.pool, request).await?;
        let (mut parts, incoming) = response.into_parts();
        if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            let client = client.ok_or_else(|| Error::sent("an upgrade that nobody asked for"))?;
            tunnel::open(link, client).await?;
            outbound::response(&mut parts);
            return Ok(Response::from_parts(parts, Body::empty()));
        }
        let body = Body::new(incoming, link, &inner.pool);
        if !head
            && !body.is_end_stream()
            && !parts.headers.contains_key(CONTENT_LENGTH)
            && !parts.headers.contains_key(TRANSFER_ENCODING)
        {
            parts.extensions.insert(Unframed);
        }
        outbound::response(&mut parts);
        Ok(Response::from_parts(parts, body))
    }
}

type Answered = (Box<Link>, Response<hyper::body::Incoming>);

/// Sends the request on a pooled connection, or on a new one.
async fn exchange(pool: &Arc<Pool>, mut request: Request<Outgoing>) -> Result<Answered, Error> {
    while let Some(mut link) = pool.check_out() {
        match link.send(request).await {
            Ok(response) => return Ok((link, response)),
            // hyper never took it, and not a byte was written: this connection was dead before.
            Err(Lost {
                request: Some(untouched),
                error,
            }) if error.stage == Stage::NothingSent => {
                request = *untouched;
            }
            Err(lost) => return Err(lost.error),
        }
    }
    let mut link = pool.connect().await?;
    match link.send(request).await {
        Ok(response) => Ok((link, response)),
        Err(lost) => Err(lost.error),
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
