//! Time, sleep and randomness, which a test replaces.

use std::time::Duration;

use semel_core::{Clock as _, SystemClock, Timestamp};
use uuid::Uuid;

use crate::BoxFuture;

/// What a client takes from its surroundings besides the network.
pub trait Environment: Send + Sync {
    /// The present instant.
    fn now(&self) -> Timestamp;

    /// Waits between two requests.
    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()>;

    /// A random number from 0 to 1, for jitter.
    fn random(&self) -> f64;

    /// A new key. It has to be unguessable, and different from all others.
    fn key(&self) -> Uuid {
        Uuid::new_v4()
    }
}

/// The machine's clock, tokio's timer, and random numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Environment for System {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(delay))
    }

    fn random(&self) -> f64 {
        // The first 32 bits of a random UUID are all random.
        let (bits, ..) = Uuid::new_v4().as_fields();
        f64::from(bits) / f64::from(u32::MAX)
    }
}
