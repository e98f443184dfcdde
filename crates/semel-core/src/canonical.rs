//! Canonical JSON (RFC 8785), pure and guarded.
//!
//! Two clients that mean the same thing may order members and write numbers
//! differently; canonical bytes make them comparable:
//!
//! ```
//! use semel_core::canonical;
//!
//! let first = canonical::pure(br#"{ "currency": "EUR", "amount": 1e2 }"#)?;
//! let second = canonical::pure(br#"{"amount":100.0,"currency":"\u0045UR"}"#)?;
//! assert_eq!(first, br#"{"amount":100,"currency":"EUR"}"#);
//! assert_eq!(first, second);
//! # Ok::<(), canonical::NotIJson>(())
//! ```
//!
//! RFC 8785 sees every number as an IEEE double, so two different amounts may become
//! the same bytes. [`pure`] does exactly that, for comparison with other
//! implementations; [`guarded`] refuses instead, and is what a fingerprint is made of:
//!
//! ```
//! use semel_core::canonical;
//!
//! assert_eq!(canonical::pure(b"9007199254740993").as_deref(), Ok(&b"9007199254740992"[..]));
//! assert!(canonical::guarded(b"9007199254740993").is_err());
//! ```
//!
//! Both read a body once, in O(n log n). Memory: 12 bytes per value, and the output. Measured
//! as peak resident memory over body size, beside the body itself: 2.2 times for payment-like
//! bodies, 7 times for the worst that a hostile client can send (`[0,0,0,…`).

pub(crate) mod number;
mod parse;
mod tree;
mod write;

pub(crate) use parse::parse;
pub(crate) use tree::{Child, Tree, compare};
pub(crate) use write::{Numbers, write, write_string};

/// How deep arrays and objects may be nested. Parsing recurses, and parsers of our
/// users do too: 128 is what `serde_json` allows.
pub const MAX_DEPTH: usize = 128;

/// The largest body that is canonicalised: positions are kept in 32 bits. A gateway
/// takes 8 MiB by default, so this is never the limit that a client meets.
pub const MAX_BODY: usize = 1 << 30;

/// The longest piece of a body that an error message repeats.
const MAX_EXCERPT: usize = 40;

/// Exactly RFC 8785: numbers are rounded to doubles, and `-0` becomes `0`.
///
/// # Errors
/// [`NotIJson`] where the body is not I-JSON (RFC 7493): not JSON at all, not UTF-8,
/// a repeated member name, a lone surrogate, a number beyond a double; or where it is
/// nested deeper than [`MAX_DEPTH`].
pub fn pure(body: &[u8]) -> Result<Vec<u8>, NotIJson> {
    canonicalise(body, Numbers::Rounded)
}

/// RFC 8785 without loss: whenever this succeeds, it gives the bytes of [`pure`], and two
/// bodies with the same bytes mean the same.
///
/// # Errors
/// As [`pure`], and where a number is not the value that RFC 8785 would print
/// (`9007199254740993`, `1.000000000000000005`, `1e-999`), or is `-0`.
pub fn guarded(body: &[u8]) -> Result<Vec<u8>, NotIJson> {
    canonicalise(body, Numbers::Exact)
}

/// Why a body has no canonical form, and where.
///
/// ```
/// let refused = semel_core::canonical::pure(br#"{"a":1,"a":2}"#).unwrap_err();
/// assert_eq!(refused.to_string(), r#"duplicate member name "a" at byte 7"#);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {offset}")]
pub struct NotIJson {
    offset: usize,
    reason: Reason,
}

impl NotIJson {
    pub(crate) fn new(offset: usize, reason: Reason) -> Self {
        Self { offset, reason }
    }

    /// Where in the body, in bytes from 0.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// What was found there.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }
}

/// What was found in a body that has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The body is over [`MAX_BODY`].
    #[error("body over {MAX_BODY} bytes")]
    TooLarge,
    /// JSON in UTF-8 starts without a byte order mark; with one, parsers disagree.
    #[error("byte order mark")]
    ByteOrderMark,
    /// A string holds bytes that are not UTF-8.
    #[error("invalid UTF-8")]
    InvalidUtf8,
    /// The body ends in the middle of a value.
    #[error("unexpected end of the body")]
    UnexpectedEnd,
    /// A byte that JSON does not allow here.
    #[error("found {} instead of {expected}", excerpt(&[*.found]))]
    Unexpected {
        /// The byte.
        found: u8,
        /// What would have been right.
        expected: &'static str,
    },
    /// A control character inside a string; JSON wants it escaped.
    #[error("unescaped control character 0x{0:02x} in a string")]
    ControlCharacter(u8),
    /// A `\` that does not begin one of JSON's escapes.
    #[error("invalid escape in a string")]
    InvalidEscape,
    /// Half of a surrogate pair, which is no character.
    #[error("lone surrogate")]
    LoneSurrogate,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nesting deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The same name twice in one object, escapes resolved: parsers disagree on which wins.
    #[error("duplicate member name {0:?}")]
    DuplicateName(String),
    /// A number beyond the range of a double.
    #[error("number {0} beyond the range of a double")]
    OutOfRange(String),
    /// A number that a double cannot hold: another value would be printed.
    #[error("number {0} that a double cannot hold")]
    Lossy(String),
    /// Zero with a minus sign, which RFC 8785 prints as `0`.
    #[error("negative zero")]
    NegativeZero,
}

/// A short printable form of a piece of the body, for messages.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MAX_EXCERPT)];
    let mut text: String = shown
        .iter()
        .copied()
        .flat_map(std::ascii::escape_default)
        .map(char::from)
        .collect();
    if shown.len() < bytes.len() {
        text.push('…');
    }
    text
}

fn canonicalise(body: &[u8], numbers: Numbers) -> Result<Vec<u8>, NotIJson> {
    let tree = parse(body)?;
    let mut out = Vec::with_capacity(body.len());
    write(&tree, numbers, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests;
