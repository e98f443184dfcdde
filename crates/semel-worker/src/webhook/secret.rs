//! Secrets, and what they sign.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq as _};

use super::Scheme;
use super::signature::Claim;

/// The fewest bytes of a secret. Shorter ones can be guessed from one signed event.
pub const MIN_SECRET_BYTES: usize = 16;

/// The most secrets of one source. Two are enough to replace one by another.
pub const MAX_SECRETS: usize = 8;

/// What secrets of Standard Webhooks and of Stripe begin with.
const PREFIX: &str = "whsec_";

/// Some senders leave out the padding of a secret.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a secret cannot be used. The message never repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Anybody could sign with it.
    #[error("the secret is empty: anybody could sign with it")]
    Empty,
    /// It can be guessed.
    #[error(
        "the secret has {0} bytes, and {MIN_SECRET_BYTES} are the fewest; take the sender's whole secret"
    )]
    Short(usize),
    /// A line break that an editor left, or half of a paste.
    #[error("the secret begins or ends with a blank or a line break, which is part of no secret")]
    Blank,
    /// Standard Webhooks writes secrets in base64.
    #[error(
        "the secret of `standard` is `whsec_` and base64, as the sender shows it, and this is not"
    )]
    Base64,
}

/// One secret, ready to sign with.
#[derive(Clone)]
pub(super) struct Secret(Hmac<Sha256>);

impl Secret {
    pub(super) fn read(scheme: &Scheme, text: &str) -> Result<Self, SecretError> {
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        if text.trim() != text {
            return Err(SecretError::Blank);
        }
        let (key, random) = match scheme {
            Scheme::Standard => {
                let text = text.strip_prefix(PREFIX).unwrap_or(text);
                let key = BASE64.decode(text).map_err(|_| SecretError::Base64)?;
                let length = key.len();
                (key, length)
            }
            // Stripe signs with the text as it is, prefix and all.
            Scheme::Stripe => {
                let random = text.strip_prefix(PREFIX).unwrap_or(text).len();
                (text.as_bytes().to_vec(), random)
            }
            Scheme::Hmac { .. } => (text.as_bytes().to_vec(), text.len()),
        };
        match random {
            0 => Err(SecretError::Empty),
            length if length < MIN_SECRET_BYTES => Err(SecretError::Short(length)),
            _ => Hmac::new_from_slice(&key)
                .map(Self)
                .map_err(|_| SecretError::Empty),
        }
    }

    #[cfg(test)]
    pub(super) fn of(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).unwrap())
    }

    pub(super) fn tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Whether one of the claimed signatures is one of ours. Every secret is tried on every claim,
/// whatever was found before, so the time it takes says nothing.
pub(super) fn signed(secrets: &[Secret], claim: &Claim<'_>, body: &[u8]) -> bool {
    let mut parts = claim.signed_prefix();
    parts.push(body);
    let mut found = Choice::from(0);
    for secret in secrets {
        let tag = secret.tag(&parts);
        for claimed in claim.signatures() {
            found |= tag.ct_eq(claimed);
        }
    }
    found.into()
}
