//! The running example: a merchant's payment service, told twice, and a provider that it charges
//! through.
//!
//! - [`provider`] moves the money. It has a ledger of its own, honours idempotency keys, can be
//!   asked for the truth afterwards, and breaks in the ways you tell it to.
//! - [`app`] is the merchant's API. It knows nothing of Semel but a few request headers, as a
//!   service in any language would.
//! - [`shop`] is the same business told with the library: payments and refunds of several phases,
//!   events, and consumers that act once. It survives anything.
//!
//! Each serves on a listener that the caller has bound, until a future of the caller's ends:
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
//! How often money moved is read from the provider's ledger (`GET /ledger/summary`), which
//! neither the service nor Semel writes.

pub mod app;
mod client;
mod error;
mod problem;
pub mod provider;
mod serve;
pub mod shop;

pub use error::Error;
