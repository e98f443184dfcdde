//! The way to Redis: one connection, and when not to ask.
//!
//! A request never waits for a connection, and for an answer only so long. A Redis that keeps
//! failing is left alone for a while; then one attempt to connect and ask, in the background,
//! decides for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue};
use tokio::time::{Instant, timeout};

/// How long connecting may take, TLS, authentication and a first question included. It happens
/// in the background, and once at the start, which it must not hold up.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// How many lookups in a row must fail until Redis is left alone. More than a hiccup costs;
/// few enough that a Redis which hangs holds up each request of a moment once, and no others.
const MAX_FAILURES: u32 = 5;

/// How long Redis is left alone. Longer than [`CONNECT_PATIENCE`], so that there is never more
/// than one attempt at a time; short enough that nobody has to wait for it after a restart.
const PAUSE: Duration = Duration::from_secs(5);

const _: () = assert!(CONNECT_PATIENCE.as_millis() < PAUSE.as_millis());

/// The way to one Redis.
pub(crate) struct Link {
    client: redis::Client,
    phase: Mutex<Phase<MultiplexedConnection>>,
}

/// What Redis said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<T> {
    Said(T),
    Failed,
    /// It is not there, and nobody has waited for it.
    NotAsked,
}

/// Whether Redis is asked. Pure, but for the instants that it is given.
#[derive(Debug, PartialEq, Eq)]
enum Phase<C> {
    Up {
        connection: C,
        /// Counts connections: what goes wrong on an old one says nothing about a new one.
        generation: u64,
        /// In a row.
        failures: u32,
    },
    Down {
        until: Instant,
        generation: u64,
    },
}

/// What a caller may do.
#[derive(Debug, PartialEq, Eq)]
enum Step<C> {
    Ask(C, u64),
    /// Try to connect, as the only one who does.
    Connect,
    Nothing,
}

/// How a question failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The connection is of no use any more.
    Lost,
    /// No answer in time, or none that makes sense.
    Silent,
}

impl<C: Clone> Phase<C> {
    fn step(&mut self, now: Instant) -> Step<C> {
        match self {
            Self::Up {
                connection,
                generation,
                ..
            } => Step::Ask(connection.clone(), *generation),
            Self::Down { until, .. } if *until <= now => {
                *until = now + PAUSE;
                Step::Connect
            }
            Self::Down { .. } => Step::Nothing,
        }
    }

    fn connected(&mut self, connection: C) {
        *self = Self::Up {
            connection,
            generation: self.generation() + 1,
            failures: 0,
        };
    }

    fn answered(&mut self, asked: u64) {
        match self {
            Self::Up {
                generation,
                failures,
                ..
            } if *generation == asked => *failures = 0,
            Self::Up { .. } | Self::Down { .. } => {}
        }
    }

    /// Says whether this was the end of the connection.
    fn failed(&mut self, asked: u64, failure: Failure, now: Instant) -> bool {
        match self {
            Self::Up {
                generation,
                failures,
                ..
            } if *generation == asked => {
                *failures += 1;
                let until = match failure {
                    // It may be back already: a restart closes connections, too.
                    Failure::Lost => now,
                    Failure::Silent if *failures >= MAX_FAILURES => now + PAUSE,
                    Failure::Silent => return false,
                };
                let generation = *generation;
                *self = Self::Down { until, generation };
                true
            }
            Self::Up { .. } | Self::Down { .. } => false,
        }
    }

    fn generation(&self) -> u64 {
        match self {
            Self::Up { generation, .. } | Self::Down { generation, .. } => *generation,
        }
    }
}

impl Link {
    /// A way that is not gone yet.
    pub(crate) fn new(client: redis::Client) -> Self {
        let phase = Phase::Down {
            until: Instant::now(),
            generation: 0,
        };
        Self {
            client,
            phase: Mutex::new(phase),
        }
    }

