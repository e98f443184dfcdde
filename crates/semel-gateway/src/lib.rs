//! The gateway: Semel's boundary in front of an application in any language.
//!
//! `server → service → semel_http::Layer → upstream`, and beside it the admin listener. The layer
//! decides which requests are guarded and how; this crate adds the transport on both sides, the
//! configuration, and the process around them.

pub mod activity;
pub mod admin;
mod assemble;
mod client_tls;
pub mod config;
mod error_pages;
mod hygiene;
pub mod observed;
pub mod outbox;
pub mod reconcile;
pub mod regions;
mod replay;
mod rollback;
mod run;
pub mod server;
mod service;
mod socket;
pub mod telemetry;
pub mod tenant;
pub mod upstream;
pub mod webhooks;

pub use assemble::build_layer;
pub use config::Config;
pub use error_pages::ERROR_PATH;
pub use rollback::{StoreWatch, accept_rollback};
pub use run::{Error, Listening, Role, open_store, run};
pub use service::{CurrentLayer, GatewayService, InternalRoutes, STATUS_PATH};
