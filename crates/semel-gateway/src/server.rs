//! The HTTP server: accepts connections and hands requests to a [`tower_service::Service`].
//!
//! HTTP/1.1 and HTTP/2, the latter by prior knowledge or ALPN. Every wait on a client has a limit,
//! see [`Limits`]; malformed requests are refused before they reach the service.
//!
//! [`Workers`] runs one thread per core, each with its own runtime, listener and service, so
//! that a request never changes threads. [`serve`] does the same for one listener on the current
//! runtime.
//!
//! **Absent:** informational responses. hyper's server cannot send a 1xx from the service (`103
//! Early Hints`): a service returns one response, and a 1xx returned as that one is an error. It
//! sends `100 Continue` by itself when the service first reads the body.

mod accept;
mod activity;
mod bridge;
mod connection;
mod incoming;
mod limits;
mod linger;
mod peer;
mod progress;
mod tls;
mod wire;
mod workers;

pub use accept::{Drained, serve};
pub use bridge::TrackedBody;
pub use incoming::{BodyError, Incoming};
pub use limits::Limits;
pub use peer::Peer;
pub use tls::{Tls, TlsError};
pub use workers::{Workers, bind};

/// A tower service that handles requests and cannot fail.
///
/// An alias: implemented for every service that meets the bounds.
pub trait Handler<RB>:
    tower_service::Service<
        http::Request<Incoming>,
        Response = http::Response<RB>,
        Error = std::convert::Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static
{
}

impl<S, RB> Handler<RB> for S where
    S: tower_service::Service<
            http::Request<Incoming>,
            Response = http::Response<RB>,
            Error = std::convert::Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// A response body that the server can send.
///
/// An alias: implemented for every body that meets the bounds.
pub trait ResponseBody:
    http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
    + Send
    + 'static
{
}

impl<RB> ResponseBody for RB where
    RB: http_body::Body<Data = bytes::Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static
{
}
