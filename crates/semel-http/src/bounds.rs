//! The bounds that services and bodies have to meet, each under one name.

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

use crate::body::RequestBody;

/// Any error of a body or a service.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A service that the layer can wrap: `B` is the body of the client's request, `R` the body of
/// the service's response. Implemented for every service of the right shape.
pub(crate) trait InnerService<B, R>:
    tower_service::Service<
        Request<RequestBody<B>>,
        Response = Response<R>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Send
    + 'static
{
}

impl<T, B, R> InnerService<B, R> for T where
    T: tower_service::Service<
            Request<RequestBody<B>>,
            Response = Response<R>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Send
        + 'static
{
}

/// A body that the layer can read or forward.
pub(crate) trait ByteBody:
    Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static
{
}

impl<T> ByteBody for T where T: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static {}
