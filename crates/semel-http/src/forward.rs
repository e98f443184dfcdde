//! Between steps 1 and 2: sending a request to the region that is its key's home.
//!
//! Whatever fails on the way, nothing executes here.

use std::borrow::Cow;
use std::sync::Arc;

use http::{Request, Response};
use semel_core::Store;
use tokio::time::timeout;
use tracing::Span;

use crate::body::{Collected, FinalBody, RequestBody, ResponseBody, collect};
use crate::bounds::{BoxError, ByteBody, InnerService};
use crate::extract::Extracted;
use crate::home::{FromRegion, Home, Homes, Relay};
use crate::layer::Layer;
use crate::outcome::{CloseDelimited, Outcome};
use crate::reason;
use crate::refusal::Refusal;
use crate::rules::Rules;
use crate::spans;

/// The other region's home for a request; `None` where it is here.
pub(crate) fn locate(
    rules: &Rules,
    extracted: &Extracted,
) -> Result<Option<Arc<str>>, Box<Refusal>> {
    let from = extracted.request.extensions().get::<FromRegion>();
    let refuse = |detail| {
        tracing::error!(detail, "a request from another region is refused");
        Err(Box::new(Refusal::region_mismatch(detail)))
    };
    let Some(homes) = &rules.homes else {
        return match from {
            None => Ok(None),
            Some(_) => refuse("Nothing was executed: this gateway has no list of regions."),
        };
    };
    if from.is_some_and(|from| from.identity != Some(extracted.identity.hash())) {
        return refuse(
            "Nothing was executed: two regions identify this request differently. Their routes, \
             tenant rules and key storage have to be the same.",
        );
    }
    match homes.find(&extracted.identity) {
        Home::Here => Ok(None),
        Home::Elsewhere(_) if from.is_some() => {
            refuse("Nothing was executed: two regions disagree about the home of this key.")
        }
        Home::Elsewhere(home) => Ok(Some(home)),
        Home::Undecided(detail) => Err(Box::new(Refusal::region_mismatch(detail))),
    }
}

/// Sends a request to its home, once, and returns that response.
pub(crate) async fn forward<S, I, B, R>(
    layer: &Layer<S>,
    extracted: Extracted,
    home: Arc<str>,
    mut service: I,
    span: &Span,
) -> Result<Response<ResponseBody<R>>, Refusal>
where
    S: Store,
    I: InnerService<B, R>,
    B: ByteBody,
    R: ByteBody,
{
    let Extracted {
        guard,
        identity,
        request,
        held: _held,
    } = extracted;
    let bound = layer.rules.homes.as_ref().map(|homes| homes.timeout());
    let (mut head, body) = request.into_parts();
    head.extensions.insert(Relay {
        home: Arc::clone(&home),
        identity: Some(identity.hash()),
    });
    spans::forwarded(span, &home);
    guard.metrics.count_forwarded(&home);
    let exchange = async {
        let request = Request::from_parts(head, RequestBody::buffered(body));
        let response = service.call(request).await.map_err(Into::into)?;
        let (mut head, body) = response.into_parts();
        if let Some(outcome) = head.extensions.remove::<Outcome>() {
            return Err(BoxError::from(format!("{:?}", outcome.kind())));
        }
        if head.extensions.get::<CloseDelimited>().is_some() {
            return Err("its response has no length".into());
        }
        let limit = guard.route.max_response;
        let body = collect(body, limit, &layer.state.response_bytes).await;
        let body = match body.map_err(Into::into)? {
            Collected::Whole(body, trailers, counted) => {
                FinalBody::whole(body, trailers).counted(counted)
            }
            Collected::Over(body) => body,
        };
        Ok(Response::from_parts(head, ResponseBody::recorded(body)))
    };
    let answered = timeout(bound.unwrap_or_default(), exchange).await;
    let error = match answered {
        Ok(Ok(response)) => return Ok(response),
        Ok(Err(error)) => error,
        Err(elapsed) => elapsed.into(),
    };
    guard.metrics.count_forward_failed(&home);
    let (region, key) = (&*home, identity.key().short_hash());
    tracing::warn!(
        home = region,
        key,
        error,
        "the home of a key gave no response"
    );
    Err(Refusal::new(&reason::HOME_UNAVAILABLE))
}

impl<S: Store> Layer<S> {
    /// Several regions: each key is reserved in its home only, and requests for another home are
    /// handed to the inner service with a [`Relay`]. The list of regions is part of the
    /// [contract](Layer::publish).
    pub fn homes(mut self, homes: Arc<dyn Homes>) -> Self {
        Arc::make_mut(&mut self.rules).homes = Some(homes);
        self
    }

    /// 503 `idempotency_home_unavailable`, for a request that another region has to answer.
    pub fn home_unavailable(&self) -> Response<bytes::Bytes> {
        Refusal::new(&reason::HOME_UNAVAILABLE).render(&self.rules)
    }

    /// 503 `idempotency_region_mismatch`: nothing was executed.
    pub fn region_mismatch(&self, detail: impl Into<Cow<'static, str>>) -> Response<bytes::Bytes> {
        Refusal::region_mismatch(detail).render(&self.rules)
    }
}
