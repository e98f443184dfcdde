//! Encryption at rest: stored answers are unreadable without the key.
//!
//! [`Sealed`] wraps any store. It encrypts (AES-256-GCM-SIV) the bodies and headers of answers, the
//! data of recovery points, the evidence of reconciliation and parked events, so a cache behind it
//! holds ciphertext, too. The fields that the store compares or sorts by stay readable: tenant,
//! operation, key, fingerprint, status, times.
//!
//! A ciphertext is bound to its operation and field: moved to another, it does not decrypt. It
//! names its key, so a [`Keyring`] can hold old keys for decryption while the newest one encrypts.
//!
//! Completions and recovery points that an application writes by SQL in its own transaction
//! (`semel_complete`, `semel_advance`), and the events that it publishes there, do not pass through
//! this store and are stored unencrypted.
//!
//! ```
//! use semel_core::Memory;
//! use semel_seal::{Keyring, Sealed};
//!
//! let keys: Keyring = "2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".parse()?;
//! let store = Sealed::new(Memory::default(), Some(keys));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod envelope;
mod keyring;
mod sealed;

pub use keyring::{Error, Keyring};
pub use sealed::Sealed;
