//! Statistics: record counts, response rates, key misuse.
#![allow(
    unused_qualifications,
    reason = "utoipa names the parameters by their path"
)]

use axum::extract::State;
use semel_core::Timestamp;
use semel_core::statistics::{
    self, ACTIVITY_INTERVAL, Activity, DecisionCounts, Misuse, RecordCounts,
};
use semel_http::{Layer, rfc3339 as time};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::QueryParams;
use super::{ApiResult, DEFAULT_LIMIT, FullStore, Shared, StatusView, json, schema, view};
use crate::admin::actions;
use crate::admin::openapi::{AuthProblems, QueryProblems, StoreProblems};
use crate::admin::problem::Problem;

/// The default range of `/activity`, in minutes.
const DEFAULT_MINUTES: i64 = 15;

/// The longest range of `/activity`: workers keep no more.
const MAX_MINUTES: i64 = 60;

/// The range of the rates in `/stats`, in microseconds.
const RATE_WINDOW_MICROS: i64 = 60_000_000;

#[derive(Serialize, ToSchema)]
struct Stats {
    #[serde(flatten)]
    backlog: view::BacklogView,
    /// Records by operation and status; empty until the first count has finished.
    counts: Vec<RecordCount>,
    /// When the count finished.
    counted_at: Option<String>,
    /// Per second, over the last minute.
    rates: Rates,
}

#[derive(Serialize, ToSchema)]
struct RecordCount {
    operation: String,
    status: StatusView,
    count: u64,
}

#[derive(Serialize, ToSchema)]
struct Rates {
    created: f64,
    replayed: f64,
    in_progress: f64,
    misuse: f64,
    retried: f64,
    unknown: f64,
    expired: f64,
    store_errors: f64,
}

