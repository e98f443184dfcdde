//! The client as middleware of `reqwest-middleware`.

use bytes::Bytes;
use http::Extensions;
use reqwest_middleware::{Error as StackError, Next};
use url::Url;

use crate::BoxFuture;
use crate::core::Core;
use crate::error::Error;
use crate::request::{Intent, Request, Response};
use crate::transport::with_reqwest::{classify, read};
use crate::transport::{Received, Transport, TransportError};

/// Makes a request happen once that has an [`Intent`] in its extensions. A request without one but with a key is retried with that key,
/// without a journal; a `GET` is retried; any other request is sent once.
///
/// Use it as the last middleware, over a client without redirects (`reqwest::redirect::Policy::none()`) and
/// retries of its own. An end without a response is a `reqwest_middleware::Error::Middleware` with an [`Error`] in it.
pub struct Middleware {
    core: Core,
}

impl Middleware {
    pub(crate) fn new(core: Core) -> Self {
        Self { core }
    }
}

impl std::fmt::Debug for Middleware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Middleware").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl reqwest_middleware::Middleware for Middleware {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let intent = extensions.get::<Intent>().cloned();
        let Some(repeatable) = repeatable(&request) else {
            return match intent {
                Some(_) => Err(StackError::middleware(Error::Request(
                    "a request with an intent needs a complete body, not a stream".to_owned(),
                ))),
                None => next.run(request, extensions).await,
            };
        };
        let transport = Rest {
            next,
            extensions: extensions.clone(),
        };
        let result = match intent {
            Some(Intent(intent)) => self.core.call(&transport, &intent, repeatable).await,
            None => self.core.send(&transport, &repeatable, None).await,
        };
        let response = result.map_err(StackError::middleware)?;
        Ok(to_reqwest(response))
    }
}

/// `None` for a body that can be sent only once.
fn repeatable(request: &reqwest::Request) -> Option<Request> {
    let body = match request.body() {
        Some(body) => Bytes::copy_from_slice(body.as_bytes()?),
        None => Bytes::new(),
    };
    Some(Request {
        method: request.method().clone(),
        url: Url::clone(request.url()),
        headers: request.headers().clone(),
        body,
    })
}

fn to_reqwest(response: Response) -> reqwest::Response {
    let mut message = http::Response::new(response.body);
    if let Ok(status) = http::StatusCode::from_u16(response.status) {
        *message.status_mut() = status;
    }
    *message.headers_mut() = response.headers;
    message.into()
}

/// The middleware after this one, and the client.
struct Rest<'a> {
    next: Next<'a>,
    extensions: Extensions,
}

impl Transport for Rest<'_> {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        Box::pin(async move {
            let request = reqwest::Request::try_from(request).map_err(classify)?;
            let mut extensions = self.extensions.clone();
            match self.next.clone().run(request, &mut extensions).await {
                Ok(response) => read(response).await,
                Err(StackError::Reqwest(error)) => Err(classify(error)),
                Err(StackError::Middleware(error)) => {
                    Err(TransportError::Failed(error.to_string()))
                }
            }
        })
    }
}
