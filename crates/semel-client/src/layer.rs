//! The client as a layer of tower.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use tokio::sync::Mutex;

use crate::BoxFuture;
use crate::core::Core;
use crate::error::Error;
use crate::request::{Intent, Request};
use crate::transport::{MAX_READ, Received, Transport, TransportError};

/// Makes a request happen once that has an [`Intent`] in its extensions, over any service that sends requests with a
/// complete body. Without an intent the rules are those of [`Client::send`](crate::Client::send).
#[derive(Clone)]
pub struct Layer {
    core: Core,
}

/// The service of a [`Layer`].
#[derive(Clone)]
pub struct Service<S> {
    core: Core,
    inner: S,
}

impl Layer {
    pub(crate) fn new(core: Core) -> Self {
        Self { core }
    }
}

impl<S> tower_layer::Layer<S> for Layer {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Service<S> {
        Service {
            core: self.core.clone(),
            inner,
        }
    }
}

impl<S, B> tower_service::Service<http::Request<Bytes>> for Service<S>
where
    S: tower_service::Service<http::Request<Full<Bytes>>, Response = http::Response<B>>
        + Clone
        + Send
        + 'static,
    S::Error: std::fmt::Display + Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = http::Response<Bytes>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    /// Each attempt waits for the inner service itself.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Bytes>) -> Self::Future {
        let (core, inner) = (self.core.clone(), self.inner.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let mut repeatable = Request::new(head.method, &head.uri.to_string())?.body(body);
            repeatable.headers = head.headers;
            let transport = Inner(Mutex::new(inner));
            let response = match head.extensions.get::<Intent>() {
                Some(Intent(intent)) => core.call(&transport, intent, repeatable).await?,
                None => core.send(&transport, &repeatable, None).await?,
            };
            let mut message = http::Response::new(response.body);
            *message.status_mut() = http::StatusCode::from_u16(response.status)
                .map_err(|error| Error::Request(error.to_string()))?;
            *message.headers_mut() = response.headers;
            Ok(message)
        })
    }
}

/// The service below, one attempt at a time.
struct Inner<S>(Mutex<S>);

impl<S, B> Transport for Inner<S>
where
    S: tower_service::Service<http::Request<Full<Bytes>>, Response = http::Response<B>> + Send,
    S::Error: std::fmt::Display + Send,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        Box::pin(async move {
            let mut service = self.0.lock().await;
            std::future::poll_fn(|context| service.poll_ready(context))
                .await
                .map_err(|error| TransportError::NotConnected(error.to_string()))?;
            let sent = service.call(request.map(Full::new));
            let response = sent
                .await
                .map_err(|error| TransportError::Failed(error.to_string()))?;
            let (head, body) = response.into_parts();
            let head = http::Response::from_parts(head, ());
            match Limited::new(body, MAX_READ).collect().await {
                Ok(body) => Ok(head.map(|()| body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(TransportError::TooLong(head)),
                Err(error) => Err(TransportError::Failed(error.to_string())),
            }
        })
    }
}

impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer").finish_non_exhaustive()
    }
}

impl<S> std::fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
