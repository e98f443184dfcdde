//! Requests that can be sent again, and responses that can be stored.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::error::Error;

/// Names the version of [`Request::fingerprint`], so that another one is another fingerprint.
const FINGERPRINT: &[u8] = b"semel-intent-1";

/// A request with a complete body, so that every attempt sends the same bytes.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// An absolute URL.
    pub url: Url,
    /// All headers but the key, which the client adds.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Request {
    /// A request without headers and body.
    ///
    /// # Errors
    /// [`Error::Request`] for a URL that is not absolute, or neither `http` nor `https`.
    pub fn new(method: Method, url: &str) -> Result<Self, Error> {
        let url = Url::parse(url)
            .map_err(|error| Error::Request(format!("`{url}` is not an absolute URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::Request(format!(
                "`{url}` is neither http:// nor https://"
            )));
        }
        Ok(Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        })
    }

    /// A `POST`.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn post(url: &str) -> Result<Self, Error> {
        Self::new(Method::POST, url)
    }

    /// A `GET`.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn get(url: &str) -> Result<Self, Error> {
        Self::new(Method::GET, url)
    }

    /// Adds a header.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a body of JSON text, and its content type.
    pub fn json(mut self, text: impl Into<Bytes>) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.headers.insert(CONTENT_TYPE, json);
        self.body(text)
    }

    /// What makes it the same request under an intent: method, URL, content type and body, each after its length. Other
    /// headers may change between attempts: credentials are rotated.
    pub fn fingerprint(&self) -> [u8; 32] {
        let content_type = self.headers.get(CONTENT_TYPE);
        let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
        let mut hash = Sha256::new();
        for field in [
            FINGERPRINT,
            self.method.as_str().as_bytes(),
            self.url.as_str().as_bytes(),
            content_type,
            &self.body,
        ] {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field);
        }
        hash.finalize().into()
    }
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Whether it comes from the journal, without a request.
    pub replayed_from_journal: bool,
}

/// The intent of a request that goes through a middleware or layer, in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent(pub String);

impl Intent {
    /// The caller's own identifier for something that should happen once.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}
