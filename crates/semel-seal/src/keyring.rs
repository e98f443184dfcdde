//! The encryption keys, by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, LessSafeKey, UnboundKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Longest name of a key, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 32;

/// The most keys at a time: an old key is needed only as long as data that it sealed is kept.
pub(crate) const MAX_KEYS: usize = 16;

/// Why keys were refused. The message never contains a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no key.
    #[error(
        "there is no key; write NAME:BASE64 with 32 random bytes, as from `openssl rand -base64 32`"
    )]
    Empty,
    /// There are too many keys.
    #[error("more than {MAX_KEYS} keys")]
    TooMany,
    /// An entry is not a name and a key.
    #[error(
        "key {0} is not NAME:BASE64, where NAME is 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_` or `.`"
    )]
    Malformed(usize),
    /// A key does not have 32 bytes.
    #[error("key {0} is not 32 bytes in base64, as from `openssl rand -base64 32`")]
    Length(usize),
    /// Two keys have the same name.
    #[error("key {0} has the name of another one; every key needs its own, and keeps it")]
    Repeated(usize),
}

/// Keys by name. The first one encrypts; all of them decrypt.
#[derive(Clone)]
pub struct Keyring {
    keys: Arc<[Key]>,
}

pub(crate) struct Key {
    pub(crate) name: Box<str>,
    pub(crate) cipher: LessSafeKey,
}

impl Keyring {
    /// The key that encrypts.
    pub(crate) fn current(&self) -> Option<&Key> {
        self.keys.first()
    }

    /// The key of that name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Key> {
        self.keys.iter().find(|key| key.name.as_bytes() == name)
    }
}

/// `NAME:BASE64`, separated by commas or lines, the encrypting key first. Lines may be empty, or
/// comments that begin with `#`.
impl FromStr for Keyring {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let entries = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| line.split(','))
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let mut keys: Vec<Key> = Vec::new();
        for (nth, entry) in (1..).zip(entries) {
            if nth > MAX_KEYS {
                return Err(Error::TooMany);
            }
            let (name, key) = entry.split_once(':').ok_or(Error::Malformed(nth))?;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(plain) {
                return Err(Error::Malformed(nth));
            }
            if keys.iter().any(|other| *other.name == *name) {
                return Err(Error::Repeated(nth));
            }
            let bytes = STANDARD.decode(key).map_err(|_| Error::Length(nth))?;
            let bytes = Zeroizing::new(bytes);
            let unbound =
                UnboundKey::new(&AES_256_GCM_SIV, &bytes).map_err(|_| Error::Length(nth))?;
            keys.push(Key {
                name: name.into(),
                cipher: LessSafeKey::new(unbound),
            });
        }
        if keys.is_empty() {
            return Err(Error::Empty);
        }
        Ok(Self { keys: keys.into() })
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|key| &key.name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const TWO: &str = "two:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn names(text: &str) -> Result<Vec<Box<str>>, Error> {
        let keyring: Keyring = text.parse()?;
        Ok(keyring.keys.iter().map(|key| key.name.clone()).collect())
    }

    #[test]
    fn keys_are_parsed_from_one_line_or_many() {
        let both = Ok(vec!["two".into(), "one".into()]);
        assert_eq!(names(&format!("{TWO},{ONE}")), both);
        assert_eq!(names(&format!("# newest first\n{TWO}\n\n {ONE}\n")), both);
    }

    #[test]
    fn invalid_keys_are_refused_and_not_shown() {
        for (text, error) in [
            ("", Error::Empty),
            ("# none\n", Error::Empty),
            (
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                Error::Malformed(1),
            ),
            (
                ":AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                Error::Malformed(1),
            ),
            ("one:", Error::Length(1)),
            ("one:c2hvcnQ=", Error::Length(1)),
            ("one:not base64", Error::Length(1)),
            (&format!("{ONE},{ONE}"), Error::Repeated(2)),
        ] {
            assert_eq!(names(text), Err(error), "{text}");
            assert!(!error.to_string().contains("AAEC"));
        }
        let many: Vec<_> = (0..=MAX_KEYS)
            .map(|n| ONE.replace("one", &format!("k{n}")))
            .collect();
        assert_eq!(names(&many.join(",")), Err(Error::TooMany));
        let keyring: Keyring = ONE.parse().unwrap();
        assert_eq!(format!("{keyring:?}"), "[\"one\"]");
    }
}
