//! The store: which requests use Redis, and which go directly to the inner store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Cmd;
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result};
use semel_core::transition::Replay;
use semel_core::{
    Actor, Clock, Completion, Decision, Fingerprint, Fingerprints, Identity, OperationId,
    RecoveryPoint, Reserve, Resolution, Resolve, Store as _, Timestamp,
};
use tokio::sync::Semaphore;

use crate::Options;
use crate::connection::{CallResult, RedisConnection};
use crate::meters::Meters;
use crate::value::{Entry, Rejection};

/// How long writing or removing an entry may take. Requests do not wait for it. A command that
/// timed out may still take effect, which does no harm.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many entries are being written to Redis at once. Together with the largest value it bounds
/// the memory that a slow Redis can tie up; the next retry fills an entry that was skipped.
const MAX_FILLS: usize = 16;

/// How much sooner than the answer an entry expires. Redis counts from the arrival of the command,
/// by its own clock; the margin covers the transmission. The timestamps in the value are decisive.
const EXPIRY_MARGIN: Duration = Duration::from_secs(1);

/// How long an entry stays at most. Storms of retries last minutes. An entry that was erased while
/// Redis was unreachable is also removed from Redis after this time.
const MAX_TTL: Duration = Duration::from_hours(1);

/// A store that also keeps completed answers in Redis. Clones share all state.
pub struct Cached<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    inner: S,
    connection: Arc<RedisConnection>,
    options: Options,
    fills: Arc<Semaphore>,
    meters: Meters,
}

impl<S> Cached<S> {
    pub(crate) fn new(inner: S, connection: Arc<RedisConnection>, options: Options) -> Self {
        Self {
            shared: Arc::new(Shared {
                inner,
                connection,
                options,
                fills: Arc::new(Semaphore::new(MAX_FILLS)),
                meters: Meters::default(),
            }),
        }
    }

    /// The inner store.
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }
}

impl<S> Shared<S> {
    /// The key of an entry. It contains the epoch, so an erasure invalidates all earlier entries at
    /// once.
    fn key(&self, epoch: ErasureEpoch, identity: &Identity) -> String {
        // `Debug` formats the hash as hexadecimal digits.
        format!("{}{}:{:?}", self.options.prefix, epoch.0, identity.hash())
    }

    /// Removes the entry of an identity, if Redis can be reached.
    async fn remove(&self, epoch: Option<ErasureEpoch>, identity: &Identity) {
        if let Some(epoch) = epoch {
            let command = Cmd::del(self.key(epoch, identity));
            if self.connection.write(&command, WRITE_TIMEOUT).await == CallResult::Failed {
                self.meters.error.increment(1);
            }
        }
    }
}

impl<S: Backend> Shared<S> {
    /// The answer that Redis has for a request, if it is valid.
    async fn look_up(&self, request: &Reserve) -> Option<Replay> {
        let epoch = self.inner.erasure_epoch()?;
        let command = Cmd::get(self.key(epoch, &request.identity));
        let lookup = self
            .connection
            .look_up::<Option<Vec<u8>>>(&command, self.options.lookup_timeout);
        let value = match lookup.await {
            CallResult::Reply(Some(value)) => Bytes::from(value),
            CallResult::Reply(None) => {
                self.meters.miss.increment(1);
                return None;
            }
            CallResult::Failed => {
                self.meters.error.increment(1);
                return None;
            }
            CallResult::NotConnected => return None,
        };
        let Some(entry) = Entry::decode(value) else {
            self.meters.error.increment(1);
            tracing::debug!("a value in Redis is not whole, or not ours");
            return None;
        };
        // Epoch and time are read after the reply: both may have changed during the lookup.
        match entry.answer(
            request,
            self.inner.erasure_epoch(),
            self.inner.clock().now(),
        ) {
            Ok(replay) => {
                self.meters.hit.increment(1);
                Some(replay)
            }
            Err(Rejection::WrongIdentity) => {
                self.meters.error.increment(1);
                tracing::debug!("a value in Redis belongs to another key");
                None
            }
            Err(Rejection::FingerprintMismatch | Rejection::StaleEpoch | Rejection::Expired) => {
                self.meters.miss.increment(1);
                None
            }
        }
    }

    /// Writes an answer of the store to Redis. `epoch` was read before the store was asked.
    async fn fill(
        &self,
        epoch: ErasureEpoch,
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
        // Saves a round trip, and keeps erased answers out of Redis.
        if self.inner.erasure_epoch() != Some(epoch) {
            return;
        }
        let Some(millis) = time_to_live(&entry, self.inner.clock().now()) else {
            return;
        };
        let Some(value) = entry.encode() else {
            return;
        };
        let mut command = Cmd::set(self.key(epoch, &entry.identity), &value[..]);
        command.arg("PX").arg(millis);
        if self.connection.write(&command, WRITE_TIMEOUT).await == CallResult::Failed {
            self.meters.error.increment(1);
        }
    }

    /// The fingerprint of the record. A request may carry several, and the store does not report
    /// which of them matched: another request may share only the others.
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

