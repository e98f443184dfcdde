//! The HTTP boundary of Semel: one [`tower_layer::Layer`], in front of a handler or of a
//! whole upstream.
//!
//! A guarded request goes one way, and each step has a file:
//!
//! `extract → fingerprint → reserve → execute → complete → replay`
//!
//! The execution runs in a task of its own, from the reservation on: a client that goes away
//! stops nothing. What it ends with is written before it is sent.

mod answer;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod cache;
mod complete;
#[cfg(feature = "axum")]
mod completer;
mod conclude;
mod decode;
mod execute;
mod extract;
mod fingerprint;
mod ground;
mod guarded;
mod layer;
mod meters;
mod operation;
pub mod outcome;
mod phases;
mod reason;
mod replay;
mod reserve;
pub mod resource;
pub mod route;
mod rules;
mod service;
mod settle;
pub mod spans;
mod status;
mod stored;
pub mod tenant;
mod together;
mod waiters;

#[cfg(feature = "axum")]
pub use self::axum::{Answering, MAX_INSIDE, NotGuarded, Unready};
pub use answer::TYPE_BASE;
pub use body::{RequestBody, ResponseBody};
#[cfg(feature = "axum")]
pub use completer::Completer;
pub use layer::{Builder, CACHE_BYTES, Drained, Layer};
pub use meters::names;
pub use operation::Operation;
pub use outcome::{Ending, Outcome, Unframed};
pub use phases::{Downstream, MAX_PHASES, MAX_RECOVERY_BYTES, Phases, Stopped};
pub use route::{InFlight, KeyRule, Route};
pub use service::{ResponseFuture, Service};
pub use status::rfc3339;
pub use together::Together;
