//! Dead-lettered records: unknown outcomes that need an operator.

use askama::Template;
use axum::extract::{Query, State};
use http::StatusCode;
use semel_core::Store;
use semel_core::Timestamp;
use semel_core::history::EntryKind;
use semel_core::store::{self, Summary};
use serde::Deserialize;

use super::layout::{Layout, Section};
use super::operations::Row;
use super::text::{Text, TimeLabel, age, link_to, meaning, number};
use super::timeline::evidence;
use super::{Console, PageResult, Shared, html};
use crate::admin::access::Caller;
use crate::admin::api::FullStore;
use crate::admin::problem::Problem;

/// The page size. Small, because the history of each record is read.
const PAGE_SIZE: usize = 25;

#[derive(Default, Deserialize)]
pub(super) struct Cursor {
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct Page {
    layout: Layout,
    /// The number of all dead letters.
    total: String,
    letters: Vec<Letter>,
    newer: Option<String>,
    /// Whether this is not the first page.
    later: bool,
}

struct Letter {
    row: Row,
    waiting: String,
    since: TimeLabel,
    meaning: Option<&'static str>,
    /// Why the outcome became unknown.
    cause: Option<Text>,
    cause_meaning: Option<&'static str>,
    provider_answer: Option<(TimeLabel, Text)>,
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(Cursor { cursor }): Query<Cursor>,
) -> PageResult {
    let before = match &*cursor {
        "" => None,
        cursor => {
            let invalid = |_| Problem::invalid_query("invalid page cursor".to_owned());
            Some(cursor.parse().map_err(invalid)?)
        }
    };
    let query = store::Query {
        dead_lettered: Some(true),
        before,
        oldest_first: true,
        limit: PAGE_SIZE,
        ..store::Query::default()
    };
    let page = console.store.list(query).await?;
    let counts = console.store.count_unfinished().await?;
    let total = counts.iter().map(|counts| counts.dead_lettered.count).sum();
    let now = console.now();
    let mut letters = Vec::with_capacity(page.operations.len());
    for found in &page.operations {
        letters.push(letter(&caller, &console, found, now).await?);
    }
    let page = Page {
        layout: Layout::new(&caller, Section::DeadLetters),
        total: number(total),
        letters,
        newer: page
            .next
            .map(|next| link_to("/dead-letters", &[("cursor", &next.to_string())])),
        later: before.is_some(),
    };
    Ok(html(StatusCode::OK, &page))
}

async fn letter<S: FullStore, O: Store>(
    caller: &Caller,
    console: &Console<S, O>,
    found: &Summary,
    now: Timestamp,
) -> Result<Letter, Problem> {
    let since = found.dead_lettered_at.unwrap_or(found.updated_at);
    let entries = console.store.history(found.fence.id).await?;
    let last = |what| entries.iter().rev().find(|entry| entry.note.what == what);
    let cause = last(EntryKind::Unknown).and_then(|entry| entry.note.code.as_ref());
    let provider_answer = match last(EntryKind::Asked) {
        Some(asked) => console
            .store
            .find(found.fence.id)
            .await?
            .and_then(|record| evidence(&console.store, &record, asked))
            .map(|answer| (TimeLabel::new(asked.note.at, now), answer)),
        None => None,
    };
    Ok(Letter {
        row: Row::new(caller, console, found, now),
        waiting: age(since, now),
        since: TimeLabel::new(since, now),
        meaning: found.last_error.as_ref().and_then(meaning),
        cause_meaning: cause.and_then(meaning),
        cause: cause.map(|code| Text::line(code.as_str())),
        provider_answer,
    })
}