    /// The identity of a record. Only rare calls need it.
    async fn identity(&self, id: OperationId) -> Option<Identity> {
        // If the record cannot be found its entry expires later; the call itself must not fail.
        let record = self.inner.find(id).await.ok()??;
        Some(record.identity)
    }
}

/// For how many milliseconds an entry is kept; `None` if it expires too soon to be kept.
fn time_to_live(entry: &Entry, now: Timestamp) -> Option<u64> {
    let left = i128::from(entry.expires_at().as_micros()) - i128::from(now.as_micros());
    let left = u64::try_from(left).map_or(Duration::ZERO, Duration::from_micros);
    let kept = left.checked_sub(EXPIRY_MARGIN)?.min(MAX_TTL);
    u64::try_from(kept.as_millis())
        .ok()
        .filter(|millis| *millis > 0)
}

impl<S: Backend> Cached<S> {
    /// Asks Redis first, then the store if Redis has no valid answer.
    async fn decide(&self, request: Reserve) -> Result<Decision> {
        let shared = &self.shared;
        if let Some(replay) = shared.look_up(&request).await {
            return Ok(Decision::Replay(replay));
        }
        // Read before the store is asked: its answer may be erased by the time it arrives.
        let epoch = shared.inner.erasure_epoch();
        let (identity, fingerprints) = (request.identity.clone(), request.fingerprints.clone());
        let decision = shared.inner.reserve(request).await?;
        if let (Decision::Replay(replay), Some(epoch)) = (&decision, epoch)
            && replay.response.body.is_some()
            && shared.connection.is_up()
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

    /// Also removes the entry in Redis under that key. There should be none, since only completed
    /// answers are cached; verdicts are rare enough to make sure.
    async fn resolve_and_remove(&self, verdict: Resolve) -> Result<Resolution> {
        let identity = self.shared.identity(verdict.fence.id).await;
        let resolution = self.shared.inner.resolve(verdict).await;
        if let Some(identity) = identity {
            self.shared.remove(self.erasure_epoch(), &identity).await;
        }
        resolution
    }

    /// Also removes the entry in Redis. Correctness does not depend on it: the store's erasure
    /// epoch changes.
    async fn erase_and_remove(&self, id: OperationId, by: Actor) -> Result<bool> {
        let identity = self.shared.identity(id).await;
        let epoch = self.erasure_epoch();
        let erased = self.shared.inner.erase(id, by).await;
        if let Some(identity) = identity {
            self.shared.remove(epoch, &identity).await;
        }
        erased
    }
}

impl<S: Backend> Backend for Cached<S> {
    async fn call(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Reserve { request } => self.decide(request).await.map(Into::into),
            Request::Resolve { verdict } => {
                let resolution = self.resolve_and_remove(verdict).await;
                resolution.map(Into::into)
            }
            Request::Erase { id, by } => self.erase_and_remove(id, by).await.map(Into::into),
            request @ (Request::Complete { .. }
            | Request::Release { .. }
            | Request::Evict { .. }
            | Request::MarkUnknown { .. }
            | Request::Heartbeat { .. }
            | Request::Advance { .. }
            | Request::Watch { .. }
            | Request::Sweep { .. }
            | Request::ClaimAbandoned { .. }
            | Request::ClaimDue { .. }
            | Request::DeadLetter { .. }
            | Request::Expire { .. }
            | Request::DropBodies { .. }
            | Request::Purge { .. }
            | Request::AuditReveal { .. }
            | Request::Find { .. }
            | Request::FindIdentity { .. }
            | Request::FindResource { .. }
            | Request::History { .. }
            | Request::CountUnfinished { .. }
            | Request::List { .. }
            | Request::Contracts {}
            | Request::PublishContracts { .. }
            | Request::CountRecords { .. }
            | Request::ReceiveMessage { .. }
            | Request::SettleMessage { .. }
            | Request::ClaimParked { .. }
            | Request::ForgetMessages { .. }
            | Request::ClaimEvents { .. }
            | Request::MarkSent { .. }
            | Request::HoldBack { .. }
            | Request::DeadLetterEvent { .. }
            | Request::DeadEvents { .. }
            | Request::ReviveEvent { .. }
            | Request::OutboxBacklog { .. }
            | Request::ReleaseRelay { .. }
            | Request::AddCounts { .. }
            | Request::Activity { .. }
            | Request::Misuses { .. }
            | Request::ScanRecords { .. }
            | Request::RecordCallers { .. }
            | Request::AcquireScanLease { .. }
            | Request::PublishRecordCounts { .. }
            | Request::RecordCounts { .. }
            | Request::FindKey { .. }
            | Request::ForgetActivity { .. }
            | Request::ForgetMisuses { .. }) => self.shared.inner.call(request).await,
        }
    }

    fn try_decide(&self, request: &Reserve) -> Option<Decision> {
        self.shared.inner.try_decide(request)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.shared.inner.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.shared.inner.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.shared.inner.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.shared.inner.decrypt_evidence(id, evidence)
    }
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
