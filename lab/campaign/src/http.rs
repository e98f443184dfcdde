//! A minimal HTTP client that can also misbehave: HTTP/1.1 here, HTTP/2 in [`http2`](crate::http2).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use semel_campaign_checker::history::Transport;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use crate::http2::Http2;
use crate::tls::Tls;

/// A little longer than a gateway waits for its application. If it also waits for its store, the
/// client retries.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long operators wait for a list.
const OPERATORS_PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const MAX_HEADERS: usize = 64;
/// Nothing that the campaign asks for is larger, but the operators' lists.
pub(crate) const MAX_ANSWER: usize = 16 << 20;
/// How many bytes a slow sender sends at a time, and how long it rests between.
pub(crate) const DRIBBLE: usize = 40;
pub(crate) const REST: Duration = Duration::from_millis(40);

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Correctly.
    Normal,
    /// Only so many bytes; then the connection is reset.
    CutAt(usize),
    /// All of it; then the connection is reset, after this time or this many bytes of the answer.
    HangUp { after: Duration, bytes: usize },
    /// In small pieces.
    Slowly,
}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    /// There was no connection: nothing was sent.
    Refused,
    /// It was sent, at least partly, and this is why there is no answer.
    Nothing(String),
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// All lines, in their order. Names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = self.headers.iter().find(|(known, _)| known == name)?;
        Some(&line.1)
    }
}

/// Where a server is, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// `None` is plain TCP.
    pub(crate) tls: Option<Tls>,
    /// Over TLS only.
    pub(crate) is_http2: bool,
}

impl Endpoint {
    pub(crate) fn plain(address: SocketAddr) -> Self {
        Self {
            address,
            tls: None,
            is_http2: false,
        }
    }

    pub(crate) fn transport(&self) -> Transport {
        match (&self.tls, self.is_http2) {
            (None, _) => Transport::Plain,
            (Some(_), false) => Transport::Tls,
            (Some(_), true) => Transport::Http2,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(crate) async fn connect(to: &Endpoint) -> Result<Self> {
        Ok(match &to.tls {
            None => {
                let stream = TcpStream::connect(to.address).await?;
                stream.set_nodelay(true)?;
                Self::Plain(stream)
            }
            Some(tls) => Self::Tls(Box::new(tls.connect(to.address, to.is_http2).await?)),
        })
    }

    async fn converse(&mut self, request: &[u8], manner: SendMode) -> Result<Answer> {
        match self {
            Self::Plain(stream) => converse(stream, request, manner).await,
            Self::Tls(stream) => converse(stream, request, manner).await,
        }
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).await,
            Self::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Reads until the server closes it.
    pub(crate) async fn read_to_end(&mut self) -> io::Result<usize> {
        let mut received = Vec::new();
        match self {
            Self::Plain(stream) => stream.read_to_end(&mut received).await,
            Self::Tls(stream) => stream.read_to_end(&mut received).await,
        }
    }

    /// Whether it was reset.
    pub(crate) fn has_failed(&self) -> bool {
        self.tcp().take_error().ok().flatten().is_some()
    }

    /// Closes by a reset, once it is dropped.
    fn reset(&self) {
        // Fails only for a stream that is closed.
        let _ = self.tcp().set_zero_linger();
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// Connections that are kept, one a server.
#[derive(Debug)]
pub(crate) struct Connections {
    kept: BTreeMap<SocketAddr, Stream>,
    http2: BTreeMap<SocketAddr, Http2>,
    patience: Duration,
}

impl Default for Connections {
    fn default() -> Self {
        Self::patient(PATIENCE)
    }
}

impl Connections {
    fn patient(patience: Duration) -> Self {
        Self {
            kept: BTreeMap::new(),
            http2: BTreeMap::new(),
            patience,
        }
    }

    /// For requests at the same time as these: over the same HTTP/2 connections, and over other
    /// HTTP/1.1 ones.
    pub(crate) fn beside(&self) -> Self {
        Self {
            http2: self.http2.clone(),
            ..Self::patient(self.patience)
        }
    }

    /// Sends a request and reads the answer, on a kept-alive connection if there is one.
    pub(crate) async fn call(&mut self, to: &Endpoint, request: &[u8], manner: SendMode) -> Reply {
        if to.transport() == Transport::Http2 {
            return self.call_http2(to, request, manner).await;
        }
        let kept = self.kept.remove(&to.address);
        let mut stream = match kept.filter(|_| manner == SendMode::Normal) {
            Some(stream) => stream,
            None => match timeout(self.patience, Stream::connect(to)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(_)) | Err(_) => return Reply::Refused,
            },
        };
        match timeout(self.patience, stream.converse(request, manner)).await {
            Ok(Ok(answer)) => {
                let closes = answer.header("connection");
                if closes.is_none_or(|what| !what.eq_ignore_ascii_case("close")) {
                    self.kept.insert(to.address, stream);
                }
                Reply::Answer(answer)
            }
            Ok(Err(error)) => {
                stream.reset();
                Reply::Nothing(format!("{error:#}"))
            }
            Err(_) => Reply::Nothing("no answer in time".to_owned()),
        }
    }

    async fn call_http2(&mut self, to: &Endpoint, request: &[u8], manner: SendMode) -> Reply {
        let kept = self.http2.get(&to.address).cloned();
        let kept = kept.filter(|kept| kept.is_open() && !Http2::resets_connection(manner));
        let connection = match kept {
            Some(connection) => connection,
            None => match timeout(self.patience, Http2::connect(to, manner)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(_)) | Err(_) => return Reply::Refused,
            },
        };
        if !Http2::resets_connection(manner) {
            self.http2.insert(to.address, connection.clone());
        }
        match timeout(self.patience, connection.converse(request, manner)).await {
            Ok(Ok(answer)) => Reply::Answer(answer),
            Ok(Err(error)) => Reply::Nothing(format!("{error:#}")),
            Err(_) => Reply::Nothing("no answer in time".to_owned()),
        }
    }
}

async fn converse<S>(stream: &mut S, request: &[u8], manner: SendMode) -> Result<Answer>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match manner {
        SendMode::Normal => stream.write_all(request).await?,
        SendMode::CutAt(length) => {
            let length = length.min(request.len());
            stream.write_all(&request[..length]).await?;
            stream.flush().await?;
            bail!("disconnected after {length} bytes of {}", request.len());
        }
        SendMode::HangUp { after, bytes } => {
            stream.write_all(request).await?;
            stream.flush().await?;
            let mut received = vec![0; bytes.max(1)];
            // The rest of the answer is not read in any case.
            let _ = timeout(after, stream.read_exact(&mut received)).await;
            bail!("hung up before the end of the answer");
        }
        SendMode::Slowly => {
            for piece in request.chunks(DRIBBLE) {
                stream.write_all(piece).await?;
                stream.flush().await?;
                sleep(REST).await;
            }
        }
    }
    stream.flush().await?;
    read_answer(stream).await
}

async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Result<Answer> {
    let mut received = Vec::with_capacity(2_048);
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            bail!("the connection ended after {} bytes", received.len());
        }
        if let Some((mut answer, head)) = parse(&received)? {
            let length: usize = match answer.header("content-length") {
                Some(length) => length.parse().context("a length that is none")?,
                None => bail!("an answer without a length"),
            };
            if length > MAX_ANSWER {
                bail!("an answer of {length} bytes");
            }
            while received.len() < head + length {
                if stream.read_buf(&mut received).await? == 0 {
                    bail!("the answer broke off");
                }
            }
            answer.body = received[head..head + length].to_vec();
            return Ok(answer);
        }
    }
}

