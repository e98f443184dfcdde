//! The operator's secret.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The token of the admin listener, kept as its hash.
#[derive(Clone)]
pub struct Token([u8; 32]);

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
        Ok(Self(Sha256::digest(text).into()))
    }
}

impl Token {
    /// Whether it is this one. The time it takes tells nothing of either: hashes are compared,
    /// so not even the length shows.
    pub fn is(&self, presented: &str) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        self.0.ct_eq(&presented).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}
