//! The admin tokens: one for operators, one for viewers.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A token with fewer characters causes a warning at start. Guessing 16 random characters takes
/// far longer than a year at thousands of guesses per second.
const SHORT: usize = 16;

/// An admin token, stored as its hash.
#[derive(Clone)]
pub struct Token {
    hash: [u8; 32],
    short: bool,
}

impl FromStr for Token {
    type Err = &'static str;

    /// Parses a configured token; whitespace around it is ignored. The error never contains the
    /// token.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Err("the admin token is empty; set a value, or remove the setting");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "the admin token has characters that a header cannot carry; \
                        use visible ASCII without spaces",
            );
        }
        Ok(Self {
            hash: Sha256::digest(text).into(),
            short: text.len() < SHORT,
        })
    }
}

impl Token {
    /// Whether `presented` is this token. Compares hashes in constant time, so the timing reveals
    /// neither content nor length.
    pub fn is(&self, presented: &str) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.hash.ct_eq(&presented).into()
    }

    /// Whether the token is short enough to be guessed.
    pub(super) fn is_short(&self) -> bool {
        self.short
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.hash.ct_eq(&other.hash).into()
    }
}
