//! What is too long to be kept for every operation, as a number.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// Its keys are fixed, so that the same bytes give the same number everywhere in a check.
pub(crate) fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
