//! The requests of `[route.reconstruct]` and `[route.authorize]`: what the application says now about
//! an operation that is completed.
//!
//! One `GET` on its own connection, as for a poll. **Absent:** following redirects, retries. The
//! layer bounds the time, and refuses the retry where there is no answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_LENGTH, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use rustls::ClientConfig;
use semel_http::{Retry, Route};

use crate::config::{Config, Poll, ReplayRequest, RouteConfig, TenantFrom};
use crate::hygiene::{is_semel_header, outbound};
use crate::reconcile::{self, PollServer};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The caller's own credentials.
const CREDENTIALS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, HeaderName::from_static("x-api-key")];

/// One configured request.
struct ReplayFetch {
    get: Poll,
    server: PollServer,
    authorization: Option<HeaderValue>,
    /// Headers of the retry that are sent along, besides the credentials.
    forwarded: Vec<HeaderName>,
    /// Largest body that is read.
    limit: usize,
    /// For which statuses the body is needed.
    needs_body: fn(StatusCode) -> bool,
}

/// The replay settings of a route. The root certificates are loaded into `tls` when the first
/// request needs them.
pub(crate) fn settings(
    config: &Config,
    configured: &RouteConfig,
    tls: &mut Option<Arc<ClientConfig>>,
) -> Result<impl FnOnce(Route) -> Route, reconcile::Error> {
    let mut fetch = |request: &Option<ReplayRequest>, needs_body| {
        let request = request.as_ref();
        let fetch = |request| ReplayFetch::new(request, config, configured, needs_body, tls);
        request.map(fetch).transpose()
    };
    let replay = &configured.replay;
    let reconstruct = fetch(&replay.reconstruct, |status| status.is_success())?.map(Arc::new);
    // The body of a denial is sent to the caller.
    let authorize = fetch(&replay.authorize, is_denial)?.map(Arc::new);
    let (schema, mode, on_change) = (replay.schema, replay.mode, replay.on_schema_change);
    Ok(move |route: Route| {
        let mut route = route
            .schema(schema)
            .replay(mode)
            .on_schema_change(on_change);
        if let Some(fetch) = reconstruct {
            route = route.reconstruct(move |retry| Arc::clone(&fetch).send(retry));
        }
        if let Some(ask) = authorize {
            route = route.authorize(move |retry| Arc::clone(&ask).send(retry));
        }
        route
    })
}

fn is_denial(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

impl ReplayFetch {
    fn new(
        request: &ReplayRequest,
        config: &Config,
        configured: &RouteConfig,
        needs_body: fn(StatusCode) -> bool,
        tls: &mut Option<Arc<ClientConfig>>,
    ) -> Result<Self, reconcile::Error> {
        reconcile::load_roots(&request.get, config.upstream.as_ref(), tls)?;
        let semantic = configured.fingerprint.headers.iter();
        let mut forwarded: Vec<HeaderName> =
            semantic.filter_map(|name| name.parse().ok()).collect();
        forwarded.extend([ACCEPT, ACCEPT_LANGUAGE]);
        // The application knows the caller by this header.
        if let TenantFrom::Header(name) = &config.tenant {
            forwarded.push(name.clone());
        }
        Ok(Self {
            get: request.get.clone(),
            server: reconcile::server(&request.get, config.upstream.as_ref(), tls.as_ref())?,
            authorization: request.authorization.clone(),
            forwarded,
            limit: usize::try_from(configured.policy.max_response).unwrap_or(usize::MAX),
            needs_body,
        })
    }

    async fn send(self: Arc<Self>, retry: Retry) -> Result<Response<Bytes>, BoxError> {
        let path = self
            .get
            .path_for(retry.id, &retry.identity, retry.resource.as_ref());
        let path = path.ok_or_else(|| {
            format!(
                "the URL of \"{}\" lacks a value: does the application name its resource in Semel-Resource?",
                self.get
            )
        })?;
        let headers = self.headers(&retry);
        let response =
            reconcile::send(&self.server, &path, headers, self.needs_body, self.limit).await?;
        let (mut parts, ()) = Response::new(()).into_parts();
        parts.status = response.status;
        parts.headers = response.headers;
        outbound::response(&mut parts);
        // Only a part of the body may have been read. What the application says to Semel is not
        // for the caller.
        let names = parts.headers.keys().cloned().collect::<Vec<_>>();
        for name in names {
            if name == CONTENT_LENGTH || is_semel_header(name.as_str()) {
                parts.headers.remove(name);
            }
        }
        Ok(Response::from_parts(parts, response.body?))
    }

    fn headers(&self, retry: &Retry) -> HeaderMap {
        let received = &retry.head.headers;
        let mut headers = HeaderMap::new();
        let mut forward = |name: &HeaderName| {
            for line in received.get_all(name) {
                headers.append(name.clone(), line.clone());
            }
        };
        self.forwarded.iter().for_each(&mut forward);
        match &self.authorization {
            Some(authorization) => {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            None => CREDENTIALS.iter().for_each(&mut forward),
        }
        if let Ok(id) = HeaderValue::from_str(&retry.id.to_string()) {
            headers.insert("semel-operation-id", id);
        }
        headers
    }
}
