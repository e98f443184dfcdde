//! Background jobs: sweep, reconcile, dead-letter, retention, webhooks and the outbox relay.
//!
//! ```text
//! sweep ──► unknown ──► reconcile ──┬──► completed, or released
//!                ▲ or a webhook     └──► dead letter: an operator, a webhook or a late owner resolves it
//! ```
//!
//! A [`Worker`] runs background jobs. Any number of processes may run one on the same store: every
//! change goes through a claim or a fenced verb of the store. The application implements
//! [`Reconcile`] to report what became of a record whose outcome is unknown:
//!
//! ```
//! use bytes::Bytes;
//! use semel_core::{Completion, Memory, Record, Response};
//! use semel_worker::{CancellationToken, LookupResult, Lookup, Reconcile, Reconcilers, Schedule, Worker};
//!
//! /// Looks up charges by the key that every attempt sent to the provider.
//! struct Charges(Provider);
//!
//! impl Reconcile for Charges {
//!     async fn look_up(&self, record: &Record) -> Lookup {
//!         let (status, body) = match self.0.charge(&record.id.downstream_key("charge")).await {
//!             Ok(answer) => answer,
//!             // No answer: the worker looks again later.
//!             Err(error) => return LookupResult::unclear("provider_unreachable").seen(error),
//!         };
//!         match status {
//!             // A decline completes the record as well.
//!             200 => LookupResult::Completed(Completion {
//!                 response: Response {
//!                     status: 201,
//!                     headers: vec![("content-type".into(), "application/json".into())],
//!                     body: Some(body.clone()),
//!                     schema_version: 0,
//!                 },
//!                 resource: None,
//!             }),
//!             // Releases the record only if the schedule is `downstream_idempotent`.
//!             404 => LookupResult::Absent("provider_does_not_know_it".into()),
//!             _ => LookupResult::Unclear("provider_failed".into()),
//!         }
//!         .seen(body)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel_worker::reconcilers::Error> {
//! # let store = Memory::default();
//! let schedule = Schedule {
//!     // Every attempt sends the same key, so a late charge and its retry are one charge.
//!     downstream_idempotent: true,
//!     ..Schedule::default()
//! };
//! let reconcilers = Reconcilers::new(store.clone())
//!     .poll_with("create_payment", schedule, Charges(Provider))?;
//! let shutdown = CancellationToken::new();
//! let worker = Worker::new(store).reconcilers(reconcilers);
//! let running = tokio::spawn(worker.run(shutdown.clone()));
//! // … until the process stops:
//! shutdown.cancel();
//! running.await.ok();
//! # Ok(())
//! # }
//! #
//! # struct Provider;
//! # impl Provider {
//! #     async fn charge(&self, _: &str) -> Result<(u16, Bytes), &'static str> { Err("reset") }
//! # }
//! ```

pub mod meters;
pub mod notice;
pub mod reconcile;
pub mod reconcilers;
pub mod record_count_scan;
pub mod relay;
mod retention;
pub mod rounds;
pub mod runner;
pub mod unreconciled;
pub mod webhook;

pub use notice::{Applied, Notice, NoticeTarget, NoticeVerdict, apply};
pub use reconcile::{Lookup, LookupResult, Reconcile, Schedule};
pub use reconcilers::{ReconcileOutcome, Reconcilers};
pub use record_count_scan::RecordCountScan;
pub use relay::{BacklogGauge, Relay};
pub use rounds::{Delivered, Reconciled, Retained, Swept};
pub use runner::{Pace, Worker};
pub use tokio_util::sync::CancellationToken;
