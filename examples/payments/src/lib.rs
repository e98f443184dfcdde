//! The running example: a merchant's payment service in two versions, and the provider that both
//! charge through.
//!
//! - [`provider`] moves the money. It keeps a ledger, honours idempotency keys, answers queries about
//!   earlier charges, and fails on request.
//! - [`app`] is the merchant's API behind the gateway. It uses a few request headers of Semel and
//!   nothing else, as a service in any language would.
//! - [`shop`] is the same API with the library: payments and refunds in several phases, events, and
//!   consumers that process each event once. It may be killed at any point.
//!
//! Each serves on a listener that the caller has bound, until the caller's future ends:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::net::TcpListener;
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let url = format!("http://{}", listener.local_addr()?);
//! tokio::spawn(payments::provider::serve(
//!     listener,
//!     payments::provider::Config::default(),
//!     std::future::pending(),
//! ));
//! let listener = TcpListener::bind("127.0.0.1:3000").await?;
//! payments::app::serve(listener, payments::app::Config::new(url), std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The provider's ledger (`GET /ledger/summary`) shows how often money moved. Neither the service
//! nor Semel writes it.

pub mod app;
mod client;
mod error;
mod problem;
pub mod provider;
mod serve;
#[cfg(feature = "shop")]
pub mod shop;

pub use error::Error;
