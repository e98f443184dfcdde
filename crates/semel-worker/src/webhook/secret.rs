//! Webhook secrets and HMAC signatures.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq as _};

use super::Scheme;
use super::signature::Claim;

/// The shortest secret. A shorter one can be brute-forced from one signed event.
pub const MIN_SECRET_BYTES: usize = 16;

/// The most secrets of one source. Rotation needs two.
pub const MAX_SECRETS: usize = 8;

/// The prefix of Standard Webhooks' and Stripe's secrets.
const PREFIX: &str = "whsec_";

/// Some senders leave out the padding of a secret.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a secret is invalid. The message never contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret is empty.
    #[error("the secret is empty: set the secret that the sender shows")]
    Empty,
    /// The secret can be guessed.
    #[error(
        "the secret has {0} bytes, fewer than {MIN_SECRET_BYTES}: copy the sender's complete secret"
    )]
    Short(usize),
    /// Whitespace around the secret, such as the line break of an editor.
    #[error("the secret begins or ends with whitespace: remove it")]
    Blank,
    /// Standard Webhooks' secrets are base64.
    #[error(
        "the secret is not base64: scheme `standard` needs `whsec_` and base64, as the sender shows it"
    )]
    Base64,
}

/// A validated secret.
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
            // Stripe uses the text including the prefix as the key.
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

/// Whether a secret produces one of the claimed signatures. Compares all of them in constant time.
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
