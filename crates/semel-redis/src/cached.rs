//! The store: what goes to Redis, and what goes straight on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Cmd;
use semel_core::store::{Epoch, Result};
use semel_core::transition::Replay;
use semel_core::{
    By, Decision, Figures, Fingerprint, Fingerprints, Identity, Inbox, Inspect, Maintain,
    OperationId, Outbox, Reserve, Resolution, Resolve, Store, Timestamp,
};
use tokio::sync::Semaphore;

use crate::Options;
use crate::link::{Answer, Link};
use crate::meters::Meters;
use crate::value::{Entry, Unfit};

/// How long writing or removing an entry may take. Requests do not wait for it; what was
/// given up may still land, which does no harm.
const TELL_PATIENCE: Duration = Duration::from_secs(1);

/// Entries that are on their way to Redis at once. Together with the largest value it bounds
/// the memory that a slow Redis can tie up; the next retry fills what was left out.
const MAX_FILLS: usize = 16;

/// How much sooner than the answer an entry goes. Redis begins to count when it is told, by
/// its own clock; this covers the way there. Beyond it the instants inside the value decide.
const EXPIRY_MARGIN: Duration = Duration::from_secs(1);

/// How long an entry stays at most. Storms of retries last minutes; and what was erased while
/// Redis could not be reached is gone from there after this long, too.
const MAX_KEPT: Duration = Duration::from_hours(1);

/// A store whose completed answers are also in Redis. Clones share everything.
pub struct Cached<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    inner: S,
    link: Arc<Link>,
    options: Options,
    fills: Arc<Semaphore>,
    meters: Meters,
}

impl<S> Cached<S> {
    pub(crate) fn new(inner: S, link: Arc<Link>, options: Options) -> Self {
        Self {
            shared: Arc::new(Shared {
                inner,
                link,
                options,
                fills: Arc::new(Semaphore::new(MAX_FILLS)),
                meters: Meters::default(),
            }),
        }
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }
}

impl<S> Shared<S> {
    /// The key of an entry. The epoch is in it, so that an erasure leaves all that was kept
    /// before it behind at once.
    fn key(&self, epoch: Epoch, identity: &Identity) -> String {
        // The hash shows as hexadecimal digits.
        format!("{}{}:{:?}", self.options.prefix, epoch.0, identity.hash())
    }

    /// Removes what is kept under an identity, as well as that can be done.
    async fn remove(&self, epoch: Option<Epoch>, identity: &Identity) {
        if let Some(epoch) = epoch {
            let command = Cmd::del(self.key(epoch, identity));
            if self.link.tell(&command, TELL_PATIENCE).await == Answer::Failed {
                self.meters.error.increment(1);
            }
        }
    }
}

impl<S: Store + Inspect> Shared<S> {
    /// The answer that Redis has for a request, if it has one and may give it.
    async fn look_up(&self, request: &Reserve) -> Option<Replay> {
        let epoch = self.inner.epoch()?;
        let command = Cmd::get(self.key(epoch, &request.identity));
        let answer = self
            .link
            .look_up::<Option<Vec<u8>>>(&command, self.options.lookup_patience);
        let kept = match answer.await {
            Answer::Said(Some(kept)) => Bytes::from(kept),
            Answer::Said(None) => {
                self.meters.miss.increment(1);
                return None;
            }
            Answer::Failed => {
                self.meters.error.increment(1);
                return None;
            }
            Answer::NotAsked => return None,
        };
        let Some(entry) = Entry::decode(kept) else {
            self.meters.error.increment(1);
            tracing::debug!("a value in Redis is not whole, or not ours");
            return None;
        };
        // Both are asked now: the time in which Redis was silent counts, too.
        match entry.answer(request, self.inner.epoch(), self.inner.clock().now()) {
            Ok(replay) => {
                self.meters.hit.increment(1);
                Some(replay)
            }
            Err(Unfit::Foreign) => {
                self.meters.error.increment(1);
                tracing::debug!("a value in Redis belongs to another key");
                None
            }
            Err(Unfit::Misused | Unfit::Outdated | Unfit::Over) => {
                self.meters.miss.increment(1);
                None
            }
        }
    }

    /// Keeps an answer that was read from the store, for others. `epoch` is from before the
    /// store was asked.
    async fn fill(
        &self,
        epoch: Epoch,
        identity: Identity,
        fingerprints: Fingerprints,
        replay: Replay,
    ) {
        let Some(fingerprint) = self.stored_fingerprint(&fingerprints, replay.id).await else {
            return;
        };
        let entry = Entry {
            epoch,
            identity,
            fingerprint,
            replay,
        };
        // Spares the way, and keeps out of Redis what nobody may read any more.
        if self.inner.epoch() != Some(epoch) {
            return;
        }
        let Some(kept_for) = kept_for(&entry, self.inner.clock().now()) else {
            return;
        };
        let Some(value) = entry.encode() else {
            return;
        };
        let mut command = Cmd::set(self.key(epoch, &entry.identity), &value[..]);
        command.arg("PX").arg(kept_for);
        if self.link.tell(&command, TELL_PATIENCE).await == Answer::Failed {
            self.meters.error.increment(1);
        }
    }

