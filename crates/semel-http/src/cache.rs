//! Completed answers in this process's memory, so that a storm of retries does not reach the
//! store.
//!
//! Nearly every retry is sent byte for byte as the first request was. So an entry also keeps what
//! its fingerprint was taken of: the same bytes under the same rules have the same fingerprint,
//! and comparing them costs a hundredth of parsing and hashing them.
//!
//! It holds only what cannot change: an answer that was read from the store as completed. It
//! is filled by the first *replay* of an operation, not by its execution, because nearly all
//! operations are never retried. An entry names tenant, operation, key and fingerprint, and
//! is of no use to a request that differs in any of them.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use quick_cache::Weighter;
use quick_cache::sync::Cache as Weighed;
use semel_core::store::Epoch;
use semel_core::{Fingerprints, Identity, OperationId, Timestamp};

use crate::extract::original_uri;
use crate::route::Guard;

/// What an entry weighs beside its body and headers: its keys and the cache's own links.
const OVERHEAD: usize = 512;

/// What the smallest entries weigh, to size the cache's tables.
const TYPICAL: u64 = 2048;

/// The largest request body that is kept beside its answer, to be compared.
const MAX_EXACT: usize = 16 << 10;

/// A stored answer, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Whose it is, for traces.
    pub(crate) id: OperationId,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) expires_at: Timestamp,
    /// The same, in words for the client.
    pub(crate) expires: HeaderValue,
    pub(crate) body_expires_at: Option<Timestamp>,
}

/// All that a fingerprint is taken of, as it came.
#[derive(Debug)]
pub(crate) struct Exact {
    /// The rules, which are part of it: another configuration is another guard.
    guard: Arc<Guard>,
    method: Method,
    uri: Uri,
    /// The lines of each header in [`Guard::hashed`], in that order.
    lines: Vec<Vec<HeaderValue>>,
    body: Bytes,
}

/// An answer, and the request that it answers.
#[derive(Debug)]
pub(crate) struct Entry {
    fingerprints: Fingerprints,
    /// Absent where it is too large to keep.
    exact: Option<Exact>,
    answer: Answer,
    /// The store's when it was asked. An erasure makes everything read before it worthless: the
    /// answer that a retry was just fetching may be the erased one.
    epoch: Epoch,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Identity, Arc<Entry>> for ByBytes {
    fn weight(&self, identity: &Identity, entry: &Arc<Entry>) -> u64 {
        let headers: usize = entry
            .answer
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 64)
            .sum();
        let identity = identity.tenant().len() + identity.operation().len();
        let request = entry.exact.as_ref().map_or(0, |exact| exact.body.len());
        (OVERHEAD + identity + headers + request + entry.answer.body.len()) as u64
    }
}

/// The cache. Without room for anything it is off.
pub(crate) struct Cache {
    entries: Option<Weighed<Identity, Arc<Entry>, ByBytes>>,
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Self {
        let items = usize::try_from((bytes / TYPICAL).clamp(16, 1 << 20)).unwrap_or(16);
        Self {
            entries: (bytes > 0).then(|| Weighed::with_weighter(items, bytes, ByBytes)),
        }
    }

    /// What is known under an identity, while it may be given: at this time, in this epoch of
    /// the store. A store that does not know its epoch may have been told to forget anything.
    pub(crate) fn find(
        &self,
        identity: &Identity,
        now: Timestamp,
        epoch: Option<Epoch>,
    ) -> Option<Arc<Entry>> {
        let entries = self.entries.as_ref()?;
        let entry = entries.get(identity)?;
        if entry.epoch != epoch? || entry.answer.is_over(now) {
            entries.remove(identity);
            return None;
        }
        Some(entry)
    }

