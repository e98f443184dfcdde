//! Notifications from other processes: ended attempts and erasures.
//!
//! While the listening connection is down the epoch is not known. Then cached responses are not used,
//! since one may just have been erased, and requests that wait for an attempt poll.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use semel_core::OperationId;
use semel_core::store::{AttemptEnded, ErasureEpoch};
use tokio::sync::{Notify, mpsc};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use uuid::Uuid;

use crate::connection::{Connector, Link, Shared};
use crate::error::Failure;
use crate::server::{Durability, Lag, Unfit};

const LISTEN: &str = include_str!("../queries/listen.sql");
const EPOCH: &str = include_str!("../queries/erasure_epoch.sql");
const STANDBYS: &str = include_str!("../queries/standbys.sql");

/// How often the connection is checked, and how long the server may take to answer. Twice this is
/// the longest that an erasure by another process can go unnoticed.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The pause before reconnecting.
const RECONNECT_AFTER: Duration = Duration::from_millis(250);

/// The epoch while the listening connection is down.
const UNKNOWN_EPOCH: i64 = -1;

/// The number of waiters at which abandoned ones are removed.
const PRUNE_AT: usize = 4096;

/// Distributes notifications to the requests of this process.
pub(crate) struct NotifyHub {
    epoch: AtomicI64,
    /// Waiting requests, by record. An entry without a strong reference has no waiter left.
    waiters: Mutex<HashMap<OperationId, Weak<Notify>>>,
}

impl NotifyHub {
    pub(crate) fn new() -> Self {
        Self {
            epoch: AtomicI64::new(UNKNOWN_EPOCH),
            waiters: Mutex::default(),
        }
    }

