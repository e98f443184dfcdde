//! A ciphertext and the name of its key.

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use bytes::{BufMut as _, Bytes, BytesMut};
use semel_core::{Error, OperationId};
use sha2::{Digest as _, Sha256};

use crate::Keyring;

/// How an envelope begins: with a byte that no text begins with, and the version of this form.
const MAGIC: [u8; 7] = *b"\0SEMEL\x01";

/// The most bytes that sealing adds: the beginning, the name of the key and its length, the tag.
pub(crate) const MOST_OVERHEAD: usize = MAGIC.len() + 1 + crate::keyring::MAX_NAME_BYTES + 16;

/// What a ciphertext belongs to. It opens nowhere else.
pub(crate) struct Place<'a> {
    /// The operation, its recovery point, or the event.
    pub(crate) of: &'a [u8],
    /// Which part of it.
    pub(crate) part: &'static str,
}

impl<'a> Place<'a> {
    /// A part of an operation.
    pub(crate) fn in_operation(id: &'a OperationId, part: &'static str) -> Self {
        Self {
            of: id.as_bytes(),
            part,
        }
    }

    fn hash(&self, key: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"semel seal 1");
        for part in [self.of, self.part.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    /// The same for the same place: a completion whose answer was lost is written again, and
    /// must be the same bytes. GCM-SIV is made for it: two texts under one nonce betray no more
    /// than whether they are equal.
    fn nonce(hash: &[u8; 32]) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&hash[..NONCE_LEN]);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Keyring {
    /// Seals with the newest key.
    pub(crate) fn seal(&self, place: &Place<'_>, text: &[u8]) -> Result<Bytes, Error> {
        let key = self.current().ok_or_else(|| broken("there is no key"))?;
        let hash = place.hash(&key.name);
        let mut sealed = text.to_vec();
        key.cipher
            .seal_in_place_append_tag(Place::nonce(&hash), Aad::from(&hash), &mut sealed)
            .map_err(|_| broken("it cannot be sealed"))?;
        let mut envelope = BytesMut::with_capacity(MOST_OVERHEAD + sealed.len());
        envelope.put_slice(&MAGIC);
        // At most 32, as the keyring saw to.
        envelope.put_u8(u8::try_from(key.name.len()).unwrap_or(u8::MAX));
        envelope.put_slice(key.name.as_bytes());
        envelope.put_slice(&sealed);
        Ok(envelope.freeze())
    }
}

/// Whether it looks like one.
pub(crate) fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Opens an envelope with the key that it names.
pub(crate) fn open(
    keyring: Option<&Keyring>,
    place: &Place<'_>,
    envelope: &[u8],
) -> Result<Bytes, Error> {
    let rest = envelope
        .strip_prefix(&MAGIC)
        .and_then(|rest| rest.split_first())
        .and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
    let Some((name, sealed)) = rest else {
        return Err(broken("what is sealed is cut off"));
    };
    let shown = String::from_utf8_lossy(name);
    let Some(key) = keyring.and_then(|keyring| keyring.find(name)) else {
        return Err(broken(&format!(
            "something is sealed with the key `{shown}`, which is not among those given; \
             add it behind the newest"
        )));
    };
    let hash = place.hash(&key.name);
    let mut text = sealed.to_vec();
    let length = key
        .cipher
        .open_in_place(Place::nonce(&hash), Aad::from(&hash), &mut text)
        .map_err(|_| {
            broken(&format!(
                "something sealed does not open with the key `{shown}`: it was altered, or belongs to \
                 another operation, or the name was given to another key"
            ))
        })?
        .len();
    text.truncate(length);
    Ok(text.into())
}

/// What cannot be opened is not guessed at: nothing is replayed, and nothing executes.
pub(crate) fn broken(reason: &str) -> Error {
    Error::Corrupt {
        reason: reason.into(),
    }
}
