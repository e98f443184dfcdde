//! The metrics of the cache.

use std::sync::OnceLock;

use metrics::Counter;

/// Names of the metrics that the cache writes. They have no labels.
pub mod names {
    /// Retries answered from Redis.
    pub const HIT: &str = "api_idempotency_redis_hit_total";
    /// Requests for which Redis had no valid entry.
    pub const MISS: &str = "api_idempotency_redis_miss_total";
    /// Calls that failed or timed out, and values that were invalid.
    pub const ERROR: &str = "api_idempotency_redis_error_total";
}

/// The counters, registered at first use. A recorder that is installed later gets nothing.
#[derive(Default)]
pub(crate) struct Meters {
    counters: OnceLock<Counters>,
}

pub(crate) struct Counters {
    pub(crate) hit: Counter,
    pub(crate) miss: Counter,
    pub(crate) error: Counter,
}

impl std::ops::Deref for Meters {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        self.counters.get_or_init(|| Counters {
            hit: metrics::counter!(names::HIT),
            miss: metrics::counter!(names::MISS),
            error: metrics::counter!(names::ERROR),
        })
    }
}