    /// The fingerprint that the record has. A request may carry several, and which of them
    /// matched the store does not say: another request may share only the others.
    async fn stored_fingerprint(
        &self,
        fingerprints: &Fingerprints,
        id: OperationId,
    ) -> Option<Fingerprint> {
        if fingerprints.iter().count() == 1 {
            return Some(fingerprints.newest());
        }
        let record = self.inner.find(id).await.ok()??;
        Some(record.fingerprint)
    }

    /// Whose record that is; asked only by what is rare.
    async fn identity(&self, id: OperationId) -> Option<Identity> {
        // What cannot be found is left to run out: the call itself must not fail for it.
        let record = self.inner.find(id).await.ok()??;
        Some(record.identity)
    }
}

/// For how many milliseconds an entry is kept; `None` where that is not worth it.
fn kept_for(entry: &Entry, now: Timestamp) -> Option<u64> {
    let left = i128::from(entry.over_at().as_micros()) - i128::from(now.as_micros());
    let left = u64::try_from(left).map_or(Duration::ZERO, Duration::from_micros);
    let kept = left.checked_sub(EXPIRY_MARGIN)?.min(MAX_KEPT);
    u64::try_from(kept.as_millis())
        .ok()
        .filter(|millis| *millis > 0)
}

impl<S: Store + Inspect> Store for Cached<S> {
    semel_core::forward!([shared.inner] glance clock epoch watch complete release evict);
    semel_core::forward!([shared.inner] mark_unknown prepare prepare_point heartbeat advance);

    /// Asks Redis first, and the store where Redis has no answer that may be given.
    async fn reserve(&self, request: Reserve) -> Result<Decision> {
        let shared = &self.shared;
        if let Some(replay) = shared.look_up(&request).await {
            return Ok(Decision::Replay(replay));
        }
        // Before the store is asked: what it says may be erased by the time we hear it.
        let epoch = shared.inner.epoch();
        let (identity, fingerprints) = (request.identity.clone(), request.fingerprints.clone());
        let decision = shared.inner.reserve(request).await?;
        if let (Decision::Replay(replay), Some(epoch)) = (&decision, epoch)
            && replay.response.body.is_some()
            && shared.link.is_up()
            && let Ok(slot) = Arc::clone(&shared.fills).try_acquire_owned()
        {
            let (shared, replay) = (Arc::clone(shared), replay.clone());
            let fill = tokio::spawn(async move {
                shared.fill(epoch, identity, fingerprints, replay).await;
                drop(slot);
            });
            if self.shared.options.wait_for_fills {
                drop(fill.await);
            }
        }
        Ok(decision)
    }
}

impl<S: Store + Maintain + Inspect> Maintain for Cached<S> {
    semel_core::forward!([shared.inner] sweep claim_abandoned claim_due dead_letter);
    semel_core::forward!([shared.inner] expire drop_bodies purge revealed);

    /// Also removes what Redis keeps under that key. There should be nothing, since only what
    /// is completed is kept; a verdict is rare enough to make sure.
    async fn resolve(&self, verdict: Resolve) -> Result<Resolution> {
        let identity = self.shared.identity(verdict.fence.id).await;
        let resolution = self.shared.inner.resolve(verdict).await;
        if let Some(identity) = identity {
            self.shared.remove(self.epoch(), &identity).await;
        }
        resolution
    }

    /// Also removes what Redis keeps of it. That nobody is given it any more does not rest on
    /// this: the store's epoch changes.
    async fn erase(&self, id: OperationId, by: By) -> Result<bool> {
        let identity = self.shared.identity(id).await;
        let epoch = self.epoch();
        let erased = self.shared.inner.erase(id, by).await;
        if let Some(identity) = identity {
            self.shared.remove(epoch, &identity).await;
        }
        erased
    }
}

impl<S: Inspect> Inspect for Cached<S> {
    semel_core::forward!([shared.inner] find find_identity find_resource history reveal);
    semel_core::forward!([shared.inner] standing list);
}

impl<S: Inbox> Inbox for Cached<S> {
    semel_core::forward!([shared.inner] receive settle claim_parked forget);
}

impl<S: Outbox> Outbox for Cached<S> {
    semel_core::forward!([shared.inner] claim_events mark_sent hold_back set_aside);
    semel_core::forward!([shared.inner] dead_events revive backlog stand_down);
}

impl<S: Figures> Figures for Cached<S> {
    semel_core::forward!([shared.inner] count activity misuses survey meet count_alone);
    semel_core::forward!([shared.inner] publish_census census find_key forget_activity forget_misuses);
}

impl<S> Clone for Cached<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Cached<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cached").field(&self.shared.inner).finish()
    }
}
