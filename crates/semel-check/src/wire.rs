//! HTTP/1.1 by hand: probes send requests that a client library would correct, and close connections
//! that it would keep.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::Stream;

/// Longest head of a response.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// Longest body: more than any `large` case needs.
pub(crate) const MAX_BODY: usize = 64 << 20;
pub(crate) const MAX_HEADERS: usize = 128;
const CHUNK: usize = 16 << 10;

/// Headers that mark a replay, in the spellings that are in use.
const MARKS: [&str; 5] = [
    "idempotent-replayed",
    "idempotency-replayed",
    "x-idempotent-replayed",
    "x-idempotency-replayed",
    "idempotent-replay",
];

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    /// The part of the body that reports show. Empty until secrets are hidden.
    pub(crate) shown: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        let mut found = self.headers.iter().filter(|(is, _)| is == name);
        found.next().map(|(_, value)| value.as_slice())
    }

    pub(crate) fn text_of(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header(name)?).ok()
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status)
    }

    /// Whether it is marked as a replay.
    pub(crate) fn is_marked(&self) -> bool {
        let mut headers = self.headers.iter();
        headers.any(|(name, value)| marks(name, value))
    }
}

/// Whether this header marks a replay.
pub(crate) fn marks(name: &str, value: &[u8]) -> bool {
    let value = value.trim_ascii();
    MARKS.iter().any(|mark| mark.eq_ignore_ascii_case(name))
        && !value.eq_ignore_ascii_case(b"false")
        && value != b"0"
}

/// Whether this `Transfer-Encoding` is chunked.
pub(crate) fn is_chunked(coding: &[u8]) -> bool {
    let last = coding.trim_ascii().last_chunk::<7>();
    last.is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"))
}

/// One connection, for one request after another.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await?;
        self.stream.flush().await
    }

    /// Reads the final response. A truncated one is an error, never a shorter response.
    pub(crate) async fn read(&mut self) -> io::Result<Response> {
        loop {
            let mut answer = self.head().await?;
            // Skips informational responses.
            if answer.status >= 200 {
                answer.body = self.body(&answer).await?;
                return Ok(answer);
            }
        }
    }

    async fn head(&mut self) -> io::Result<Response> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let parsed = response.parse(&self.buffer).map_err(io::Error::other)?;
            if let httparse::Status::Complete(length) = parsed {
                let answer = Response {
                    status: response.code.unwrap_or_default(),
                    headers: response
                        .headers
                        .iter()
                        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
                        .collect(),
                    body: Vec::new(),
                    shown: String::new(),
                };
                self.buffer.drain(..length);
                return Ok(answer);
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(io::Error::other("the head of a response is too long"));
            }
            if self.more().await? == 0 {
                return Err(cut());
            }
        }
    }

    async fn body(&mut self, answer: &Response) -> io::Result<Vec<u8>> {
        if matches!(answer.status, 204 | 304) {
            return Ok(Vec::new());
        }
        if answer.header("transfer-encoding").is_some_and(is_chunked) {
            return self.chunks().await;
        }
        let Some(length) = answer.text_of("content-length") else {
            return self.rest().await;
        };
        let length = length.trim().parse().map_err(io::Error::other)?;
        self.exactly(length).await
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let size = line.split(';').next().unwrap_or("").trim();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            if size == 0 {
                // Trailers, up to an empty line.
                while !self.line().await?.is_empty() {}
                return Ok(body);
            }
            if body.len().saturating_add(size) > MAX_BODY {
                return Err(too_long());
            }
            body.extend(self.exactly(size).await?);
            self.line().await?;
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).map_err(io::Error::other);
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(io::Error::other("a line of a response is too long"));
            }
            if self.more().await? == 0 {
                return Err(cut());
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > MAX_BODY {
            return Err(too_long());
        }
        while self.buffer.len() < length {
            if self.more().await? == 0 {
                return Err(cut());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// Reads to the end of the connection, the only end mark without a length.
    async fn rest(&mut self) -> io::Result<Vec<u8>> {
        while self.more().await? > 0 {
            if self.buffer.len() > MAX_BODY {
                return Err(too_long());
            }
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    async fn more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(CHUNK);
        self.stream.read_buf(&mut self.buffer).await
    }
}

fn cut() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the connection was closed before the response ended",
    )
}

fn too_long() -> io::Error {
    io::Error::other("the body of a response is too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &'static [u8]) -> io::Result<Response> {
        let (mut server, client) = tokio::io::duplex(1 << 20);
        server.write_all(bytes).await.unwrap();
        drop(server);
        Connection::new(Box::new(client)).read().await
    }

    #[tokio::test]
    async fn a_response_ends_where_its_framing_says() {
        let bodies: [(&'static [u8], &[u8]); 5] = [
            (b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}rest", b"{}"),
            (b"HTTP/1.1 200 OK\r\n\r\nup to the end", b"up to the end"),
            (b"HTTP/1.1 204 No Content\r\n\r\nnot this", b""),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nT: 1\r\n\r\n",
                b"abc",
            ),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1", b"1"),
        ];
        for (bytes, body) in bodies {
            assert_eq!(read(bytes).await.unwrap().body, body);
        }
    }

    #[tokio::test]
    async fn a_truncated_response_is_an_error() {
        let broken: [&'static [u8]; 7] = [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}",
            // As long as memory can be, after what is there already.
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nffffffffffffffff\r\n",
        ];
        for bytes in broken {
            assert!(read(bytes).await.is_err(), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn replay_headers_are_recognized() {
        for (line, marked) in [
            ("Idempotent-Replayed: true", true),
            ("X-Idempotency-Replayed: 1", true),
            ("Idempotent-Replayed: false", false),
            ("Idempotent-Replayed: 0", false),
            ("X-Replay-Protection: on", false),
            ("X-Other: true", false),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{line}\r\nContent-Length: 0\r\n\r\n");
            let answer = read(text.leak().as_bytes()).await.unwrap();
            assert_eq!(answer.is_marked(), marked, "{line}");
        }
    }
}
