//! How everything stands, at a glance. It asks only for what is kept in figures, and never looks
//! through operations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::figures::{Activity, Census};
use semel_core::outbox::{Backlog, MAX_BACKLOG_COUNTED};
use semel_core::store::{self, Standing, Tally};
use semel_core::{Outbox, Status, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

use super::charts::{Charts, charts, since};
use super::layout::{Layout, Place};
use super::text::{Text, address, age, clock, number};
use super::{Answer, Console, Shared, html, told};
use crate::admin::READY_WITHIN;
use crate::admin::access::Caller;
use crate::admin::api::Whole;

/// How long the figures may take. A store that does not answer must not make the page that would
/// say so wait for ever.
const PATIENCE: Duration = Duration::from_secs(4);

/// The most commands that are listed: those with the most operations.
const MAX_COMMANDS: usize = 50;

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
    commands: Vec<Choice>,
}

#[derive(Template)]
#[template(path = "overview_live.html")]
struct Fragment {
    view: View,
}

struct Choice {
    value: String,
    shown: Text,
    chosen: bool,
}

/// What is live.
struct View {
    at: String,
    only: Option<Text>,
    health: Health,
    outbox: Option<Post>,
    figures: Result<Figures, Text>,
}

struct Health {
    well: bool,
    said: Text,
    took: String,
}

struct Post {
    waiting: String,
    oldest: Option<String>,
    dead: u64,
}

struct Figures {
    charts: Charts,
    in_progress: Tile,
    unknown: Tile,
    dead_lettered: Tile,
    census: Option<Counted>,
}

struct Tile {
    any: bool,
    count: String,
    oldest: Option<String>,
    link: String,
}

struct Counted {
    ago: String,
    took: String,
    rows: Vec<Row>,
    more: usize,
    sums: Vec<String>,
    sum: String,
}

struct Row {
    command: Text,
    link: String,
    counts: Vec<Cell>,
    sum: String,
}

struct Cell {
    count: String,
    none: bool,
    link: String,
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(filter): Query<Filter>,
) -> Response {
    told(&caller, whole(&caller, &console, &filter).await)
}

async fn whole<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Arc<Console<S, O>>,
    filter: &Filter,
) -> Answer {
    let (view, names) = view(console, filter).await;
    let chosen = only(filter);
    let commands = names.into_iter().map(|name| Choice {
        shown: Text::line(&name),
        chosen: Some(&*name) == chosen,
        value: name.into(),
    });
    Ok(html(
        StatusCode::OK,
        &Page {
            layout: Layout::new(caller, Place::Overview),
            view,
            fragment: address(
                "/fragments/overview",
                &[("operation", chosen.unwrap_or_default())],
            ),
            commands: commands.collect(),
        },
    ))
}

/// The live part alone, for the script.
pub(super) async fn fragment<S: Whole, O: Outbox>(
    State(console): Shared<S, O>,
    Query(filter): Query<Filter>,
) -> Response {
    let (view, _) = view(&console, &filter).await;
    html(StatusCode::OK, &Fragment { view })
}

fn only(filter: &Filter) -> Option<&str> {
    Some(&*filter.operation).filter(|operation| !operation.is_empty())
}

type Kept = (Vec<Standing>, Option<Census>, Vec<Activity>);

async fn view<S: Whole, O: Outbox>(
    console: &Console<S, O>,
    filter: &Filter,
) -> (View, BTreeSet<Box<str>>) {
    let now = console.now();
    let (health, kept, backlog) = tokio::join!(
        health(console),
        tokio::time::timeout(PATIENCE, kept(&console.store, since(now))),
        tokio::time::timeout(PATIENCE, console.outbox.backlog()),
    );
    let mut names = BTreeSet::new();
    let figures = match kept {
        Ok(Ok((standing, census, activity))) => {
            names.extend(standing.iter().map(|standing| standing.operation.clone()));
            names.extend(activity.iter().map(|line| line.operation.clone()));
            let counts = census.iter().flat_map(|census| &census.counts);
            names.extend(counts.map(|count| count.operation.clone()));
            Ok(figures(
                &standing,
                census.as_ref(),
                &activity,
                only(filter),
                now,
            ))
        }
        Ok(Err(error)) => Err(Text::line(&error.to_string())),
        Err(_) => Err(Text::line("the store does not answer")),
    };
    let view = View {
        at: clock(now, "%H:%M:%S"),
        only: only(filter).map(Text::line),
        health,
        outbox: backlog
            .ok()
            .and_then(Result::ok)
            .map(|backlog| post(backlog, now)),
        figures,
    };
    (view, names)
}

