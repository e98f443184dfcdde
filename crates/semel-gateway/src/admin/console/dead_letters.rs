//! What waits for a person.

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::history::What;
use semel_core::store::{self, Summary};
use semel_core::{Outbox, Timestamp};
use serde::Deserialize;

use super::layout::{Layout, Place};
use super::operations::Row;
use super::text::{Text, When, address, age, meaning};
use super::timeline::evidence;
use super::{Answer, Console, Shared, html, told};
use crate::admin::access::Caller;
use crate::admin::api::Whole;
use crate::admin::problem::Problem;

/// How many are on a page: the history of each is read.
const PAGE: usize = 25;

#[derive(Default, Deserialize)]
pub(super) struct Cursor {
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "dead_letters.html")]
struct Page {
    layout: Layout,
    letters: Vec<Letter>,
    /// Whether these are all, and so in the order of their waiting.
    all: bool,
    older: Option<String>,
    newest: bool,
}

struct Letter {
    row: Row,
    waits: String,
    since: When,
    meaning: Option<&'static str>,
    /// What made it unknown in the first place.
    cause: Option<Text>,
    cause_meaning: Option<&'static str>,
    said: Option<(When, Text)>,
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(cursor): Query<Cursor>,
) -> Response {
    told(&caller, waiting(&caller, &console, &cursor.cursor).await)
}

async fn waiting<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    cursor: &str,
) -> Answer {
    let before = match cursor {
        "" => None,
        cursor => {
            let wrong = |_| Problem::query("that page is not there".to_owned());
            Some(cursor.parse().map_err(wrong)?)
        }
    };
    let query = store::Query {
        dead_lettered: Some(true),
        before,
        limit: PAGE,
        ..store::Query::default()
    };
    let mut page = console.store.list(query).await?;
    let all = before.is_none() && page.next.is_none();
    if all {
        page.operations.sort_by_key(|found| found.dead_lettered_at);
    }
    let now = console.now();
    let mut letters = Vec::with_capacity(page.operations.len());
    for found in &page.operations {
        letters.push(letter(console, found, now).await?);
    }
    let page = Page {
        layout: Layout::new(caller, Place::DeadLetters),
        letters,
        all,
        older: page
            .next
            .map(|next| address("/dead-letters", &[("cursor", &next.to_string())])),
        newest: before.is_some(),
    };
    Ok(html(StatusCode::OK, &page))
}

async fn letter<S: Whole, O: Outbox>(
    console: &Console<S, O>,
    found: &Summary,
    now: Timestamp,
) -> Result<Letter, Problem> {
    let since = found.dead_lettered_at.unwrap_or(found.updated_at);
    let entries = console.store.history(found.fence.id).await?;
    let last = |what| entries.iter().rev().find(|entry| entry.note.what == what);
    let cause = last(What::Unknown).and_then(|entry| entry.note.code.as_ref());
    let said = match last(What::Asked) {
        Some(asked) => console
            .store
            .find(found.fence.id)
            .await?
            .and_then(|record| evidence(&console.store, &record, asked))
            .map(|said| (When::new(asked.note.at, now), said)),
        None => None,
    };
    Ok(Letter {
        row: Row::new(found, now),
        waits: age(since, now),
        since: When::new(since, now),
        meaning: found.last_error.as_ref().and_then(meaning),
        cause_meaning: cause.and_then(meaning),
        cause: cause.map(|code| Text::line(code.as_str())),
        said,
    })
}
