//! The layer's metrics. Keys and tenants are never labels.

use std::collections::HashSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use metrics::{Counter, Histogram, Label};
use semel_core::Code;
use semel_core::key::Weakness;

/// Names of the metrics that the layer writes, each labelled by `operation`.
pub mod names {
    /// Executions granted under a key that was new.
    pub const CREATED: &str = "api_idempotency_reserve_created_total";
    /// Requests answered with a stored response.
    pub const REPLAY: &str = "api_idempotency_reserve_replay_total";
    /// Requests that found an execution in progress.
    pub const IN_PROGRESS: &str = "api_idempotency_reserve_in_progress_total";
    /// Requests under a key that was used for something else.
    pub const KEY_MISUSE: &str = "api_idempotency_reserve_key_misuse_total";
    /// Executions granted again, after proof that nothing had happened.
    pub const FAILED_RETRY: &str = "api_idempotency_reserve_failed_retry_total";
    /// Requests that found an unknown outcome.
    pub const UNKNOWN: &str = "api_idempotency_reserve_unknown_total";
    /// Records whose lease expired without a result.
    pub const ZOMBIE_KEY: &str = "api_idempotency_zombie_key_total";
    /// Records that became unknown, also by `reason`, the error code.
    pub const BECAME_UNKNOWN: &str = "api_idempotency_became_unknown_total";
    /// Requests after their replay window.
    pub const EXPIRED: &str = "api_idempotency_reserve_expired_total";
    /// Store calls that failed.
    pub const STORE_ERROR: &str = "api_idempotency_store_error_total";
    /// Outcomes of executions that no longer owned their record.
    pub const FENCED: &str = "api_idempotency_fenced_total";
    /// Reservations without an execution that no longer owned their record when they were returned.
    pub const UNRETURNED: &str = "api_idempotency_unreturned_total";
    /// Requests that passed without a key.
    pub const UNGUARDED: &str = "api_idempotency_unguarded_total";
    /// Requests with a key that looks like personal data, a timestamp or a counter; also labelled
    /// by `reason`.
    pub const KEY_WEAK: &str = "api_idempotency_key_weak_total";
    /// Requests forwarded to the region that is their key's home, also labelled by `home`.
    pub const FORWARDED: &str = "api_idempotency_forwarded_total";
    /// Forwarded requests that the other region did not answer, also labelled by `home`.
    pub const FORWARD_FAILED: &str = "api_idempotency_forward_failed_total";
    /// How long reserving takes.
    pub const RESERVE_SECONDS: &str = "api_idempotency_reserve_seconds";
    /// How long recording an end takes.
    pub const COMPLETE_SECONDS: &str = "api_idempotency_complete_seconds";
    /// How long executing takes.
    pub const EXECUTE_SECONDS: &str = "api_idempotency_execute_seconds";
}

/// The most distinct reasons of one route: an application chooses its own codes, and may put
/// anything into them.
const MAX_REASONS: usize = 32;

/// The label of all reasons past [`MAX_REASONS`].
const OTHER: &str = "other";

/// One route's metrics, registered at the route's first request: a recorder that is installed
/// later does not see them.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    label: String,
    /// The values of the label `reason` so far.
    reasons: Mutex<HashSet<Code>>,
    handles: OnceLock<Handles>,
}

pub(crate) struct Handles {
    pub(crate) created: Counter,
    pub(crate) replay: Counter,
    pub(crate) in_progress: Counter,
    pub(crate) key_misuse: Counter,
    pub(crate) failed_retry: Counter,
    pub(crate) unknown: Counter,
    pub(crate) expired: Counter,
    pub(crate) store_error: Counter,
    pub(crate) fenced: Counter,
    pub(crate) unreturned: Counter,
    pub(crate) unguarded: Counter,
    pub(crate) reserve_seconds: Histogram,
    pub(crate) complete_seconds: Histogram,
    pub(crate) execute_seconds: Histogram,
}

impl std::fmt::Debug for Handles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handles")
    }
}

impl RouteMetrics {
    pub(crate) fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            reasons: Mutex::default(),
            handles: OnceLock::new(),
        }
    }

    /// Counts a request with a weak key. Rare, so its counter is looked up.
    pub(crate) fn count_weak_key(&self, weakness: Weakness) {
        let labels = vec![
            Label::new("operation", self.label.clone()),
            Label::new("reason", weakness.as_str()),
        ];
        metrics::counter!(names::KEY_WEAK, labels).increment(1);
    }

    /// Counts a request that is sent to another region, which is one of a configured list.
    pub(crate) fn count_forwarded(&self, home: &str) {
        self.count_at(names::FORWARDED, home);
    }

    /// Counts a forwarded request without a response.
    pub(crate) fn count_forward_failed(&self, home: &str) {
        self.count_at(names::FORWARD_FAILED, home);
    }

    fn count_at(&self, name: &'static str, home: &str) {
        let labels = vec![
            Label::new("operation", self.label.clone()),
            Label::new("home", home.to_owned()),
        ];
        metrics::counter!(name, labels).increment(1);
    }

    /// Counts a record whose lease a retry found expired.
    pub(crate) fn lease_expired(&self) {
        metrics::counter!(names::ZOMBIE_KEY, "operation" => self.label.clone()).increment(1);
        self.became_unknown(&Code::LEASE_EXPIRED);
    }

    /// Counts a record that became unknown.
    pub(crate) fn became_unknown(&self, code: &Code) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = if reasons.contains(code) || reasons.len() < MAX_REASONS {
            reasons.insert(code.clone());
            code.to_string()
        } else {
            OTHER.to_owned()
        };
        drop(reasons);
        let operation = self.label.clone();
        metrics::counter!(names::BECAME_UNKNOWN, "operation" => operation, "reason" => reason)
            .increment(1);
    }
}

impl std::ops::Deref for RouteMetrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        self.handles.get_or_init(|| {
            let labels = || vec![Label::new("operation", self.label.clone())];
            let counter = |name: &'static str| metrics::counter!(name, labels());
            let histogram = |name: &'static str| metrics::histogram!(name, labels());
            Handles {
                created: counter(names::CREATED),
                replay: counter(names::REPLAY),
                in_progress: counter(names::IN_PROGRESS),
                key_misuse: counter(names::KEY_MISUSE),
                failed_retry: counter(names::FAILED_RETRY),
                unknown: counter(names::UNKNOWN),
                expired: counter(names::EXPIRED),
                store_error: counter(names::STORE_ERROR),
                fenced: counter(names::FENCED),
                unreturned: counter(names::UNRETURNED),
                unguarded: counter(names::UNGUARDED),
                reserve_seconds: histogram(names::RESERVE_SECONDS),
                complete_seconds: histogram(names::COMPLETE_SECONDS),
                execute_seconds: histogram(names::EXECUTE_SECONDS),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_reasons_is_bounded() {
        let metrics = RouteMetrics::new("pay");
        for number in 0..2 * MAX_REASONS {
            metrics.became_unknown(&Code::new(format!("code_{number}")));
        }
        assert_eq!(metrics.reasons.lock().unwrap().len(), MAX_REASONS);
    }
}
