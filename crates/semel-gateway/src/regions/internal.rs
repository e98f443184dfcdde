//! What the gateway answers itself, where the record may be in another region.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use semel_core::{Identity, KeyScope, OperationId, Store};
use semel_http::Layer;
use semel_worker::notice::NoticeTarget;
use semel_worker::webhook::{Answer, Sources, find_elsewhere};

use super::{CONFIRM_PATH, Peers, Regions, Sender, agreement};
use crate::webhooks;

/// How long another region may take to look a record up or to take an event.
const TIMEOUT: Duration = Duration::from_secs(10);

/// More than a status is: it has a stored response as JSON.
const MAX_STATUS: usize = 16 << 20;

/// More than a receiver of events answers.
const MAX_ANSWER: usize = 64 << 10;

/// Answers a request for the status of an operation; `None` where there is none of that id. Another
/// region may have its record.
pub(crate) async fn answer_status<S: Store>(
    layer: &Layer<S>,
    peers: Option<&Peers>,
    sender: &Sender,
    head: &Parts,
) -> Option<Response<Bytes>> {
    if let (Some(peers), Sender::Region(_)) = (peers, sender)
        && head.uri.path() == CONFIRM_PATH
    {
        let mut answer = Response::new(Bytes::new());
        *answer.status_mut() = agreement::answer(peers.regions(), layer.store()).await;
        return Some(answer);
    }
    let here = layer.status(head).await?;
    let (Some(peers), Sender::Client, StatusCode::NOT_FOUND) = (peers, sender, here.status())
    else {
        return Some(here);
    };
    let id = head.uri.path().rsplit('/').next().unwrap_or_default();
    if id.parse::<OperationId>().is_err() {
        return Some(here);
    }
    let asking = peers.regions().others().map(|home| {
        let request = Request::from_parts(head.clone(), Full::default());
        peers.ask(home, request, MAX_STATUS, TIMEOUT)
    });
    let mut asking: FuturesUnordered<_> = asking.collect();
    let (mut is_unanswered, mut other) = (false, None);
    while let Some(answer) = asking.next().await {
        match answer {
            Ok(found) if found.status() == StatusCode::OK => return Some(found),
            Ok(none) if none.status() == StatusCode::NOT_FOUND => {}
            Ok(refused) => other = Some(refused),
            Err(error) => {
                tracing::warn!(error, "a region did not say whether it has an operation");
                is_unanswered = true;
            }
        }
    }
    if is_unanswered {
        return Some(layer.home_unavailable());
    }
    Some(other.unwrap_or(here))
}

/// Answers a webhook event. One whose record is not here goes to the regions that may have it, all
/// of which have to take it: the sender sends it again otherwise.
pub(crate) async fn answer_webhook<S, B>(
    store: &S,
    sources: &Sources,
    peers: Option<&Peers>,
    sender: &Sender,
    request: Request<B>,
) -> Response<Bytes>
where
    S: Store,
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = match webhooks::read(sources, request).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let (now, source) = (store.clock().now(), webhooks::source_of(&head));
    if let (Some(peers), Sender::Client) = (peers, sender) {
        let target = find_elsewhere(store, sources, source, &head.headers, &body, now).await;
        let mut homes = match target {
            Ok(Some(target)) => homes_of(peers.regions(), &target),
            Ok(None) => BTreeSet::new(),
            Err(answer) => return webhooks::to_response(answer),
        };
        let here = homes.remove(&peers.regions().name);
        if !homes.is_empty() {
            let sent = send_event(peers, homes, &head, &body).await;
            // It may be too early for the record, which then appears here.
            if !here || sent != Answer::TAKEN {
                return webhooks::to_response(sent);
            }
        }
    }
    let received =
        semel_worker::webhook::receive(store, sources, source, &head.headers, &body, now);
    webhooks::to_response(received.await)
}

/// The regions that may have the record, or will have it.
fn homes_of<'r>(regions: &'r Regions, target: &NoticeTarget) -> BTreeSet<&'r Arc<str>> {
    let NoticeTarget::Key {
        tenant,
        key,
        operations,
    } = target
    else {
        return regions.table.regions.keys().collect();
    };
    let identities = operations.iter().flat_map(|operation| {
        let identity = Identity::new(tenant.clone(), operation.clone(), key.clone());
        let scopes = [KeyScope::Operation, KeyScope::Tenant].into_iter();
        scopes.filter_map(move |scope| Some(identity.clone().ok()?.scoped(scope)))
    });
    let homes = identities.filter_map(|identity| regions.table.home(&identity));
    homes.collect()
}

async fn send_event(
    peers: &Peers,
    homes: BTreeSet<&Arc<str>>,
    head: &Parts,
    body: &Bytes,
) -> Answer {
    let sending = homes.into_iter().map(async |home| {
        let request = Request::from_parts(head.clone(), Full::new(body.clone()));
        match peers.ask(home, request, MAX_ANSWER, TIMEOUT).await {
            Ok(answer) => answer.status().is_success(),
            Err(error) => {
                let region = &**home;
                tracing::warn!(region, error, "a region did not take a webhook event");
                false
            }
        }
    });
    let taken = join_all(sending).await;
    if taken.into_iter().all(|taken| taken) {
        Answer::TAKEN
    } else {
        Answer::UNAVAILABLE
    }
}
