//! One connection that stays open, with as little work between two requests as there can be.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use crate::{Address, Stream, World};

/// A server that says nothing for so long never will.
const PATIENCE: Duration = Duration::from_secs(30);
const MAX_HEADERS: usize = 64;
const ROOM: usize = 16 << 10;

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

enum Body {
    Length(usize),
    Chunked,
    /// Up to the end of the connection.
    Rest,
}

impl<'a> Lane<'a> {
    pub(super) async fn open(address: &'a Address, world: &'a dyn World) -> io::Result<Self> {
        Ok(Self {
            address,
            world,
            stream: Some(world.connect(address).await?),
            request: Vec::with_capacity(ROOM),
            answer: Vec::with_capacity(ROOM),
        })
    }

    /// Sends a request and waits for its answer. After an error the next one has a connection
    /// of its own.
    pub(super) async fn ask(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<Seen> {
        self.request.clear();
        write(&mut self.request);
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.world.connect(self.address).await?,
        };
        let began = Instant::now();
        let asking = self.exchange(stream, began);
        timeout_at(began + PATIENCE, asking).await?
    }

    async fn exchange(&mut self, mut stream: Box<dyn Stream>, began: Instant) -> io::Result<Seen> {
        stream.write_all(&self.request).await?;
        self.answer.clear();
        let head = loop {
            if stream.read_buf(&mut self.answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(head) = head(&self.answer)? {
                break head;
            }
        };
        loop {
            let there = &self.answer[head.length..];
            let complete = match head.body {
                Body::Length(length) => there.len() >= length,
                Body::Chunked => ends(there)?,
                Body::Rest => false,
            };
            if complete {
                break;
            }
            if stream.read_buf(&mut self.answer).await? == 0 {
                if matches!(head.body, Body::Rest) {
                    break;
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let took = began.elapsed();
        if !head.closes && !matches!(head.body, Body::Rest) {
            self.stream = Some(stream);
        }
        Ok(Seen {
            status: head.status,
            replayed: head.replayed,
            took,
        })
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
        body: Body::Rest,
        closes: response.version == Some(0),
    };
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let text = std::str::from_utf8(header.value).map_err(io::Error::other)?;
            head.body = Body::Length(text.trim().parse().map_err(io::Error::other)?);
        } else if is("transfer-encoding") {
            head.body = Body::Chunked;
        } else if is("connection") {
            head.closes = header.value.eq_ignore_ascii_case(b"close");
        } else if header.name.len() > 9 && header.name.to_ascii_lowercase().contains("replay") {
            head.replayed = !header.value.eq_ignore_ascii_case(b"false");
        }
    }
    if matches!(head.status, 204 | 304) {
        head.body = Body::Length(0);
    }
    Ok(Some(head))
}

/// Whether a chunked body is there to its end.
fn ends(mut bytes: &[u8]) -> io::Result<bool> {
    loop {
        match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Partial) => return Ok(false),
            Ok(httparse::Status::Complete((start, 0))) => {
                // Trailers, if any, end with an empty line as well.
                let rest = &bytes[start..];
                return Ok(rest.starts_with(b"\r\n") || rest.ends_with(b"\r\n\r\n"));
            }
            Ok(httparse::Status::Complete((start, size))) => {
                let size = usize::try_from(size).map_err(io::Error::other)?;
                let next = start.saturating_add(size).saturating_add(2);
                match bytes.get(next..) {
                    Some(rest) => bytes = rest,
                    None => return Ok(false),
                }
            }
            Err(_) => return Err(io::Error::other("a chunk is malformed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_bodies_end_where_they_say() {
        for (body, complete) in [
            ("2\r\nab\r\n0\r\n\r\n", true),
            ("2\r\nab\r\n0\r\nT: 1\r\n\r\n", true),
            ("2\r\nab\r\n0\r\n", false),
            ("2\r\na", false),
            ("", false),
        ] {
            assert_eq!(ends(body.as_bytes()).unwrap(), complete, "{body:?}");
        }
        assert!(ends(b"x\r\n").is_err());
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
}
