//! What happens out of band: nothing stays unknown.
//!
//! ```text
//! sweep ──► unknown ──► reconcile ──┬──► completed, or released
//!                ▲ a webhook, too   └──► dead letter: waits for a person, a webhook, a late owner
//! ```
//!
//! A [`Worker`] runs all of it, in as many processes as one likes: every change goes through a
//! claim or a guarded verb of the store. What it cannot know is how to find out what became of an
//! operation. For that there is [`Reconcile`]:
//!
//! ```
//! use bytes::Bytes;
//! use semel_core::{Completion, Memory, Record, Response};
//! use semel_worker::{CancellationToken, Finding, Found, Reconcile, Reconcilers, Schedule, Worker};
//!
//! /// Asks the provider by the key that every attempt gave it.
//! struct Charges(Provider);
//!
//! impl Reconcile for Charges {
//!     async fn look(&self, operation: &Record) -> Found {
//!         let (status, body) = match self.0.charge(&operation.id.downstream_key("charge")).await {
//!             Ok(answer) => answer,
//!             // It did not answer: nothing is known, and it is asked again later.
//!             Err(error) => return Finding::unclear("provider_unreachable").seen(error),
//!         };
//!         match status {
//!             // A decline is an end, too: the unit of work is over.
//!             200 => Finding::Completed(Completion {
//!                 response: Response {
//!                     status: 201,
//!                     headers: vec![("content-type".into(), "application/json".into())],
//!                     body: Some(body.clone()),
//!                     schema_version: 0,
//!                 },
//!                 resource: None,
//!             }),
//!             // Perhaps not yet. It releases only where the schedule says that it may.
//!             404 => Finding::Absent("provider_does_not_know_it".into()),
//!             _ => Finding::Unclear("provider_failed".into()),
//!         }
//!         .seen(body)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel_worker::reconcilers::Error> {
//! # let store = Memory::default();
//! let schedule = Schedule {
//!     // Every attempt sends the same key, so a charge that comes late is still the only one.
//!     downstream_idempotent: true,
//!     ..Schedule::default()
//! };
//! let reconcilers = Reconcilers::new(store.clone())
//!     .by_looking("create_payment", schedule, Charges(Provider))?;
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

pub mod census;
pub mod meters;
pub mod notice;
pub mod reconcile;
pub mod reconcilers;
pub mod relay;
mod retention;
pub mod rounds;
pub mod runner;
pub mod webhook;

pub use census::CensusTaker;
pub use notice::{About, Applied, Notice, Says, apply};
pub use reconcile::{Finding, Found, Reconcile, Schedule};
pub use reconcilers::{Asked, Reconcilers};
pub use relay::{BacklogGauge, Relay};
pub use rounds::{Delivered, Reconciled, Retained, Swept};
pub use runner::{Pace, Worker};
pub use tokio_util::sync::CancellationToken;
