//! Step 1: the route, the key, the tenant and the body of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body::Body;
use semel_core::key::Weakness;
use semel_core::{Identity, Key};

use crate::body::{self, ReadError};
use crate::reason;
use crate::refusal::Refusal;
use crate::route::{Guard, KeyRule, WeakKeys};
use crate::rules::Rules;
use crate::tenant::Tenant;
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
        (Ok(Some(key)), Some(line), _) => match refuse_weak(guard, &key) {
            Some(refusal) => RouteMatch::Refuse(refusal),
            None => RouteMatch::Guard(KeyedRoute {
                guard: Arc::clone(guard),
                key,
                key_line: line.clone(),
            }),
        },
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

/// Counts a weak key, and refuses it where the route says so.
fn refuse_weak(guard: &Guard, key: &Key) -> Option<Refusal> {
    let weakness = Weakness::of(key)?;
    guard.metrics.count_weak_key(weakness);
    match guard.route.weak_keys {
        WeakKeys::Warn => None,
        WeakKeys::Refuse => Some(Refusal::new(&reason::KEY_MALFORMED).detail(format!(
            "The key looks like {weakness}, which another request could send or which names a \
             person. Send a new random value per operation, such as a UUID."
        ))),
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
    let key = match &rules.key_hasher {
        Some(hasher) => hasher.hash(&key),
        None => key,
    };
    let (head, body) = request.into_parts();
    let body = match body::read(body, guard.route.max_request).await {
        Ok(body) => body,
        Err(ReadError::TooLarge) => return Err(Refusal::new(&reason::REQUEST_TOO_LARGE)),
        Err(ReadError::Broken(_)) => return Err(Refusal::new(&reason::REQUEST_INCOMPLETE)),
    };
    let tenant = resolve_tenant((rules.tenant)(&head)).await?;
    let operation = guard.identity_name().map_or_else(
        || {
            let uri = original_uri(&head.extensions, &head.uri);
            format!("{} {}", head.method, uri.path()).into_boxed_str()
        },
        Into::into,
    );
    let identity = Identity::new(tenant, operation, key)
        .map_err(|error| Refusal::new(&reason::TENANT_UNRESOLVED).detail(format!("{error}.")))?
        .scoped(guard.scope(rules.dialect));
    Ok(Extracted {
        guard,
        identity,
        request: Request::from_parts(head, body),
    })
}

/// The name of the tenant, or the refusal of its request.
pub(crate) async fn resolve_tenant(mut tenant: Tenant) -> Result<Box<str>, Refusal> {
    loop {
        match tenant {
            Tenant::Known(name) => return Ok(name),
            Tenant::Unresolved => return Err(Refusal::new(&reason::TENANT_UNRESOLVED)),
            Tenant::Unavailable { retry_after } => {
                return Err(Refusal {
                    // Rounded up: a client that asks too early waits again.
                    retry_after: Some(retry_after.as_secs() + 1),
                    ..Refusal::new(&reason::TENANT_UNAVAILABLE)
                });
            }
            Tenant::Pending(found) => tenant = found.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_tenant_that_is_not_known_refuses_the_request() {
        let known = resolve_tenant(Some("acme").into()).await;
        assert_eq!(known.ok().as_deref(), Some("acme"));
        let refused = resolve_tenant(None::<String>.into()).await.unwrap_err();
        assert_eq!(refused.reason.status, 403);
        let later = async {
            Tenant::Unavailable {
                retry_after: Duration::from_millis(1001),
            }
        };
        let later = resolve_tenant(Tenant::Pending(Box::pin(later))).await;
        let later = later.unwrap_err();
        assert_eq!((later.reason.status, later.retry_after), (503, Some(2)));
    }
}
