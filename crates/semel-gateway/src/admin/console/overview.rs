//! The overview. It reads only precomputed statistics and never scans records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::outbox::{Backlog, MAX_BACKLOG_COUNTED};
use semel_core::statistics::{Activity, RecordCounts};
use semel_core::store::{self, CountWithOldest, UnfinishedCounts};
use semel_core::{Status, Store, Timestamp};
use semel_http::Layer;
use semel_worker::unreconciled::{self, Unreconciled};
use serde::Deserialize;
use tokio::time::Instant;

use super::charts::{Charts, charts, since};
use super::layout::{Layout, Section};
use super::text::{Text, age, format_utc, link_to, number};
use super::{Console, PageResult, Shared, html};
use crate::admin::READY_WITHIN;
use crate::admin::access::Caller;
use crate::admin::api::FullStore;

/// The timeout of the statistics, so that the page can report a store that does not answer.
const STATISTICS_TIMEOUT: Duration = Duration::from_secs(4);

/// The maximum number of operations listed, those with the most records first.
const MAX_OPERATIONS: usize = 50;

#[derive(Default, Deserialize)]
pub(super) struct Filter {
    #[serde(default)]
    operation: String,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    layout: Layout,
    view: View,
    fragment: String,
    operations: Vec<Choice>,
}

#[derive(Template)]
#[template(path = "overview_live.html")]
struct Fragment {
    view: View,
}

struct Choice {
    value: String,
    label: Text,
    chosen: bool,
}

/// The part that refreshes itself.
struct View {
    at: String,
    only: Option<Text>,
    health: Health,
    outbox: Option<OutboxTile>,
    statistics: Result<Statistics, Text>,
}

struct Health {
    healthy: bool,
    message: Text,
    took: String,
}

struct OutboxTile {
    waiting: String,
    oldest: Option<String>,
    dead: u64,
}

struct Statistics {
    charts: Charts,
    in_progress: Tile,
    unknown: Tile,
    dead_lettered: Tile,
    unreconciled: Vec<UnreconciledNotice>,
    counts: Option<CountsTable>,
}

/// An operation that no process reconciles.
struct UnreconciledNotice {
    operation: Text,
    count: String,
    due: String,
    link: String,
}

struct Tile {
    any: bool,
    count: String,
    oldest: Option<String>,
    link: String,
}

struct CountsTable {
    ago: String,
    took: String,
    rows: Vec<Row>,
    more: usize,
    sums: Vec<String>,
    sum: String,
}

struct Row {
    operation: Text,
    link: String,
    counts: Vec<Cell>,
    sum: String,
}

struct Cell {
    count: String,
    none: bool,
    link: String,
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(filter): Query<Filter>,
) -> PageResult {
    let chosen = console.chosen_operation(&filter);
    let chosen = chosen.as_deref();
    let (view, names) = view(&console, chosen).await;
    let operations = names.into_iter().map(|name| Choice {
        label: Text::line(&name),
        chosen: Some(&*name) == chosen,
        value: name.into(),
    });
    Ok(html(
        StatusCode::OK,
        &Page {
            layout: Layout::new(&caller, Section::Overview),
            view,
            fragment: link_to(
                "/fragments/overview",
                &[("operation", chosen.unwrap_or_default())],
            ),
            operations: operations.collect(),
        },
    ))
}

/// The live part alone, which the script fetches.
pub(super) async fn fragment<S: FullStore, O: Store>(
    State(console): Shared<S, O>,
    Query(filter): Query<Filter>,
) -> Response {
    let chosen = console.chosen_operation(&filter);
    let (view, _) = view(&console, chosen.as_deref()).await;
    html(StatusCode::OK, &Fragment { view })
}

impl<S: FullStore, O: Store> Console<S, O> {
    /// The name that users see of the chosen operation. A link from before a rename has another.
    fn chosen_operation(&self, filter: &Filter) -> Option<Box<str>> {
        let layer = self.layer.load();
        let shown = layer.shown_operation(layer.stored_operation(&filter.operation));
        (!shown.is_empty()).then(|| shown.into())
    }
}

