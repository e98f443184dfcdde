//! What is counted. Keys and tenants are never labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Histogram};
use semel_core::Timestamp;
use semel_core::outbox::Backlog;
use semel_core::store::Standing;

/// Names of the metrics that are written here.
pub mod names {
    /// Executions whose owner fell silent, by `operation`.
    pub const ZOMBIE: &str = "api_idempotency_zombie_key_total";
    /// What was let go of because its time was over, by `what`: `expired`, `body`, `tombstone`,
    /// `message`.
    pub const PRUNED: &str = "api_idempotency_ttl_pruned_total";
    /// Unknowns that were claimed for a look, by `operation`.
    pub const SCHEDULED: &str = "api_idempotency_reconcile_scheduled_total";
    /// Looks that found the outcome, by `operation`.
    pub const RESOLVED: &str = "api_idempotency_reconcile_resolved_total";
    /// Looks that left it unknown, by `operation`.
    pub const FAILED: &str = "api_idempotency_reconcile_failed_total";
    /// Operations that began to wait for a person, by `operation`.
    pub const DEAD_LETTER: &str = "api_idempotency_dead_letter_total";
    /// How long ago the key of the oldest execution under way was first used, by `operation`.
    pub const IN_PROGRESS_AGE: &str = "api_idempotency_in_progress_age_max_seconds";
    /// How many outcomes nobody knows, waiting for a person or not, by `operation`.
    pub const UNKNOWN_COUNT: &str = "api_idempotency_unknown_count";
    /// Rounds of the worker, by `task` and `result`: `done`, `failed`, `panicked`.
    pub const TICKS: &str = "semel_worker_ticks_total";
    /// Events that nothing could be made of until the end, by `source`.
    pub const GIVEN_UP: &str = "semel_webhook_given_up_total";
    /// Events that say that something happened which had been released, by `source`.
    pub const CONTRADICTED: &str = "semel_webhook_contradicted_total";
    /// Events of the outbox that a broker confirmed.
    pub const OUTBOX_PUBLISHED: &str = "semel_outbox_published_total";
    /// Events of the outbox that a broker did not take, by `why`: `rejected`, `unavailable`.
    pub const OUTBOX_REFUSED: &str = "semel_outbox_refused_total";
    /// Events of the outbox that began to wait for a person.
    pub const OUTBOX_DEAD: &str = "semel_outbox_dead_total";
    /// How long a broker takes to confirm an event, or to refuse it.
    pub const OUTBOX_PUBLISH_SECONDS: &str = "semel_outbox_publish_seconds";
    /// Events that wait to be published, counted up to a bound.
    pub const OUTBOX_BACKLOG: &str = "semel_outbox_backlog";
    /// How long ago the oldest of them was written.
    pub const OUTBOX_AGE: &str = "semel_outbox_oldest_age_seconds";
    /// Events that wait for a person.
    pub const OUTBOX_DEAD_COUNT: &str = "semel_outbox_dead_count";
}

/// The most commands that are labels. A route without a name calls its operations by their path,
/// of which there may be millions; past this number they are counted together.
pub const MAX_LABELS: usize = 200;

/// The label of all commands past [`MAX_LABELS`].
pub const OTHER: &str = "other";

/// One more, of a command whose name comes from a configuration.
pub(crate) fn count(name: &'static str, operation: &str) {
    metrics::counter!(name, "operation" => operation.to_owned()).increment(1);
}

/// The commands that have become labels.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    seen: Mutex<BTreeSet<Box<str>>>,
}

impl Labels {
    /// One more, of any command.
    pub(crate) fn count(&self, name: &'static str, operation: &str) {
        count(name, &self.label(operation));
    }

    /// Shows how things stand. A command that is no longer listed is shown as 0: a gauge that is
    /// not written keeps what it last was.
    pub(crate) fn show(&self, standings: &[Standing], now: Timestamp) {
        let mut shown = BTreeMap::<Box<str>, (f64, f64)>::new();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        shown.extend(seen.iter().map(|label| (label.clone(), (0.0, 0.0))));
        drop(seen);
        for standing in standings {
            let label = self.label(&standing.operation);
            let (age, unknown) = shown.entry(label).or_default();
            let oldest = standing.in_progress.oldest;
            *age = age.max(oldest.map_or(0.0, |oldest| seconds(oldest, now)));
            *unknown += count_of(standing.unknown.count);
        }
        for (label, (age, unknown)) in shown {
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

/// What is counted for every event, looked up once a round.
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

/// Shows how an outbox stands.
pub(crate) fn show_backlog(backlog: &Backlog, now: Timestamp) {
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
    reason = "a gauge is a float; nobody counts to 2^53"
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
