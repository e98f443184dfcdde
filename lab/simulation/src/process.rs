//! Processes that are killed and stopped.

use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// A process, until it is killed: a gateway with the application in it, or a worker.
///
/// Tasks of a killed process are not dropped; they never continue, since a killed process runs no
/// destructors. Everything that has an effect outside the process goes through
/// [`step`](Process::step).
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    dead: CancellationToken,
    stopped_until: Mutex<Option<Instant>>,
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gateway,
    Worker,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Worker => "worker",
        }
    }

    pub(crate) fn killed(self) -> &'static str {
        match self {
            Self::Gateway => "gateway_killed",
            Self::Worker => "worker_killed",
        }
    }

    pub(crate) fn stopped(self) -> &'static str {
        match self {
            Self::Gateway => "gateway_stopped",
            Self::Worker => "worker_stopped",
        }
    }
}

impl Process {
    pub(crate) fn start(kind: Kind, number: u32) -> Self {
        Self {
            name: format!("{}{number}", kind.as_str()),
            kind,
            dead: CancellationToken::new(),
            stopped_until: Mutex::new(None),
        }
    }

    /// Returns when the process may continue; never, if it is dead.
    pub(crate) async fn step(&self) {
        loop {
            if self.is_dead() {
                return pending().await;
            }
            let stopped_until = *self.stopped();
            match stopped_until {
                Some(until) if Instant::now() < until => sleep_until(until).await,
                Some(_) | None => return,
            }
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.dead.cancel();
    }

    /// SIGSTOP, and SIGCONT after a while.
    pub(crate) fn stop_for(&self, time: Duration) {
        *self.stopped() = Some(Instant::now() + time);
    }

    /// Returns when the process is killed, which breaks its clients' connections.
    pub(crate) async fn died(&self) {
        self.dead.cancelled().await;
    }

    fn stopped(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.stopped_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
