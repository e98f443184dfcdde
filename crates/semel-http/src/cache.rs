//! Completed answers in this process's memory, so that a storm of retries does not reach the
//! store.
//!
//! It holds only what cannot change: an answer that was read from the store as completed. It
//! is filled by the first *replay* of an operation, not by its execution, because nearly all
//! operations are never retried. An entry names tenant, operation, key and fingerprint, and
//! is of no use to a request that differs in any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use quick_cache::Weighter;
use quick_cache::sync::Cache as Weighed;
use semel_core::{Fingerprints, Identity, Timestamp};

/// What an entry weighs beside its body and headers: its keys and the cache's own links.
const OVERHEAD: usize = 512;

/// What the smallest entries weigh, to size the cache's tables.
const TYPICAL: u64 = 2048;

/// A stored answer, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) expires_at: Timestamp,
    pub(crate) body_expires_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Entry {
    fingerprints: Fingerprints,
    answer: Answer,
    generation: Generation,
}

/// When something was read from the store, counted in erasures. An erasure makes everything
/// read before it worthless: the answer that a retry was just fetching may be the erased one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

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
        (OVERHEAD + identity + headers + entry.answer.body.len()) as u64
    }
}

/// The cache. Without room for anything it is off.
pub(crate) struct Cache {
    entries: Option<Weighed<Identity, Arc<Entry>, ByBytes>>,
    generation: AtomicU64,
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Self {
        let items = usize::try_from((bytes / TYPICAL).clamp(16, 1 << 20)).unwrap_or(16);
        Self {
            entries: (bytes > 0).then(|| Weighed::with_weighter(items, bytes, ByBytes)),
            generation: AtomicU64::new(0),
        }
    }

    /// To be asked *before* the store is.
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::SeqCst))
    }

    /// The answer to that very request, while it may be given.
    pub(crate) fn find(
        &self,
        identity: &Identity,
        fingerprints: &Fingerprints,
        now: Timestamp,
    ) -> Option<Answer> {
        let entries = self.entries.as_ref()?;
        let entry = entries.get(identity)?;
        if entry.generation != self.generation() || entry.answer.is_over(now) {
            entries.remove(identity);
            return None;
        }
        // Another fingerprint is misuse, or another version of the rules: the store decides.
        (entry.fingerprints == *fingerprints).then(|| entry.answer.clone())
    }

    pub(crate) fn fill(
        &self,
        read_at: Generation,
        identity: Identity,
        fingerprints: Fingerprints,
        answer: Answer,
    ) {
        if let Some(entries) = &self.entries {
            let entry = Entry {
                fingerprints,
                answer,
                generation: read_at,
            };
            entries.insert(identity, Arc::new(entry));
        }
    }

    /// Forgets everything that was read until now.
    pub(crate) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        if let Some(entries) = &self.entries {
            entries.clear();
        }
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
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: vec![7; size].into(),
            expires_at: Timestamp::from_micros(1_000),
            body_expires_at: Some(Timestamp::from_micros(900)),
        }
    }

    const EARLY: Timestamp = Timestamp::from_micros(899);

    fn filled() -> Cache {
        let cache = Cache::new(1 << 20);
        cache.fill(
            cache.generation(),
            identity("a"),
            fingerprints(1),
            answer(10),
        );
        assert!(
            cache
                .find(&identity("a"), &fingerprints(1), EARLY)
                .is_some()
        );
        cache
    }

    #[test]
    fn nobody_else_finds_it() {
        let cache = filled();
        assert!(
            cache
                .find(&identity("b"), &fingerprints(1), EARLY)
                .is_none()
        );
        assert!(
            cache
                .find(&identity("a"), &fingerprints(2), EARLY)
                .is_none()
        );
        let other = Identity::new("u", "op", Key::new("a").unwrap()).unwrap();
        assert!(cache.find(&other, &fingerprints(1), EARLY).is_none());
        let both = fingerprints(1).with_older(Fingerprint::from_parts(0, [1; 32]));
        assert!(cache.find(&identity("a"), &both, EARLY).is_none());
    }

    #[test]
    fn the_instant_of_expiry_is_over() {
        let at = Timestamp::from_micros(900);
        assert!(
            filled()
                .find(&identity("a"), &fingerprints(1), at)
                .is_none()
        );
    }

    #[test]
    fn an_erasure_forgets_also_what_is_on_its_way_here() {
        let cache = filled();
        let before = cache.generation();
        cache.forget();
        assert!(
            cache
                .find(&identity("a"), &fingerprints(1), EARLY)
                .is_none()
        );
        cache.fill(before, identity("a"), fingerprints(1), answer(10));
        assert!(
            cache
                .find(&identity("a"), &fingerprints(1), EARLY)
                .is_none()
        );
    }

    #[test]
    fn bytes_bound_it_and_zero_is_off() {
        let cache = Cache::new(64 * 1024);
        for key in 0..1000 {
            let identity = identity(&key.to_string());
            cache.fill(cache.generation(), identity, fingerprints(1), answer(4096));
        }
        let kept = (0..1000)
            .filter(|key| {
                cache
                    .find(&identity(&key.to_string()), &fingerprints(1), EARLY)
                    .is_some()
            })
            .count();
        assert!((1..=15).contains(&kept), "{kept}");

        let off = Cache::new(0);
        off.fill(off.generation(), identity("a"), fingerprints(1), answer(1));
        assert!(off.find(&identity("a"), &fingerprints(1), EARLY).is_none());
    }
}
