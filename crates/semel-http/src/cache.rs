//! The replay cache: completed responses in this process's memory, so that a burst of retries
//! does not reach the store.
//!
//! Nearly every retry is sent byte for byte as the first request was. So an entry also keeps the
//! request that its fingerprint was taken of: the same bytes under the same rules have the same
//! fingerprint, and comparing them is much cheaper than parsing and hashing them.
//!
//! The cache holds only what cannot change: a response that was read from the store as completed.
//! The first *replay* of a record fills it, not its execution, because nearly all records are never
//! retried. An entry names tenant, operation, key and fingerprint, and answers no request that
//! differs in any of them.
//!
//! # Where a replay can come from
//! With SQLite four places can answer a replay. Each takes load off the next:
//!
//! | place | where | what it is for |
//! |---|---|---|
//! | this cache | the layer, `fingerprint` | bursts of retries: no store call, and for the same bytes no hashing |
//! | inline read | `Store::try_decide`, before a task is spawned | the first replay: one indexed read on the calling thread, without a task or a queue |
//! | reader thread | `Store::reserve` | a read that the inline connection cannot make at once: it does not wait behind the writer's group commit |
//! | writer | `Store::reserve` | everything else: only the writer may decide that a key is new, so a replay that the readers did not see yet is found here |
//!
//! Other stores have the first and the last; PostgreSQL can have Redis in between.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use quick_cache::Weighter;
use quick_cache::sync::Cache as WeightedCache;
use semel_core::store::ErasureEpoch;
use semel_core::{Fingerprints, Identity, OperationId, Resource, Timestamp};

use crate::route::Guard;
use crate::uri::original_uri;

/// Bytes of an entry besides its body and headers: its keys and the cache's own links.
const ENTRY_OVERHEAD: usize = 512;

/// Bytes of a small entry, to size the cache's tables.
const TYPICAL_ENTRY: u64 = 2048;

/// The largest request body that is kept with its response, to be compared.
const MAX_EXACT_BODY: usize = 16 << 10;

/// A stored response, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    /// For traces.
    pub(crate) id: OperationId,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) schema_version: u16,
    pub(crate) resource: Option<Resource>,
    pub(crate) expires_at: Timestamp,
    /// The same as a header value.
    pub(crate) expires: HeaderValue,
    pub(crate) body_expires_at: Option<Timestamp>,
}

/// All that a fingerprint is taken of, as it was received.
#[derive(Debug)]
pub(crate) struct ExactRequest {
    /// The rules that apply: another configuration is another guard.
    guard: Arc<Guard>,
    method: Method,
    uri: Uri,
    /// The lines of each header in [`Guard::hashed`], in that order.
    lines: Vec<Vec<HeaderValue>>,
    body: Bytes,
}

/// A response, and the request that it belongs to.
#[derive(Debug)]
pub(crate) struct Entry {
    fingerprints: Fingerprints,
    /// `None` where the body is too large to keep.
    exact: Option<ExactRequest>,
    response: StoredResponse,
    /// The store's epoch when it was asked. An erasure starts a new one, and makes everything read
    /// before it invalid: the response that a retry was just reading may be the erased one.
    epoch: ErasureEpoch,
}

#[derive(Clone)]
struct ByteWeight;

impl Weighter<Identity, Arc<Entry>> for ByteWeight {
    fn weight(&self, identity: &Identity, entry: &Arc<Entry>) -> u64 {
        let headers: usize = entry
            .response
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 64)
            .sum();
        let identity = identity.tenant().len() + identity.operation().len();
        let request = entry.exact.as_ref().map_or(0, |exact| exact.body.len());
        (ENTRY_OVERHEAD + identity + headers + request + entry.response.body.len()) as u64
    }
}

/// The cache. With a size of zero it is off.
pub(crate) struct ReplayCache {
    entries: Option<WeightedCache<Identity, Arc<Entry>, ByteWeight>>,
}

impl ReplayCache {
    pub(crate) fn new(bytes: u64) -> Self {
        let items = usize::try_from((bytes / TYPICAL_ENTRY).clamp(16, 1 << 20)).unwrap_or(16);
        Self {
            entries: (bytes > 0).then(|| WeightedCache::with_weighter(items, bytes, ByteWeight)),
        }
    }

    /// The entry of an identity, unless it has expired or is of another epoch. A store that does
    /// not know its epoch may have erased anything.
    pub(crate) fn find(
        &self,
        identity: &Identity,
        now: Timestamp,
        epoch: Option<ErasureEpoch>,
    ) -> Option<Arc<Entry>> {
        let entries = self.entries.as_ref()?;
        let entry = entries.get(identity)?;
        if entry.epoch != epoch? || entry.response.is_expired(now) {
            entries.remove(identity);
            return None;
        }
        Some(entry)
    }

