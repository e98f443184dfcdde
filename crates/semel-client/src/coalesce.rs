//! Concurrent calls with one intent share one request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::error::Error;
use crate::request::Response;

pub(crate) type Outcome = Result<Response, Error>;

#[derive(Debug)]
struct Running {
    fingerprint: [u8; 32],
    outcome: watch::Receiver<Option<Outcome>>,
}

/// The calls of this client that are running.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coalescer(Arc<Mutex<HashMap<String, Running>>>);

/// How a call takes part.
pub(crate) enum Role {
    /// It sends.
    Leader(Leader),
    /// It waits for the one that sends.
    Follower(watch::Receiver<Option<Outcome>>),
    /// One with another request is running.
    Conflict,
}

/// Ends the sharing when it is dropped: a leader whose future is dropped makes a follower the leader.
pub(crate) struct Leader {
    coalescer: Coalescer,
    intent: String,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Coalescer {
    pub(crate) fn join(&self, intent: &str, fingerprint: [u8; 32]) -> Role {
        let mut running = self.lock();
        if let Some(known) = running.get(intent) {
            if known.fingerprint != fingerprint {
                return Role::Conflict;
            }
            return Role::Follower(known.outcome.clone());
        }
        let (sender, outcome) = watch::channel(None);
        let known = Running {
            fingerprint,
            outcome,
        };
        running.insert(intent.to_owned(), known);
        Role::Leader(Leader {
            coalescer: self.clone(),
            intent: intent.to_owned(),
            outcome: sender,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader {
    pub(crate) fn finish(self, outcome: &Outcome) {
        let _ = self.outcome.send(Some(outcome.clone()));
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.coalescer.lock().remove(&self.intent);
    }
}

/// The leader's outcome, or `None` if it was dropped before its end.
pub(crate) async fn follow(mut outcome: watch::Receiver<Option<Outcome>>) -> Option<Outcome> {
    match outcome.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone(),
        Err(_) => None,
    }
}