    /// Whether there is a connection, as far as anybody knows.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.phase(), Phase::Up { .. })
    }

    /// Connects, if it is time to and nobody else does.
    pub(crate) async fn connect(&self) {
        let step = self.phase().step(Instant::now());
        if matches!(step, Step::Connect) {
            self.try_to_connect().await;
        }
    }

    /// Asks a question that decides about the connection: lookups do, since it is them who wait.
    pub(crate) async fn look_up<T: FromRedisValue>(
        self: &Arc<Self>,
        command: &Cmd,
        patience: Duration,
    ) -> Answer<T> {
        let Some((connection, generation)) = self.connection() else {
            return Answer::NotAsked;
        };
        match ask(connection, command, patience).await {
            Ok(said) => {
                self.phase().answered(generation);
                Answer::Said(said)
            }
            Err(failure) => self.failed(generation, failure),
        }
    }

    /// Asks for something that nobody waits for. A Redis that refuses to write (a replica, one
    /// that is full) may still be read, so only a lost connection counts.
    pub(crate) async fn tell(self: &Arc<Self>, command: &Cmd, patience: Duration) -> Answer<()> {
        let Some((connection, generation)) = self.connection() else {
            return Answer::NotAsked;
        };
        match ask(connection, command, patience).await {
            Ok(()) => Answer::Said(()),
            Err(Failure::Lost) => self.failed(generation, Failure::Lost),
            Err(Failure::Silent) => Answer::Failed,
        }
    }

    fn connection(self: &Arc<Self>) -> Option<(MultiplexedConnection, u64)> {
        match self.phase().step(Instant::now()) {
            Step::Ask(connection, generation) => Some((connection, generation)),
            Step::Connect => {
                let link = Arc::clone(self);
                drop(tokio::spawn(async move { link.try_to_connect().await }));
                None
            }
            Step::Nothing => None,
        }
    }

    fn failed<T>(&self, generation: u64, failure: Failure) -> Answer<T> {
        if self.phase().failed(generation, failure, Instant::now()) {
            tracing::warn!(
                ?failure,
                "Redis does not answer: retries go to the store until it does"
            );
        }
        Answer::Failed
    }

    /// Replaces the connection, if Redis answers.
    async fn try_to_connect(&self) {
        // The bounds are ours, around every call.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let attempt = async {
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            let _: String = redis::cmd("PING").query_async(&mut connection).await?;
            Ok::<_, redis::RedisError>(connection)
        };
        match timeout(CONNECT_PATIENCE, attempt).await {
            Ok(Ok(connection)) => {
                self.phase().connected(connection);
                tracing::info!("Redis answers");
            }
            // Only the kind: the words of a server may repeat what it was sent.
            Ok(Err(error)) => tracing::warn!(
                error = error.category(),
                "cannot connect to Redis: retries go to the store until it is there"
            ),
            Err(_) => tracing::warn!(
                "Redis did not answer in {CONNECT_PATIENCE:?}: retries go to the store until it \
                 does"
            ),
        }
    }

    /// Each change of the phase is one assignment, so a panic elsewhere leaves it whole.
    fn phase(&self) -> MutexGuard<'_, Phase<MultiplexedConnection>> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask<T: FromRedisValue>(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    patience: Duration,
) -> Result<T, Failure> {
    match timeout(patience, command.query_async(&mut connection)).await {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(error)) => {
            tracing::debug!(error = error.category(), "Redis failed");
            Err(if error.is_unrecoverable_error() {
                Failure::Lost
            } else {
                Failure::Silent
            })
        }
        Err(_) => Err(Failure::Silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(now: Instant) -> Phase<&'static str> {
        let mut phase = Phase::Down {
            until: now,
            generation: 0,
        };
        assert_eq!(phase.step(now), Step::Connect);
        phase.connected("first");
        phase
    }

    #[test]
    fn one_failure_less_than_the_bound_changes_nothing() {
        let now = Instant::now();
        let mut phase = up(now);
        for _ in 0..3 {
            for _ in 1..MAX_FAILURES {
                assert!(!phase.failed(1, Failure::Silent, now));
            }
            assert_eq!(phase.step(now), Step::Ask("first", 1));
            phase.answered(1);
        }
    }

    #[test]
    fn after_failures_in_a_row_it_is_left_alone_and_then_one_connects() {
        let now = Instant::now();
        let mut phase = up(now);
        for _ in 1..MAX_FAILURES {
            assert!(!phase.failed(1, Failure::Silent, now));
        }
        assert!(phase.failed(1, Failure::Silent, now));
        assert_eq!(phase.step(now), Step::Nothing);
        let almost = now + PAUSE - Duration::from_nanos(1);
        assert_eq!(phase.step(almost), Step::Nothing);
        assert_eq!(phase.step(now + PAUSE), Step::Connect);
        // The others go on without; if that one never comes back, another is let through.
        assert_eq!(phase.step(now + PAUSE), Step::Nothing);
        assert_eq!(phase.step(now + 2 * PAUSE), Step::Connect);
        phase.connected("second");
        assert_eq!(phase.step(now), Step::Ask("second", 2));
    }

    #[test]
    fn a_lost_connection_is_replaced_at_once() {
        let now = Instant::now();
        let mut phase = up(now);
        assert!(phase.failed(1, Failure::Lost, now));
        assert_eq!(phase.step(now), Step::Connect);
        assert_eq!(phase.step(now), Step::Nothing);
    }

    #[test]
    fn what_goes_wrong_on_an_old_connection_is_over() {
        let now = Instant::now();
        let mut phase = up(now);
        phase.failed(1, Failure::Lost, now);
        phase.connected("second");
        assert!(!phase.failed(1, Failure::Lost, now));
        for _ in 1..MAX_FAILURES {
            phase.failed(2, Failure::Silent, now);
        }
        phase.answered(1);
        assert!(phase.failed(2, Failure::Silent, now));
        // And what was under way when it went down does not prolong the pause.
        assert!(!phase.failed(2, Failure::Silent, now + PAUSE / 2));
        assert_eq!(phase.step(now + PAUSE), Step::Connect);
    }
}
