//! One request and its answer, on a connection of its own.

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

/// Who is asked.
#[derive(Debug)]
pub(super) struct Server {
    authority: Authority,
    host: Box<str>,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// An answer whose head came.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Whole where the whole was asked for, else as much as is worth showing.
    pub(super) body: Result<Bytes, Unanswered>,
}

/// Why there is no answer, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("not reached: {0}")]
    Unreachable(String),
    #[error("no answer in time")]
    TimedOut,
    #[error("broke off: {0}")]
    BrokeOff(String),
    #[error("the answer broke off: {0}")]
    Truncated(String),
    #[error("the answer has no length, so nobody can say that it is whole")]
    Unframed,
    #[error("the answer is larger than `max_response`")]
    TooLarge,
}

impl Unanswered {
    pub(super) fn code(&self) -> Code {
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

impl Server {
    pub(super) fn new(
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

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

/// Sends one request. The body of an answer for whose status `whole` is true is read to its end,
/// up to `limit` bytes; of any other, only the beginning.
pub(super) async fn ask(
    server: &Server,
    path: &str,
    headers: HeaderMap,
    whole: impl Fn(StatusCode) -> bool,
    limit: usize,
) -> Result<Answer, Unanswered> {
    let request = request(server, path, headers)?;
    let unreachable = |error: std::io::Error| Unanswered::Unreachable(error.to_string());
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
            exchange(TokioIo::new(stream), request, whole, limit).await
        }
        None => exchange(TokioIo::new(stream), request, whole, limit).await,
    }
}

fn request(
    server: &Server,
    path: &str,
    headers: HeaderMap,
) -> Result<Request<Empty<Bytes>>, Unanswered> {
    let unaskable = |error: http::Error| Unanswered::Unreachable(error.to_string());
    let mut request = Request::get(path).body(Empty::new()).map_err(unaskable)?;
    *request.headers_mut() = headers;
    let host = HeaderValue::from_str(server.authority.as_str())
        .map_err(|error| unaskable(error.into()))?;
    let lines = request.headers_mut();
    lines.insert(HOST, host);
    lines.insert(USER_AGENT, HeaderValue::from_static("semel"));
    // The answer is stored for a client that may not understand any coding.
    lines.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Ok(request)
}

async fn exchange<T>(
    io: T,
    request: Request<Empty<Bytes>>,
    whole: impl Fn(StatusCode) -> bool,
    limit: usize,
) -> Result<Answer, Unanswered>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let broke_off = |error: hyper::Error| Unanswered::BrokeOff(error.to_string());
    let (mut sender, connection) = http1::handshake(io).await.map_err(broke_off)?;
    // Dropped with this future, and the connection with it.
    let _driven = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.map_err(broke_off)?;
    let (head, body) = response.into_parts();
    let body = if whole(head.status) {
        let framed = body.is_end_stream()
            || head.headers.contains_key(CONTENT_LENGTH)
            || head.headers.contains_key(TRANSFER_ENCODING);
        if framed {
            read_whole(body, limit).await
        } else {
            Err(Unanswered::Unframed)
        }
    } else {
        Ok(read_some(body).await)
    };
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body,
    })
}

async fn read_whole(mut body: Incoming, limit: usize) -> Result<Bytes, Unanswered> {
    if body.size_hint().lower() > limit as u64 {
        return Err(Unanswered::TooLarge);
    }
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Unanswered::Truncated(error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > limit {
                return Err(Unanswered::TooLarge);
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(all.freeze())
}

/// The beginning of a body, for people: what breaks off is shown as far as it came.
async fn read_some(mut body: Incoming) -> Bytes {
    let mut some = BytesMut::new();
    while some.len() < MAX_EVIDENCE
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Ok(data) = frame.into_data() {
            some.extend_from_slice(&data);
        }
    }
    some.truncate(MAX_EVIDENCE);
    some.freeze()
}