    /// Adds a response, with the epoch from *before* the store was asked for it.
    pub(crate) fn fill(
        &self,
        epoch: Option<ErasureEpoch>,
        identity: Identity,
        fingerprints: Fingerprints,
        exact: impl FnOnce() -> Option<ExactRequest>,
        response: &StoredResponse,
    ) {
        if let Some((entries, epoch)) = self.entries.as_ref().zip(epoch) {
            let entry = Entry {
                fingerprints,
                exact: exact(),
                response: response.clone(),
                epoch,
            };
            entries.insert(identity, Arc::new(entry));
        }
    }
}

impl Entry {
    /// The response to a request that is the same byte for byte.
    pub(crate) fn for_same_bytes(
        &self,
        guard: &Arc<Guard>,
        request: &Request<Bytes>,
    ) -> Option<StoredResponse> {
        let exact = self.exact.as_ref()?;
        exact.matches(guard, request).then(|| self.response.clone())
    }

    /// The response to a request with the same fingerprint. Where it differs, the key is misused or
    /// the rules have another version, and the store decides.
    pub(crate) fn for_same_meaning(&self, fingerprints: &Fingerprints) -> Option<StoredResponse> {
        (self.fingerprints == *fingerprints).then(|| self.response.clone())
    }
}

impl ExactRequest {
    /// Copies a request to compare others with, unless its body is too large.
    pub(crate) fn new(guard: &Arc<Guard>, request: &Request<Bytes>) -> Option<Self> {
        (request.body().len() <= MAX_EXACT_BODY).then(|| Self {
            guard: Arc::clone(guard),
            method: request.method().clone(),
            uri: original_uri(request.extensions(), request.uri()).clone(),
            lines: guard
                .hashed()
                .map(|name| request.headers().get_all(name).iter().cloned().collect())
                .collect(),
            // A copy: a slice would keep the connection's whole read buffer alive.
            body: Bytes::copy_from_slice(request.body()),
        })
    }

    fn matches(&self, guard: &Arc<Guard>, request: &Request<Bytes>) -> bool {
        let uri = original_uri(request.extensions(), request.uri());
        Arc::ptr_eq(&self.guard, guard)
            && self.body == *request.body()
            && self.method == *request.method()
            && self.uri.path() == uri.path()
            && self.uri.query() == uri.query()
            && self.uri.authority() == uri.authority()
            && self.uri.scheme() == uri.scheme()
            && guard
                .hashed()
                .zip(&self.lines)
                .all(|(name, lines)| request.headers().get_all(name).iter().eq(lines))
    }
}

impl StoredResponse {
    /// Whether the replay window or the body's window has ended.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now || self.body_expires_at.is_some_and(|at| at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::{Fingerprint, Key};

    fn identity(key: &str) -> Identity {
        Identity::new("t", "op", Key::new(key).unwrap()).unwrap()
    }

    fn fingerprints(of: u8) -> Fingerprints {
        Fingerprint::from_parts(1, [of; 32]).into()
    }

    fn response(size: usize) -> StoredResponse {
        StoredResponse {
            id: OperationId::from_bytes([7; 16]),
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: vec![7; size].into(),
            schema_version: 0,
            resource: None,
            expires_at: Timestamp::from_micros(1_000),
            expires: HeaderValue::from_static(""),
            body_expires_at: Some(Timestamp::from_micros(900)),
        }
    }

    fn fill(cache: &ReplayCache, epoch: Option<ErasureEpoch>, key: &str, size: usize) {
        cache.fill(
            epoch,
            identity(key),
            fingerprints(1),
            || None,
            &response(size),
        );
    }

    fn find(
        cache: &ReplayCache,
        identity: &Identity,
        fingerprints: &Fingerprints,
        now: Timestamp,
    ) -> Option<StoredResponse> {
        cache
            .find(identity, now, THEN)?
            .for_same_meaning(fingerprints)
    }

