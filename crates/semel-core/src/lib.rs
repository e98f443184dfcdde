//! The state machine of safe retries.
//!
//! This crate decides; it does nothing. It holds the client's [`Key`], the
//! [`Fingerprint`] of what the client asked for, the [`Record`] that a store remembers,
//! and [`transition`]: the one pure function that says what any event makes of a record.
//! A store repeats each rule as a guarded write, and a conformance suite proves that the
//! two agree.
//!
//! There is deliberately no async runtime, no HTTP and no SQL in here or below.
//!
//! ```
//! use semel_core::{
//!     Decision, Fingerprint, Identity, Key, OperationId, Policy, Reserve, Timestamp,
//!     transition,
//! };
//!
//! let request = Reserve {
//!     id: OperationId::generate(),
//!     identity: Identity::new("tenant-1", "create_payment", Key::new("8e03978e-40d5-43dd")?)?,
//!     fingerprints: Fingerprint::of(&("EUR", 1000))?.into(),
//!     owner: "host-1/42".into(),
//!     policy: Policy::default(),
//! };
//! let now = Timestamp::from_micros(1_000_000);
//!
//! // The first request is granted an execution …
//! let first = transition::reserve(None, request.clone(), now);
//! assert!(matches!(first.answer, Decision::Execute(_)));
//!
//! // … and a retry that comes meanwhile is not.
//! let second = transition::reserve(first.record, request, now);
//! assert!(matches!(second.answer, Decision::InProgress(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod background_job;
pub mod canonical;
pub mod contract;
pub mod fingerprint;
pub mod headers;
mod hex;
pub mod history;
pub mod identity;
pub mod inbox;
pub mod key;
pub mod memory;
pub mod outbox;
pub mod path;
pub mod policy;
pub mod record;
pub mod statistics;
pub mod store;
pub mod stored;
pub mod time;
pub mod transaction;
pub mod transition;

pub use background_job::BackgroundJob;
pub use fingerprint::{Fingerprint, Fingerprints};
pub use hex::hex;
pub use history::Actor;
pub use identity::{Identity, KeyScope};
pub use key::Key;
pub use memory::Memory;
pub use outbox::Sink;
pub use policy::{Backoff, OnExpired, Policy, Stale, Windows};
pub use record::{
    Code, Completed, Fence, Lease, OperationId, Owner, Record, RecoveryPoint, Resource, Response,
    State, Status, Unresolved,
};
pub use store::{Backend, Error, Store};
pub use stored::Stored;
pub use time::{Clock, SystemClock, Timestamp};
pub use transaction::{LocalPhase, Transaction};
pub use transition::{Completion, Decision, Event, Held, Reserve, Resolution, Resolve, Verdict};
