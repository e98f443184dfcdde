//! One shared connection to Redis, with a circuit breaker.
//!
//! A request never waits for a connection, and it waits for a reply only up to a timeout. After
//! several failed lookups in a row the circuit opens: requests skip Redis for a while, then one
//! background task reconnects.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue};
use tokio::time::{Instant, timeout};

/// How long connecting may take, including TLS, authentication and a first `PING`. It happens in
/// the background, and once at the start, which it must not delay.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many lookups in a row must fail until requests skip Redis. More than one short
/// interruption causes; few enough that a Redis that hangs delays only a few requests.
const MAX_FAILURES: u32 = 5;

/// How long requests skip Redis. Longer than [`CONNECT_TIMEOUT`], so that there is never more than
/// one connection attempt at a time; short enough that a restart of Redis has little effect.
const PAUSE: Duration = Duration::from_secs(5);

const _: () = assert!(CONNECT_TIMEOUT.as_millis() < PAUSE.as_millis());

/// The shared connection to one Redis.
pub(crate) struct RedisConnection {
    client: redis::Client,
    state: Mutex<ConnectionState<MultiplexedConnection>>,
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallResult<T> {
    Reply(T),
    Failed,
    /// There is no connection; the command was not sent.
    NotConnected,
}

/// Whether commands are sent to Redis. Callers pass the time in, so tests control it.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionState<C> {
    Up {
        connection: C,
        /// Counts connections: a failure on an old connection must not close the new one.
        generation: u64,
        /// Failed lookups in a row.
        failures: u32,
    },
    Down {
        until: Instant,
        generation: u64,
    },
}

/// What a caller does next.
#[derive(Debug, PartialEq, Eq)]
enum NextAction<C> {
    Send(C, u64),
    /// Try to connect. Only one caller at a time gets this.
    Connect,
    Skip,
}

/// How a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The connection is broken.
    Lost,
    /// No reply in time, an error, or a reply of the wrong type.
    Silent,
}

impl<C: Clone> ConnectionState<C> {
    fn next_action(&mut self, now: Instant) -> NextAction<C> {
        match self {
            Self::Up {
                connection,
                generation,
                ..
            } => NextAction::Send(connection.clone(), *generation),
            Self::Down { until, .. } if *until <= now => {
                *until = now + PAUSE;
                NextAction::Connect
            }
            Self::Down { .. } => NextAction::Skip,
        }
    }

    fn set_connected(&mut self, connection: C) {
        *self = Self::Up {
            connection,
            generation: self.generation() + 1,
            failures: 0,
        };
    }

    fn record_success(&mut self, command_generation: u64) {
        match self {
            Self::Up {
                generation,
                failures,
                ..
            } if *generation == command_generation => *failures = 0,
            Self::Up { .. } | Self::Down { .. } => {}
        }
    }