    #[test]
    fn a_request_that_differs_in_anything_hashed_does_not_match() {
        let options = semel_core::fingerprint::Options {
            headers: vec!["API-Version".into()],
            ..Default::default()
        };
        let route = || crate::route::Route::default().fingerprint(options.clone());
        let guard = Arc::new(Guard::new(route(), "POST /").unwrap());
        let same_rules = Arc::new(Guard::new(route(), "POST /").unwrap());
        let request = |change: &dyn Fn(http::request::Builder) -> http::request::Builder| {
            let builder = Request::post("/a?b=1")
                .header("content-type", "application/json")
                .header("api-version", "1")
                .header("x-trace", "1");
            change(builder).body(Bytes::from_static(b"{}")).unwrap()
        };
        let first = request(&|builder| builder);
        let with_body = |body: Bytes| {
            let (head, _) = first.clone().into_parts();
            Request::from_parts(head, body)
        };
        let exact = ExactRequest::new(&guard, &first).unwrap();
        assert!(exact.matches(&guard, &first));
        assert!(exact.matches(&guard, &request(&|builder| builder.header("x-new", "2"))));
        assert!(!exact.matches(&same_rules, &first));
        assert!(!exact.matches(&guard, &with_body(Bytes::from_static(b"{ }"))));
        let others: [&dyn Fn(http::request::Builder) -> http::request::Builder; 11] = [
            &|builder| builder.method("PATCH"),
            &|builder| builder.uri("/a"),
            &|builder| builder.uri("/a?b=2"),
            &|builder| builder.uri("/A?b=1"),
            &|builder| builder.uri("http://a.example/a?b=1"),
            &|builder| builder.uri("https://b.example/a?b=1"),
            &|builder| builder.header("host", "b.example"),
            &|builder| builder.header("content-type", "application/json"),
            &|builder| builder.header("content-encoding", "gzip"),
            &|builder| builder.header("api-version", "1"),
            &|mut builder| {
                builder.headers_mut().unwrap().remove("api-version");
                builder
            },
        ];
        for (at, change) in others.iter().enumerate() {
            assert!(!exact.matches(&guard, &request(change)), "{at}");
        }
        let large = Bytes::from(vec![b' '; MAX_EXACT_BODY + 1]);
        assert!(ExactRequest::new(&guard, &with_body(large)).is_none());
    }

    const EARLY: Timestamp = Timestamp::from_micros(899);
    const THEN: Option<ErasureEpoch> = Some(ErasureEpoch(7));

    fn filled() -> ReplayCache {
        let cache = ReplayCache::new(1 << 20);
        fill(&cache, THEN, "a", 10);
        assert!(find(&cache, &identity("a"), &fingerprints(1), EARLY).is_some());
        cache
    }

    #[test]
    fn another_identity_or_fingerprint_does_not_find_it() {
        let cache = filled();
        assert!(find(&cache, &identity("b"), &fingerprints(1), EARLY).is_none());
        assert!(find(&cache, &identity("a"), &fingerprints(2), EARLY).is_none());
        let other = Identity::new("u", "op", Key::new("a").unwrap()).unwrap();
        assert!(find(&cache, &other, &fingerprints(1), EARLY).is_none());
        let both = fingerprints(1).with_older(Fingerprint::from_parts(0, [1; 32]));
        assert!(find(&cache, &identity("a"), &both, EARLY).is_none());
    }

    #[test]
    fn an_entry_is_gone_at_the_instant_of_expiry() {
        let at = Timestamp::from_micros(900);
        assert!(find(&filled(), &identity("a"), &fingerprints(1), at).is_none());
    }

    #[test]
    fn another_epoch_or_none_does_not_find_it() {
        let cache = filled();
        let (identity, later) = (identity("a"), Some(ErasureEpoch(8)));
        assert!(cache.find(&identity, EARLY, None).is_none());
        assert!(cache.find(&identity, EARLY, THEN).is_some());
        assert!(cache.find(&identity, EARLY, later).is_none());
        // A response that was being read when the epoch ended is not found either.
        fill(&cache, THEN, "a", 10);
        assert!(cache.find(&identity, EARLY, later).is_none());
        // Without an epoch nothing is kept.
        fill(&cache, None, "a", 10);
        assert!(cache.find(&identity, EARLY, THEN).is_none());
    }

    #[test]
    fn the_size_is_bounded_and_zero_turns_it_off() {
        let cache = ReplayCache::new(64 * 1024);
        for key in 0..1000 {
            fill(&cache, THEN, &key.to_string(), 4096);
        }
        let kept = (0..1000)
            .filter(|key| {
                find(&cache, &identity(&key.to_string()), &fingerprints(1), EARLY).is_some()
            })
            .count();
        assert!((1..=15).contains(&kept), "{kept}");

        let off = ReplayCache::new(0);
        fill(&off, THEN, "a", 1);
        assert!(find(&off, &identity("a"), &fingerprints(1), EARLY).is_none());
    }
}
