//! A quota for retries, so that clients do not multiply the load of a server that fails.

use std::time::Duration;

use semel_core::Timestamp;

use crate::delay::until;

/// A token bucket that retries take from. First attempts are free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaOptions {
    /// The most tokens there are. 100 retries after a pause, by default.
    pub capacity: f64,
    /// What a retry after a failure takes.
    pub cost: f64,
    /// What time returns.
    pub refill_per_second: f64,
}

/// Those of the AWS SDKs, whose clients have used them for years.
impl Default for QuotaOptions {
    fn default() -> Self {
        Self {
            capacity: 500.0,
            cost: 5.0,
            refill_per_second: 1.0,
        }
    }
}

/// What the first attempt that succeeds returns.
const FIRST_SUCCESS: f64 = 1.0;

#[derive(Debug)]
pub(crate) struct Quota {
    options: QuotaOptions,
    tokens: f64,
    refilled_at: Option<Timestamp>,
}

impl Quota {
    pub(crate) fn new(options: QuotaOptions) -> Self {
        Self {
            options,
            tokens: options.capacity,
            refilled_at: None,
        }
    }

    /// Takes the cost of one retry; `false` if there is too little.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        let since = self.refilled_at.map_or(Duration::ZERO, |at| until(now, at));
        self.refilled_at = Some(now);
        self.add(since.as_secs_f64() * self.options.refill_per_second);
        if self.tokens < self.options.cost {
            return false;
        }
        self.tokens -= self.options.cost;
        true
    }

    /// A call ended with a response: the server works.
    pub(crate) fn give_back(&mut self, has_paid: bool) {
        self.add(if has_paid {
            self.options.cost
        } else {
            FIRST_SUCCESS
        });
    }

    fn add(&mut self, tokens: f64) {
        self.tokens = (self.tokens + tokens).min(self.options.capacity);
    }
}
