//! The HTTP/2 side of the client: requests of several callers share a connection, and a caller that
//! leaves resets its stream, or the connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::stream::{self, StreamExt as _};
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::http::{Answer, DRIBBLE, Endpoint, MAX_ANSWER, MAX_HEADERS, REST, SendMode};

/// What a call that reset its stream says.
pub(crate) const RESET_STREAM: &str = "reset the stream";
/// How long frames may take to leave before their connection is reset.
const DEPARTURE: Duration = Duration::from_millis(20);
/// More bytes of the answer than this, and a caller that hangs up waits for its head.
const HEAD: usize = 200;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A connection. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Http2 {
    requests: SendRequest<Body>,
    connection: Arc<Connection>,
}

/// The task of a connection. Dropping it closes the connection.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Complete,
    /// The stream is reset.
    Reset,
    /// It does not.
    Never,
}

impl Http2 {
    /// Whether HTTP/2 can express this request: it has no `Transfer-Encoding`.
    pub(crate) fn can_carry(request: &[u8]) -> bool {
        const LINE: &[u8] = b"Transfer-Encoding";
        !request.windows(LINE.len()).any(|window| window == LINE)
    }

    /// Whether a caller that leaves takes its connection along; half of them do.
    pub(crate) fn resets_connection(manner: SendMode) -> bool {
        match manner {
            SendMode::Normal | SendMode::Slowly => false,
            SendMode::CutAt(bytes) | SendMode::HangUp { bytes, .. } => bytes % 2 == 1,
        }
    }

    pub(crate) async fn connect(to: &Endpoint, manner: SendMode) -> Result<Self> {
        let tls = to.tls.as_ref().context("HTTP/2 without TLS")?;
        let stream = tls.connect(to.address, true).await?;
        if Self::resets_connection(manner) {
            stream.get_ref().0.set_zero_linger()?;
        }
        let (requests, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let task = tokio::spawn(async move {
            // Its requests report the error.
            let _ = connection.await;
        });
        Ok(Self {
            requests,
            connection: Arc::new(Connection(task)),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.requests.is_closed()
    }

    pub(crate) async fn converse(mut self, request: &[u8], manner: SendMode) -> Result<Answer> {
        self.requests.ready().await?;
        let (head, body) = parse(request)?;
        let leave = |connection: &Connection| {
            if Self::resets_connection(manner) {
                connection.0.abort();
                "reset the connection"
            } else {
                RESET_STREAM
            }
        };
        match manner {
            SendMode::Normal => {
                let sent = self.requests.send_request(head.map(|()| whole(body)));
                read_answer(sent.await?).await
            }
            SendMode::Slowly => {
                let pieces = body.chunks(DRIBBLE).map(Bytes::copy_from_slice).collect();
                let body = pieced(pieces, REST, Ending::Complete);
                read_answer(self.requests.send_request(head.map(|()| body)).await?).await
            }
            SendMode::CutAt(length) => {
                let without = (request.len() - body.len()).min(length);
                let part = Bytes::copy_from_slice(&body[..(length - without).min(body.len())]);
                let ending = match (length >= request.len(), Self::resets_connection(manner)) {
                    (true, _) => Ending::Complete,
                    (false, true) => Ending::Never,
                    (false, false) => Ending::Reset,
                };
                let part = pieced(vec![part], Duration::ZERO, ending);
                let sent = self.requests.send_request(head.map(|()| part));
                // The answer, if there is one in this time, is not read.
                let _ = timeout(DEPARTURE, sent).await;
                bail!("{} after {length} bytes", leave(&self.connection));
            }
            SendMode::HangUp { after, bytes } => {
                let sent = self.requests.send_request(head.map(|()| whole(body)));
                let answer = timeout(after.max(DEPARTURE), sent).await;
                if let Ok(Ok(answer)) = answer
                    && bytes > HEAD
                {
                    let _ = timeout(after, answer.into_body().frame()).await;
                }
                bail!("{} before the end of the answer", leave(&self.connection));
            }
        }
    }
}

/// The request that these bytes are in HTTP/1.1, and its body.
fn parse(request: &[u8]) -> Result<(Request<()>, &[u8])> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = parsed.parse(request).context("no request")? else {
        bail!("a request without an end of its head");
    };
    let mut head = Request::builder().method(parsed.method.context("no method")?);
    let mut authority = None;
    for header in parsed.headers.iter() {
        if header.name.eq_ignore_ascii_case("host") {
            authority = Some(header.value);
        } else {
            head = head.header(header.name, header.value);
        }
    }
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(authority.context("no host")?)
        .path_and_query(parsed.path.context("no path")?)
        .build()?;
    Ok((head.uri(uri).body(())?, &request[length..]))
}

fn whole(body: &[u8]) -> Body {
    pieced(
        vec![Bytes::copy_from_slice(body)],
        Duration::ZERO,
        Ending::Complete,
    )
}

/// A body in pieces, with a pause after each.
fn pieced(pieces: Vec<Bytes>, rest: Duration, ending: Ending) -> Body {
    let pieces = stream::iter(pieces).then(move |piece| async move {
        if !rest.is_zero() {
            sleep(rest).await;
        }
        Ok(Frame::data(piece))
    });
    let end = match ending {
        Ending::Complete => stream::empty().boxed(),
        Ending::Reset => stream::iter([Err(io::Error::other(RESET_STREAM))]).boxed(),
        Ending::Never => stream::pending().boxed(),
    };
    StreamBody::new(pieces.chain(end)).boxed_unsync()
}

async fn read_answer(answer: http::Response<hyper::body::Incoming>) -> Result<Answer> {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes().to_vec();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    Ok(Answer {
        status: head.status.as_u16(),
        headers: headers.collect(),
        body,
    })
}
