//! Metric descriptions and the Prometheus recorder; traces are in the submodules.

#[cfg(feature = "otlp")]
pub mod otlp;
pub(crate) mod request;
#[cfg(feature = "otlp")]
mod traceparent;

use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

pub use semel_http::names;
#[cfg(feature = "redis")]
use semel_redis::names as redis;
use semel_worker::meters::names as worker;
use semel_worker::webhook::RECEIVED;

use crate::activity::{CountingRecorder, Counts};
use crate::rollback;

/// Bucket bounds for store calls: an embedded store takes well under a millisecond, a remote one a
/// few.
const STORE_BUCKETS: [f64; 12] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5,
];

/// Bucket bounds for executions, up to the default upstream timeout.
const EXECUTE_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0,
];

/// How often histogram samples are moved into their buckets if there is no scrape. Until then each
/// sample takes memory.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

const COUNTERS: [(&str, &str); 15] = [
    (names::CREATED, "First requests with their key"),
    (
        names::REPLAY,
        "Requests answered by replaying the stored response",
    ),
    (
        names::IN_PROGRESS,
        "Requests that arrived while another attempt was running",
    ),
    (
        names::KEY_MISUSE,
        "Requests that reused the key of a different request",
    ),
    (
        names::FAILED_RETRY,
        "Requests executed again after a released attempt",
    ),
    (
        names::UNKNOWN,
        "Requests for a record whose outcome is unknown",
    ),
    (
        names::BECAME_UNKNOWN,
        "Records that became unknown, by reason",
    ),
    (
        names::EXPIRED,
        "Requests after the retention of their record",
    ),
    (names::STORE_ERROR, "Store calls that failed or timed out"),
    (
        names::FENCED,
        "Outcomes refused because another attempt owned the record",
    ),
    (
        names::UNRETURNED,
        "Reservations without an execution that could not be returned",
    ),
    (names::UNGUARDED, "Requests forwarded without a key"),
    (
        names::FORWARDED,
        "Requests forwarded to the region that is their home",
    ),
    (
        names::FORWARD_FAILED,
        "Forwarded requests that the other region did not answer",
    ),
    (
        names::KEY_WEAK,
        "Requests whose key looks like an e-mail address, a card number, a timestamp or a counter",
    ),
];

const POSTGRES_COUNTERS: [(&str, &str); 1] = [(
    rollback::CLOCK_JUMPS,
    "Jumps of the PostgreSQL server's clock by more than two seconds",
)];

const WORKER_COUNTERS: [(&str, &str); 13] = [
    (worker::ZOMBIE, "Executions whose lease expired"),
    (
        worker::PRUNED,
        "Expired records, bodies, tombstones and events that were deleted",
    ),
    (
        worker::SCHEDULED,
        "Reconciliation lookups of unknown records",
    ),
    (
        worker::RESOLVED,
        "Reconciliation lookups that found the outcome",
    ),
    (
        worker::FAILED,
        "Reconciliation lookups that left the outcome unknown",
    ),
    (worker::DEAD_LETTER, "Records that were dead-lettered"),
    (worker::TICKS, "Worker rounds"),
    (
        worker::GIVEN_UP,
        "Webhook events given up because they matched no record",
    ),
    (
        worker::CONTRADICTED,
        "Webhook events that report a completion of a released record",
    ),
    (RECEIVED, "Webhook deliveries, by result"),
    (
        worker::OUTBOX_PUBLISHED,
        "Outbox events confirmed by the broker",
    ),
    (
        worker::OUTBOX_REFUSED,
        "Outbox events refused by the broker",
    ),
    (worker::OUTBOX_DEAD, "Outbox events that were dead-lettered"),
];

#[cfg(feature = "redis")]
const REDIS_COUNTERS: [(&str, &str); 3] = [
    (redis::HIT, "Retries answered from Redis"),
    (redis::MISS, "Requests without a usable response in Redis"),
    (redis::ERROR, "Redis calls that failed, and invalid values"),
];

