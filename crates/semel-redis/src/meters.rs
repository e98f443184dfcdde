//! What is counted.

use std::sync::OnceLock;

use metrics::Counter;

/// Names of the metrics that the cache writes. They have no labels.
pub mod names {
    /// Retries answered out of Redis.
    pub const HIT: &str = "api_idempotency_redis_hit_total";
    /// Requests for which Redis had nothing that may be given.
    pub const MISS: &str = "api_idempotency_redis_miss_total";
    /// Calls that failed or took too long, and values that could not be trusted.
    pub const ERROR: &str = "api_idempotency_redis_error_total";
}

/// The meters, taken from the recorder at first use: one that is installed later sees nothing.
#[derive(Default)]
pub(crate) struct Meters {
    made: OnceLock<Made>,
}

pub(crate) struct Made {
    pub(crate) hit: Counter,
    pub(crate) miss: Counter,
    pub(crate) error: Counter,
}

impl std::ops::Deref for Meters {
    type Target = Made;

    fn deref(&self) -> &Made {
        self.made.get_or_init(|| Made {
            hit: metrics::counter!(names::HIT),
            miss: metrics::counter!(names::MISS),
            error: metrics::counter!(names::ERROR),
        })
    }
}
