//! The idempotency key, as a client sends it in a header.
//!
//! ```
//! use semel_core::key::{Dialect, Key, Syntax};
//!
//! let syntax = Syntax::new(Dialect::Ietf { lenient: true });
//! let quoted = Key::parse(&syntax, [&br#""8e03978e-40d5""#[..]])?;
//! let unquoted = Key::parse(&syntax, [&b"8e03978e-40d5"[..]])?;
//! assert_eq!(quoted, unquoted);
//! assert_eq!(Key::parse(&syntax, [])?, None);
//! # Ok::<(), semel_core::key::Error>(())
//! ```
//!
//! # The lenient form
//! RFC 9651 wants the key in quotes; many clients leave them out, and some change their mind
//! between two attempts. So `abc` and `"abc"` are one key, and every value which could be
//! read in two ways is refused:
//! - A value that begins with a quote is read by RFC 9651 and by nothing else.
//! - Any other value is the key itself, byte for byte, if it has only visible ASCII and
//!   neither quote, backslash, comma nor semicolon. A backslash would be one character here
//!   and half an escape between quotes; a comma joins two header lines; a semicolon begins
//!   parameters. So putting quotes around an accepted value never changes the key.
//! - UUIDs, tokens and digits are taken as opaque, although RFC 9651 has types for some of
//!   them. What can only be meant as another type is refused, by its first character:
//!   `:` (bytes), `?` (boolean), `@` (date), `%` (display string), `(` (list).

mod hasher;
mod syntax;
mod weakness;

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::hex;

pub use hasher::{KeyHasher, MIN_SECRET_BYTES, ShortSecret};
pub use syntax::{Dialect, Format, Syntax};
pub use weakness::Weakness;

/// The longest key, in characters. A UUID has 36; stores index keys of this length.
pub const MAX_LENGTH: usize = 255;

/// A valid key: 1 to [`MAX_LENGTH`] printable ASCII characters, not all of them blanks.
/// Keys are compared byte for byte.
///
/// A key lets its holder read a stored response, so it never appears in logs: there is no
/// `Display`, and `Debug` shows a short hash.
///
/// ```
/// # use semel_core::Key;
/// let key = Key::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?;
/// assert_eq!(format!("{key:?}"), "Key(#d77da802)");
/// # Ok::<(), semel_core::key::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<str>);

impl Key {
    /// A key that did not come from a header: from a store, or from a caller in the same
    /// process.
    ///
    /// # Errors
    /// [`Error`] if it is empty, blank, too long, or has other than printable ASCII.
    pub fn new(value: impl Into<Box<str>>) -> Result<Self, Error> {
        let value = value.into();
        printable(value.as_bytes())?;
        Self::sized(value, Syntax::MIN_LENGTH)
    }

    /// Reads the key from *all* lines of its header; two of them are refused. Without any
    /// line there is no key.
    ///
    /// # Errors
    /// [`Error`] if there is a key, and it is malformed.
    pub fn parse<'a>(
        syntax: &Syntax,
        lines: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, Error> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else {
            return Ok(None);
        };
        if lines.next().is_some() {
            return Err(Error::Repeated);
        }
        let value = trim(line);
        printable(value)?;
        let key = syntax.read(value)?;
        let key = Self::sized(key.into(), syntax.min_length())?;
        match syntax.format() {
            format if format.accepts(key.as_str()) => Ok(Some(key)),
            format => Err(Error::Format { format }),
        }
    }

    /// The key in the clear: for stores and for the header sent on, never for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Eight hexadecimal digits to find a key by in logs.
    pub fn short_hash(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        hex(&digest[..4])
    }

    /// Takes printable ASCII of the right length.
    fn sized(value: Box<str>, min_length: usize) -> Result<Self, Error> {
        match value.len() {
            0 => Err(Error::Empty),
            length if length > MAX_LENGTH => Err(Error::TooLong { length }),
            _ if value.bytes().all(|byte| byte == b' ') => Err(Error::Blank),
            length if length < min_length => Err(Error::TooShort { length, min_length }),
            _ => Ok(Self(value)),
        }
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(#{})", self.short_hash())
    }
}

/// Why a key is refused. The message is for the developer of the client, and never repeats
/// the key. A client that meets any of these has executed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two header lines, even if identical: a proxy or a library added one.
    #[error("the header is there more than once; send exactly one line")]
    Repeated,
    /// Nothing, or nothing between the quotes.
    #[error("the key is empty; send a new random value per operation, such as a UUID")]
    Empty,
    /// Only blanks.
    #[error("the key has only blanks; send a new random value per operation, such as a UUID")]
    Blank,
    /// Shorter than this route allows.
    #[error("the key has {length} characters, at least {min_length} are needed; send a UUID")]
    TooShort {
        /// Of the key that was sent.
        length: usize,
        /// Of the route.
        min_length: usize,
    },
    /// Not of the format that this route asks for.
    #[error("the key is not {format}")]
    Format {
        /// Of the route.
        format: Format,
    },
    /// Longer than [`MAX_LENGTH`].
    #[error("the key has {length} characters, at most {MAX_LENGTH} are allowed; send a UUID")]
    TooLong {
        /// Of the key that was sent.
        length: usize,
    },
    /// A byte beyond ASCII.
    #[error("the key has a byte beyond ASCII at position {position}; use printable ASCII only")]
    NonAscii {
        /// In the trimmed header value, from 0.
        position: usize,
    },
    /// A control character, a tab included.
    #[error("the key has a control character at position {position}; use printable ASCII only")]
    ControlCharacter {
        /// In the trimmed header value, from 0.
        position: usize,
    },
    /// Not a String of RFC 9651.
    #[error("the value is {found}; send a String of RFC 9651: the key in double quotes")]
    NotAString {
        /// What it is instead.
        found: &'static str,
    },
    /// Begins with a quote, but is not a String of RFC 9651.
    #[error(
        "the value is not a String of RFC 9651: {problem}; send the key in double quotes, \
         with `\\` before each `\"` and `\\` in it, and nothing after it"
    )]
    Malformed {
        /// In the words of the RFC's parser.
        problem: String,
    },
    /// A character which is not accepted without quotes.
    #[error(
        "{found:?} at position {position} is ambiguous without quotes; put the key in double quotes"
    )]
    NeedsQuotes {
        /// The character.
        found: char,
        /// In the trimmed header value, from 0.
        position: usize,
    },
    /// A comma in a key of the `stripe` dialect.
    #[error(
        "the key has a comma, which looks like two joined header lines; send one key without commas"
    )]
    Comma,
    /// A minimum that is zero, or that no key can reach. The configuration is wrong, not the
    /// client.
    #[error("a minimum key length of {min_length} is impossible; choose 1 to {MAX_LENGTH}")]
    MinLength {
        /// As configured.
        min_length: usize,
    },
}

fn printable(value: &[u8]) -> Result<(), Error> {
    match value.iter().position(|byte| !matches!(byte, b' '..=b'~')) {
        None => Ok(()),
        Some(position) if value[position].is_ascii() => Err(Error::ControlCharacter { position }),
        Some(position) => Err(Error::NonAscii { position }),
    }
}

/// Takes off the optional whitespace of HTTP, which is no part of a field's value.
fn trim(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    line
}

#[cfg(test)]
mod tests;