    pub(crate) fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        u64::try_from(epoch).ok().map(ErasureEpoch)
    }

    /// Raises the epoch after an erasure. An unknown epoch stays unknown: other erasures may have been
    /// missed.
    pub(crate) fn erased(&self, epoch: i64) {
        let _ = self
            .epoch
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |known| {
                (known != UNKNOWN_EPOCH).then(|| known.max(epoch))
            });
    }

    /// Waits for the end of a record's attempt. The second value says whether this is its first waiter.
    pub(crate) fn wait_for(&self, id: OperationId) -> (AttemptEnded, bool) {
        let mut waiters = self.lock();
        if waiters.len() >= PRUNE_AT {
            waiters.retain(|_, waiter| waiter.strong_count() > 0);
        }
        let known = waiters.get(&id).and_then(Weak::upgrade);
        let first = known.is_none();
        let waiter = known.unwrap_or_default();
        waiters.insert(id, Arc::downgrade(&waiter));
        drop(waiters);
        let mut ended = Box::pin(waiter.notified_owned());
        // Counts notifications from now on, and not from the first poll.
        ended.as_mut().enable();
        (ended, first)
    }

    /// Whether the listening connection is down.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.erasure_epoch().is_none()
    }

    fn ended(&self, id: OperationId) {
        let waiter = self.lock().remove(&id);
        if let Some(waiter) = waiter.and_then(|waiter| waiter.upgrade()) {
            waiter.notify_waiters();
        }
    }

    fn receive(&self, payload: &str) {
        match payload.split_once(' ') {
            Some(("ended", id)) => {
                if let Ok(id) = Uuid::parse_str(id) {
                    self.ended(OperationId::from_bytes(id.into_bytes()));
                }
            }
            Some(("epoch", epoch)) => {
                if let Ok(epoch) = epoch.parse() {
                    self.erased(epoch);
                }
            }
            // A newer version may send other notifications.
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OperationId, Weak<Notify>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that receives notifications.
pub(crate) struct Listening {
    link: Link,
    payloads: mpsc::UnboundedReceiver<String>,
    /// The server process that answered first.
    process: Option<i32>,
}

impl Listening {
    pub(crate) async fn connect(connector: &Connector) -> Result<Self, Failure> {
        let (received, payloads) = mpsc::unbounded_channel();
        Ok(Self {
            link: connector.connect_and_listen(Some(received)).await?,
            payloads,
            process: None,
        })
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// Listens first and then reads the epoch, so that no erasure in between is missed.
    pub(crate) async fn listen(self, hub: &NotifyHub) -> Result<Self, Failure> {
        self.link.client.batch_execute(LISTEN).await?;
        self.read_epoch(hub).await?;
        Ok(self)
    }

    /// Reads the epoch.
    async fn read_epoch(&self, hub: &NotifyHub) -> Result<(), Failure> {
        let row = self.link.client.query_one(EPOCH, &[]).await?;
        hub.epoch.fetch_max(row.try_get(0)?, Ordering::SeqCst);
        Ok(())
    }

    /// Checks the connection and the server.
    async fn check(&mut self, connector: &Connector, hub: &NotifyHub) -> Result<(), Failure> {
        self.read_epoch(hub).await?;
        let row = self.link.client.query_one(STANDBYS, &[]).await?;
        let process: i32 = row.try_get(0)?;
        let waits_for_standby: bool = row.try_get(1)?;
        let bytes: Option<i64> = row.try_get(2)?;
        let time: Option<i64> = row.try_get(3)?;
        let micros = |time| u64::try_from(time).ok().map(Duration::from_micros);
        if let Some(leader) = connector.leader().as_mut() {
            leader.standby_lag = bytes.map(|bytes| Lag {
                bytes: u64::try_from(bytes).unwrap_or_default(),
                time: time.and_then(micros),
            });
        }
        let unfit = if *self.process.get_or_insert(process) != process {
            Some(Unfit::Pooler)
        } else if connector.durability == Durability::Replicated && !waits_for_standby {
            Some(Unfit::NotReplicated)
        } else {
            None
        };
        if let Some(unfit) = unfit {
            tracing::error!("{}: {unfit}", connector.address);
            connector.retire_all();
            return Err(Failure::Broken(None));
        }
        Ok(())
    }

    /// Receives notifications until the connection breaks.
    async fn receive(mut self, connector: &Connector, hub: &NotifyHub) {
        // Not a time since the last notification: on a busy server there is always one.
        let mut checks = interval(CHECK_EVERY);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        checks.tick().await;
        loop {
            tokio::select! {
                payload = self.payloads.recv() => match payload {
                    Some(payload) => hub.receive(&payload),
                    None => return,
                },
                _ = checks.tick() => {
                    let checked = timeout(CHECK_EVERY, self.check(connector, hub)).await;
                    // Other connections may have found another leader, which notifies elsewhere.
                    if !matches!(checked, Ok(Ok(()))) || !connector.is_current(&self.link.health) {
                        return;
                    }
                }
            }
        }
    }
}

/// Keeps a listening connection open until the store is dropped.
pub(crate) async fn run(connector: Shared, hub: Weak<NotifyHub>, first: Listening) {
    let mut connection = Some(first);
    loop {
        let Some(open) = hub.upgrade() else {
            return;
        };
        match connection.take() {
            Some(connection) => {
                tokio::select! {
                    () = connection.receive(&connector, &open) => {}
                    () = abandoned(&hub) => return,
                }
                open.epoch.store(UNKNOWN_EPOCH, Ordering::SeqCst);
                tracing::warn!(
                    "the notification connection broke; cached responses are not used until it is back"
                );
            }
            None => match timeout(CHECK_EVERY, open_again(&connector, &open)).await {
                Ok(Ok(opened)) => {
                    tracing::info!("the notification connection is back");
                    connection = Some(opened);
                }
                Ok(Err(_)) | Err(_) => sleep(RECONNECT_AFTER).await,
            },
        }
    }
}

async fn open_again(connector: &Connector, hub: &NotifyHub) -> Result<Listening, Failure> {
    Listening::connect(connector).await?.listen(hub).await
}

/// Resolves when the store was dropped, and only this task still holds the hub.
async fn abandoned(hub: &Weak<NotifyHub>) {
    while hub.strong_count() > 1 {
        sleep(RECONNECT_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_epoch_is_known_only_while_connected_and_never_decreases() {
        let hub = NotifyHub::new();
        assert_eq!(hub.erasure_epoch(), None);
        hub.erased(7);
        assert_eq!(hub.erasure_epoch(), None);
        hub.epoch.store(3, Ordering::SeqCst);
        hub.receive("epoch 5");
        hub.receive("epoch 4");
        hub.receive("epoch what");
        hub.receive("news");
        assert_eq!(hub.erasure_epoch(), Some(ErasureEpoch(5)));
    }

    #[test]
    fn an_ended_attempt_wakes_all_its_waiters_and_no_others() {
        let hub = NotifyHub::new();
        let (id, other) = (OperationId::generate(), OperationId::generate());
        let (mut one, first) = hub.wait_for(id);
        assert!(first);
        let (mut two, first) = hub.wait_for(id);
        assert!(!first);
        let (mut elsewhere, _) = hub.wait_for(other);
        hub.receive(&format!("ended {id}"));
        assert!((&mut one).now_or_never().is_some());
        assert!((&mut two).now_or_never().is_some());
        assert!((&mut elsewhere).now_or_never().is_none());
    }

    #[test]
    fn abandoned_waiters_are_removed() {
        let hub = NotifyHub::new();
        for _ in 0..PRUNE_AT * 2 {
            drop(hub.wait_for(OperationId::generate()));
        }
        assert!(hub.lock().len() <= PRUNE_AT + 1);
    }
}
