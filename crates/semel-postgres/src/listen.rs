//! What other processes did: ends that somebody here waits for, and erasures.
//!
//! While nothing can be heard, the epoch is not known: copies of answers are not used, since
//! the one may just have been erased. Whoever waits for an end looks for itself then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::OperationId;
use semel_core::store::{Epoch, Hearing};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use crate::connection::{Connector, Shared};
use crate::error::Failure;

const LISTEN: &str = include_str!("../queries/listen.sql");
const EPOCH: &str = include_str!("../queries/epoch.sql");

/// How often the server is asked whether it is still there, and how long it may take to say so.
/// Twice this is the longest that an erasure elsewhere can go unnoticed.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// The pause before listening is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The epoch while nothing can be heard.
const DEAF: i64 = -1;

/// Places that are forgotten when this many were given.
const TIDY_AT: usize = 4096;

/// What is heard, shared by all who want to know.
pub(crate) struct Ears {
    epoch: AtomicI64,
    /// Those who wait, by operation. An entry that nobody holds any more is of no meaning.
    places: Mutex<HashMap<OperationId, Weak<Notify>>>,
}

impl Ears {
    pub(crate) fn new() -> Self {
        Self {
            epoch: AtomicI64::new(DEAF),
            places: Mutex::default(),
        }
    }

    pub(crate) fn epoch(&self) -> Option<Epoch> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        u64::try_from(epoch).ok().map(Epoch)
    }

    /// An erasure is known of. Nothing is learnt from it by who is deaf: it may not be the last.
    pub(crate) fn erased(&self, epoch: i64) {
        let _ = self
            .epoch
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |known| {
                (known != DEAF).then(|| known.max(epoch))
            });
    }

    /// A place among those who wait for an operation, and whether it is the first.
    pub(crate) fn wait_for(&self, id: OperationId) -> (Hearing, bool) {
        let mut places = self.lock();
        if places.len() >= TIDY_AT {
            places.retain(|_, place| place.strong_count() > 0);
        }
        let known = places.get(&id).and_then(Weak::upgrade);
        let first = known.is_none();
        let place = known.unwrap_or_default();
        places.insert(id, Arc::downgrade(&place));
        drop(places);
        let mut hearing = Box::pin(place.notified_owned());
        // From now on, not from when it is first polled.
        hearing.as_mut().enable();
        (hearing, first)
    }

    /// Whether nothing can be heard.
    pub(crate) fn are_deaf(&self) -> bool {
        self.epoch().is_none()
    }

    fn ended(&self, id: OperationId) {
        let place = self.lock().remove(&id);
        if let Some(place) = place.and_then(|place| place.upgrade()) {
            place.notify_waiters();
        }
    }

    fn hear(&self, word: &str) {
        match word.split_once(' ') {
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
            // A newer process says more.
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OperationId, Weak<Notify>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that listens.
pub(crate) struct Line {
    client: Client,
    words: mpsc::UnboundedReceiver<String>,
}

impl Line {
    /// Listens first and reads the epoch then: what comes in between is heard.
    pub(crate) async fn open(connector: &Connector, ears: &Ears) -> Result<Self, Failure> {
        let (client, mut driver) = connector.connect().await?;
        let (heard, words) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut messages =
                futures_util::stream::poll_fn(move |context| driver.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message
                    && heard.send(note.payload().to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let mut line = Self { client, words };
        line.client.batch_execute(LISTEN).await?;
        line.ask(ears).await?;
        Ok(line)
    }

    /// Reads the epoch, and so sees whether the server is still there.
    async fn ask(&mut self, ears: &Ears) -> Result<(), Failure> {
        let asking = self.client.query_one(EPOCH, &[]);
        let Ok(row) = timeout(ASK_EVERY, asking).await else {
            return Err(Failure::Broken(None));
        };
        ears.epoch.fetch_max(row?.try_get(0)?, Ordering::SeqCst);
        Ok(())
    }

    /// Hears until the line is dead.
    async fn listen(mut self, ears: &Ears) {
        loop {
            match timeout(ASK_EVERY, self.words.recv()).await {
                Ok(Some(word)) => ears.hear(&word),
                Ok(None) => return,
                Err(_) => {
                    if self.ask(ears).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Listens until nobody wants to know any more.
pub(crate) async fn run(connector: Shared, ears: Weak<Ears>, first: Line) {
    let mut line = Some(first);
    loop {
        let Some(open) = ears.upgrade() else {
            return;
        };
        match line.take() {
            Some(line) => {
                tokio::select! {
                    () = line.listen(&open) => {}
                    () = abandoned(&ears) => return,
                }
                open.epoch.store(DEAF, Ordering::SeqCst);
                tracing::warn!("nothing is heard from other processes; copies are not used");
            }
            None => match timeout(ASK_EVERY, Line::open(&connector, &open)).await {
                Ok(Ok(opened)) => {
                    tracing::info!("other processes are heard again");
                    line = Some(opened);
                }
                Ok(Err(_)) | Err(_) => sleep(AGAIN_AFTER).await,
            },
        }
    }
}

/// Resolves when only we hold the ears any more.
async fn abandoned(ears: &Weak<Ears>) {
    while ears.strong_count() > 1 {
        sleep(AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn an_epoch_is_known_only_while_something_is_heard_and_never_goes_back() {
        let ears = Ears::new();
        assert_eq!(ears.epoch(), None);
        ears.erased(7);
        assert_eq!(ears.epoch(), None);
        ears.epoch.store(3, Ordering::SeqCst);
        ears.hear("epoch 5");
        ears.hear("epoch 4");
        ears.hear("epoch what");
        ears.hear("news");
        assert_eq!(ears.epoch(), Some(Epoch(5)));
    }

    #[test]
    fn all_who_wait_are_told_once_it_ended_and_nobody_else() {
        let ears = Ears::new();
        let (id, other) = (OperationId::generate(), OperationId::generate());
        let (mut one, first) = ears.wait_for(id);
        assert!(first);
        let (mut two, first) = ears.wait_for(id);
        assert!(!first);
        let (mut elsewhere, _) = ears.wait_for(other);
        ears.hear(&format!("ended {id}"));
        assert!((&mut one).now_or_never().is_some());
        assert!((&mut two).now_or_never().is_some());
        assert!((&mut elsewhere).now_or_never().is_none());
    }

    #[test]
    fn places_that_nobody_holds_are_forgotten() {
        let ears = Ears::new();
        for _ in 0..TIDY_AT * 2 {
            drop(ears.wait_for(OperationId::generate()));
        }
        assert!(ears.lock().len() <= TIDY_AT + 1);
    }
}
