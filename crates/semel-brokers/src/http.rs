//! HTTP, signed as [Standard Webhooks](https://www.standardwebhooks.com) says.
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

/// What happened, in a header: bytes that are not visible ASCII, and `%`, as `%` and two
/// hexadecimal digits.
pub const KIND: HeaderName = HeaderName::from_static("semel-event-kind");

/// To what it happened, in a header; written as [`KIND`] is.
pub const AGGREGATE: HeaderName = HeaderName::from_static("semel-aggregate");

/// How long an answer is waited for, unless it is told: what Standard Webhooks recommends at least.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long a connection may take of it.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long the body of an answer may take after its head.
const BODY_PATIENCE: Duration = Duration::from_secs(1);

/// The largest answer for whose sake a connection is kept.
const MAX_ANSWER: usize = 64 << 10;

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(30);

/// How many of them.
const MAX_IDLE: usize = 64;

/// How a [`Sink`] is opened.
pub struct Options {
    url: Box<str>,
    secrets: Vec<Box<str>>,
    patience: Duration,
    clock: Arc<dyn Clock>,
}

/// Posts events.
pub struct Sink {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    signer: Signer,
    patience: Duration,
    clock: Arc<dyn Clock>,
}

impl Options {
    /// A receiver by its address, `http://` or `https://`.
    pub fn new(url: impl Into<Box<str>>) -> Self {
        Self {
            url: url.into(),
            secrets: Vec::new(),
            patience: PATIENCE,
            clock: Arc::new(SystemClock),
        }
    }

    /// Signs with this secret (`whsec_` and base64), and with all that were said before: two are
    /// for the time in which one takes the place of another.
    pub fn secret(mut self, secret: impl Into<Box<str>>) -> Self {
        self.secrets.push(secret.into());
        self
    }

    /// How long an answer is waited for.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Takes the time of signing from here.
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self {
            clock: Arc::new(clock),
            ..self
        }
    }

    /// Opens the sink. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error`], where the settings make no sense.
    pub fn open(self) -> Result<Sink, Error> {
        if !(1..=MAX_SECRETS).contains(&self.secrets.len()) {
            return Err(Error::Bounds {
                what: "the number of secrets",
                least: 1,
                most: MAX_SECRETS as u64,
                found: self.secrets.len() as u64,
            });
        }
        let signer = Signer::new(self.secrets.iter().map(|secret| &**secret))
            .map_err(|error| Error::Secret(error.to_string().into()))?;
        Ok(Sink {
            client: client()?,
            url: address(&self.url)?,
            signer,
            patience: self.patience,
            clock: self.clock,
        })
    }
}

fn address(url: &str) -> Result<Uri, Error> {
    let wrong = |reason: &str| Error::Address {
        server: "receiver of webhooks",
        reason: format!("{reason}. Write https://HOST/PATH").into(),
    };
    let url: Uri = url.parse().map_err(|_| wrong("it is no URL"))?;
    match url.scheme_str() {
        Some("http" | "https") => {}
        Some(_) | None => return Err(wrong("it has neither http:// nor https://")),
    }
    match url.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err(wrong("it has a user, and the signature says who we are"))
        }
        Some(_) => Ok(url),
        None => Err(wrong("it has no host")),
    }
}

/// Believes those whom this machine believes.
fn client() -> Result<Client<HttpsConnector<HttpConnector>, Full<Bytes>>, Error> {
    let cannot = |error: &dyn fmt::Display| Error::Tls(error.to_string().into());
    // Named, not taken from the process: that may have none, or another.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| cannot(&error))?
        .with_native_roots()
        .map_err(|error| cannot(&error))?
        .with_no_client_auth();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_PATIENCE));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    // It follows no redirects: whom the events are for is for the configuration to say.
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE)
        .build(connector))
}

impl outbox::Sink for Sink {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        Box::pin(async move {
            event.check().map_err(rejected)?;
            let request = self.request(event).map_err(rejected)?;
            tokio::time::timeout(self.patience, self.send(request))
                .await
                .unwrap_or_else(|_| {
                    Err(unavailable(format!("no answer within {:?}", self.patience)))
                })
        })
    }
}

impl Sink {
    fn request(&self, event: &Event) -> Result<Request<Full<Bytes>>, ::http::Error> {
        let mut request = Request::post(&self.url)
            .header(USER_AGENT, "semel")
            .header(CONTENT_TYPE, "application/json")
            .header(KIND, escaped(&event.kind)?)
            .header(AGGREGATE, escaped(&event.aggregate)?)
            .body(Full::new(event.payload.clone()))?;
        let id = event.id.to_string();
        let signature = self.signer.sign(&id, self.clock.now(), &event.payload)?;
        request.headers_mut().extend(signature);
        Ok(request)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(), Refused> {
        let response = self.client.request(request).await.map_err(|error| {
            // The error alone says that something went wrong; its source says what.
            let source = std::error::Error::source(&error);
            unavailable(source.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        let status = response.status();
        let beginning = beginning(response.into_body()).await;
        if status.is_success() {
            return Ok(());
        }
        let reason = format!("the receiver answered {status}: {beginning}");
        Err(if blames_event(status) {
            rejected(reason)
        } else {
            unavailable(reason)
        })
    }
}

/// Whether the same event would be refused again. Not those that ask for another time; and a
/// redirect is a receiver that moved, which is nothing an event could help.
fn blames_event(status: StatusCode) -> bool {
    status.is_client_error()
        && ![
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::CONFLICT,
            StatusCode::TOO_EARLY,
            StatusCode::TOO_MANY_REQUESTS,
        ]
        .contains(&status)
}

/// As much of an answer as is kept. What is longer or slower is not read to its end, and costs the
/// connection: the status has said everything.
async fn beginning(body: Incoming) -> String {
    let mut body = Limited::new(body, MAX_ANSWER);
    let mut beginning = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                let room = MAX_REASON_BYTES - beginning.len();
                beginning.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // Whether it came to an end is all the same.
    let _ = tokio::time::timeout(BODY_PATIENCE, reading).await;
    String::from_utf8_lossy(&beginning).into_owned()
}

/// A name as a header value, whatever it is.
fn escaped(name: &str) -> Result<HeaderValue, ::http::Error> {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Ok(HeaderValue::from_str(&escaped)?)
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
    fn an_address_is_a_url_of_http() {
        for right in ["http://localhost:8080", "https://example.com/events?a=b"] {
            assert!(address(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            "/events",
            "ftp://example.com",
            "https://user@example.com/",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_fit_into_headers() {
        assert_eq!(escaped("payment/1").unwrap(), "payment/1");
        assert_eq!(escaped("é%").unwrap(), "%C3%A9%25");
    }

    #[test]
    fn without_a_secret_there_is_no_sink() {
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