    /// Counts a failure, and returns whether it closed the connection.
    fn record_failure(&mut self, command_generation: u64, failure: Failure, now: Instant) -> bool {
        match self {
            Self::Up {
                generation,
                failures,
                ..
            } if *generation == command_generation => {
                *failures += 1;
                let until = match failure {
                    // A restart closes connections too, so Redis may already be back.
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

impl RedisConnection {
    /// Does not connect yet.
    pub(crate) fn new(client: redis::Client) -> Self {
        let state = ConnectionState::Down {
            until: Instant::now(),
            generation: 0,
        };
        Self {
            client,
            state: Mutex::new(state),
        }
    }

    /// Whether there is a connection that has not failed.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.state(), ConnectionState::Up { .. })
    }

    /// Connects, if a reconnection is due and no other task is connecting.
    pub(crate) async fn connect(&self) {
        let next_action = self.state().next_action(Instant::now());
        if matches!(next_action, NextAction::Connect) {
            self.try_connect().await;
        }
    }

    /// Sends a command whose failures count towards [`MAX_FAILURES`]. Only lookups do, because
    /// requests wait for them.
    pub(crate) async fn look_up<T: FromRedisValue>(
        self: &Arc<Self>,
        command: &Cmd,
        limit: Duration,
    ) -> CallResult<T> {
        let Some((connection, generation)) = self.connection() else {
            return CallResult::NotConnected;
        };
        match send(connection, command, limit).await {
            Ok(reply) => {
                self.state().record_success(generation);
                CallResult::Reply(reply)
            }
            Err(failure) => self.record_failure(generation, failure),
        }
    }

    /// Sends a command that no request waits for. A Redis that refuses writes (a replica, or one
    /// that is full) may still serve reads, so only a lost connection counts.
    pub(crate) async fn write(self: &Arc<Self>, command: &Cmd, limit: Duration) -> CallResult<()> {
        let Some((connection, generation)) = self.connection() else {
            return CallResult::NotConnected;
        };
        match send(connection, command, limit).await {
            Ok(()) => CallResult::Reply(()),
            Err(Failure::Lost) => self.record_failure(generation, Failure::Lost),
            Err(Failure::Silent) => CallResult::Failed,
        }
    }

    fn connection(self: &Arc<Self>) -> Option<(MultiplexedConnection, u64)> {
        match self.state().next_action(Instant::now()) {
            NextAction::Send(connection, generation) => Some((connection, generation)),
            NextAction::Connect => {
                let shared = Arc::clone(self);
                drop(tokio::spawn(async move { shared.try_connect().await }));
                None
            }
            NextAction::Skip => None,
        }
    }

    fn record_failure<T>(&self, generation: u64, failure: Failure) -> CallResult<T> {
        if self
            .state()
            .record_failure(generation, failure, Instant::now())
        {
            tracing::warn!(
                ?failure,
                "Redis does not answer: retries go to the store until it does"
            );
        }
        CallResult::Failed
    }

    /// Replaces the connection, if Redis answers.
    async fn try_connect(&self) {
        // This module puts its own timeout around every call.
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
        match timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(Ok(connection)) => {
                self.state().set_connected(connection);
                tracing::info!("Redis answers");
            }
            // Only the category: the server's error text may repeat what it was sent.
            Ok(Err(error)) => tracing::warn!(
                error = error.category(),
                "cannot connect to Redis: retries go to the store until it is there"
            ),
            Err(_) => tracing::warn!(
                "Redis did not answer in {CONNECT_TIMEOUT:?}: retries go to the store until it \
                 does"
            ),
        }
    }

    /// Each change of the state is one assignment, so a panic elsewhere leaves it consistent.
    fn state(&self) -> MutexGuard<'_, ConnectionState<MultiplexedConnection>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send<T: FromRedisValue>(
    mut connection: MultiplexedConnection,
    command: &Cmd,
    limit: Duration,
) -> Result<T, Failure> {
    match timeout(limit, command.query_async(&mut connection)).await {
        Ok(Ok(reply)) => Ok(reply),
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

    fn connected(now: Instant) -> ConnectionState<&'static str> {
        let mut state = ConnectionState::Down {
            until: now,
            generation: 0,
        };
        assert_eq!(state.next_action(now), NextAction::Connect);
        state.set_connected("first");
        state
    }

    #[test]
    fn failures_below_the_maximum_keep_the_connection() {
        let now = Instant::now();
        let mut state = connected(now);
        for _ in 0..3 {
            for _ in 1..MAX_FAILURES {
                assert!(!state.record_failure(1, Failure::Silent, now));
            }
            assert_eq!(state.next_action(now), NextAction::Send("first", 1));
            state.record_success(1);
        }
    }

    #[test]
    fn maximum_failures_pause_lookups_until_one_caller_reconnects() {
        let now = Instant::now();
        let mut state = connected(now);
        for _ in 1..MAX_FAILURES {
            assert!(!state.record_failure(1, Failure::Silent, now));
        }
        assert!(state.record_failure(1, Failure::Silent, now));
        assert_eq!(state.next_action(now), NextAction::Skip);
        let almost = now + PAUSE - Duration::from_nanos(1);
        assert_eq!(state.next_action(almost), NextAction::Skip);
        assert_eq!(state.next_action(now + PAUSE), NextAction::Connect);
        // The others skip Redis; if that attempt never finishes, another one is due later.
        assert_eq!(state.next_action(now + PAUSE), NextAction::Skip);
        assert_eq!(state.next_action(now + 2 * PAUSE), NextAction::Connect);
        state.set_connected("second");
        assert_eq!(state.next_action(now), NextAction::Send("second", 2));
    }

    #[test]
    fn lost_connection_is_replaced_without_a_pause() {
        let now = Instant::now();
        let mut state = connected(now);
        assert!(state.record_failure(1, Failure::Lost, now));
        assert_eq!(state.next_action(now), NextAction::Connect);
        assert_eq!(state.next_action(now), NextAction::Skip);
    }

    #[test]
    fn failure_on_an_old_connection_does_not_affect_the_new_one() {
        let now = Instant::now();
        let mut state = connected(now);
        state.record_failure(1, Failure::Lost, now);
        state.set_connected("second");
        assert!(!state.record_failure(1, Failure::Lost, now));
        for _ in 1..MAX_FAILURES {
            state.record_failure(2, Failure::Silent, now);
        }
        state.record_success(1);
        assert!(state.record_failure(2, Failure::Silent, now));
        // A command that was in flight when the connection closed does not prolong the pause.
        assert!(!state.record_failure(2, Failure::Silent, now + PAUSE / 2));
        assert_eq!(state.next_action(now + PAUSE), NextAction::Connect);
    }
}
