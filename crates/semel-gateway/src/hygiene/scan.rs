//! A strict scanner for HTTP/1 framing, run over the bytes before hyper parses them.
//!
//! Why our own: hyper's parser accepts a bare LF as a line end, drops a `Content-Length` beside a
//! `Transfer-Encoding`, merges repeated lengths and drops a `#` fragment, and offers no strict
//! mode. Another program may parse the same bytes differently, and that difference is how requests
//! are smuggled. `httparse` parses heads but does not follow bodies and chunks. The scanner follows
//! the framing itself, accepts the one form that all parsers agree on, and refuses the rest; what
//! it accepts, hyper parses the same way.

use memchr::{memchr, memchr2};

/// Maximum number of header fields. hyper's own maximum is the same; the scanner refuses first, so
/// that the response can name it.
pub(crate) const MAX_FIELDS: usize = 100;

/// The bytes are not in the strict form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// How many bytes of the scanned chunk precede the offending line.
    pub(crate) keep: usize,
    /// The number of the request on this connection, from 1.
    pub(crate) request: u64,
    pub(crate) kind: RefusedPart,
}

/// Which part of a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusedPart {
    /// Its head is malformed.
    Head,
    /// Its head is too large.
    LargeHead {
        /// Completes what precedes the offending line to a head that hyper can parse.
        ending: &'static [u8],
    },
    /// Its body is framed wrongly.
    Body,
}

/// The line is not in the strict form.
struct Malformed;

/// Scans the inbound bytes of one connection.
#[derive(Debug)]
pub(crate) struct Scanner {
    state: State,
    framing: Framing,
    /// The beginning of a line whose end has not arrived.
    partial_line: Vec<u8>,
    /// Maximum size of a head, and of a line in a chunked body, so that `partial_line` is bounded.
    max_head: usize,
    /// The size of the head so far, without its last, partial line.
    head_bytes: usize,
    /// Its header fields so far.
    fields: usize,
    /// Heads that were scanned to their end.
    heads: u64,
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

/// The framing that the head has declared so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Undeclared,
    Length(u64),
    Chunked,
}

impl Scanner {
    pub(crate) fn new(max_head: usize) -> Self {
        Self {
            state: State::RequestLine,
            framing: Framing::Undeclared,
            partial_line: Vec::new(),
            max_head,
            head_bytes: 0,
            fields: 0,
            heads: 0,
        }
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn in_head(&self) -> bool {
        match self.state {
            State::RequestLine => !self.partial_line.is_empty(),
            State::Header => true,
            State::Body(_)
            | State::ChunkSize
            | State::ChunkData(_)
            | State::ChunkEnd
            | State::Trailer => false,
        }
    }

    /// Whether every request that has begun has arrived in full.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.state == State::RequestLine && self.partial_line.is_empty()
    }

