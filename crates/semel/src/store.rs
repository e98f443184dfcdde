//! All that is needed to implement a store, and to complete a record without the layer.

pub use semel_core::store::*;
pub use semel_core::transition::{self, Completion, Decision, Event, Held, Reserve, Resolve};
pub use semel_core::{
    Actor, BackgroundJob, Backoff, Clock, Code, Fence, Fingerprint, Fingerprints, Identity, Key,
    Lease, LocalPhase, Owner, Record, RecoveryPoint, Response, State, Status, SystemClock,
    Timestamp, Transaction, Unresolved, history, statistics, time, transaction,
};
