//! One connection: at most one request is under way on it.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use mio::net::TcpStream;

use super::request::{Expect, KEY_LENGTH, Shot};

/// A head and a body of a kibibyte come with one call; the rest of a larger body is read
/// elsewhere and thrown away.
const HEAD_ROOM: usize = 4096;

const MAX_HEADERS: usize = 32;

/// What every answer of the servers under test has.
const STATUS: u16 = 201;

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// When the request was sent, or should have been.
    pub(super) began: Instant,
    head: Vec<u8>,
    body: Bytes,
    written: usize,
    expect: Expect,
    buffer: Box<[u8]>,
    filled: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Head,
    /// So many bytes are missing.
    Body(usize),
}

impl Connection {
    pub(super) fn open(address: SocketAddr, now: Instant) -> Result<Self> {
        // Connected before it is made non-blocking: a refusal then is an error right here.
        let stream = std::net::TcpStream::connect(address)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            began: now,
            head: Vec::new(),
            body: Bytes::new(),
            written: 0,
            expect: Expect::First,
            buffer: vec![0; HEAD_ROOM].into(),
            filled: 0,
            state: State::Idle,
        })
    }

    pub(super) fn send(&mut self, shot: &Shot<'_>, began: Instant) -> Result<()> {
        ensure!(self.state == State::Idle, "a request is under way already");
        self.head.clear();
        self.head.extend_from_slice(&shot.request.head);
        if let (Some(at), Some(key)) = (shot.request.key_at, &shot.key) {
            self.head[at..at + KEY_LENGTH].copy_from_slice(key);
        }
        self.body = shot.request.body.clone();
        (self.written, self.filled) = (0, 0);
        (self.expect, self.began) = (shot.expect, began);
        self.state = State::Head;
        self.write()
    }

    /// Writes what the socket takes. What it does not take is written when it says so.
    pub(super) fn write(&mut self) -> Result<()> {
        let whole = self.head.len() + self.body.len();
        while self.written < whole {
            let head = &self.head[self.written.min(self.head.len())..];
            let body = &self.body[self.written.saturating_sub(self.head.len())..];
            match self
                .stream
                .write_vectored(&[IoSlice::new(head), IoSlice::new(body)])
            {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the server does not take a request"),
            }
        }
        Ok(())
    }

    /// Reads the available bytes. Returns whether the answer is complete.
    pub(super) fn read(&mut self, discarded: &mut [u8]) -> Result<bool> {
        loop {
            let room = match self.state {
                State::Body(_) => &mut *discarded,
                State::Idle | State::Head => &mut self.buffer[self.filled..],
            };
            let room_length = room.len();
            ensure!(room_length > 0, "an answer's head is too long");
            let count = match self.stream.read(room) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("the server broke a connection"),
            };
            self.state = match self.state {
                State::Idle => bail!("an answer to no request"),
                State::Head => {
                    self.filled += count;
                    match head(&self.buffer[..self.filled], self.expect)? {
                        Some(whole) => State::Body(missing(whole, self.filled)?),
                        None => State::Head,
                    }
                }
                State::Body(rest) => State::Body(missing(rest, count)?),
            };
            if self.state == State::Body(0) {
                self.state = State::Idle;
                return Ok(true);
            }
            // The socket is empty then, and its next event is certain: a call is spared.
            if count < room_length {
                return Ok(false);
            }
        }
    }
}

fn missing(whole: usize, there: usize) -> Result<usize> {
    whole
        .checked_sub(there)
        .context("an answer is longer than its content-length")
}

/// Length of the whole answer, once its head is complete.
fn head(bytes: &[u8], expect: Expect) -> Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head_length) = response.parse(bytes)? else {
        return Ok(None);
    };
    let (mut body_length, mut replayed) = (None, false);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            body_length = Some(std::str::from_utf8(header.value)?.parse::<usize>()?);
        } else if header.name.eq_ignore_ascii_case("idempotent-replayed") {
            replayed = header.value == b"true";
        }
    }
    if response.code != Some(STATUS) || replayed != (expect == Expect::Replay) {
        bail!(
            "expected {STATUS} as of {expect:?}, and got:\n{}",
            String::from_utf8_lossy(bytes)
        );
    }
    let body_length = body_length.context("an answer has no content-length")?;
    Ok(Some(head_length + body_length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = b"HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\n{}";
    const REPLAY: &[u8] =
        b"HTTP/1.1 201 Created\r\nIdempotent-Replayed: true\r\nContent-Length: 0\r\n\r\n";

    #[test]
    fn an_answer_is_as_long_as_head_and_body() {
        assert_eq!(head(FIRST, Expect::First).unwrap(), Some(FIRST.len() + 1));
        assert_eq!(head(&FIRST[..30], Expect::First).unwrap(), None);
        assert_eq!(head(REPLAY, Expect::Replay).unwrap(), Some(REPLAY.len()));
    }

    #[test]
    fn an_unexpected_answer_is_an_error() {
        assert!(head(FIRST, Expect::Replay).is_err());
        assert!(head(REPLAY, Expect::First).is_err());
        let error = b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";
        assert!(head(error, Expect::First).is_err());
        let endless = b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(head(endless, Expect::First).is_err());
    }
}
