//! Step 1: the route, the key, the tenant and the body of a request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Method, Request};
use http_body::Body;
use semel_core::key::Weakness;
use semel_core::{Identity, Key};

use crate::body::{self, ReadError};
use crate::budget::HeldBytes;
use crate::layer::Layer;
use crate::matching::{FoundRoute, RouteLookup};
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
    /// The operation in the identity of its record.
    pub(crate) operation: Box<str>,
    pub(crate) key: Key,
    /// The header line that the key came in, to be echoed.
    pub(crate) key_line: HeaderValue,
}

/// A guarded request that was read.
pub(crate) struct Extracted {
    pub(crate) guard: Arc<Guard>,
    pub(crate) identity: Identity,
    pub(crate) request: Request<Bytes>,
    /// Counts its body.
    pub(crate) held: HeldBytes,
}

/// Finds the route and the key.
pub(crate) fn match_route<B>(rules: &Rules, request: &Request<B>) -> RouteMatch {
    let method = request.method();
    if is_misspelled(method) {
        return RouteMatch::Refuse(Refusal::new(&reason::REQUEST_MALFORMED));
    }
    let path = original_uri(request.extensions(), request.uri()).path();
    let FoundRoute {
        guard,
        path,
        is_undecidable,
    } = match rules.find(method, path) {
        RouteLookup::Found(found) => found,
        RouteLookup::NotGuarded => return RouteMatch::Pass,
        RouteLookup::Ambiguous => {
            return RouteMatch::Refuse(Refusal::new(&reason::PATH_AMBIGUOUS));
        }
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
        // Another spelling would be another record.
        (Ok(Some(_)), _, _) if is_undecidable => {
            RouteMatch::Refuse(Refusal::new(&reason::PATH_AMBIGUOUS))
        }
        (Ok(Some(key)), Some(line), _) => match refuse_weak(guard, &key) {
            Some(refusal) => RouteMatch::Refuse(refusal),
            None => RouteMatch::Guard(KeyedRoute {
                guard: Arc::clone(guard),
                operation: guard
                    .identity_name()
                    .map_or_else(|| format!("{method} {path}").into(), Into::into),
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

/// Whether a method is a standard one but for its case: applications that ignore the case would take
/// it for that.
fn is_misspelled(method: &Method) -> bool {
    const STANDARD: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ];
    let name = method.as_str();
    name.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD
            .iter()
            .any(|standard| standard.as_str().eq_ignore_ascii_case(name))
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

/// Finds out who is calling, and then reads the body: a caller that is not known fills no memory.
pub(crate) async fn extract<S, B>(
    layer: &Layer<S>,
    route: KeyedRoute,
    request: Request<B>,
) -> Result<Extracted, Refusal>
where
    B: Body<Data = Bytes>,
{
    let (state, rules) = (&layer.state, &layer.rules);
    // What executes must be able to store its response.
    if !state.response_bytes.is_half_free() {
        return Err(Refusal::new(&reason::OVERLOADED));
    }
    let KeyedRoute {
        guard,
        operation,
        key,
        ..
    } = route;
    let key = match &rules.key_hasher {
        Some(hasher) => hasher.hash(&key),
        None => key,
    };
    let (mut head, body) = request.into_parts();
    // HTTP/2 has no `Host`: rules about headers and tenants see its authority as that.
    if !head.headers.contains_key(HOST)
        && let Some(authority) = original_uri(&head.extensions, &head.uri).authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(HOST, host);
    }
    let tenant = resolve_tenant((rules.tenant)(&head)).await?;
    let identity = Identity::new(tenant, operation, key)
        .map_err(|error| Refusal::new(&reason::TENANT_UNRESOLVED).detail(format!("{error}.")))?
        .scoped(guard.scope(rules.dialect));
    let (body, counted) =
        match body::read(body, guard.route.max_request, &state.request_bytes).await {
            Ok(read) => read,
            Err(ReadError::TooLarge) => return Err(Refusal::new(&reason::REQUEST_TOO_LARGE)),
            Err(ReadError::NoRoom) => return Err(Refusal::new(&reason::OVERLOADED)),
            Err(ReadError::Broken(_)) => return Err(Refusal::new(&reason::REQUEST_INCOMPLETE)),
        };
    Ok(Extracted {
        guard,
        identity,
        request: Request::from_parts(head, body),
        held: counted,
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
