//! Sending one request once.

use bytes::Bytes;

use crate::BoxFuture;

/// The longest response that is read at all. A longer one counts as not stored.
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub(crate) const MAX_READ: usize = 64 * 1024 * 1024;

/// Sends a request once: without retries, redirects, and caches of its own.
pub trait Transport: Send + Sync {
    /// Sends it, and reads the complete response.
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>>;
}

/// What a transport received.
pub type Received = http::Response<Bytes>;

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// No response, or a truncated one.
    #[error("{0}")]
    Failed(String),
    /// No connection: the server did not receive the request.
    #[error("{0}")]
    NotConnected(String),
    /// The request cannot be sent, now or later. Nothing was.
    #[error("{0}")]
    Invalid(String),
    /// The response is too long to be read. Its status and headers decide.
    #[error("the response with status {} is too long", .0.status())]
    TooLong(http::Response<()>),
}

#[cfg(feature = "reqwest")]
pub use with_reqwest::Reqwest;

#[cfg(feature = "reqwest")]
pub(crate) mod with_reqwest {
    use std::error::Error as _;

    use bytes::{Bytes, BytesMut};

    use super::{MAX_READ, Received, Transport, TransportError};
    use crate::BoxFuture;

    /// Sends with [`reqwest`].
    #[derive(Clone, Debug)]
    pub struct Reqwest(reqwest::Client);

    impl Reqwest {
        /// A client that sends each request once and follows no redirect.
        ///
        /// # Errors
        /// Where TLS cannot be set up.
        pub fn new() -> Result<Self, TransportError> {
            Self::from_builder(reqwest::Client::builder())
        }

        /// The same with other settings, such as a proxy or a certificate of one's own.
        ///
        /// # Errors
        /// Where they cannot be applied.
        pub fn from_builder(builder: reqwest::ClientBuilder) -> Result<Self, TransportError> {
            let client = builder
                .retry(reqwest::retry::never())
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| TransportError::Invalid(chain(&error)))?;
            Ok(Self(client))
        }
    }

    impl Transport for Reqwest {
        fn send(
            &self,
            request: http::Request<Bytes>,
        ) -> BoxFuture<'_, Result<Received, TransportError>> {
            Box::pin(async move {
                let request = reqwest::Request::try_from(request).map_err(classify)?;
                read(self.0.execute(request).await.map_err(classify)?).await
            })
        }
    }

    /// Reads a response to its end.
    pub(crate) async fn read(mut response: reqwest::Response) -> Result<Received, TransportError> {
        let mut head = http::Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = response.headers().clone();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(classify)? {
            if body.len() + chunk.len() > MAX_READ {
                return Err(TransportError::TooLong(head));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(head.map(|()| body.freeze()))
    }

    pub(crate) fn classify(error: reqwest::Error) -> TransportError {
        // The URL may hold a credential.
        let error = error.without_url();
        if error.is_builder() {
            TransportError::Invalid(chain(&error))
        } else if error.is_connect() {
            TransportError::NotConnected(chain(&error))
        } else {
            TransportError::Failed(chain(&error))
        }
    }

    /// An error with its causes: `reqwest` alone reports only that sending failed.
    fn chain(error: &reqwest::Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
