//! A strict reading of HTTP/1 framing, run over the bytes before hyper sees them.
//!
//! hyper's parser takes a bare LF for a line end, drops a `Content-Length` beside a
//! `Transfer-Encoding`, merges repeated lengths and leaves out what follows a `#`. Each is a
//! place where another program reads the same bytes differently, and the difference is a
//! smuggled request. The scanner follows the framing itself, accepts the one form that every
//! reader understands alike, and refuses the rest; what it lets pass, hyper reads the same way.

use memchr::{memchr, memchr2};

/// The bytes did not keep to the strict form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// How many bytes of the scanned piece come before the offending line.
    pub(crate) keep: usize,
}

/// No line form allows these bytes.
struct Bad;

/// Follows one connection's inbound bytes.
#[derive(Debug)]
pub(crate) struct Scanner {
    state: State,
    framing: Framing,
    /// The beginning of a line whose end has not arrived.
    carry: Vec<u8>,
    /// A line longer than this is refused, so that `carry` is bounded.
    max_line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Between requests, or in a request line.
    RequestLine,
    /// Among header lines.
    Header,
    /// In a body of known length.
    Body(u64),
    /// At a chunk's size line.
    ChunkSize,
    /// In a chunk's bytes.
    ChunkData(u64),
    /// At the line end that closes a chunk.
    ChunkEnd,
    /// After the last chunk.
    Trailer,
}

/// What the head said so far about the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Unsaid,
    Length(u64),
    Chunked,
}

impl Scanner {
    pub(crate) fn new(max_line: usize) -> Self {
        Self {
            state: State::RequestLine,
            framing: Framing::Unsaid,
            carry: Vec::new(),
            max_line,
        }
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn in_head(&self) -> bool {
        match self.state {
            State::RequestLine => !self.carry.is_empty(),
            State::Header => true,
            State::Body(_)
            | State::ChunkSize
            | State::ChunkData(_)
            | State::ChunkEnd
            | State::Trailer => false,
        }
    }

    /// Reads the next piece of the stream.
    ///
    /// # Errors
    /// [`Refused`] at the first line that is not in the strict form; nothing after it was read.
    pub(crate) fn scan(&mut self, piece: &[u8]) -> Result<(), Refused> {
        let mut at = 0;
        while at < piece.len() {
            let rest = &piece[at..];
            at += match self.state {
                State::Body(left) => {
                    let (taken, left) = skip(left, rest.len());
                    self.state = left.map_or(State::RequestLine, State::Body);
                    taken
                }
                State::ChunkData(left) => {
                    let (taken, left) = skip(left, rest.len());
                    self.state = left.map_or(State::ChunkEnd, State::ChunkData);
                    taken
                }
                State::RequestLine
                | State::Header
                | State::ChunkSize
                | State::ChunkEnd
                | State::Trailer => self.line(rest).map_err(|Bad| Refused { keep: at })?,
            };
        }
        Ok(())
    }

    /// Reads one line, or keeps its beginning; returns the bytes used.
    fn line(&mut self, rest: &[u8]) -> Result<usize, Bad> {
        if self.carry.last() == Some(&b'\r') {
            if rest.first() != Some(&b'\n') {
                return Err(Bad);
            }
            self.carry.pop();
            return self.carried_line().map(|()| 1);
        }
        match memchr2(b'\r', b'\n', rest) {
            Some(end) if rest[end] == b'\n' => Err(Bad),
            Some(end) if rest.get(end + 1) == Some(&b'\n') => {
                if self.carry.is_empty() {
                    self.complete(&rest[..end])?;
                } else {
                    self.carry.extend_from_slice(&rest[..end]);
                    self.carried_line()?;
                }
                Ok(end + 2)
            }
            Some(end) if end + 1 < rest.len() => Err(Bad),
            Some(_) | None => {
                if self.carry.len() + rest.len() > self.max_line {
                    return Err(Bad);
                }
                self.carry.extend_from_slice(rest);
                Ok(rest.len())
            }
        }
    }

    fn carried_line(&mut self) -> Result<(), Bad> {
        let mut line = std::mem::take(&mut self.carry);
        let read = self.complete(&line);
        line.clear();
        self.carry = line;
        read
    }

    /// Judges one whole line, without its line end.
    fn complete(&mut self, line: &[u8]) -> Result<(), Bad> {
        self.state = match self.state {
            // A blank line before a request is allowed by RFC 9112, 2.2; hyper skips it too.
            State::RequestLine | State::Trailer if line.is_empty() => State::RequestLine,
            State::RequestLine => {
                // The URI type silently drops a fragment, and then we would forward another
                // target than the one received.
                if memchr(b'#', line).is_some() {
                    return Err(Bad);
                }
                self.framing = Framing::Unsaid;
                State::Header
            }
            State::Header if line.is_empty() => match self.framing {
                Framing::Unsaid | Framing::Length(0) => State::RequestLine,
                Framing::Length(length) => State::Body(length),
                Framing::Chunked => State::ChunkSize,
            },
            State::Header => {
                self.header(line)?;
                State::Header
            }
            State::ChunkSize => match chunk_size(line)? {
                0 => State::Trailer,
                size => State::ChunkData(size),
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::Trailer => {
                field(line)?;
                State::Trailer
            }
            State::ChunkEnd | State::Body(_) | State::ChunkData(_) => return Err(Bad),
        };
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Bad> {
        let (name, value) = field(line)?;
        let said = match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => Framing::Length(length(value)?),
            // Only the bare word: with `gzip, chunked` a reader must undo both, and few do.
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Bad);
                }
                Framing::Chunked
            }
            _ => return Ok(()),
        };
        // A second word on framing, even the same one, is how the first is contradicted.
        if self.framing != Framing::Unsaid {
            return Err(Bad);
        }
        self.framing = said;
        Ok(())
    }
}

/// Passes over up to `left` bytes of `here`; what remains after them, if anything.
fn skip(left: u64, here: usize) -> (usize, Option<u64>) {
    match usize::try_from(left) {
        Ok(left) if left <= here => (left, None),
        Ok(_) | Err(_) => (here, Some(left - here as u64)),
    }
}

/// Splits a field line. A name that begins or ends with a blank is a folded line or the old
/// trick with `Content-Length : 5`.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let colon = memchr(b':', line).ok_or(Bad)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let blank = |end: Option<&u8>| end.is_none_or(|byte| matches!(byte, b' ' | b'\t'));
    if blank(name.first()) || blank(name.last()) {
        return Err(Bad);
    }
    Ok((name, trim(value)))
}

/// Without the blanks that RFC 9110 allows around a value: these two and no others.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn length(digits: &[u8]) -> Result<u64, Bad> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Bad);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(Bad)
}

/// A chunk's size, with extensions passed over as RFC 9112, 7.1.1 demands.
fn chunk_size(line: &[u8]) -> Result<u64, Bad> {
    let end = memchr(b';', line).unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Bad);
    }
    if extension
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Err(Bad);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or(Bad)
}

#[cfg(test)]
mod tests;