struct StoredStatistics {
    unfinished: Vec<UnfinishedCounts>,
    unreconciled: Vec<Unreconciled>,
    record_counts: Option<RecordCounts>,
    activity: Vec<Activity>,
}

impl StoredStatistics {
    fn with_shown_names<S: FullStore>(mut self, layer: &Layer<S>) -> Self {
        let unfinished = self.unfinished.iter_mut().map(|of| &mut of.operation);
        let unreconciled = self.unreconciled.iter_mut().map(|of| &mut of.operation);
        let counts = self
            .record_counts
            .iter_mut()
            .flat_map(|all| &mut all.counts);
        let counts = counts.map(|of| &mut of.operation);
        let activity = self.activity.iter_mut().map(|of| &mut of.operation);
        for name in unfinished.chain(unreconciled).chain(counts).chain(activity) {
            *name = layer.shown_operation(name).into();
        }
        self
    }
}

async fn view<S: FullStore, O: Store>(
    console: &Console<S, O>,
    only: Option<&str>,
) -> (View, BTreeSet<Box<str>>) {
    let now = console.now();
    let (health, stored, backlog) = tokio::join!(
        health(console),
        tokio::time::timeout(STATISTICS_TIMEOUT, read_statistics(&console.store, now)),
        tokio::time::timeout(STATISTICS_TIMEOUT, console.outbox.outbox_backlog()),
    );
    let mut names = BTreeSet::new();
    let statistics = match stored {
        Ok(Ok(stored)) => {
            let stored = stored.with_shown_names(&console.layer.load());
            let unfinished = stored.unfinished.iter();
            names.extend(unfinished.map(|unfinished| unfinished.operation.clone()));
            let activity = stored.activity.iter();
            names.extend(activity.map(|line| line.operation.clone()));
            let counts = stored.record_counts.iter();
            let counts = counts.flat_map(|record_counts| &record_counts.counts);
            names.extend(counts.map(|count| count.operation.clone()));
            Ok(statistics(&stored, only, now))
        }
        Ok(Err(error)) => Err(Text::line(&error.to_string())),
        Err(_) => Err(Text::line("the store does not respond")),
    };
    let view = View {
        at: format_utc(now, "%H:%M:%S"),
        only: only.map(Text::line),
        health,
        outbox: backlog
            .ok()
            .and_then(Result::ok)
            .map(|backlog| outbox_tile(backlog, now)),
        statistics,
    };
    (view, names)
}

async fn read_statistics<S: FullStore>(
    store: &S,
    now: Timestamp,
) -> store::Result<StoredStatistics> {
    let unfinished = async {
        let unfinished = store.count_unfinished().await?;
        let unreconciled = unreconciled::find(store, &unfinished, now).await?;
        Ok::<_, store::Error>((unfinished, unreconciled))
    };
    let (unfinished, record_counts, activity) = tokio::join!(
        unfinished,
        store.record_counts(),
        store.activity(since(now))
    );
    let (unfinished, unreconciled) = unfinished?;
    Ok(StoredStatistics {
        unfinished,
        unreconciled,
        record_counts: record_counts?,
        activity: activity?,
    })
}

async fn health<S: FullStore, O: Store>(console: &Console<S, O>) -> Health {
    let began = Instant::now();
    let ready = tokio::time::timeout(READY_WITHIN, (console.ready)()).await;
    let took = began.elapsed();
    let (healthy, message) = match ready {
        Ok(Ok(lines)) if lines.is_empty() => (true, Text::line("reachable")),
        Ok(Ok(lines)) => (true, Text::line(&lines.join("; "))),
        Ok(Err(reason)) => (false, Text::line(&reason)),
        Err(_) => (false, Text::line("no response")),
    };
    Health {
        healthy,
        message,
        took: format!("{:.1} ms", took.as_secs_f64() * 1000.0),
    }
}

