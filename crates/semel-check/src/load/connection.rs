//! A keep-alive connection with little work between two requests.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::Body;
use crate::wire::{MAX_HEAD, MAX_HEADERS, is_chunked, marks};
use crate::{Address, Environment, Stream};

/// Timeout of a connect, and of a request with its response.
const PATIENCE: Duration = Duration::from_secs(30);
const ROOM: usize = 16 << 10;
/// Largest read buffer; every connection has its own.
const MOST_ROOM: usize = 256 << 10;

/// What is measured of a response.
pub(super) struct Sample {
    pub(super) status: u16,
    pub(super) replayed: bool,
    pub(super) took: Duration,
}

impl Sample {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A connection to the target, reopened when the target closes it.
pub(super) struct LoadConnection<'a> {
    address: &'a Address,
    environment: &'a dyn Environment,
    stream: Option<Box<dyn Stream>>,
    request: Vec<u8>,
    /// Read, but not yet parsed.
    answer: Vec<u8>,
}

/// The head of a response.
struct Head {
    status: u16,
    replayed: bool,
    length: usize,
    body: Body,
    closes: bool,
}

impl<'a> LoadConnection<'a> {
    pub(super) async fn open(
        address: &'a Address,
        environment: &'a dyn Environment,
    ) -> io::Result<Self> {
        let connecting = timeout(PATIENCE, environment.connect(address)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connecting timed out");
        Ok(Self {
            address,
            environment,
            stream: Some(connecting.map_err(late)??),
            request: Vec::with_capacity(ROOM),
            answer: Vec::with_capacity(ROOM),
        })
    }

    /// Sends a request and reads its response. After an error the next request opens a new
    /// connection.
    pub(super) async fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<Sample> {
        self.request.clear();
        write(&mut self.request);
        let began = Instant::now();
        timeout_at(began + PATIENCE, self.exchange(began)).await?
    }

    async fn exchange(&mut self, mut began: Instant) -> io::Result<Sample> {
        let mut stream = if let Some(stream) = self.stream.take() {
            stream
        } else {
            let stream = self.environment.connect(self.address).await?;
            began = Instant::now();
            stream
        };
        stream.write_all(&self.request).await?;
        self.answer.clear();
        let mut head = self.head(&mut stream).await?;
        let goes_on = self.skip(&mut stream, &mut head).await?;
        let took = began.elapsed();
        if goes_on && !head.closes {
            self.stream = Some(stream);
        }
        Ok(Sample {
            status: head.status,
            replayed: head.replayed,
            took,
        })
    }

    /// Reads the head of the final response and skips informational ones.
    async fn head(&mut self, stream: &mut Box<dyn Stream>) -> io::Result<Head> {
        loop {
            if stream.read_buf(&mut self.answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while let Some(head) = head(&self.answer)? {
                if head.status >= 200 {
                    return Ok(head);
                }
                self.answer.drain(..head.length);
            }
            if self.answer.len() > MAX_HEAD {
                return Err(io::Error::other("the head of a response is too long"));
            }
        }
    }

    /// Reads a body to its end and discards it. Returns whether the connection can be reused.
    async fn skip(&mut self, stream: &mut Box<dyn Stream>, head: &mut Head) -> io::Result<bool> {
        let mut at = head.length;
        loop {
            let (taken, over) = head.body.take(&self.answer[at..])?;
            if over {
                return Ok(true);
            }
            let full = self.answer.len() == self.answer.capacity();
            // Mostly all of it, so that nothing is moved.
            self.answer.drain(..at + taken);
            at = 0;
            if full && self.answer.capacity() < MOST_ROOM {
                let room = self.answer.capacity() * 2;
                self.answer.reserve(room - self.answer.len());
            }
            if stream.read_buf(&mut self.answer).await? == 0 {
                return match head.body {
                    Body::Rest { .. } => Ok(false),
                    Body::Length(_) | Body::Chunks(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

fn head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes).map_err(io::Error::other)?
    else {
        return Ok(None);
    };
    let mut head = Head {
        status: response.code.unwrap_or_default(),
        replayed: false,
        length,
        body: Body::rest(),
        closes: response.version == Some(0),
    };
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            // Chunked encoding takes precedence.
            if !matches!(head.body, Body::Chunks(_)) {
                head.body = Body::length(header.value)?;
            }
        } else if is("transfer-encoding") && is_chunked(header.value) {
            head.body = Body::chunks();
        } else if is("connection") {
            head.closes = header.value.eq_ignore_ascii_case(b"close");
        } else if marks(header.name, header.value) {
            head.replayed = true;
        }
    }
    if matches!(head.status, 204 | 304) {
        head.body = Body::none();
    }
    Ok(Some(head))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;
    use crate::BoxFuture;
    use crate::wire::MAX_BODY;

    /// What a server does on one connection.
    #[derive(Clone, Copy)]
    enum Server {
        Says(&'static str),
        /// The same, after a second to accept the connection.
        SaysLate(&'static str),
        /// The first once, then the second for longer than the client reads.
        NeverEnds(&'static str, &'static str),
        /// Neither accepts nor refuses the connection.
        Hangs,
    }

    /// One connection after the other.
    struct Servers(Mutex<VecDeque<Server>>);

    impl Servers {
        fn new<const N: usize>(servers: [Server; N]) -> Self {
            Self(Mutex::new(servers.into()))
        }
    }

    impl Environment for Servers {
        fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            let server = self.0.lock().unwrap().pop_front().unwrap();
            Box::pin(async move {
                let (client, mut stream) = tokio::io::duplex(ROOM);
                let (first, rest) = match server {
                    Server::Says(all) => (all, None),
                    Server::SaysLate(all) => {
                        // sleeps because the server is late; the clock is paused.
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        (all, None)
                    }
                    Server::NeverEnds(first, rest) => (first, Some(rest.repeat(1000))),
                    Server::Hangs => std::future::pending().await,
                };
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 1024]).await;
                    let _ = stream.write_all(first.as_bytes()).await;
                    let Some(rest) = rest else { return };
                    for _ in 0..=4 * MAX_BODY / rest.len() {
                        if stream.write_all(rest.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
                Ok(Box::new(client) as Box<dyn Stream>)
            })
        }

        fn output<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<String>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }

        fn run<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<()>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }

    fn shop() -> Address {
        "http://shop/".parse().unwrap()
    }

    async fn send(connection: &mut LoadConnection<'_>) -> io::Result<Sample> {
        connection.send(|bytes| bytes.extend_from_slice(b"?")).await
    }

    /// On paused time, so that a timeout takes no real time.
    #[tokio::test(start_paused = true)]
    async fn connecting_and_responding_have_a_timeout() {
        let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let address = shop();
        let hangs = Servers::new([Server::Hangs]);
        let start = Instant::now();
        let error = LoadConnection::open(&address, &hangs).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < PATIENCE * 2);

        let later = Servers::new([
            Server::Says(closing),
            Server::Hangs,
            Server::SaysLate(closing),
        ]);
        let mut connection = LoadConnection::open(&address, &later).await.unwrap();
        assert_eq!(send(&mut connection).await.unwrap().status, 200);
        let start = Instant::now();
        let error = send(&mut connection).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < PATIENCE * 2);
        let seen = send(&mut connection).await.unwrap();
        // The time to connect is not part of the latency.
        assert_eq!((seen.status, seen.took), (200, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn an_endless_response_is_an_error_and_uses_bounded_memory() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (first, rest) in [
            ("HTTP/1.1 200 OK\r\n", "X: y\r\n"),
            ("HTTP/1.1 200 OK\r\nX: ", "y"),
            ("HTTP/1.1 200 OK\r\n\r\n", "x"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                "x",
            ),
            (chunked, "20\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"),
            (chunked, "f;"),
        ] {
            let servers = Servers::new([Server::NeverEnds(first, rest)]);
            let address = shop();
            let mut connection = LoadConnection::open(&address, &servers).await.unwrap();
            let error = send(&mut connection).await.err().unwrap();
            // Neither a timeout nor an end of the stream.
            assert_eq!(error.kind(), io::ErrorKind::Other, "{first}{rest}");
            assert!(connection.answer.capacity() <= MOST_ROOM, "{first}{rest}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_response_is_read_to_its_end_in_a_bounded_buffer() {
        let part = "x".repeat(1 << 20);
        let chunk = format!("100000\r\n{part}\r\n");
        for (head, body) in [
            ("Content-Length: 3145728", part.repeat(3)),
            (
                "Transfer-Encoding: chunked",
                format!("{}0\r\n\r\n", chunk.repeat(3)),
            ),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
            let servers = Servers::new([Server::Says(text.leak())]);
            let address = shop();
            let mut connection = LoadConnection::open(&address, &servers).await.unwrap();
            assert_eq!(send(&mut connection).await.unwrap().status, 200, "{head}");
            assert!(connection.stream.is_some(), "{head}");
            assert!(connection.answer.capacity() <= MOST_ROOM, "{head}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn informational_responses_are_skipped() {
        let servers = Servers::new([Server::Says(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
             HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}",
        )]);
        let address = shop();
        let mut connection = LoadConnection::open(&address, &servers).await.unwrap();
        assert_eq!(send(&mut connection).await.unwrap().status, 201);
        // The server sends nothing more: the next response is not the rest of this one.
        assert!(send(&mut connection).await.is_err());
    }

    #[test]
    fn a_head_gives_the_framing_of_the_response() {
        let plain =
            b"HTTP/1.1 201 Created\r\nContent-Length: 3\r\nIdempotent-Replayed: true\r\n\r\n";
        let seen = head(plain).unwrap().unwrap();
        assert!(matches!(seen.body, Body::Length(3)));
        assert!(seen.replayed && !seen.closes);
        assert_eq!((seen.status, seen.length), (201, plain.len()));
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        assert!(head(closing).unwrap().unwrap().closes);
        assert!(head(&closing[..20]).unwrap().is_none());
    }

    #[test]
    fn chunked_encoding_takes_precedence_and_a_204_has_no_body() {
        for (lines, chunks) in [
            ("Transfer-Encoding: chunked\r\nContent-Length: 3", true),
            (
                "Content-Length: 3\r\nTransfer-Encoding: gzip, Chunked",
                true,
            ),
            ("Content-Length: 3\r\nTransfer-Encoding: identity", false),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
            let body = head(text.as_bytes()).unwrap().unwrap().body;
            assert_eq!(matches!(body, Body::Chunks(_)), chunks, "{lines}");
        }
        let none = b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n";
        assert!(matches!(head(none).unwrap().unwrap().body, Body::Length(0)));
    }

    #[test]
    fn only_replay_headers_mark_a_replay() {
        for (line, replayed) in [
            ("Idempotent-Replayed: true", true),
            ("X-Idempotency-Replayed: 1", true),
            ("Idempotent-Replayed: false", false),
            ("Idempotent-Replayed: 0", false),
            ("X-Replay-Protection: on", false),
            ("Replay-Nonce: oFvnlFP1wIhRlYS2jTaXbA", false),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
            let seen = head(text.as_bytes()).unwrap().unwrap();
            assert_eq!(seen.replayed, replayed, "{line}");
        }
    }
}
