//! The worker's metrics. Keys and tenants are never labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Histogram};
use semel_core::outbox::Backlog;
use semel_core::store::UnfinishedCounts;
use semel_core::{Code, Timestamp};

use crate::unreconciled::Unreconciled;

/// Metric names.
pub mod names {
    /// Records whose lease expired without a result, by `operation`.
    pub const ZOMBIE: &str = "api_idempotency_zombie_key_total";
    /// Records that became unknown, by `operation` and `reason`, the error code.
    pub const BECAME_UNKNOWN: &str = "api_idempotency_became_unknown_total";
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
    /// Records that wait for an operator, by `operation`.
    pub const DEAD_LETTER_WAITING: &str = "api_idempotency_dead_letter_waiting";
    /// Unknown records of operations that no process reconciles, by `operation`.
    pub const UNRECONCILED: &str = "api_idempotency_unreconciled";
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
    pub const OUTBOX_DEAD_WAITING: &str = "semel_outbox_dead_waiting";
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

/// The gauges of one label.
#[derive(Default)]
struct GaugeValues {
    in_progress_age: f64,
    unknown: u64,
    dead_lettered: u64,
    unreconciled: u64,
}

impl Labels {
    /// Increments a counter, of at most [`MAX_LABELS`] operations.
    pub(crate) fn count(&self, name: &'static str, operation: &str) {
        count(name, &self.label(operation));
    }

    /// Counts a record that became unknown.
    pub(crate) fn count_unknown(&self, operation: &str, reason: &Code) {
        let (operation, reason) = (String::from(self.label(operation)), reason.to_string());
        metrics::counter!(names::BECAME_UNKNOWN, "operation" => operation, "reason" => reason)
            .increment(1);
    }

    /// Sets the gauges. An operation that is no longer listed is set to 0, because a gauge that is
    /// not written keeps its last value.
    pub(crate) fn set_gauges(
        &self,
        all_counts: &[UnfinishedCounts],
        unreconciled: &[Unreconciled],
        now: Timestamp,
    ) {
        let mut values = BTreeMap::<Box<str>, GaugeValues>::new();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        values.extend(
            seen.iter()
                .map(|label| (label.clone(), GaugeValues::default())),
        );
        drop(seen);
        for counts in all_counts {
            let values = values.entry(self.label(&counts.operation)).or_default();
            let age = counts.in_progress.oldest.map(|oldest| seconds(oldest, now));
            values.in_progress_age = values.in_progress_age.max(age.unwrap_or_default());
            values.unknown += counts.unknown.count;
            values.dead_lettered += counts.dead_lettered.count;
        }
        for one in unreconciled {
            let values = values.entry(self.label(&one.operation)).or_default();
            values.unreconciled += one.count;
        }
        for (label, values) in values {
            let set = |name: &'static str, value| {
                metrics::gauge!(name, "operation" => String::from(label.clone())).set(value);
            };
            set(names::IN_PROGRESS_AGE, values.in_progress_age);
            set(names::UNKNOWN_COUNT, count_of(values.unknown));
            set(names::DEAD_LETTER_WAITING, count_of(values.dead_lettered));
            set(names::UNRECONCILED, count_of(values.unreconciled));
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
    metrics::gauge!(names::OUTBOX_DEAD_WAITING).set(count_of(backlog.dead));
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
