//! How much there is, and how fast it comes.
#![allow(
    unused_qualifications,
    reason = "utoipa names the parameters by their path"
)]

use axum::extract::State;
use semel_core::Timestamp;
use semel_core::figures::{self, Activity, Census, Misuse, STRETCH, Told};
use semel_http::rfc3339 as time;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::Asked;
use super::{Answer, PAGE, Shared, StatusWord, Whole, json, view, words};
use crate::admin::document::{NotAsked, Refused, Unanswered};
use crate::admin::problem::Problem;

/// How far back activity is told, unless it is said.
const MINUTES: i64 = 15;

/// The farthest back: what a worker keeps.
const MAX_MINUTES: i64 = 60;

/// The time that the rates of `/stats` are about, in microseconds.
const LATELY: i64 = 60_000_000;

#[derive(Serialize, ToSchema)]
struct Stats {
    #[serde(flatten)]
    standing: view::ShownStats,
    /// By command and status; empty until a census has ended.
    counts: Vec<ShownCount>,
    counted_at: Option<String>,
    /// Per second, over the last minute.
    rates: Rates,
}

#[derive(Serialize, ToSchema)]
struct ShownCount {
    operation: String,
    status: StatusWord,
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

/// How many operations there are, how long the unfinished take, and what requests are told.
#[utoipa::path(
    get,
    path = "/stats",
    operation_id = "stats",
    tag = "figures",
    responses(
        (status = 200, description = "In all, and by operation.", body = Stats),
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn stats<S: Whole>(State(api): Shared<S>) -> Answer {
    let store = &api.store;
    let now = store.clock().now();
    let since = figures::stretch(Timestamp::from_micros(now.as_micros() - LATELY));
    let (standing, census, activity) =
        tokio::join!(store.standing(), store.census(), store.activity(since));
    let census = census?;
    let counted_at = census.as_ref().map(|census| time(census.ended_at));
    Ok(json(&Stats {
        standing: view::stats(&standing?, now),
        counts: census.map(counts).unwrap_or_default(),
        counted_at,
        rates: rates(&activity?, since, now),
    }))
}

fn counts(census: Census) -> Vec<ShownCount> {
    let counts = census.counts.into_iter();
    let shown = counts.map(|counted| ShownCount {
        operation: counted.operation.into(),
        status: counted.status.into(),
        count: counted.count,
    });
    shown.collect()
}

fn rates(activity: &[Activity], since: Timestamp, now: Timestamp) -> Rates {
    let mut told = Told::default();
    for line in activity {
        told.add(&line.told);
    }
    let seconds = view::age_seconds(since, now).max(1.0);
    #[allow(clippy::cast_precision_loss, reason = "a rate, for people")]
    let rate = |count: u64| (count as f64 / seconds * 1000.0).round() / 1000.0;
    Rates {
        created: rate(told.created),
        replayed: rate(told.replayed),
        in_progress: rate(told.in_progress),
        misuse: rate(told.misuse),
        retried: rate(told.retried),
        unknown: rate(told.unknown),
        expired: rate(told.expired),
        store_errors: rate(told.failed),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Since {
    /// How far back, from 1 to 60 minutes; 15 unless it is told.
    #[serde(default)]
    #[param(schema_with = words::minutes_or_none)]
    minutes: String,
}

#[derive(Serialize, ToSchema)]
struct ShownActivity {
    stretch_seconds: u64,
    since: String,
    activity: Vec<ShownLine>,
}

#[derive(Serialize, ToSchema)]
struct ShownLine {
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

/// What requests were told, in stretches of ten seconds, by all gateways.
#[utoipa::path(
    get,
    path = "/activity",
    operation_id = "activity",
    tag = "figures",
    params(Since),
    responses(
        (status = 200, description = "Oldest first, by operation.", body = ShownActivity),
        NotAsked,
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn activity<S: Whole>(
    State(api): Shared<S>,
    Asked(since): Asked<Since>,
) -> Answer {
    let minutes = match &*since.minutes {
        "" => MINUTES,
        text => Some(text)
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0'))
            .and_then(|text| text.parse().ok())
            .filter(|minutes| (1..=MAX_MINUTES).contains(minutes))
            .ok_or_else(|| {
                Problem::query(format!("minutes is a number from 1 to {MAX_MINUTES}"))
            })?,
    };
    let now = api.store.clock().now().as_micros();
    let since = figures::stretch(Timestamp::from_micros(now - minutes * 60_000_000));
    let activity = api.store.activity(since).await?;
    Ok(json(&ShownActivity {
        stretch_seconds: STRETCH.as_secs(),
        since: time(since),
        activity: activity.into_iter().map(line).collect(),
    }))
}

fn line(line: Activity) -> ShownLine {
    let told = line.told;
    ShownLine {
        at: time(line.at),
        operation: line.operation.into(),
        created: told.created,
        replayed: told.replayed,
        in_progress: told.in_progress,
        misuse: told.misuse,
        retried: told.retried,
        unknown: told.unknown,
        expired: told.expired,
        store_errors: told.failed,
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Most {
    /// How many at most, from 1 to 1000; 50 unless it is told.
    #[serde(default)]
    #[param(schema_with = words::limit_or_none)]
    limit: String,
}

#[derive(Serialize, ToSchema)]
struct ShownMisuses {
    misuses: Vec<ShownMisuse>,
}

#[derive(Serialize, ToSchema)]
struct ShownMisuse {
    tenant: String,
    operation: String,
    count: u64,
    first_at: String,
    last_at: String,
    /// The operation whose key it was, the last time.
    last_operation_id: String,
}

/// Who used keys for something else.
#[utoipa::path(
    get,
    path = "/misuse",
    operation_id = "misuse",
    tag = "figures",
    params(Most),
    responses(
        (status = 200, description = "The latest first.", body = ShownMisuses),
        NotAsked,
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn misuse<S: Whole>(State(api): Shared<S>, Asked(most): Asked<Most>) -> Answer {
    let limit = match &*most.limit {
        "" => PAGE,
        limit => super::limit(limit)?,
    };
    let misuses = api.store.misuses(limit).await?;
    Ok(json(&ShownMisuses {
        misuses: misuses.into_iter().map(shown).collect(),
    }))
}

fn shown(misuse: Misuse) -> ShownMisuse {
    ShownMisuse {
        tenant: misuse.tenant.into(),
        operation: misuse.operation.into(),
        count: misuse.count,
        first_at: time(misuse.first_at),
        last_at: time(misuse.last_at),
        last_operation_id: misuse.last_id.to_string(),
    }
}
