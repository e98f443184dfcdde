//! Encryption at rest: what a store keeps of answers is unreadable without the key.
//!
//! [`Sealed`] stands in front of any store. Bodies and headers of answers, what phases found, the
//! evidence of reconciliation and parked events pass through it as ciphertext (AES-256-GCM-SIV);
//! so does whatever a cache behind it keeps. What the store must compare or sort by stays readable:
//! tenant, operation, key, fingerprint, status, times.
//!
//! A ciphertext belongs to its operation and to its place in the row: moved to another, it does
//! not open. It names its key, so a [`Keyring`] can hold old ones for reading while the newest
//! writes.
//!
//! What an application says in a transaction of its own by SQL (`semel_complete`,
//! `semel_advance`), and the events that it publishes there, do not pass here, and are stored as
//! they are.
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
