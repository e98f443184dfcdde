//! What a terminal shows while a call retries.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_client::{BoxFuture, Environment, Received, Reqwest, System, Transport, TransportError};
use semel_core::Timestamp;

/// How often the remaining time is shown anew.
const TICK: Duration = Duration::from_millis(200);
/// Moves to the start of the line and empties it.
const CLEAR: &str = "\r\x1b[K";

/// Sends with `reqwest` and sleeps as the system does, and reports both on one line.
#[derive(Clone)]
pub(super) struct Progress {
    inner: Reqwest,
    is_shown: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    attempts: u32,
    last: String,
}

impl Progress {
    pub(super) fn new(inner: Reqwest, is_shown: bool) -> Self {
        Self {
            inner,
            is_shown,
            state: Arc::default(),
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn show(&self, now: &str) {
        if !self.is_shown {
            return;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (attempts, last) = (state.attempts, &state.last);
        let _ = write!(
            io::stderr(),
            "{CLEAR}semel: attempt {attempts}{last}, {now}"
        );
        let _ = io::stderr().flush();
    }
}

/// Empties the line before anything else is printed.
pub(super) fn clear() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "{CLEAR}");
    }
}

impl Transport for Progress {
    fn send(
        &self,
        request: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'_, Result<Received, TransportError>> {
        Box::pin(async move {
            self.update(|state| state.attempts += 1);
            self.show("waiting for the response");
            let received = self.inner.send(request).await;
            self.update(|state| {
                state.last = match &received {
                    Ok(response) => format!(" got status {}", response.status().as_u16()),
                    Err(_) => " got no response".to_owned(),
                };
            });
            received
        })
    }
}

impl Environment for Progress {
    fn now(&self) -> Timestamp {
        System.now()
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.is_shown {
                return System.sleep(delay).await;
            }
            let mut left = delay;
            while !left.is_zero() {
                self.show(&format!("next in {:.1} s", left.as_secs_f64()));
                let step = left.min(TICK);
                System.sleep(step).await;
                left -= step;
            }
        })
    }

    fn random(&self) -> f64 {
        System.random()
    }
}
