//! The worker's metrics. Keys and tenants are never labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Histogram};
use semel_core::Timestamp;
use semel_core::outbox::Backlog;
use semel_core::store::UnfinishedCounts;

/// Metric names.
pub mod names {
    /// Records whose lease expired without a result, by `operation`.
    pub const ZOMBIE: &str = "api_idempotency_zombie_key_total";
    /// Removed expired data, by `what`: `expired`, `body`, `tombstone`, `message`.
    pub const PRUNED: &str = "api_idempotency_ttl_pruned_total";
    /// Unknown records that were claimed for a lookup, by `operation`.
    pub const SCHEDULED: &str = "api_idempotency_reconcile_scheduled_total";
    /// Lookups that resolved the record, by `operation`.
    pub const RESOLVED: &str = "api_idempotency_reconcile_resolved_total";
    /// Lookups that left it unknown, by `operation`.
    pub const FAILED: &str = "api_idempotency_reconcile_failed_total";
    /// Records that were dead-lettered, by `operation`.
    pub const DEAD_LETTER: &str = "api_idempotency_dead_letter_total";
    /// Age of the oldest record in progress, since its key was first used, by `operation`.
    pub const IN_PROGRESS_AGE: &str = "api_idempotency_in_progress_age_max_seconds";
    /// Unknown records, dead-lettered or not, by `operation`.
    pub const UNKNOWN_COUNT: &str = "api_idempotency_unknown_count";
    /// Rounds of the worker, by `task` and `result`: `done`, `failed`, `panicked`.
    pub const TICKS: &str = "semel_worker_ticks_total";
    /// Webhook events that were given up, by `source`.
    pub const GIVEN_UP: &str = "semel_webhook_given_up_total";
    /// Webhook events that report an execution of a released record, by `source`.
    pub const CONTRADICTED: &str = "semel_webhook_contradicted_total";
    /// Outbox events that the broker confirmed.
    pub const OUTBOX_PUBLISHED: &str = "semel_outbox_published_total";
    /// Outbox events that the broker did not accept, by `why`: `rejected`, `unavailable`.
    pub const OUTBOX_REFUSED: &str = "semel_outbox_refused_total";
    /// Outbox events that were set aside for an operator.
    pub const OUTBOX_DEAD: &str = "semel_outbox_dead_total";
    /// Time until the broker confirmed or refused an event.
    pub const OUTBOX_PUBLISH_SECONDS: &str = "semel_outbox_publish_seconds";
    /// Outbox events that wait to be published, counted up to a bound.
    pub const OUTBOX_BACKLOG: &str = "semel_outbox_backlog";
    /// Age of the oldest waiting outbox event.
    pub const OUTBOX_AGE: &str = "semel_outbox_oldest_age_seconds";
    /// Outbox events that wait for an operator.
    pub const OUTBOX_DEAD_COUNT: &str = "semel_outbox_dead_count";
}

/// The most distinct `operation` labels. A route without a name uses the path as its operation,
/// and there may be millions of paths; operations past this number share [`OTHER`].
pub const MAX_LABELS: usize = 200;

/// The label of all operations past [`MAX_LABELS`].
pub const OTHER: &str = "other";

/// Increments a counter of an operation that comes from the configuration, so needs no bound.
pub(crate) fn count(name: &'static str, operation: &str) {
    metrics::counter!(name, "operation" => operation.to_owned()).increment(1);
}

/// The operations that have become labels.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    seen: Mutex<BTreeSet<Box<str>>>,
}

impl Labels {
    /// Increments a counter, of at most [`MAX_LABELS`] operations.
    pub(crate) fn count(&self, name: &'static str, operation: &str) {
        count(name, &self.label(operation));
    }

    /// Sets the gauges. An operation that is no longer listed is set to 0, because a gauge that is
    /// not written keeps its last value.
    pub(crate) fn set_gauges(&self, all_counts: &[UnfinishedCounts], now: Timestamp) {
        let mut values = BTreeMap::<Box<str>, (f64, f64)>::new();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        values.extend(seen.iter().map(|label| (label.clone(), (0.0, 0.0))));
        drop(seen);
        for counts in all_counts {
            let label = self.label(&counts.operation);
            let (age, unknown) = values.entry(label).or_default();
            let oldest = counts.in_progress.oldest;
            *age = age.max(oldest.map_or(0.0, |oldest| seconds(oldest, now)));
            *unknown += count_of(counts.unknown.count);
        }
        for (label, (age, unknown)) in values {
            let label = String::from(label);
            metrics::gauge!(names::IN_PROGRESS_AGE, "operation" => label.clone()).set(age);
            metrics::gauge!(names::UNKNOWN_COUNT, "operation" => label).set(unknown);
        }
    }

    fn label(&self, operation: &str) -> Box<str> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen.contains(operation);
        let label = if known || seen.len() < MAX_LABELS {
            operation
        } else {
            OTHER
        };
        if !known {
            seen.insert(label.into());
        }
        label.into()
    }
}

/// Metric handles used for every event, fetched once per round.
pub(crate) struct RelayMeters {
    pub(crate) published: Counter,
    pub(crate) publish: Histogram,
}

impl RelayMeters {
    pub(crate) fn new() -> Self {
        Self {
            published: metrics::counter!(names::OUTBOX_PUBLISHED),
            publish: metrics::histogram!(names::OUTBOX_PUBLISH_SECONDS),
        }
    }
}

/// Sets the gauges of an outbox.
pub(crate) fn set_backlog_gauges(backlog: &Backlog, now: Timestamp) {
    let age = backlog.oldest.map_or(0.0, |oldest| seconds(oldest, now));
    metrics::gauge!(names::OUTBOX_BACKLOG).set(count_of(backlog.waiting));
    metrics::gauge!(names::OUTBOX_AGE).set(age);
    metrics::gauge!(names::OUTBOX_DEAD_COUNT).set(count_of(backlog.dead));
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    let micros = now.as_micros().saturating_sub(since.as_micros());
    semel_core::time::duration(micros).as_secs_f64()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a gauge is a float; counts stay below 2^53"
)]
fn count_of(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_labels_is_bounded() {
        let labels = Labels::default();
        for number in 0..MAX_LABELS {
            let name = format!("POST /orders/{number}");
            assert_eq!(*labels.label(&name), *name);
        }
        assert_eq!(&*labels.label("POST /orders/more"), OTHER);
        assert_eq!(&*labels.label("POST /orders/0"), "POST /orders/0");
        assert_eq!(&*labels.label("and more"), OTHER);
        assert_eq!(labels.seen.lock().unwrap().len(), MAX_LABELS + 1);
    }
}
