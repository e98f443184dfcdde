//! Where a body ends. It is read and forgotten: only that it was whole counts.

use std::io;

use crate::wire::{MAX_BODY, MAX_HEAD};

/// What is still to come of a body.
pub(super) enum Body {
    /// So many bytes.
    Length(usize),
    /// Parts that say how long they are.
    Chunks(Chunks),
    /// Up to the end of the connection.
    Rest {
        /// How many bytes came.
        seen: usize,
    },
}

/// Where in its parts a body is.
#[derive(Default)]
pub(super) struct Chunks {
    /// Of this part, with the end of the line after it.
    left: usize,
    seen: usize,
    /// All parts were there, and what follows are trailers.
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

    /// As `Content-Length` says.
    pub(super) fn length(value: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(value).map_err(io::Error::other)?;
        let length = text.trim().parse().map_err(io::Error::other)?;
        grown(0, length).map(Self::Length)
    }

    /// Looks at what was read. Gives how much of it need not be seen again, and whether the body
    /// is over.
    pub(super) fn take(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        match self {
            Self::Length(left) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                Ok((taken, *left == 0))
            }
            Self::Chunks(chunks) => {
                let (taken, over) = chunks.take(bytes)?;
                // What is left is the beginning of a line.
                if !over && bytes.len() - taken > MAX_HEAD {
                    return Err(io::Error::other("a line of an answer is too long"));
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
    /// How many bytes were understood, and whether they were the last.
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

/// How long a body is by now, if that is not too long.
fn grown(seen: usize, more: usize) -> io::Result<usize> {
    let length = seen.saturating_add(more);
    if length > MAX_BODY {
        return Err(io::Error::other("the body of an answer is too long"));
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
    fn chunked_bodies_end_where_they_say_however_they_are_cut() {
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
    fn a_length_is_counted_down_and_the_rest_never_ends() {
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
