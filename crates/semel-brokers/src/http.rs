//! HTTP, signed according to [Standard Webhooks](https://www.standardwebhooks.com).
//!
//! ```
//! use semel_brokers::http;
//!
//! let sink = http::Options::new("https://example.com/events")
//!     .secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
//!     .open()?;
//! # Ok::<(), semel_brokers::Error>(())
//! ```

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use ::http::{Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::aws_lc_rs;
use semel_core::outbox::{self, Event, MAX_REASON_BYTES, Publishing, Refused};
use semel_core::{Clock, SystemClock};
use semel_worker::webhook::{MAX_SECRETS, Signer};

use crate::{Error, rejected, unavailable};

/// The header with the kind of the event. Bytes that are not visible ASCII, and `%`, are
/// percent-encoded.
pub const KIND: HeaderName = HeaderName::from_static("semel-event-kind");

/// The header with the aggregate of the event, encoded like [`KIND`].
pub const AGGREGATE: HeaderName = HeaderName::from_static("semel-aggregate");

/// The default time to wait for a response: the minimum that Standard Webhooks recommends.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// The timeout of connecting, as a part of that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the body of a response may take after its head.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// The largest response body that is read to its end, so that the connection can be reused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of idle connections.
const MAX_IDLE: usize = 64;

/// The settings of a [`Sink`].
pub struct Options {
    url: Box<str>,
    secrets: Vec<Box<str>>,
    timeout: Duration,
    clock: Arc<dyn Clock>,
}

/// Posts events to a receiver.
pub struct Sink {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    signer: Signer,
    timeout: Duration,
    clock: Arc<dyn Clock>,
}

impl Options {
    /// The URL of a receiver, `http://` or `https://`.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            secrets: Vec::new(),
            timeout: RESPONSE_TIMEOUT,
            clock: Arc::new(SystemClock),
        }
    }

    /// Adds a signing secret (`whsec_` and base64). Requests are signed with every secret, so that
    /// receivers can change from one to the other.
    pub fn secret(mut self, secret: impl Into<Box<str>>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// How long the sink waits for a response.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The clock for the timestamp of the signature.
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self {
            clock: Arc::new(clock),
            ..self
        }
    }

    /// Opens the sink. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error`] if the settings are invalid.
    pub fn open(self) -> Result<Sink, Error> {
        if !(1..=MAX_SECRETS).contains(&self.secrets.len()) {
            return Err(Error::Bounds {
                setting: "number of secrets",
                min: 1,
                max: MAX_SECRETS as u64,
                value: self.secrets.len() as u64,
            });
        }
        let signer = Signer::new(self.secrets.iter().map(|secret| &**secret))
            .map_err(|error| Error::Secret(error.to_string().into()))?;
        Ok(Sink {
            client: build_client()?,
            url: parse_url(&self.url)?,
            signer,
            timeout: self.timeout,
            clock: self.clock,
        })
    }
}

fn parse_url(url: &str) -> Result<Uri, Error> {
    let invalid = |reason: &str| Error::Address {
        server: "webhook receiver",
        reason: format!("{reason}. Write https://HOST/PATH").into(),
    };
    let url: Uri = url.parse().map_err(|_| invalid("it is not a URL"))?;
    match url.scheme_str() {
        Some("http" | "https") => {}
        Some(_) | None => return Err(invalid("the scheme is neither http nor https")),
    }
    match url.authority() {
        Some(authority) if authority.as_str().contains('@') => Err(invalid(
            "it must not contain a user: the signature authenticates the sender",
        )),
        Some(_) => Ok(url),
        None => Err(invalid("it has no host")),
    }
}

/// Builds a client that uses the operating system's root certificates.
fn build_client() -> Result<Client<HttpsConnector<HttpConnector>, Full<Bytes>>, Error> {
    let tls_error = |error: &dyn fmt::Display| Error::Tls(error.to_string().into());
    // The process may have no default provider, or another one.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(&error))?
        .with_native_roots()
        .map_err(|error| tls_error(&error))?
        .with_no_client_auth();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    // The client follows no redirects: only the configuration decides who receives events.
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector))
}

