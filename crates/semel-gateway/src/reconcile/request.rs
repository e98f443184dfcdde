//! Sends one request on its own connection and reads the response: polls, replays, and keys of issuers.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use semel_core::Code;
use semel_core::history::MAX_EVIDENCE;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// The server that is polled.
#[derive(Debug)]
pub(crate) struct PollServer {
    authority: Authority,
    host: Box<str>,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// A response whose head arrived.
#[derive(Debug)]
pub(crate) struct PollResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Complete if it was needed, else only its beginning.
    pub(crate) body: Result<Bytes, PollError>,
}

/// Why there is no response, or only a part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PollError {
    #[error("unreachable: {0}")]
    Unreachable(String),
    #[error("timed out")]
    TimedOut,
    #[error("connection failed: {0}")]
    BrokeOff(String),
    #[error("the response body ended prematurely: {0}")]
    Truncated(String),
    #[error("the response has no length, so a truncated one cannot be detected")]
    Unframed,
    #[error("the response is larger than `max_response`")]
    TooLarge,
}

impl PollError {
    pub(crate) fn code(&self) -> Code {
        Code::from(match self {
            Self::Unreachable(_) => "poll_unreachable",
            Self::TimedOut => "poll_timed_out",
            Self::BrokeOff(_) => "poll_broke_off",
            Self::Truncated(_) => "poll_truncated",
            Self::Unframed => "poll_unframed",
            Self::TooLarge => "poll_too_large",
        })
    }
}

impl PollServer {
    pub(crate) fn new(
        authority: &Authority,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self, InvalidDnsNameError> {
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let default = if tls.is_some() { 443 } else { 80 };
        let tls = match tls {
            Some(tls) => Some((tls, ServerName::try_from(host.to_owned())?)),
            None => None,
        };
        Ok(Self {
            authority: authority.clone(),
            host: host.into(),
            port: authority.port_u16().unwrap_or(default),
            tls,
        })
    }
}

impl fmt::Display for PollServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

/// Sends one request. If `needs_body` is true for the status, the response body is read to its end,
/// up to `limit` bytes; otherwise only its beginning.
pub(crate) async fn send(
    server: &PollServer,
    path: &str,
    headers: HeaderMap,
    needs_body: impl Fn(StatusCode) -> bool,
    limit: usize,
) -> Result<PollResponse, PollError> {
    let request = build(server, path, headers)?;
    let unreachable = |error: std::io::Error| PollError::Unreachable(error.to_string());
    let stream = TcpStream::connect((&*server.host, server.port))
        .await
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    match &server.tls {
        Some((tls, name)) => {
            let connector = TlsConnector::from(Arc::clone(tls));
            let stream = connector
                .connect(name.clone(), stream)
                .await
                .map_err(unreachable)?;
            exchange(TokioIo::new(stream), request, needs_body, limit).await
        }
        None => exchange(TokioIo::new(stream), request, needs_body, limit).await,
    }
}

fn build(
    server: &PollServer,
    path: &str,
    headers: HeaderMap,
) -> Result<Request<Empty<Bytes>>, PollError> {
    let invalid = |error: http::Error| PollError::Unreachable(error.to_string());
    let mut request = Request::get(path).body(Empty::new()).map_err(invalid)?;
    *request.headers_mut() = headers;
    let host =
        HeaderValue::from_str(server.authority.as_str()).map_err(|error| invalid(error.into()))?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, HeaderValue::from_static("semel"));
    // The response is stored for a client that may not support any content coding.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(request)
}

async fn exchange<T>(
    io: T,
    request: Request<Empty<Bytes>>,
    needs_body: impl Fn(StatusCode) -> bool,
    limit: usize,
) -> Result<PollResponse, PollError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let broke_off = |error: hyper::Error| PollError::BrokeOff(error.to_string());
    let (mut sender, connection) = http1::handshake(io).await.map_err(broke_off)?;
    // Dropping this future closes the connection.
    let _connection_task = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(broke_off)?;
    let (head, body) = response.into_parts();
    let body = if needs_body(head.status) {
        let framed = body.is_end_stream()
            || head.headers.contains_key(CONTENT_LENGTH)
            || head.headers.contains_key(TRANSFER_ENCODING);
        if framed {
            read_complete(body, limit).await
        } else {
            Err(PollError::Unframed)
        }
    } else {
        Ok(read_beginning(body).await)
    };
    Ok(PollResponse {
        status: head.status,
        headers: head.headers,
        body,
    })
}

async fn read_complete(mut body: Incoming, limit: usize) -> Result<Bytes, PollError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(PollError::TooLarge);
    }
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| PollError::Truncated(error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > limit {
                return Err(PollError::TooLarge);
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(all.freeze())
}

/// The beginning of a body, for the evidence; read errors end it silently.
async fn read_beginning(mut body: Incoming) -> Bytes {
    let mut beginning = BytesMut::new();
    while beginning.len() < MAX_EVIDENCE
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Ok(data) = frame.into_data() {
            beginning.extend_from_slice(&data);
        }
    }
    beginning.truncate(MAX_EVIDENCE);
    beginning.freeze()
}
