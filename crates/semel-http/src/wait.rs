//! Waiting for an attempt of another request with the same key.

use std::pin::Pin;
use std::time::Duration;

use semel_core::store::AttemptEnded;
use semel_core::transition::InProgress;
use semel_core::{Fence, Store};
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::route::InFlight;
use crate::state::State;
use crate::waiters::Waiter;

/// How often the store is asked where it does not report the end of attempts: the attempt may run
/// in another process, which cannot wake this one. Also how long a store may take to subscribe.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// How often the store is asked where it does report them, since a notification may be lost.
const POLL_INTERVAL_WHEN_NOTIFIED: Duration = Duration::from_secs(1);

/// The wait of one request.
pub(crate) struct InFlightWait<'a, S> {
    state: &'a State<S>,
    max: Duration,
    /// Set when an attempt in progress is first seen.
    until: Option<Instant>,
    /// The attempt whose end the store was asked to report, once for each attempt.
    watched: Option<Fence>,
    /// The store's report, where it gives one.
    reported: Option<AttemptEnded>,
    /// This process's own notification. Subscribed before the store is asked, so that an end
    /// after that is not missed.
    subscription: Option<Subscription<'a>>,
}

struct Subscription<'a> {
    ended: Pin<Box<OwnedNotified>>,
    _place: Waiter<'a>,
}

impl<'a, S: Store> InFlightWait<'a, S> {
    pub(crate) fn new(state: &'a State<S>, in_flight: InFlight) -> Self {
        Self {
            state,
            max: match in_flight {
                InFlight::Wait { max } => max,
                InFlight::Reject | InFlight::Accept => Duration::ZERO,
            },
            until: None,
            watched: None,
            reported: None,
            subscription: None,
        }
    }

    /// Waits until the attempt may have ended, and returns whether the store should be asked again.
    /// The first time it only subscribes: the attempt may have ended in between.
    pub(crate) async fn wait(&mut self, running: &InProgress) -> bool {
        let max = self.max;
        let until = *self.until.get_or_insert_with(|| Instant::now() + max);
        if let Some(mut subscription) = self.subscription.take()
            && self.watched == Some(running.fence)
        {
            let interval = match self.reported {
                Some(_) => POLL_INTERVAL_WHEN_NOTIFIED,
                None => POLL_INTERVAL,
            };
            tokio::select! {
                () = &mut subscription.ended => {}
                () = wait_for_report(&mut self.reported) => {}
                () = sleep_until(until.min(Instant::now() + interval)) => {}
            }
        }
        if Instant::now() >= until {
            return false;
        }
        let Some(place) = self.state.waiters.enter(running.fence.id) else {
            return false;
        };
        let mut ended = Box::pin(place.ended().notified_owned());
        ended.as_mut().enable();
        self.subscription = Some(Subscription {
            ended,
            _place: place,
        });
        if self.watched.replace(running.fence) != Some(running.fence) {
            let watching = self.state.store.watch(running.fence);
            let watching = timeout_at(until.min(Instant::now() + POLL_INTERVAL), watching).await;
            self.reported = watching.ok().and_then(Result::ok).flatten();
        }
        true
    }
}

/// Waits for the store's report, once; for ever where it gives none.
async fn wait_for_report(reported: &mut Option<AttemptEnded>) {
    match reported {
        Some(report) => report.await,
        None => return std::future::pending().await,
    }
    *reported = None;
}
