//! Step 1: the route, the key, the tenant and the body of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body::Body;
use semel_core::{Identity, Key};

use crate::body::{self, ReadError};
use crate::reason;
use crate::refusal::Refusal;
use crate::route::{Guard, KeyRule};
use crate::rules::Rules;
use crate::uri::original_uri;

/// What is known from the head of a request, before a byte of its body is read.
pub(crate) enum RouteMatch {
    /// Not guarded: the request passes untouched.
    Pass,
    Refuse(Refusal),
    Guard(KeyedRoute),
}

/// The route of a guarded request and its key.
pub(crate) struct KeyedRoute {
    pub(crate) guard: Arc<Guard>,
    pub(crate) key: Key,
    /// The header line that the key came in, to be echoed.
    pub(crate) key_line: HeaderValue,
}

/// A guarded request that was read.
pub(crate) struct Extracted {
    pub(crate) guard: Arc<Guard>,
    pub(crate) identity: Identity,
    pub(crate) request: Request<Bytes>,
}

/// Finds the route and the key.
pub(crate) fn match_route<B>(rules: &Rules, request: &Request<B>) -> RouteMatch {
    let path = original_uri(request.extensions(), request.uri()).path();
    let Some(guard) = rules.guard(request.method(), path) else {
        return RouteMatch::Pass;
    };
    if guard.route.key == KeyRule::Ignored {
        return RouteMatch::Pass;
    }
    let lines = request.headers().get_all(&rules.header);
    let key = Key::parse(
        &guard.syntax(rules.dialect),
        lines.iter().map(HeaderValue::as_bytes),
    );
    match (key, lines.iter().next(), guard.route.key) {
        (Ok(Some(key)), Some(line), _) => RouteMatch::Guard(KeyedRoute {
            guard: Arc::clone(guard),
            key,
            key_line: line.clone(),
        }),
        (Err(error), _, _) => RouteMatch::Refuse(Refusal::new(&reason::KEY_MALFORMED).detail(
            format!("The header {} cannot be read: {error}.", rules.header),
        )),
        (Ok(_), _, KeyRule::Required) => RouteMatch::Refuse(Refusal::new(&reason::KEY_MISSING)),
        (Ok(_), _, KeyRule::Optional | KeyRule::Ignored) => {
            guard.metrics.unguarded.increment(1);
            RouteMatch::Pass
        }
    }
}

/// Reads the body and finds out who is calling.
pub(crate) async fn extract<B>(
    rules: &Rules,
    route: KeyedRoute,
    request: Request<B>,
) -> Result<Extracted, Refusal>
where
    B: Body<Data = Bytes>,
{
    let KeyedRoute { guard, key, .. } = route;
    let (head, body) = request.into_parts();
    let body = match body::read(body, guard.route.max_request).await {
        Ok(body) => body,
        Err(ReadError::TooLarge) => return Err(Refusal::new(&reason::REQUEST_TOO_LARGE)),
        Err(ReadError::Broken(_)) => return Err(Refusal::new(&reason::REQUEST_INCOMPLETE)),
    };
    let tenant = (rules.tenant)(&head).ok_or(Refusal::new(&reason::TENANT_UNRESOLVED))?;
    let operation = guard.route.operation.clone().unwrap_or_else(|| {
        let uri = original_uri(&head.extensions, &head.uri);
        format!("{} {}", head.method, uri.path()).into_boxed_str()
    });
    let identity = Identity::new(tenant, operation, key)
        .map_err(|error| Refusal::new(&reason::TENANT_UNRESOLVED).detail(format!("{error}.")))?
        .scoped(guard.scope(rules.dialect));
    Ok(Extracted {
        guard,
        identity,
        request: Request::from_parts(head, body),
    })
}
