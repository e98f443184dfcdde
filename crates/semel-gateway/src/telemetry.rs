//! The names of the metrics, and what they mean; and beside them the traces.

#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "otlp")]
mod parent;
pub(crate) mod request;

use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

pub use semel_http::names;
use semel_redis::names as redis;
use semel_worker::meters::names as worker;
use semel_worker::webhook::RECEIVED;

use crate::activity::{Counting, Counts};

/// Upper bounds for calls of the store: an embedded one answers in well under a millisecond, one
/// across a network in a few.
const STORE_BUCKETS: [f64; 12] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5,
];

/// Upper bounds for executions: up to the usual timeout of an upstream.
const EXECUTE_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0,
];

/// How often histograms are emptied into their buckets where nobody scrapes. Until then each
/// observation takes memory.
const UPKEEP: Duration = Duration::from_secs(5);

const COUNTERS: [(&str, &str); 10] = [
    (names::CREATED, "First requests of their operation"),
    (names::REPLAY, "Requests answered from the record"),
    (names::IN_PROGRESS, "Requests that met another attempt"),
    (
        names::KEY_MISUSE,
        "Requests with the key of another request",
    ),
    (
        names::FAILED_RETRY,
        "Requests executed again because nothing had happened",
    ),
    (
        names::UNKNOWN,
        "Requests for an operation whose outcome is unknown",
    ),
    (names::EXPIRED, "Requests after the replay window"),
    (names::STORE_ERROR, "Calls that the store did not answer"),
    (
        names::FENCED,
        "Outcomes that came after their attempt had lost the record",
    ),
    (names::UNGUARDED, "Requests that passed without a key"),
];

const WORKER_COUNTERS: [(&str, &str); 13] = [
    (worker::ZOMBIE, "Executions whose owner fell silent"),
    (
        worker::PRUNED,
        "Records, bodies, tombstones and events whose time was over",
    ),
    (worker::SCHEDULED, "Unknown operations that were looked for"),
    (worker::RESOLVED, "Looks that found the outcome"),
    (worker::FAILED, "Looks that left it unknown"),
    (
        worker::DEAD_LETTER,
        "Operations that began to wait for a person",
    ),
    (worker::TICKS, "Rounds of the worker"),
    (
        worker::GIVEN_UP,
        "Events that nothing could be made of until the end",
    ),
    (
        worker::CONTRADICTED,
        "Events that say that something happened which had been released",
    ),
    (RECEIVED, "Deliveries of events, by what became of them"),
    (
        worker::OUTBOX_PUBLISHED,
        "Events of the outbox that a broker confirmed",
    ),
    (
        worker::OUTBOX_REFUSED,
        "Events of the outbox that a broker did not take",
    ),
    (
        worker::OUTBOX_DEAD,
        "Events of the outbox that began to wait for a person",
    ),
];

const REDIS_COUNTERS: [(&str, &str); 3] = [
    (redis::HIT, "Retries answered out of Redis"),
    (
        redis::MISS,
        "Requests for which Redis had nothing that may be given",
    ),
    (
        redis::ERROR,
        "Calls of Redis that failed, and values that could not be trusted",
    ),
];

const GAUGES: [(&str, Unit, &str); 5] = [
    (
        worker::IN_PROGRESS_AGE,
        Unit::Seconds,
        "Age of the oldest execution under way",
    ),
    (
        worker::UNKNOWN_COUNT,
        Unit::Count,
        "Operations whose outcome nobody knows",
    ),
    (
        worker::OUTBOX_BACKLOG,
        Unit::Count,
        "Events that wait to be published",
    ),
    (
        worker::OUTBOX_AGE,
        Unit::Seconds,
        "Age of the oldest event that waits to be published",
    ),
    (
        worker::OUTBOX_DEAD_COUNT,
        Unit::Count,
        "Events that wait for a person",
    ),
];

/// Tells the recorder in use what the metrics mean.
pub fn describe() {
    let counters = COUNTERS.into_iter().chain(WORKER_COUNTERS);
    for (name, meaning) in counters.chain(REDIS_COUNTERS) {
        describe_counter!(name, Unit::Count, meaning);
    }
    for (name, unit, meaning) in GAUGES {
        describe_gauge!(name, unit, meaning);
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
    /// The exporter does not take its settings.
    #[error(transparent)]
    Settings(#[from] BuildError),
    /// Somebody else's recorder is there.
    #[error("the process has metrics of somebody else")]
    Taken,
}

/// A recorder with the buckets of the histograms.
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

/// Makes a [`recorder`] that of the process and describes the metrics to it. What it counts of
/// requests is counted by `counts`, too.
///
/// # Errors
/// When the process has a recorder already.
pub fn install(counts: Counts) -> Result<PrometheusHandle, Error> {
    let inner = recorder()?;
    let handle = inner.handle();
    metrics::set_global_recorder(Counting { inner, counts }).map_err(|_| Error::Taken)?;
    describe();
    Ok(handle)
}

/// Keeps the histograms small; runs for as long as the process does.
///
/// # Cancellation
/// May be dropped at any time.
pub async fn upkeep(handle: PrometheusHandle) {
    let mut turn = tokio::time::interval(UPKEEP);
    loop {
        turn.tick().await;
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
        for (name, meaning) in COUNTERS {
            assert!(name.starts_with("api_idempotency_") && name.ends_with("_total"));
            assert!(
                text.contains(&format!("# HELP {name} {meaning}\n")),
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
