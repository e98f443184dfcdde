//! The envelope: a ciphertext and the name of its key.

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use bytes::{BufMut as _, Bytes, BytesMut};
use semel_core::{Error, OperationId};
use sha2::{Digest as _, Sha256};

use crate::Keyring;

/// The first bytes of an envelope: a byte that no text starts with, and the version of the format.
const MAGIC: [u8; 7] = *b"\0SEMEL\x01";

/// The most bytes that sealing adds: the magic, the key name and its length, and the tag.
pub(crate) const MAX_OVERHEAD: usize = MAGIC.len() + 1 + crate::keyring::MAX_NAME_BYTES + 16;

/// The field that a ciphertext belongs to. It does not decrypt in any other field.
pub(crate) struct SealedField<'a> {
    /// The id of the operation, recovery point or event that has the field.
    pub(crate) owner: &'a [u8],
    /// The name of the field.
    pub(crate) name: &'static str,
}

impl<'a> SealedField<'a> {
    /// A field of an operation.
    pub(crate) fn of_operation(id: &'a OperationId, name: &'static str) -> Self {
        Self {
            owner: id.as_bytes(),
            name,
        }
    }

    fn hash(&self, key: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"semel seal 1");
        for part in [self.owner, self.name.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    /// The nonce is the same for the same field: a completion whose answer was lost is written
    /// again, and must be the same bytes. GCM-SIV allows it: two texts under one nonce reveal only
    /// whether they are equal.
    fn nonce(hash: &[u8; 32]) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash[..NONCE_LEN]);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Keyring {
    /// Seals with the newest key.
    pub(crate) fn seal(&self, field: &SealedField<'_>, text: &[u8]) -> Result<Bytes, Error> {
        let key = self.current().ok_or_else(|| corrupt("there is no key"))?;
        let hash = field.hash(&key.name);
        let mut sealed = text.to_vec();
        key.cipher
            .seal_in_place_append_tag(SealedField::nonce(&hash), Aad::from(&hash), &mut sealed)
            .map_err(|_| corrupt("it cannot be sealed"))?;
        let mut envelope = BytesMut::with_capacity(MAX_OVERHEAD + sealed.len());
        envelope.put_slice(&MAGIC);
        // At most 32: the keyring refuses longer names.
        envelope.put_u8(u8::try_from(key.name.len()).unwrap_or(u8::MAX));
        envelope.put_slice(key.name.as_bytes());
        envelope.put_slice(&sealed);
        Ok(envelope.freeze())
    }
}

/// Whether the bytes start like an envelope.
pub(crate) fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Opens an envelope with the key that it names.
pub(crate) fn open(
    keyring: Option<&Keyring>,
    field: &SealedField<'_>,
    envelope: &[u8],
) -> Result<Bytes, Error> {
    let rest = envelope
        .strip_prefix(&MAGIC)
        .and_then(|rest| rest.split_first())
        .and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
    let Some((name, sealed)) = rest else {
        return Err(corrupt("what is sealed is cut off"));
    };
    let shown = String::from_utf8_lossy(name);
    let Some(key) = keyring.and_then(|keyring| keyring.find(name)) else {
        return Err(corrupt(&format!(
            "something is sealed with the key `{shown}`, which is not among those given; \
             add it behind the newest"
        )));
    };
    let hash = field.hash(&key.name);
    let mut text = sealed.to_vec();
    let length = key
        .cipher
        .open_in_place(SealedField::nonce(&hash), Aad::from(&hash), &mut text)
        .map_err(|_| {
            corrupt(&format!(
                "something sealed does not open with the key `{shown}`: it was altered, or belongs to \
                 another operation, or the name was given to another key"
            ))
        })?
        .len();
    text.truncate(length);
    Ok(text.into())
}

/// The error for an envelope that does not open: nothing is replayed, and nothing executes.
pub(crate) fn corrupt(reason: &str) -> Error {
    Error::Corrupt {
        reason: reason.into(),
    }
}