/// The head of an answer, once it is whole, and how long it is.
fn parse(received: &[u8]) -> Result<Option<(Answer, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(received).context("no HTTP")? else {
        return Ok(None);
    };
    let status = response.code.context("no status")?;
    let headers = response.headers.iter().map(|header| {
        let value = String::from_utf8_lossy(header.value).into_owned();
        (header.name.to_ascii_lowercase(), value)
    });
    let answer = Answer {
        status,
        headers: headers.collect(),
        body: Vec::new(),
    };
    Ok(Some((answer, length)))
}

/// What operators of a gateway with a token send; all others ignore it.
pub(crate) const ADMIN_TOKEN: &str = "an-operator-of-the-campaign";

/// Sends a payment that the application refuses, with a key. Returns the status of the response.
pub(crate) async fn send_empty_payment(to: SocketAddr) -> Option<u16> {
    let request = "POST /unkeyed/payments HTTP/1.1\r\nHost: shop.example\r\n\
         Authorization: Bearer tenant-without-payments\r\nIdempotency-Key: \"a-key-of-no-payment\"\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let mut connections = Connections::patient(OPERATORS_PATIENCE);
    let endpoint = Endpoint::plain(to);
    let sent = connections.call(&endpoint, request.as_bytes(), SendMode::Normal);
    match sent.await {
        Reply::Answer(answer) => Some(answer.status),
        Reply::Refused | Reply::Nothing(_) => None,
    }
}

/// Asks for JSON, or tells it; for operators, the provider and the application.
pub(crate) async fn ask(to: SocketAddr, path: &str, body: Option<&Value>) -> Result<Value> {
    let text = body.map(Value::to_string).unwrap_or_default();
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {ADMIN_TOKEN}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let mut connections = Connections::patient(OPERATORS_PATIENCE);
    match connections
        .call(&Endpoint::plain(to), request.as_bytes(), SendMode::Normal)
        .await
    {
        Reply::Answer(answer) if answer.status < 300 => {
            serde_json::from_slice(&answer.body).with_context(|| format!("{path}: no JSON"))
        }
        Reply::Answer(answer) => bail!(
            "{path}: {} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        ),
        Reply::Refused => bail!("{path}: connection refused"),
        Reply::Nothing(why) => bail!("{path}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nA: b\r\n\r\n{}";

    /// A server that takes so many connections, and answers each of their requests with this.
    async fn server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1_024];
                while stream
                    .read(&mut request)
                    .await
                    .is_ok_and(|length| length > 0)
                {
                    if stream.write_all(answer).await.is_err() {
                        break;
                    }
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn an_answer_is_heard_whole_or_not_at_all() {
        let mut connections = Connections::default();
        let to = Endpoint::plain(server(ANSWER).await);
        for _ in 0..2 {
            let received = connections.call(&to, b"x", SendMode::Normal).await;
            let Reply::Answer(answer) = received else {
                panic!("{received:?}")
            };
            assert_eq!((answer.status, &*answer.body), (201, &b"{}"[..]));
            assert_eq!(answer.header("a"), Some("b"));
        }
        let hang_up = SendMode::HangUp {
            after: Duration::from_millis(1),
            bytes: 10,
        };
        for manner in [hang_up, SendMode::CutAt(0)] {
            let received = connections.call(&to, b"x", manner).await;
            assert!(matches!(received, Reply::Nothing(_)), "{received:?}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = listener.local_addr().unwrap();
        drop(listener);
        let received = connections
            .call(&Endpoint::plain(gone), b"x", SendMode::Normal)
            .await;
        assert!(matches!(received, Reply::Refused), "{received:?}");
    }
}