/// Show record counts, the age of unfinished records, and response rates.
#[utoipa::path(
    get,
    path = "/stats",
    operation_id = "stats",
    tag = "statistics",
    responses(
        (status = 200, description = "Totals, and by operation.", body = Stats),
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn stats<S: FullStore>(State(api): Shared<S>) -> ApiResult {
    let store = &api.store;
    let now = store.clock().now();
    let since =
        statistics::interval_start(Timestamp::from_micros(now.as_micros() - RATE_WINDOW_MICROS));
    let (unfinished, record_counts, activity) = tokio::join!(
        store.count_unfinished(),
        store.record_counts(),
        store.activity(since)
    );
    let (record_counts, layer) = (record_counts?, api.layer.load());
    let counted_at = record_counts
        .as_ref()
        .map(|record_counts| time(record_counts.ended_at));
    Ok(json(&Stats {
        backlog: view::backlog(&layer, &unfinished?, now),
        counts: record_counts
            .map(|record_counts| counts(&layer, record_counts))
            .unwrap_or_default(),
        counted_at,
        rates: rates(&activity?, since, now),
    }))
}

fn counts<S: FullStore>(layer: &Layer<S>, record_counts: RecordCounts) -> Vec<RecordCount> {
    let counts = record_counts.counts.into_iter();
    let views = counts.map(|counted| RecordCount {
        operation: layer.shown_operation(&counted.operation).to_owned(),
        status: counted.status.into(),
        count: counted.count,
    });
    views.collect()
}

fn rates(activity: &[Activity], since: Timestamp, now: Timestamp) -> Rates {
    let mut counts = DecisionCounts::default();
    for line in activity {
        counts.add(&line.decisions);
    }
    let seconds = view::age_seconds(since, now).max(1.0);
    #[allow(clippy::cast_precision_loss, reason = "a rate, for people")]
    let rate = |count: u64| (count as f64 / seconds * 1000.0).round() / 1000.0;
    Rates {
        created: rate(counts.created),
        replayed: rate(counts.replayed),
        in_progress: rate(counts.in_progress),
        misuse: rate(counts.misuse),
        retried: rate(counts.retried),
        unknown: rate(counts.unknown),
        expired: rate(counts.expired),
        store_errors: rate(counts.failed),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ActivityParams {
    /// The range in minutes, from 1 to 60; default 15.
    #[serde(default)]
    #[param(schema_with = schema::minutes_or_none)]
    minutes: String,
}

#[derive(Serialize, ToSchema)]
struct ActivityView {
    stretch_seconds: u64,
    since: String,
    activity: Vec<ActivityInterval>,
}

#[derive(Serialize, ToSchema)]
struct ActivityInterval {
    at: String,
    operation: String,
    created: u64,
    replayed: u64,
    in_progress: u64,
    misuse: u64,
    retried: u64,
    unknown: u64,
    expired: u64,
    store_errors: u64,
}

/// Count responses by type in intervals of ten seconds, over all gateways.
#[utoipa::path(
    get,
    path = "/activity",
    operation_id = "activity",
    tag = "statistics",
    params(ActivityParams),
    responses(
        (status = 200, description = "Intervals by operation, oldest first.", body = ActivityView),
        QueryProblems,
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn activity<S: FullStore>(
    State(api): Shared<S>,
    QueryParams(params): QueryParams<ActivityParams>,
) -> ApiResult {
    let minutes = match &*params.minutes {
        "" => DEFAULT_MINUTES,
        text => Some(text)
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0'))
            .and_then(|text| text.parse().ok())
            .filter(|minutes| (1..=MAX_MINUTES).contains(minutes))
            .ok_or_else(|| {
                Problem::invalid_query(format!(
                    "invalid minutes: use a number from 1 to {MAX_MINUTES}"
                ))
            })?,
    };
    let now = api.store.clock().now().as_micros();
    let since = statistics::interval_start(Timestamp::from_micros(now - minutes * 60_000_000));
    let activity = api.store.activity(since).await?;
    let activity = actions::shown_activity(&api.layer.load(), activity);
    Ok(json(&ActivityView {
        stretch_seconds: ACTIVITY_INTERVAL.as_secs(),
        since: time(since),
        activity: activity.into_iter().map(interval).collect(),
    }))
}

fn interval(line: Activity) -> ActivityInterval {
    let counts = line.decisions;
    ActivityInterval {
        at: time(line.at),
        operation: line.operation.into(),
        created: counts.created,
        replayed: counts.replayed,
        in_progress: counts.in_progress,
        misuse: counts.misuse,
        retried: counts.retried,
        unknown: counts.unknown,
        expired: counts.expired,
        store_errors: counts.failed,
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct MisuseParams {
    /// The maximum number of rows, from 1 to 1000; default 50.
    #[serde(default)]
    #[param(schema_with = schema::limit_or_none)]
    limit: String,
}

#[derive(Serialize, ToSchema)]
struct MisuseList {
    misuses: Vec<MisuseView>,
}

#[derive(Serialize, ToSchema)]
struct MisuseView {
    tenant: String,
    operation: String,
    count: u64,
    first_at: String,
    last_at: String,
    /// The record whose key was reused most recently.
    last_operation_id: String,
}

/// List reuse of keys for different requests, by tenant and operation.
#[utoipa::path(
    get,
    path = "/misuse",
    operation_id = "misuse",
    tag = "statistics",
    params(MisuseParams),
    responses(
        (status = 200, description = "Most recent first.", body = MisuseList),
        QueryProblems,
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn misuse<S: FullStore>(
    State(api): Shared<S>,
    QueryParams(params): QueryParams<MisuseParams>,
) -> ApiResult {
    let limit = match &*params.limit {
        "" => DEFAULT_LIMIT,
        limit => super::parse_limit(limit)?,
    };
    let (misuses, layer) = (api.store.misuses(limit).await?, api.layer.load());
    Ok(json(&MisuseList {
        misuses: misuses
            .into_iter()
            .map(|misuse| misuse_view(&layer, misuse))
            .collect(),
    }))
}

fn misuse_view<S: FullStore>(layer: &Layer<S>, misuse: Misuse) -> MisuseView {
    MisuseView {
        tenant: misuse.tenant.into(),
        operation: layer.shown_operation(&misuse.operation).to_owned(),
        count: misuse.count,
        first_at: time(misuse.first_at),
        last_at: time(misuse.last_at),
        last_operation_id: misuse.last_id.to_string(),
    }
}
