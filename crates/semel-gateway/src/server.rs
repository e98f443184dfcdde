//! The listening side: connections in, requests to a [`tower_service::Service`].
//!
//! HTTP/1.1 and HTTP/2, the latter by prior knowledge or chosen in the TLS handshake. Every
//! wait on a client has a limit, see [`Limits`]; what is malformed is refused before the
//! service hears of it.
//!
//! [`Workers`] runs one thread per core, each with its own runtime, listener and service, so
//! that a request never changes threads. [`serve`] is the same for one listener on the
//! runtime that is already there.
//!
//! **Absent:** informational answers. hyper's server cannot send a 1xx of ours (`103 Early
//! Hints`): a service returns one response, and a 1xx returned as that one is an error. It
//! sends `100 Continue` by itself when the service first reads the body.

mod accept;
mod activity;
mod bridge;
mod connection;
mod incoming;
mod limits;
mod peer;
mod tls;
mod wire;
mod workers;

pub use accept::{Drained, serve};
pub use bridge::Answer;
pub use incoming::{BodyError, Incoming};
pub use limits::Limits;
pub use peer::Peer;
pub use tls::{Tls, TlsError};
pub use workers::{Workers, bind};

/// What hands requests to the application: any tower service that cannot fail.
///
/// Implemented for every service of the right shape; not to be implemented by hand.
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
/// Implemented for every body of the right shape.
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
