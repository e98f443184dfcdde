//! Random secrets, and how they are compared.

use aws_lc_rs::rand;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What stands for a secret where it is looked up.
pub(super) type Hash = [u8; 32];

/// 256 random bits in hexadecimal: a cookie, a form and a header can carry it as it is.
pub(super) struct Secret(String);

/// The operating system has no randomness to give.
#[derive(Debug)]
pub(super) struct NoRandomness;

impl Secret {
    pub(super) fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 32];
        rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Self(crate::admin::hex(&bytes)))
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

pub(super) fn hash(secret: &str) -> Hash {
    Sha256::digest(secret).into()
}

/// Whether both are the same. The time it takes tells nothing of either: hashes are compared.
pub(super) fn same(one: &str, other: &str) -> bool {
    hash(one).ct_eq(&hash(other)).into()
}
