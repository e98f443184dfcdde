//! The gateway: Semel's boundary in front of an application in any language.
//!
//! `server → front → semel_http::Layer → upstream`, and beside it the listener for operators.
//! What is guarded, and how, is the layer's; what this crate adds is the transport on both
//! sides, the configuration, and the process around it.

pub mod activity;
pub mod admin;
mod assemble;
pub mod config;
mod front;
mod hygiene;
pub mod observed;
pub mod outbox;
pub mod reconcile;
mod run;
pub mod server;
mod socket;
pub mod telemetry;
pub mod tenant;
mod trust;
pub mod upstream;
pub mod webhooks;

pub use assemble::guard;
pub use config::Config;
pub use front::{Current, Front, Own, STATUS_PATH};
pub use run::{Error, Listening, Role, run};
