//! The secret of operators, and that of viewers.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A token with fewer characters is warned about: a machine that guesses thousands a second for a
/// year comes nowhere near 16 random ones.
const SHORT: usize = 16;

/// A token of the admin listener, kept as its hash.
#[derive(Clone)]
pub struct Token {
    hash: [u8; 32],
    short: bool,
}

impl FromStr for Token {
    type Err = &'static str;

    /// Takes a token as it was configured; blanks and line ends around it do not count. The
    /// error never has the token in it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Err("the admin token is empty; give it a value, or leave it out");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "the admin token has characters that a header cannot carry; \
                        use visible ASCII without blanks",
            );
        }
        Ok(Self {
            hash: Sha256::digest(text).into(),
            short: text.len() < SHORT,
        })
    }
}

impl Token {
    /// Whether it is this one. The time it takes tells nothing of either: hashes are compared,
    /// so not even the length shows.
    pub fn is(&self, presented: &str) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.hash.ct_eq(&presented).into()
    }

    /// Whether it has so few characters that it might be guessed.
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
