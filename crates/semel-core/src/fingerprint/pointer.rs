//! JSON Pointers (RFC 6901).

use std::fmt;
use std::str::FromStr;

use super::Error;
use crate::canonical::MAX_DEPTH;

/// A JSON Pointer to one value of a body, such as `/metadata/trace_id` or `/items/0/price`.
///
/// ```
/// # use semel_core::fingerprint::Pointer;
/// let pointer: Pointer = "/metadata/trace_id".parse()?;
/// assert_eq!(pointer.to_string(), "/metadata/trace_id");
/// assert!("metadata".parse::<Pointer>().is_err());
/// # Ok::<(), semel_core::fingerprint::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    text: Box<str>,
    tokens: Vec<Box<str>>,
}

impl Pointer {
    /// The member names and places on the way, with their escapes resolved.
    pub fn tokens(&self) -> &[Box<str>] {
        &self.tokens
    }

    /// Whether the other pointer is this one, or points inside of it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.tokens.starts_with(&self.tokens)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Pointer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |problem| Error::Pointer {
            pointer: text.to_owned(),
            problem,
        };
        if text.is_empty() {
            return Ok(Self {
                text: "".into(),
                tokens: Vec::new(),
            });
        }
        let tokens = text
            .strip_prefix('/')
            .ok_or_else(|| refused("begin it with `/`"))?;
        let tokens: Vec<_> = tokens
            .split('/')
            .map(|token| unescape(token).map_err(refused))
            .collect::<Result<_, _>>()?;
        if tokens.len() > MAX_DEPTH {
            return Err(refused("no body is nested that deep"));
        }
        Ok(Self {
            text: text.into(),
            tokens,
        })
    }
}

fn unescape(token: &str) -> Result<Box<str>, &'static str> {
    if token == "-" {
        return Err("`-` is the place after an array's end, where no value is");
    }
    let mut pieces = token.split('~');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (character, rest) = match piece.as_bytes().first() {
            Some(b'0') => ('~', &piece[1..]),
            Some(b'1') => ('/', &piece[1..]),
            Some(_) | None => return Err("after `~` comes `0` (for `~`) or `1` (for `/`)"),
        };
        text.push(character);
        text.push_str(rest);
    }
    Ok(text.into())
}
