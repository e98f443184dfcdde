//! Looking for operations.

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::store::{self, Summary};
use semel_core::{Key, OperationId, Outbox, Status, Timestamp};
use serde::Deserialize;

use super::layout::{Layout, Place};
use super::text::{Mark, Text, When, address, clock};
use super::{Answer, Console, Shared, html, see_other, told};
use crate::admin::access::Caller;
use crate::admin::acts;
use crate::admin::api::Whole;

/// How many operations a page has.
const PAGE: usize = 50;

/// How many operations are looked at for one page: as many as a store walks through while
/// somebody waits for a page without noticing.
const WALK: usize = 20_000;

/// What was looked for, as it was typed.
#[derive(Clone, Default, Deserialize)]
pub(super) struct Search {
    #[serde(default)]
    id: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    dead_lettered: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "operations.html")]
struct Page {
    layout: Layout,
    search: Search,
    statuses: Vec<Choice>,
    wrong: Option<Text>,
    rows: Vec<Row>,
    /// The page after, and how far this one has looked where it has room left.
    older: Option<String>,
    searched_to: Option<String>,
    newest: Option<String>,
    filtered: bool,
}

struct Choice {
    value: &'static str,
    word: &'static str,
    chosen: bool,
}

/// One operation in a list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) tail: String,
    pub(super) mark: Mark,
    pub(super) command: Text,
    pub(super) tenant: Text,
    pub(super) key: Text,
    pub(super) attempt: u32,
    pub(super) error: Option<Text>,
    pub(super) created: When,
}

impl Row {
    pub(super) fn new(found: &Summary, now: Timestamp) -> Self {
        let id = found.fence.id.to_string();
        Self {
            tail: tail(&id, 12).to_owned(),
            id,
            mark: Mark::new(found.status, found.dead_lettered_at.is_some()),
            command: Text::line(found.identity.operation()),
            tenant: Text::line(found.identity.tenant()),
            key: Text::line(found.identity.key().as_str()),
            attempt: found.fence.attempt,
            error: found
                .last_error
                .as_ref()
                .map(|code| Text::line(code.as_str())),
            created: When::new(found.created_at, now),
        }
    }
}

/// The end of an id. Its beginning is the time, and much the same for all that are listed together.
pub(super) fn tail(id: &str, length: usize) -> &str {
    id.get(id.len().saturating_sub(length)..).unwrap_or(id)
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(search): Query<Search>,
) -> Response {
    let answer = find(&caller, &console, search.trimmed()).await;
    told(&caller, answer)
}

async fn find<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    search: Search,
) -> Answer {
    if !search.id.is_empty() {
        let id: Option<OperationId> = search.id.parse().ok();
        let found = match id {
            Some(id) => console.store.find(id).await?.map(|record| record.id),
            None => None,
        };
        return match (found, id) {
            (Some(id), _) => see_other(&format!("/operations/{id}")),
            (None, Some(_)) => Ok(refused(
                caller,
                search,
                StatusCode::NOT_FOUND,
                "No operation has that id. It may have been forgotten when its time was over, or \
                 evicted because nothing had happened.",
            )),
            (None, None) => Ok(refused(
                caller,
                search,
                StatusCode::BAD_REQUEST,
                "That is no operation id: ids look like 0198a1b2-c3d4-7000-8000-00000000000a. To \
                 look for what a client sent, use the field for the key.",
            )),
        };
    }
    let query = match search.query() {
        Ok(query) => query,
        Err(wrong) => return Ok(refused(caller, search, StatusCode::BAD_REQUEST, &wrong)),
    };
    let store::Page { operations, next } = acts::search(&console.store, query).await?;
    let now = console.now();
    let full = operations.len() >= PAGE;
    let page = Page {
        older: next.map(|next| search.address(&next.to_string())),
        searched_to: next.filter(|_| !full).and_then(made_at),
        newest: (!search.cursor.is_empty()).then(|| search.address("")),
        rows: operations
            .iter()
            .map(|found| Row::new(found, now))
            .collect(),
        ..Page::empty(caller, search)
    };
    Ok(html(StatusCode::OK, &page))
}

fn refused(caller: &Caller, search: Search, status: StatusCode, wrong: &str) -> Response {
    let page = Page {
        wrong: Some(Text::line(wrong)),
        ..Page::empty(caller, search)
    };
    html(status, &page)
}

/// When an id was made, which it says itself.
fn made_at(id: OperationId) -> Option<String> {
    let bytes = id.as_bytes();
    let time_ordered = bytes[6] >> 4 == 7;
    let millis = bytes[..6]
        .iter()
        .fold(0_i64, |sum, byte| sum << 8 | i64::from(*byte));
    time_ordered.then(|| clock(Timestamp::from_micros(millis * 1000), "%Y-%m-%d %H:%M:%S"))
}

impl Page {
    fn empty(caller: &Caller, search: Search) -> Self {
        Self {
            layout: Layout::new(caller, Place::Operations),
            statuses: Status::ALL
                .map(|status| Choice {
                    value: status.as_str(),
                    word: Mark::new(status, false).word,
                    chosen: status.as_str() == search.status,
                })
                .into(),
            filtered: search.is_filter(),
            search,
            wrong: None,
            rows: Vec::new(),
            older: None,
            searched_to: None,
            newest: None,
        }
    }
}

impl Search {
    fn trimmed(self) -> Self {
        let trim = |text: String| text.trim().to_owned();
        Self {
            id: trim(self.id),
            key: trim(self.key),
            tenant: trim(self.tenant),
            operation: trim(self.operation),
            status: trim(self.status),
            dead_lettered: trim(self.dead_lettered),
            cursor: trim(self.cursor),
        }
    }

    fn is_filter(&self) -> bool {
        let filters = [
            &self.key,
            &self.tenant,
            &self.operation,
            &self.status,
            &self.dead_lettered,
        ];
        filters.iter().any(|filter| !filter.is_empty())
    }

    fn address(&self, cursor: &str) -> String {
        address(
            "/operations",
            &[
                ("key", &self.key),
                ("tenant", &self.tenant),
                ("operation", &self.operation),
                ("status", &self.status),
                ("dead_lettered", &self.dead_lettered),
                ("cursor", cursor),
            ],
        )
    }

    fn query(&self) -> Result<store::Query, String> {
        let given = |text: &str| (!text.is_empty()).then(|| Box::from(text));
        Ok(store::Query {
            status: match &*self.status {
                "" => None,
                word => Some(Status::from_word(word).ok_or("That is none of the five statuses.")?),
            },
            tenant: given(&self.tenant),
            operation: given(&self.operation),
            key: match &*self.key {
                "" => None,
                key => {
                    Some(Key::new(key).map_err(|error| format!("That can be no key: {error}."))?)
                }
            },
            dead_lettered: match &*self.dead_lettered {
                "" => None,
                "true" => Some(true),
                "false" => Some(false),
                _ => return Err("Dead letters are looked for by true or false.".to_owned()),
            },
            before: match &*self.cursor {
                "" => None,
                cursor => Some(cursor.parse().map_err(|_| "That page is not there.")?),
            },
            limit: PAGE,
            walk: WALK,
        })
    }
}