    /// Keeps an answer, with the epoch from *before* the store was asked for it.
    pub(crate) fn fill(
        &self,
        epoch: Option<Epoch>,
        identity: Identity,
        fingerprints: Fingerprints,
        exact: impl FnOnce() -> Option<Exact>,
        answer: &Answer,
    ) {
        if let Some((entries, epoch)) = self.entries.as_ref().zip(epoch) {
            let entry = Entry {
                fingerprints,
                exact: exact(),
                answer: answer.clone(),
                epoch,
            };
            entries.insert(identity, Arc::new(entry));
        }
    }
}

impl Entry {
    /// The answer to a request that is the same byte for byte.
    pub(crate) fn to_same_bytes(
        &self,
        guard: &Arc<Guard>,
        head: &Parts,
        body: &Bytes,
    ) -> Option<Answer> {
        let exact = self.exact.as_ref()?;
        exact.is(guard, head, body).then(|| self.answer.clone())
    }

    /// The answer to a request that means the same. Another fingerprint is misuse, or another
    /// version of the rules: the store decides.
    pub(crate) fn to_same_meaning(&self, fingerprints: &Fingerprints) -> Option<Answer> {
        (self.fingerprints == *fingerprints).then(|| self.answer.clone())
    }
}

impl Exact {
    /// Keeps a request to compare others with, unless it is too large.
    pub(crate) fn of(guard: &Arc<Guard>, head: &Parts, body: &Bytes) -> Option<Self> {
        (body.len() <= MAX_EXACT).then(|| Self {
            guard: Arc::clone(guard),
            method: head.method.clone(),
            uri: original_uri(&head.extensions, &head.uri).clone(),
            lines: guard
                .hashed()
                .map(|name| head.headers.get_all(name).iter().cloned().collect())
                .collect(),
            // A copy: what came from the network shares a buffer with what came after it.
            body: Bytes::copy_from_slice(body),
        })
    }

    fn is(&self, guard: &Arc<Guard>, head: &Parts, body: &Bytes) -> bool {
        let uri = original_uri(&head.extensions, &head.uri);
        Arc::ptr_eq(&self.guard, guard)
            && self.body == *body
            && self.method == head.method
            && self.uri.path() == uri.path()
            && self.uri.query() == uri.query()
            && guard
                .hashed()
                .zip(&self.lines)
                .all(|(name, lines)| head.headers.get_all(name).iter().eq(lines))
    }
}

