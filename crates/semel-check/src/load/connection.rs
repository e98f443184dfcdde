//! One connection that stays open, with as little work between two requests as there can be.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::Body;
use crate::wire::{MAX_HEAD, MAX_HEADERS, is_chunked, marks};
use crate::{Address, Stream, World};

/// A server that says nothing for so long never will.
const PATIENCE: Duration = Duration::from_secs(30);
const ROOM: usize = 16 << 10;
/// Large answers are read in large parts, and no larger: every connection has its own room.
const MOST_ROOM: usize = 256 << 10;

/// What is looked at of an answer.
pub(super) struct Seen {
    pub(super) status: u16,
    pub(super) replayed: bool,
    pub(super) took: Duration,
}

impl Seen {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A connection to the target, opened again where the target closes it.
pub(super) struct Lane<'a> {
    address: &'a Address,
    world: &'a dyn World,
    stream: Option<Box<dyn Stream>>,
    request: Vec<u8>,
    /// What was read and not yet looked at.
    answer: Vec<u8>,
}

/// How an answer goes on after its head.
struct Head {
    status: u16,
    replayed: bool,
    length: usize,
    body: Body,
    closes: bool,
}

impl<'a> Lane<'a> {
    pub(super) async fn open(address: &'a Address, world: &'a dyn World) -> io::Result<Self> {
        let connecting = timeout(PATIENCE, world.connect(address)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "cannot connect in time");
        Ok(Self {
            address,
            world,
            stream: Some(connecting.map_err(late)??),
            request: Vec::with_capacity(ROOM),
            answer: Vec::with_capacity(ROOM),
        })
    }

    /// Sends a request and waits for its answer. After an error the next one has a connection
    /// of its own.
    pub(super) async fn ask(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<Seen> {
        self.request.clear();
        write(&mut self.request);
        let began = Instant::now();
        timeout_at(began + PATIENCE, self.exchange(began)).await?
    }

    async fn exchange(&mut self, mut began: Instant) -> io::Result<Seen> {
        let mut stream = if let Some(stream) = self.stream.take() {
            stream
        } else {
            let stream = self.world.connect(self.address).await?;
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
        Ok(Seen {
            status: head.status,
            replayed: head.replayed,
            took,
        })
    }

    /// The head of the final answer; what a server says on the way is none.
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
                return Err(io::Error::other("the head of an answer is too long"));
            }
        }
    }

    /// Reads a body to its end, and keeps nothing of it. Gives whether the connection goes on
    /// after it.
    async fn skip(&mut self, stream: &mut Box<dyn Stream>, head: &mut Head) -> io::Result<bool> {
        let mut at = head.length;
        loop {
            let (taken, over) = head.body.take(&self.answer[at..])?;
            if over {
                return Ok(true);
            }
            let full = self.answer.len() == self.answer.capacity();
            // Mostly all of it, so that nothing has to be moved.
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
            // Chunks say better where they end.
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
    use crate::Pending;
    use crate::wire::MAX_BODY;

    /// What a server does on one connection, whatever it is asked.
    #[derive(Clone, Copy)]
    enum Server {
        Says(&'static str),
        /// The same, and takes a second to take the connection.
        SaysLate(&'static str),
        /// The first once, the second for longer than anybody may listen.
        NeverEnds(&'static str, &'static str),
        /// Neither takes the connection nor refuses it.
        Hangs,
    }

    /// One connection after the other.
    struct Servers(Mutex<VecDeque<Server>>);

    impl Servers {
        fn new<const N: usize>(servers: [Server; N]) -> Self {
            Self(Mutex::new(servers.into()))
        }
    }

    impl World for Servers {
        fn connect<'a>(&'a self, _: &'a Address) -> Pending<'a, io::Result<Box<dyn Stream>>> {
            let server = self.0.lock().unwrap().pop_front().unwrap();
            Box::pin(async move {
                let (client, mut stream) = tokio::io::duplex(ROOM);
                let (first, rest) = match server {
                    Server::Says(all) => (all, None),
                    Server::SaysLate(all) => {
                        // sleeps because it is late; the clock is paused and costs nothing.
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

        fn ask<'a>(&'a self, _: &'a str) -> Pending<'a, io::Result<String>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }

        fn run<'a>(&'a self, _: &'a str) -> Pending<'a, io::Result<()>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }

    fn shop() -> Address {
        "http://shop/".parse().unwrap()
    }

    async fn ask(lane: &mut Lane<'_>) -> io::Result<Seen> {
        lane.ask(|bytes| bytes.extend_from_slice(b"?")).await
    }

    /// On paused time: what hangs would hang here, too, and what is given up takes no time.
    #[tokio::test(start_paused = true)]
    async fn no_connection_is_waited_for_without_an_end() {
        let closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let address = shop();
        let hangs = Servers::new([Server::Hangs]);
        let start = Instant::now();
        let error = Lane::open(&address, &hangs).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < PATIENCE * 2);

        let later = Servers::new([
            Server::Says(closing),
            Server::Hangs,
            Server::SaysLate(closing),
        ]);
        let mut lane = Lane::open(&address, &later).await.unwrap();
        assert_eq!(ask(&mut lane).await.unwrap().status, 200);
        let start = Instant::now();
        let error = ask(&mut lane).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < PATIENCE * 2);
        let seen = ask(&mut lane).await.unwrap();
        // What it took to connect is no part of what the answer took.
        assert_eq!((seen.status, seen.took), (200, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_without_an_end_are_errors_and_need_no_memory() {
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
            let mut lane = Lane::open(&address, &servers).await.unwrap();
            let error = ask(&mut lane).await.err().unwrap();
            // Neither that it took too long, nor that it ended at last.
            assert_eq!(error.kind(), io::ErrorKind::Other, "{first}{rest}");
            assert!(lane.answer.capacity() <= MOST_ROOM, "{first}{rest}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_are_read_to_their_end_in_little_room() {
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
            let mut lane = Lane::open(&address, &servers).await.unwrap();
            assert_eq!(ask(&mut lane).await.unwrap().status, 200, "{head}");
            assert!(lane.stream.is_some(), "{head}");
            assert!(lane.answer.capacity() <= MOST_ROOM, "{head}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_server_says_on_the_way_is_no_answer() {
        let servers = Servers::new([Server::Says(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
             HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}",
        )]);
        let address = shop();
        let mut lane = Lane::open(&address, &servers).await.unwrap();
        assert_eq!(ask(&mut lane).await.unwrap().status, 201);
        // Nobody says anything more: the answer after it is not the rest of this one.
        assert!(ask(&mut lane).await.is_err());
    }

    #[test]
    fn heads_say_how_the_answer_goes_on() {
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
    fn chunks_are_heeded_before_a_length_and_no_body_has_none() {
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
    fn a_replay_is_what_says_so_and_nothing_that_sounds_alike() {
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