fn outbox_tile(backlog: Backlog, now: Timestamp) -> OutboxTile {
    let more = if backlog.waiting >= MAX_BACKLOG_COUNTED {
        " or more"
    } else {
        ""
    };
    OutboxTile {
        waiting: format!("{}{more}", number(backlog.waiting)),
        oldest: backlog.oldest.map(|oldest| age(oldest, now)),
        dead: backlog.dead,
    }
}

fn statistics(stored: &StoredStatistics, only: Option<&str>, now: Timestamp) -> Statistics {
    let tile = |of: fn(&UnfinishedCounts) -> &CountWithOldest, filter: (&str, &str)| {
        let tallies = stored
            .unfinished
            .iter()
            .filter(|unfinished| only.is_none_or(|only| *only == *unfinished.operation))
            .map(of);
        let count: u64 = tallies.clone().map(|tally| tally.count).sum();
        let oldest = tallies.filter_map(|tally| tally.oldest).min();
        Tile {
            any: count > 0,
            count: number(count),
            oldest: oldest.map(|oldest| age(oldest, now)),
            link: link_to(
                "/operations",
                &[filter, ("operation", only.unwrap_or_default())],
            ),
        }
    };
    Statistics {
        charts: charts(&stored.activity, only, now),
        in_progress: tile(
            |unfinished| &unfinished.in_progress,
            ("status", "in_progress"),
        ),
        unknown: tile(|unfinished| &unfinished.unknown, ("status", "unknown")),
        dead_lettered: tile(
            |unfinished| &unfinished.dead_lettered,
            ("dead_lettered", "true"),
        ),
        unreconciled: stored
            .unreconciled
            .iter()
            .filter(|found| only.is_none_or(|only| *only == *found.operation))
            .map(|found| unreconciled_notice(found, now))
            .collect(),
        counts: stored
            .record_counts
            .as_ref()
            .map(|record_counts| counts_table(record_counts, only, now)),
    }
}

fn unreconciled_notice(found: &Unreconciled, now: Timestamp) -> UnreconciledNotice {
    UnreconciledNotice {
        operation: Text::line(&found.operation),
        count: number(found.count),
        due: age(found.due_at, now),
        link: link_to(
            "/operations",
            &[
                ("operation", &found.operation),
                ("status", Status::Unknown.as_str()),
                ("dead_lettered", "false"),
            ],
        ),
    }
}

fn counts_table(record_counts: &RecordCounts, only: Option<&str>, now: Timestamp) -> CountsTable {
    let mut operations = BTreeMap::<&str, [u64; Status::ALL.len()]>::new();
    let mut sums = [0_u64; Status::ALL.len()];
    for count in &record_counts.counts {
        if only.is_some_and(|only| *only != *count.operation) {
            continue;
        }
        let row = operations.entry(&count.operation).or_default();
        let columns = Status::ALL.iter().zip(row.iter_mut().zip(&mut sums));
        for (status, (cell, sum)) in columns {
            if *status == count.status {
                *cell += count.count;
                *sum += count.count;
            }
        }
    }
    let mut rows: Vec<_> = operations.into_iter().collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u64>()));
    let more = rows.len().saturating_sub(MAX_OPERATIONS);
    rows.truncate(MAX_OPERATIONS);
    CountsTable {
        ago: age(record_counts.ended_at, now),
        took: age(record_counts.began_at, record_counts.ended_at),
        rows: rows
            .into_iter()
            .map(|(name, counts)| row(name, counts))
            .collect(),
        more,
        sums: sums.map(number).into(),
        sum: number(sums.iter().sum()),
    }
}

fn row(name: &str, counts: [u64; Status::ALL.len()]) -> Row {
    let cells = Status::ALL.iter().zip(counts).map(|(status, count)| Cell {
        count: number(count),
        none: count == 0,
        link: link_to(
            "/operations",
            &[("operation", name), ("status", status.as_str())],
        ),
    });
    Row {
        operation: Text::line(name),
        link: link_to("/operations", &[("operation", name)]),
        counts: cells.collect(),
        sum: number(counts.iter().sum()),
    }
}
