//! The bytes of one attempt.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method};

use crate::attempts::Target;
use crate::builder::Options;
use crate::error::Error;
use crate::request::Request;

/// The request with its key and the client's own headers, or the question about its status.
pub(crate) fn message(
    options: &Options,
    request: &Request,
    key: Option<&str>,
    target: &Target,
) -> Result<http::Request<Bytes>, Error> {
    let mut headers = request.headers.clone();
    for name in options.headers.keys() {
        headers.remove(name);
    }
    for (name, value) in &options.headers {
        headers.append(name, value.clone());
    }
    let (method, url, body) = match target {
        Target::Request => (&request.method, &request.url, request.body.clone()),
        Target::StatusResource(url) => (&Method::GET, url, Bytes::new()),
    };
    match (target, key) {
        (Target::Request, Some(key)) => {
            let value = options.profile.key_value(key);
            let value = value
                .ok_or_else(|| Error::Request("the journal's key cannot be sent".to_owned()))?;
            headers.insert(options.profile.header.clone(), value);
        }
        (Target::Request, None) => {}
        (Target::StatusResource(_), _) => {
            remove_body_headers(&mut headers, &options.profile.header);
        }
    }
    let mut message = http::Request::new(body);
    *message.method_mut() = method.clone();
    *message.uri_mut() = url
        .as_str()
        .parse()
        .map_err(|error| Error::Request(format!("`{url}` cannot be requested: {error}")))?;
    *message.headers_mut() = headers;
    Ok(message)
}

fn remove_body_headers(headers: &mut HeaderMap, key: &HeaderName) {
    for name in [
        key,
        &CONTENT_TYPE,
        &CONTENT_LENGTH,
        &CONTENT_ENCODING,
        &TRANSFER_ENCODING,
        &EXPECT,
    ] {
        headers.remove(name);
    }
}