const GAUGES: [(&str, Unit, &str); 8] = [
    (
        worker::IN_PROGRESS_AGE,
        Unit::Seconds,
        "Age of the oldest running execution",
    ),
    (
        worker::UNKNOWN_COUNT,
        Unit::Count,
        "Records whose outcome is unknown",
    ),
    (
        worker::DEAD_LETTER_WAITING,
        Unit::Count,
        "Dead-lettered records that wait for an operator",
    ),
    (
        worker::UNRECONCILED,
        Unit::Count,
        "Unknown records of operations that no process reconciles",
    ),
    (
        worker::OUTBOX_BACKLOG,
        Unit::Count,
        "Outbox events waiting to be published",
    ),
    (
        worker::OUTBOX_AGE,
        Unit::Seconds,
        "Age of the oldest outbox event waiting to be published",
    ),
    (
        worker::OUTBOX_DEAD_WAITING,
        Unit::Count,
        "Dead-lettered outbox events",
    ),
    (
        rollback::STANDBY_LAG,
        Unit::Bytes,
        "How far the slowest standby that commits wait for is behind",
    ),
];

/// Registers the descriptions of all metrics with the current recorder.
pub fn describe() {
    let counters = COUNTERS.into_iter().chain(WORKER_COUNTERS);
    let counters = counters.chain(POSTGRES_COUNTERS);
    #[cfg(feature = "redis")]
    let counters = counters.chain(REDIS_COUNTERS);
    for (name, description) in counters {
        describe_counter!(name, Unit::Count, description);
    }
    for (name, unit, description) in GAUGES {
        describe_gauge!(name, unit, description);
    }
    describe_histogram!(
        worker::OUTBOX_PUBLISH_SECONDS,
        Unit::Seconds,
        "Duration of publications"
    );
    describe_histogram!(
        names::RESERVE_SECONDS,
        Unit::Seconds,
        "Duration of reservations"
    );
    describe_histogram!(
        names::COMPLETE_SECONDS,
        Unit::Seconds,
        "Duration of completions"
    );
    describe_histogram!(
        names::EXECUTE_SECONDS,
        Unit::Seconds,
        "Duration of executions"
    );
}

/// Why the metrics could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exporter rejects its settings.
    #[error(transparent)]
    Settings(#[from] BuildError),
    /// Another recorder is installed.
    #[error("another metrics recorder is already installed in this process")]
    AlreadyInstalled,
}

/// A Prometheus recorder with our histogram buckets.
///
/// # Errors
/// Never with these buckets; the exporter refuses empty ones.
pub fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let name = |name: &str| Matcher::Full(name.to_owned());
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(name(names::RESERVE_SECONDS), &STORE_BUCKETS)?
        .set_buckets_for_metric(name(names::COMPLETE_SECONDS), &STORE_BUCKETS)?
        .set_buckets_for_metric(name(names::EXECUTE_SECONDS), &EXECUTE_BUCKETS)?
        .set_buckets_for_metric(name(worker::OUTBOX_PUBLISH_SECONDS), &EXECUTE_BUCKETS)?;
    Ok(builder.build_recorder())
}

/// Installs a [`recorder`] as the global one and describes the metrics. `counts` counts requests as
/// well.
///
/// # Errors
/// When the process has a recorder already.
pub fn install(counts: Counts) -> Result<PrometheusHandle, Error> {
    let inner = recorder()?;
    let handle = inner.handle();
    metrics::set_global_recorder(CountingRecorder { inner, counts })
        .map_err(|_| Error::AlreadyInstalled)?;
    describe();
    Ok(handle)
}

/// Bounds the memory of the histograms; runs until dropped.
///
/// # Cancellation
/// May be dropped at any time.
pub async fn upkeep(handle: PrometheusHandle) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        interval.tick().await;
        handle.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_described_and_histograms_have_buckets() {
        let recorder = recorder().unwrap();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            for (name, _) in COUNTERS {
                metrics::counter!(name, "operation" => "pay").increment(1);
            }
            for name in [
                names::RESERVE_SECONDS,
                names::COMPLETE_SECONDS,
                names::EXECUTE_SECONDS,
            ] {
                metrics::histogram!(name, "operation" => "pay").record(0.3);
            }
        });
        let text = handle.render();
        for (name, description) in COUNTERS {
            assert!(name.starts_with("api_idempotency_") && name.ends_with("_total"));
            assert!(
                text.contains(&format!("# HELP {name} {description}\n")),
                "{text}"
            );
            assert!(
                text.contains(&format!("{name}{{operation=\"pay\"}} 1\n")),
                "{text}"
            );
        }
        for name in [
            names::RESERVE_SECONDS,
            names::COMPLETE_SECONDS,
            names::EXECUTE_SECONDS,
        ] {
            assert!(
                text.contains(&format!("# TYPE {name} histogram\n")),
                "{text}"
            );
            let bucket = format!("{name}_bucket{{operation=\"pay\",le=\"+Inf\"}} 1\n");
            assert!(text.contains(&bucket), "{text}");
        }
    }
}
