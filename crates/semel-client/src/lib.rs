//! A client that makes a request happen once, whatever happens to the network, the server, or its own process.
//!
//! A server can only recognise a retry that carries the same key. This client stores a random key with the
//! request *before* it sends, retries with that key until the outcome is known, and stores the final response. The
//! caller names what should happen once, the *intent*:
//!
//! ```no_run
//! use semel_client::{Client, Journal, Request};
//!
//! # async fn pay() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder(Journal::sqlite("journal.db")?).build()?;
//! for (intent, result) in client.resume().await? {
//!     println!("{intent}: {result:?}"); // what an earlier process left open
//! }
//! let request = Request::post("https://api.example/payments")?.json(r#"{"amount":1000}"#);
//! let response = client.call("invoice-7781", request).await?;
//! println!("{}", response.status);
//! # Ok(())
//! # }
//! ```
//!
//! `invoice-7781` may be called again from any process with the same journal: an open intent continues with its key,
//! and a finished one returns its stored response without a request.
//!
//! The rules are in [`decide`], a pure function over a [`Profile`]; `packages/scenarios` fixes them for clients in all
//! languages. The features `middleware` and `tower` put the same client into `reqwest-middleware` and tower stacks.

mod attempts;
mod builder;
mod client;
mod coalesce;
mod core;
mod decision;
mod delay;
mod environment;
mod error;
pub mod journal;
#[cfg(feature = "tower")]
mod layer;
mod message;
#[cfg(feature = "middleware")]
mod middleware;
mod profile;
mod quota;
mod request;
mod resume;
mod stored_headers;
mod transport;

pub use builder::{Builder, Options};
pub use client::Client;
pub use decision::{Answer, Poll, Verdict, decide, decide_poll};
pub use environment::{Environment, System};
pub use error::{Error, GaveUp};
pub use journal::Journal;
#[cfg(feature = "tower")]
pub use layer::{Layer, Service};
#[cfg(feature = "middleware")]
pub use middleware::Middleware;
pub use profile::{Backoff, Profile, RefusalForm, RetryAfter};
pub use quota::QuotaOptions;
pub use request::{Intent, Request, Response};
#[cfg(feature = "reqwest")]
pub use transport::Reqwest;
pub use transport::{Received, Transport, TransportError};

/// A future of one call, boxed so that journals and transports can be trait objects.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