    /// Scans the next bytes of the stream.
    ///
    /// # Errors
    /// [`Refused`] at the first line that is not in the strict form; nothing after it was scanned.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
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
                State::RequestLine | State::Header => {
                    let refused = |kind, heads| Refused {
                        keep: at,
                        request: heads + 1,
                        kind,
                    };
                    let length = memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
                    if self.exceeds_head(rest, length) {
                        let ending = self.head_ending();
                        return Err(refused(RefusedPart::LargeHead { ending }, self.heads));
                    }
                    let taken = self
                        .scan_line(rest)
                        .map_err(|Malformed| refused(RefusedPart::Head, self.heads))?;
                    self.head_bytes += taken;
                    if self.state != State::Header && self.partial_line.is_empty() {
                        (self.head_bytes, self.fields) = (0, 0);
                    }
                    taken
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer => {
                    let request = self.heads;
                    self.scan_line(rest).map_err(|Malformed| Refused {
                        keep: at,
                        request,
                        kind: RefusedPart::Body,
                    })?
                }
            };
        }
        Ok(())
    }

    /// Whether the head is too large with the next `length` bytes, or has another field beyond the
    /// maximum.
    fn exceeds_head(&self, rest: &[u8], length: usize) -> bool {
        let begins_field = self.state == State::Header
            && self.partial_line.is_empty()
            && rest.first() != Some(&b'\r');
        self.head_bytes + length > self.max_head || (begins_field && self.fields >= MAX_FIELDS)
    }

    /// What completes the head that was scanned so far.
    fn head_ending(&self) -> &'static [u8] {
        let line = &self.partial_line[..];
        let has = |byte| memchr(byte, line).is_some();
        match (self.state == State::RequestLine, line.last()) {
            (true, None) => b"GET / HTTP/1.1\r\n\r\n",
            (true, Some(b' ')) => b"/ HTTP/1.1\r\n\r\n",
            (true, Some(_)) if has(b' ') => b" HTTP/1.1\r\n\r\n",
            (true, Some(_)) => b" / HTTP/1.1\r\n\r\n",
            (false, None) => b"\r\n",
            (false, Some(b'\r')) => b"\n\r\n",
            (false, Some(_)) if has(b':') => b"\r\n\r\n",
            (false, Some(_)) => b":\r\n\r\n",
        }
    }

    /// Scans one line, or buffers its beginning; returns the bytes consumed.
    fn scan_line(&mut self, rest: &[u8]) -> Result<usize, Malformed> {
        if self.partial_line.last() == Some(&b'\r') {
            if rest.first() != Some(&b'\n') {
                return Err(Malformed);
            }
            self.partial_line.pop();
            return self.finish_partial_line().map(|()| 1);
        }
        match memchr2(b'\r', b'\n', rest) {
            Some(end) if rest[end] == b'\n' => Err(Malformed),
            Some(end) if rest.get(end + 1) == Some(&b'\n') => {
                if self.partial_line.is_empty() {
                    self.accept_line(&rest[..end])?;
                } else {
                    self.partial_line.extend_from_slice(&rest[..end]);
                    self.finish_partial_line()?;
                }
                Ok(end + 2)
            }
            Some(end) if end + 1 < rest.len() => Err(Malformed),
            Some(_) | None => {
                if self.partial_line.len() + rest.len() > self.max_head {
                    return Err(Malformed);
                }
                self.partial_line.extend_from_slice(rest);
                Ok(rest.len())
            }
        }
    }

    fn finish_partial_line(&mut self) -> Result<(), Malformed> {
        let mut line = std::mem::take(&mut self.partial_line);
        let result = self.accept_line(&line);
        line.clear();
        self.partial_line = line;
        result
    }

    /// Checks one complete line, without its line end.
    fn accept_line(&mut self, line: &[u8]) -> Result<(), Malformed> {
        self.state = match self.state {
            // RFC 9112, 2.2 allows an empty line before a request; hyper skips it as well.
            State::RequestLine | State::Trailer if line.is_empty() => State::RequestLine,
            State::RequestLine => {
                // `http::Uri` silently drops a fragment, and the gateway would forward a different
                // target than it received.
                if memchr(b'#', line).is_some() {
                    return Err(Malformed);
                }
                self.framing = Framing::Undeclared;
                State::Header
            }
            State::Header if line.is_empty() => {
                self.heads += 1;
                match self.framing {
                    Framing::Undeclared | Framing::Length(0) => State::RequestLine,
                    Framing::Length(length) => State::Body(length),
                    Framing::Chunked => State::ChunkSize,
                }
            }
            State::Header => {
                self.fields += 1;
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
            State::ChunkEnd | State::Body(_) | State::ChunkData(_) => return Err(Malformed),
        };
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let (name, value) = field(line)?;
        let declared = match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => Framing::Length(length(value)?),
            // `chunked` only: for `gzip, chunked` a parser must decode both, and few do.
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed);
                }
                Framing::Chunked
            }
            _ => return Ok(()),
        };
        // A second framing header is refused even if it repeats the first.
        if self.framing != Framing::Undeclared {
            return Err(Malformed);
        }
        self.framing = declared;
        Ok(())
    }
}

/// Skips up to `left` bytes of the `here` available ones; also returns how many are still left, if
/// any.
fn skip(left: u64, here: usize) -> (usize, Option<u64>) {
    match usize::try_from(left) {
        Ok(left) if left <= here => (left, None),
        Ok(_) | Err(_) => (here, Some(left - here as u64)),
    }
}

/// Splits a field line. A name that begins or ends with whitespace is a folded line, or a smuggling
/// attempt such as `Content-Length : 5`.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let colon = memchr(b':', line).ok_or(Malformed)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let blank = |end: Option<&u8>| end.is_none_or(|byte| matches!(byte, b' ' | b'\t'));
    if blank(name.first()) || blank(name.last()) {
        return Err(Malformed);
    }
    Ok((name, trim(value)))
}

/// Removes the whitespace that RFC 9110 allows around a value: space and tab only.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn length(digits: &[u8]) -> Result<u64, Malformed> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(Malformed)
}

/// A chunk's size; extensions are ignored, as RFC 9112, 7.1.1 requires.
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let end = memchr(b';', line).unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Malformed);
    }
    if extension
        .iter()
        .any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Err(Malformed);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or(Malformed)
}

#[cfg(test)]
mod tests;
