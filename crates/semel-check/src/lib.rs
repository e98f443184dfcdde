//! Probes any HTTP API for the guarantees of safe retries: those of the `Idempotency-Key` header,
//! and what a client sees after a failure between an effect and its response.
//!
//! This crate uses no other crate of Semel: a checker that shares code with its target shares its
//! mistakes.
//!
//! [`check`] runs the probes against a [`Target`] and returns a [`Report`]; [`load::run_load`] sends
//! as many requests as the target handles. Both use an [`Environment`] for connections and commands.
//!
//! **Invariant:** the transport never sends a request again on its own: the probes would measure
//! the client's retries instead of the server.

mod address;
mod catalogue;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod counter;
mod environment;
mod error;
mod json;
mod judge;
mod junit;
pub mod load;
mod operation;
mod probe_log;
mod probes;
mod profile;
mod report;
mod response;
mod response_kind;
mod run;
mod secrets;
mod table;
mod target;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub use address::Address;
pub use catalogue::{Group, ProbeId};
pub use environment::{BoxFuture, Environment, Stream, SystemEnvironment};
pub use error::Error;
pub use report::{Counts, Finding, Report, Verdict};
pub use run::check;
pub use target::{Case, Cases, Commands, Counter, Dialect, DialectChoice, Header, Target};
pub use text::fill;
