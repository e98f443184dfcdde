//! Random secrets and their comparison.

use aws_lc_rs::rand;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The hash of a secret, under which it is looked up.
pub(super) type Hash = [u8; 32];

/// 256 random bits in hexadecimal, which cookies, forms and headers carry unescaped.
pub(super) struct Secret(String);

/// The operating system provides no randomness.
#[derive(Debug)]
pub(super) struct NoRandomness;

impl Secret {
    pub(super) fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Self(semel_core::hex(&bytes)))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

pub(super) fn hash(secret: &str) -> Hash {
    Sha256::digest(secret).into()
}

/// Compares hashes in constant time, so that the timing reveals nothing.
pub(super) fn constant_time_eq(one: &str, other: &str) -> bool {
    hash(one).ct_eq(&hash(other)).into()
}
