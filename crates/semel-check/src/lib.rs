//! Probes any HTTP API for the guarantees of safe retries: those of the `Idempotency-Key`
//! header, and what a client is left with when something breaks between an effect and its answer.
//!
//! Nothing of Semel is used here. A checker that shares code with what it checks would share its
//! mistakes, and find none of them.
//!
//! [`check`] runs the probes against a [`Target`] and gives a [`Report`]; [`load::drive`] sends
//! as many requests as the target takes. What both need of the outside is a [`World`].
//!
//! **Invariant:** a request is sent by whoever decided to send it, and never again by the
//! transport: a client that retries by itself would be probing its own retries.

mod address;
mod answers;
mod caller;
mod catalogue;
#[cfg(feature = "cli")]
pub mod cli;
mod counter;
mod error;
mod json;
mod judge;
mod junit;
mod kind;
mod learn;
pub mod load;
mod operation;
mod probes;
mod record;
mod report;
mod run;
mod secrets;
mod table;
mod target;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod world;

pub use address::Address;
pub use catalogue::{Group, Id};
pub use error::Error;
pub use report::{Counts, Finding, Report, Verdict};
pub use run::check;
pub use target::{Case, Cases, Chosen, Commands, Counter, Dialect, Header, Target};
pub use text::fill;
pub use world::{Pending, Real, Stream, World};
