//! Finds the end of a body. The content is discarded: only completeness counts.

use std::io;

use crate::wire::{MAX_BODY, MAX_HEAD};

/// The unread part of a body.
pub(super) enum Body {
    /// A known number of bytes.
    Length(usize),
    /// Chunked encoding.
    Chunks(Chunks),
    /// Up to the end of the connection.
    Rest {
        /// How many bytes came.
        seen: usize,
    },
}

/// The position within a chunked body.
#[derive(Default)]
pub(super) struct Chunks {
    /// Bytes left of this chunk, with the line end after it.
    left: usize,
    seen: usize,
    /// All chunks were read, and trailers follow.
    trailers: bool,
}

impl Body {
    pub(super) fn none() -> Self {
        Self::Length(0)
    }

    pub(super) fn rest() -> Self {
        Self::Rest { seen: 0 }
    }

    pub(super) fn chunks() -> Self {
        Self::Chunks(Chunks::default())
    }

    /// From `Content-Length`.
    pub(super) fn length(value: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(value).map_err(io::Error::other)?;
        let length = text.trim().parse().map_err(io::Error::other)?;
        grown(0, length).map(Self::Length)
    }

    /// Consumes bytes. Returns how many were consumed, and whether the body is complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Length(left) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                Ok((taken, *left == 0))
            }
            Self::Chunks(chunks) => {
                let (taken, over) = chunks.take(bytes)?;
                // The rest is the beginning of a line.
                if !over && bytes.len() - taken > MAX_HEAD {
                    return Err(io::Error::other("a line of a response is too long"));
                }
                Ok((taken, over))
            }
            Self::Rest { seen } => {
                *seen = grown(*seen, bytes.len())?;
                Ok((bytes.len(), false))
            }
        }
    }
}

impl Chunks {
    /// Returns how many bytes were parsed, and whether they were the last.
    fn take(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            if self.trailers {
                let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
                    return Ok((at, false));
                };
                at += end + 2;
                if end == 0 {
                    return Ok((at, true));
                }
                continue;
            }
            let part = rest.len().min(self.left);
            self.left -= part;
            at += part;
            match httparse::parse_chunk_size(&rest[part..]) {
                Ok(httparse::Status::Partial) => return Ok((at, false)),
                Ok(httparse::Status::Complete((line, size))) => {
                    let size = usize::try_from(size).map_err(io::Error::other)?;
                    self.seen = grown(self.seen, size)?;
                    at += line;
                    self.trailers = size == 0;
                    self.left = size + 2;
                }
                Err(_) => return Err(io::Error::other("a chunk is malformed")),
            }
        }
    }
}

/// The length so far, or an error if it exceeds the limit.
fn grown(seen: usize, more: usize) -> io::Result<usize> {
    let length = seen.saturating_add(more);
    if length > MAX_BODY {
        return Err(io::Error::other("the body of a response is too long"));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: [(&str, bool); 6] = [
        ("2\r\nab\r\n0\r\n\r\n", true),
        ("2;x=y\r\nab\r\n1\r\nc\r\n0\r\nT: 1\r\nU: 2\r\n\r\n", true),
        ("2\r\nab\r\n0\r\n", false),
        ("2\r\nab\r\n0\r\nT: 1\r\n", false),
        ("2\r\na", false),
        ("", false),
    ];

    #[test]
    fn chunked_bodies_end_correctly_however_they_are_split() {
        for (text, complete) in CHUNKED {
            for size in [1, 2, 3, 5, 100] {
                let (mut body, mut buffer) = (Body::chunks(), Vec::new());
                let mut over = false;
                for piece in text.as_bytes().chunks(size) {
                    assert!(!over, "{text:?} was over too early");
                    buffer.extend_from_slice(piece);
                    let (taken, ended) = body.take(&buffer).unwrap();
                    buffer.drain(..taken);
                    over = ended;
                }
                assert_eq!(over, complete, "{text:?} by {size}");
            }
        }
        for wrong in ["x\r\n", "1\r\na\r\nffffffffffffffff\r\n"] {
            let taken = Body::chunks().take(wrong.as_bytes());
            assert!(taken.is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_body_with_a_length_ends_and_one_without_does_not() {
        let mut body = Body::length(b" 3 ").unwrap();
        assert_eq!(body.take(b"ab").unwrap(), (2, false));
        assert_eq!(body.take(b"cd").unwrap(), (1, true));
        assert_eq!(Body::none().take(b"").unwrap(), (0, true));
        assert_eq!(Body::rest().take(b"ab").unwrap(), (2, false));
        for wrong in ["", "-1", "many", "18446744073709551615"] {
            assert!(Body::length(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
