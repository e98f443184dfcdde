//! Notifications from other processes: ended attempts and erasures.
//!
//! While the listening connection is down the epoch is not known. Then cached responses are not used,
//! since one may just have been erased, and requests that wait for an attempt poll.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::OperationId;
use semel_core::store::{AttemptEnded, ErasureEpoch};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use crate::connection::{Connector, Shared};
use crate::error::Failure;

const LISTEN: &str = include_str!("../queries/listen.sql");
const EPOCH: &str = include_str!("../queries/erasure_epoch.sql");

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
pub(crate) struct ListenConnection {
    client: Client,
    payloads: mpsc::UnboundedReceiver<String>,
}

impl ListenConnection {
    /// Listens first and then reads the epoch, so that no erasure in between is missed.
    pub(crate) async fn open(connector: &Connector, hub: &NotifyHub) -> Result<Self, Failure> {
        let (client, mut driver) = connector.connect().await?;
        let (received, payloads) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut messages =
                futures_util::stream::poll_fn(move |context| driver.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message
                    && received.send(note.payload().to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let mut connection = Self { client, payloads };
        connection.client.batch_execute(LISTEN).await?;
        connection.read_epoch(hub).await?;
        Ok(connection)
    }

    /// Reads the epoch, which also checks the connection.
    async fn read_epoch(&mut self, hub: &NotifyHub) -> Result<(), Failure> {
        let reading = self.client.query_one(EPOCH, &[]);
        let Ok(row) = timeout(CHECK_EVERY, reading).await else {
            return Err(Failure::Broken(None));
        };
        hub.epoch.fetch_max(row?.try_get(0)?, Ordering::SeqCst);
        Ok(())
    }

    /// Receives notifications until the connection breaks.
    async fn listen(mut self, hub: &NotifyHub) {
        loop {
            match timeout(CHECK_EVERY, self.payloads.recv()).await {
                Ok(Some(payload)) => hub.receive(&payload),
                Ok(None) => return,
                Err(_) => {
                    if self.read_epoch(hub).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Keeps a listening connection open until the store is dropped.
pub(crate) async fn run(connector: Shared, hub: Weak<NotifyHub>, first: ListenConnection) {
    let mut connection = Some(first);
    loop {
        let Some(open) = hub.upgrade() else {
            return;
        };
        match connection.take() {
            Some(connection) => {
                tokio::select! {
                    () = connection.listen(&open) => {}
                    () = abandoned(&hub) => return,
                }
                open.epoch.store(UNKNOWN_EPOCH, Ordering::SeqCst);
                tracing::warn!(
                    "the notification connection broke; cached responses are not used until it is back"
                );
            }
            None => match timeout(CHECK_EVERY, ListenConnection::open(&connector, &open)).await {
                Ok(Ok(opened)) => {
                    tracing::info!("the notification connection is back");
                    connection = Some(opened);
                }
                Ok(Err(_)) | Err(_) => sleep(RECONNECT_AFTER).await,
            },
        }
    }
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
