//! A minimal HTTP/1.1 client that can also misbehave.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// A little longer than a gateway waits for its application. If it also waits for its store, the
/// client retries.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long operators wait for a list.
const OPERATORS_PATIENCE: Duration = Duration::from_secs(20);
const MAX_HEADERS: usize = 64;
/// Nothing that the campaign asks for is larger, but the operators' lists.
const MAX_ANSWER: usize = 16 << 20;
/// How many bytes a slow sender sends at a time, and how long it rests between.
const DRIBBLE: usize = 40;
const REST: Duration = Duration::from_millis(40);

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

/// Connections that are kept, one a server.
#[derive(Debug)]
pub(crate) struct Connections {
    kept: BTreeMap<SocketAddr, TcpStream>,
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
            patience,
        }
    }

    /// Sends a request and reads the answer, on a kept-alive connection if there is one.
    pub(crate) async fn call(&mut self, to: SocketAddr, request: &[u8], manner: SendMode) -> Reply {
        let stream = match self.kept.remove(&to) {
            Some(stream) if manner == SendMode::Normal => stream,
            Some(_) | None => match timeout(self.patience, TcpStream::connect(to)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(_)) | Err(_) => return Reply::Refused,
            },
        };
        let mut stream = stream;
        let _ = stream.set_nodelay(true);
        match timeout(self.patience, converse(&mut stream, request, manner)).await {
            Ok(Ok(answer)) => {
                let closes = answer.header("connection");
                if closes.is_none_or(|what| !what.eq_ignore_ascii_case("close")) {
                    self.kept.insert(to, stream);
                }
                Reply::Answer(answer)
            }
            Ok(Err(error)) => {
                let _ = stream.set_zero_linger();
                Reply::Nothing(format!("{error:#}"))
            }
            Err(_) => Reply::Nothing("no answer in time".to_owned()),
        }
    }
}

async fn converse(stream: &mut TcpStream, request: &[u8], manner: SendMode) -> Result<Answer> {
    match manner {
        SendMode::Normal => stream.write_all(request).await?,
        SendMode::CutAt(length) => {
            let length = length.min(request.len());
            stream.write_all(&request[..length]).await?;
            bail!("disconnected after {length} bytes of {}", request.len());
        }
        SendMode::HangUp { after, bytes } => {
            stream.write_all(request).await?;
            let mut received = vec![0; bytes.max(1)];
            // The rest of the answer is not read in any case.
            let _ = timeout(after, stream.read_exact(&mut received)).await;
            bail!("hung up before the end of the answer");
        }
        SendMode::Slowly => {
            for piece in request.chunks(DRIBBLE) {
                stream.write_all(piece).await?;
                sleep(REST).await;
            }
        }
    }
    read_answer(stream).await
}

async fn read_answer(stream: &mut TcpStream) -> Result<Answer> {
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

/// Asks for JSON, or tells it; for operators, the provider and the application.
pub(crate) async fn ask(to: SocketAddr, path: &str, body: Option<&Value>) -> Result<Value> {
    let text = body.map(Value::to_string).unwrap_or_default();
    let method = if body.is_some() { "POST" } else { "GET" };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    let mut connections = Connections::patient(OPERATORS_PATIENCE);
    match connections
        .call(to, request.as_bytes(), SendMode::Normal)
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
        let address = server(ANSWER).await;
        for _ in 0..2 {
            let received = connections.call(address, b"x", SendMode::Normal).await;
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
            let received = connections.call(address, b"x", manner).await;
            assert!(matches!(received, Reply::Nothing(_)), "{received:?}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = listener.local_addr().unwrap();
        drop(listener);
        let received = connections.call(gone, b"x", SendMode::Normal).await;
        assert!(matches!(received, Reply::Refused), "{received:?}");
    }
}
