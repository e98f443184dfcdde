//! The HTTP boundary of Semel: one [`tower_layer::Layer`], around a handler or an upstream.
//!
//! A guarded request passes six steps. `pipeline::run` calls them in order, and each has a module:
//!
//! `extract → fingerprint → reserve → execute → complete → respond`
//!
//! From `reserve` on they run in a task of their own: a client that disconnects stops nothing. The
//! outcome is written to the record before the response is sent.

#[cfg(feature = "axum")]
mod axum;
mod body;
mod bounds;
mod budget;
mod cache;
mod commit;
mod commit_with;
mod complete;
mod context;
mod contracts;
mod decode;
mod execute;
mod extract;
mod fingerprint;
mod forward;
mod heartbeat;
mod home;
mod judge;
mod layer;
mod loaded_rules;
mod matching;
mod metrics;
mod operation;
pub mod outcome;
mod phase_context;
mod phases;
mod pipeline;
mod publication;
mod reason;
mod reconstruct;
mod record;
mod refusal;
mod replay;
mod reserve;
pub mod resource;
mod respond;
#[cfg(feature = "axum")]
mod resume;
pub mod route;
mod rules;
pub mod schema;
mod service;
pub mod spans;
mod state;
#[cfg(feature = "status")]
mod status;
mod stored;
pub mod tenant;
mod uri;
mod wait;
mod waiters;

#[cfg(feature = "axum")]
pub use self::axum::{
    BodyNotReady, Command, MAX_CAPTURED_BYTES, NoCommand, NotGuarded, ResponseCapture,
};
pub use body::{RequestBody, ResponseBody};
pub use commit_with::CommitWith;
pub use contracts::{ContractChange, ContractError, ContractPlan, RulesChange};
pub use home::{FromRegion, Home, Homes, Relay};
pub use layer::{Builder, CACHE_BYTES, Drained, Layer, MAX_BUFFERED};
pub use metrics::names;
pub use operation::Operation;
pub use outcome::{CloseDelimited, Outcome, OutcomeKind};
pub use phases::{Downstream, MAX_PHASES, MAX_RECOVERY_BYTES, Phases, Stopped};
#[cfg(feature = "axum")]
pub use resume::ResumeJob;
pub use route::{
    InFlight, KeyRule, OnSchemaChange, OperationName, ReplayMode, Retry, Route, WeakKeys,
};
pub use rules::DEAD_LETTER_RETRY_AFTER;
pub use service::{ResponseFuture, Service};
#[cfg(feature = "status")]
pub use status::rfc3339;