impl Answer {
    /// Whether the window is over, or the body's time, to the instant.
    fn is_over(&self, now: Timestamp) -> bool {
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

    fn answer(size: usize) -> Answer {
        Answer {
            id: OperationId::from_bytes([7; 16]),
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: vec![7; size].into(),
            expires_at: Timestamp::from_micros(1_000),
            expires: HeaderValue::from_static(""),
            body_expires_at: Some(Timestamp::from_micros(900)),
        }
    }

    fn fill(cache: &Cache, epoch: Option<Epoch>, key: &str, size: usize) {
        cache.fill(
            epoch,
            identity(key),
            fingerprints(1),
            || None,
            &answer(size),
        );
    }

    fn find(
        cache: &Cache,
        identity: &Identity,
        fingerprints: &Fingerprints,
        now: Timestamp,
    ) -> Option<Answer> {
        cache
            .find(identity, now, THEN)?
            .to_same_meaning(fingerprints)
    }

    /// Any difference in what is hashed is one: of each of these, one is kept and all are
    /// compared with it.
    #[test]
    fn the_same_bytes_are_the_same_and_nothing_else_is() {
        let options = semel_core::fingerprint::Options {
            headers: vec!["API-Version".into()],
            ..Default::default()
        };
        let route = || crate::Route::default().fingerprint(options.clone());
        let guard = Arc::new(Guard::new(route(), "POST /").unwrap());
        let same_rules = Arc::new(Guard::new(route(), "POST /").unwrap());
        let head = |change: &dyn Fn(http::request::Builder) -> http::request::Builder| {
            let builder = http::Request::post("/a?b=1")
                .header("content-type", "application/json")
                .header("api-version", "1")
                .header("x-trace", "1");
            change(builder).body(()).unwrap().into_parts().0
        };
        let body = Bytes::from_static(b"{}");
        let first = head(&|builder| builder);
        let exact = Exact::of(&guard, &first, &body).unwrap();
        assert!(exact.is(&guard, &first, &body));
        assert!(exact.is(
            &guard,
            &head(&|builder| builder.header("x-new", "2")),
            &body
        ));
        assert!(!exact.is(&same_rules, &first, &body));
        assert!(!exact.is(&guard, &first, &Bytes::from_static(b"{ }")));
        let others: [&dyn Fn(http::request::Builder) -> http::request::Builder; 8] = [
            &|builder| builder.method("PATCH"),
            &|builder| builder.uri("/a"),
            &|builder| builder.uri("/a?b=2"),
            &|builder| builder.uri("/A?b=1"),
            &|builder| builder.header("content-type", "application/json"),
            &|builder| builder.header("content-encoding", "gzip"),
            &|builder| builder.header("api-version", "1"),
            &|mut builder| {
                builder.headers_mut().unwrap().remove("api-version");
                builder
            },
        ];
        for (at, change) in others.iter().enumerate() {
            assert!(!exact.is(&guard, &head(change), &body), "{at}");
        }
        let large = Bytes::from(vec![b' '; MAX_EXACT + 1]);
        assert!(Exact::of(&guard, &first, &large).is_none());
    }

    const EARLY: Timestamp = Timestamp::from_micros(899);
    const THEN: Option<Epoch> = Some(Epoch(7));

    fn filled() -> Cache {
        let cache = Cache::new(1 << 20);
        fill(&cache, THEN, "a", 10);
        assert!(find(&cache, &identity("a"), &fingerprints(1), EARLY).is_some());
        cache
    }

    #[test]
    fn nobody_else_finds_it() {
        let cache = filled();
        assert!(find(&cache, &identity("b"), &fingerprints(1), EARLY).is_none());
        assert!(find(&cache, &identity("a"), &fingerprints(2), EARLY).is_none());
        let other = Identity::new("u", "op", Key::new("a").unwrap()).unwrap();
        assert!(find(&cache, &other, &fingerprints(1), EARLY).is_none());
        let both = fingerprints(1).with_older(Fingerprint::from_parts(0, [1; 32]));
        assert!(find(&cache, &identity("a"), &both, EARLY).is_none());
    }

    #[test]
    fn the_instant_of_expiry_is_over() {
        let at = Timestamp::from_micros(900);
        assert!(find(&filled(), &identity("a"), &fingerprints(1), at).is_none());
    }

    #[test]
    fn another_epoch_or_none_does_not_find_it() {
        let cache = filled();
        let (identity, later) = (identity("a"), Some(Epoch(8)));
        assert!(cache.find(&identity, EARLY, None).is_none());
        assert!(cache.find(&identity, EARLY, THEN).is_some());
        assert!(cache.find(&identity, EARLY, later).is_none());
        // What was on its way here when the epoch ended is of no use either.
        fill(&cache, THEN, "a", 10);
        assert!(cache.find(&identity, EARLY, later).is_none());
        // And nothing is kept of which it is not known what it is good for.
        fill(&cache, None, "a", 10);
        assert!(cache.find(&identity, EARLY, THEN).is_none());
    }

    #[test]
    fn bytes_bound_it_and_zero_is_off() {
        let cache = Cache::new(64 * 1024);
        for key in 0..1000 {
            fill(&cache, THEN, &key.to_string(), 4096);
        }
        let kept = (0..1000)
            .filter(|key| {
                find(&cache, &identity(&key.to_string()), &fingerprints(1), EARLY).is_some()
            })
            .count();
        assert!((1..=15).contains(&kept), "{kept}");

        let off = Cache::new(0);
        fill(&off, THEN, "a", 1);
        assert!(find(&off, &identity("a"), &fingerprints(1), EARLY).is_none());
    }
}
