//! Encryption at rest, in front of any store.

pub use semel_seal::*;