impl outbox::Sink for Sink {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            event.check().map_err(rejected)?;
            let request = self.request(event).map_err(rejected)?;
            tokio::time::timeout(self.timeout, self.send(request))
                .await
                .unwrap_or_else(|_| {
                    Err(unavailable(format!(
                        "no response within {:?}",
                        self.timeout
                    )))
                })
        })
    }
}

impl Sink {
    fn request(&self, event: &Event) -> Result<Request<Full<Bytes>>, ::http::Error> {
        let mut request = Request::post(&self.url)
            .header(USER_AGENT, "semel")
            .header(CONTENT_TYPE, "application/json")
            .header(KIND, encode_header(&event.kind)?)
            .header(AGGREGATE, encode_header(&event.aggregate)?)
            .body(Full::new(event.payload.clone()))?;
        let id = event.id.to_string();
        let signature = self.signer.sign(&id, self.clock.now(), &event.payload)?;
        request.headers_mut().extend(signature);
        Ok(request)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(), Refused> {
        let response = self.client.request(request).await.map_err(|error| {
            // Only the source of the error describes the cause.
            let source = std::error::Error::source(&error);
            unavailable(source.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        let status = response.status();
        let excerpt = read_excerpt(response.into_body()).await;
        if status.is_success() {
            return Ok(());
        }
        let reason = format!("the receiver answered {status}: {excerpt}");
        Err(if is_permanent(status) {
            rejected(reason)
        } else {
            unavailable(reason)
        })
    }
}

/// Whether the receiver would refuse the same event again. Statuses that ask for a later retry are
/// temporary. So are redirects, which depend on the receiver and not on the event.
fn is_permanent(status: StatusCode) -> bool {
    status.is_client_error()
        && ![
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::CONFLICT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&status)
}

/// Reads the beginning of a response body, for the reason. A body that is too long or too slow is
/// not read to its end, and its connection is closed: the status alone decides.
async fn read_excerpt(body: Incoming) -> String {
    let mut body = Limited::new(body, MAX_RESPONSE_BYTES);
    let mut excerpt = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                let room = MAX_REASON_BYTES - excerpt.len();
                excerpt.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // A timeout only shortens the excerpt.
    let _ = tokio::time::timeout(BODY_TIMEOUT, reading).await;
    String::from_utf8_lossy(&excerpt).into_owned()
}

/// Percent-encodes a name as a header value.
fn encode_header(name: &str) -> Result<HeaderValue, ::http::Error> {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Ok(HeaderValue::from_str(&encoded)?)
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the path, which may hold a token.
        f.debug_struct("Sink")
            .field("receiver", &self.url.authority())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_https_urls_without_a_user_are_accepted() {
        for valid in ["http://localhost:8080", "https://example.com/events?a=b"] {
            assert!(parse_url(valid).is_ok(), "{valid}");
        }
        for invalid in [
            "",
            "/events",
            "ftp://example.com",
            "https://user@example.com/",
        ] {
            assert!(parse_url(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn names_are_percent_encoded_in_headers() {
        assert_eq!(encode_header("payment/1").unwrap(), "payment/1");
        assert_eq!(encode_header("é%").unwrap(), "%C3%A9%25");
    }

    #[test]
    fn opening_without_a_valid_secret_fails() {
        let open = |secrets: &[&str]| {
            let options = Options::new("http://localhost");
            let options = secrets.iter().fold(options, |o, s| o.secret(*s));
            options.open().map(|_| ())
        };
        assert!(matches!(open(&[]), Err(Error::Bounds { .. })));
        assert!(matches!(open(&["whsec_x"]), Err(Error::Secret(_))));
        assert_eq!(open(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]), Ok(()));
    }
}
