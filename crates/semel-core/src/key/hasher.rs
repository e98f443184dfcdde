//! Keyed hashes in place of keys, for stores that must not see the clear key.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Key;
use crate::hex;

/// The shortest secret, in bytes: as long as the hash.
pub const MIN_SECRET_BYTES: usize = 32;

/// Marks a hash, so that one that was copied from a record can be searched for.
const PREFIX: &str = "hmac-sha256:";

/// Hashes keys with HMAC-SHA-256.
///
/// Every process in front of one store has to use the same secret. With another one, no key that
/// is in the store is found, and its retry executes again.
///
/// ```
/// use semel_core::key::{Key, KeyHasher};
///
/// let hasher = KeyHasher::new(b"0123456789abcdef0123456789abcdef")?;
/// let stored = hasher.hash(&Key::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?);
/// assert!(stored.as_str().starts_with("hmac-sha256:"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyHasher(Hmac<Sha256>);

/// What the [id](KeyHasher::id) is a hash of. No key has a line break.
const ID_INPUT: &[u8] = b"semel\nid of a secret";

/// The secret is shorter than [`MIN_SECRET_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {0} bytes, at least {MIN_SECRET_BYTES} are needed; create one with \
     `openssl rand -hex 32`"
)]
pub struct ShortSecret(pub usize);

impl KeyHasher {
    /// Hashes with this secret.
    ///
    /// # Errors
    /// [`ShortSecret`]: with a secret that can be guessed, so can the keys.
    pub fn new(secret: &[u8]) -> Result<Self, ShortSecret> {
        let short = ShortSecret(secret.len());
        if secret.len() < MIN_SECRET_BYTES {
            return Err(short);
        }
        // HMAC takes secrets of every length.
        Hmac::new_from_slice(secret).map(Self).map_err(|_| short)
    }

    /// What is stored in place of `key`.
    pub fn hash(&self, key: &Key) -> Key {
        let digest = self.0.clone().chain_update(key.as_str()).finalize();
        Key(format!("{PREFIX}{}", hex(&digest.into_bytes())).into())
    }

    /// Stands for the secret, and does not disclose it: another secret has another id.
    pub fn id(&self) -> String {
        let digest = self.0.clone().chain_update(ID_INPUT).finalize();
        hex(&digest.into_bytes()[..4])
    }

    /// What is stored for the key that an operator searches for: its hash, unless it is a hash
    /// from a record.
    pub fn hash_searched(&self, key: &Key) -> Key {
        let is_hash = key.as_str().strip_prefix(PREFIX).is_some_and(|digits| {
            let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            digits.len() == 64 && digits.bytes().all(hex)
        });
        if is_hash { key.clone() } else { self.hash(key) }
    }
}

/// Whether two hash alike.
impl PartialEq for KeyHasher {
    fn eq(&self, other: &Self) -> bool {
        let probe = Key("probe".into());
        self.hash(&probe) == other.hash(&probe)
    }
}

impl Eq for KeyHasher {}

/// Without the secret.
impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    #[test]
    fn a_key_is_replaced_by_its_hmac() {
        let hasher = KeyHasher::new(SECRET).unwrap();
        let key = Key::new("8e03978e-40d5-43dd-bc93-6894a57f9324").unwrap();
        let stored = hasher.hash(&key);
        // printf %s 8e03978e-40d5-43dd-bc93-6894a57f9324 | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        assert_eq!(
            stored.as_str(),
            "hmac-sha256:fa59622025601118ba43ede3480873338c1e4864f46dcff8c9cabb7c98be438f"
        );
        assert_eq!(Key::new(stored.as_str()).as_ref(), Ok(&stored));
        assert_ne!(hasher.hash(&Key::new("other").unwrap()), stored);
        let other = KeyHasher::new(b"another secret, and as long as that").unwrap();
        assert_ne!(other.hash(&key), stored);
        assert!(other != hasher && hasher == KeyHasher::new(SECRET).unwrap());
    }

    #[test]
    fn a_hash_from_a_record_can_be_searched_for() {
        let hasher = KeyHasher::new(SECRET).unwrap();
        let key = Key::new("order-1").unwrap();
        let stored = hasher.hash(&key);
        assert_eq!(hasher.hash_searched(&key), stored);
        assert_eq!(hasher.hash_searched(&stored), stored);
        let almost = Key::new("hmac-sha256:abc").unwrap();
        assert_eq!(hasher.hash_searched(&almost), hasher.hash(&almost));
        // Clients cannot name a record by its hash.
        assert_ne!(hasher.hash(&stored), stored);
    }

    #[test]
    fn a_short_secret_is_refused_and_never_shown() {
        assert_eq!(KeyHasher::new(&SECRET[1..]).err(), Some(ShortSecret(31)));
        let shown = format!("{:?}", KeyHasher::new(SECRET).unwrap());
        assert!(!shown.contains("0123"), "{shown}");
    }
}