async fn kept<S: Whole>(store: &S, since: Timestamp) -> store::Result<Kept> {
    let (standing, census, activity) =
        tokio::join!(store.standing(), store.census(), store.activity(since));
    Ok((standing?, census?, activity?))
}

async fn health<S: Whole, O: Outbox>(console: &Console<S, O>) -> Health {
    let began = Instant::now();
    let ready = tokio::time::timeout(READY_WITHIN, (console.ready)()).await;
    let took = began.elapsed();
    let (well, said) = match ready {
        Ok(Ok(())) => (true, Text::line("answers")),
        Ok(Err(reason)) => (false, Text::line(&reason)),
        Err(_) => (false, Text::line("does not answer")),
    };
    Health {
        well,
        said,
        took: format!("{:.1} ms", took.as_secs_f64() * 1000.0),
    }
}

fn post(backlog: Backlog, now: Timestamp) -> Post {
    let more = if backlog.waiting >= MAX_BACKLOG_COUNTED {
        " or more"
    } else {
        ""
    };
    Post {
        waiting: format!("{}{more}", number(backlog.waiting)),
        oldest: backlog.oldest.map(|oldest| age(oldest, now)),
        dead: backlog.dead,
    }
}

fn figures(
    standing: &[Standing],
    census: Option<&Census>,
    activity: &[Activity],
    only: Option<&str>,
    now: Timestamp,
) -> Figures {
    let tile = |of: fn(&Standing) -> &Tally, filter: (&str, &str)| {
        let tallies = standing
            .iter()
            .filter(|standing| only.is_none_or(|only| *only == *standing.operation))
            .map(of);
        let count: u64 = tallies.clone().map(|tally| tally.count).sum();
        let oldest = tallies.filter_map(|tally| tally.oldest).min();
        Tile {
            any: count > 0,
            count: number(count),
            oldest: oldest.map(|oldest| age(oldest, now)),
            link: address(
                "/operations",
                &[filter, ("operation", only.unwrap_or_default())],
            ),
        }
    };
    Figures {
        charts: charts(activity, only, now),
        in_progress: tile(|standing| &standing.in_progress, ("status", "in_progress")),
        unknown: tile(|standing| &standing.unknown, ("status", "unknown")),
        dead_lettered: tile(
            |standing| &standing.dead_lettered,
            ("dead_lettered", "true"),
        ),
        census: census.map(|census| counted(census, only, now)),
    }
}

fn counted(census: &Census, only: Option<&str>, now: Timestamp) -> Counted {
    let mut commands = BTreeMap::<&str, [u64; Status::ALL.len()]>::new();
    let mut sums = [0_u64; Status::ALL.len()];
    for count in &census.counts {
        if only.is_some_and(|only| *only != *count.operation) {
            continue;
        }
        let row = commands.entry(&count.operation).or_default();
        let columns = Status::ALL.iter().zip(row.iter_mut().zip(&mut sums));
        for (status, (cell, sum)) in columns {
            if *status == count.status {
                *cell += count.count;
                *sum += count.count;
            }
        }
    }
    let mut rows: Vec<_> = commands.into_iter().collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u64>()));
    let more = rows.len().saturating_sub(MAX_COMMANDS);
    rows.truncate(MAX_COMMANDS);
    Counted {
        ago: age(census.ended_at, now),
        took: age(census.began_at, census.ended_at),
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
        link: address(
            "/operations",
            &[("operation", name), ("status", status.as_str())],
        ),
    });
    Row {
        command: Text::line(name),
        link: address("/operations", &[("operation", name)]),
        counts: cells.collect(),
        sum: number(counts.iter().sum()),
    }
}
