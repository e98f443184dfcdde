//! Search for records.

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::store::{self, Summary};
use semel_core::{Key, OperationId, Status, Store, Timestamp};
use serde::Deserialize;

use super::layout::{Layout, Section};
use super::text::{StatusBadge, Text, TimeLabel, format_utc, link_to};
use super::{Console, PageResult, Shared, html, see_other};
use crate::admin::access::Caller;
use crate::admin::actions;
use crate::admin::api::FullStore;

/// The page size.
const PAGE_SIZE: usize = 50;

/// How many records the store scans for one page; more would make the page noticeably slow.
const MAX_SCANNED: usize = 20_000;

/// The search form, as typed.
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
    error: Option<Text>,
    rows: Vec<Row>,
    /// The next page, and how far back this page was searched if it is not full.
    older: Option<String>,
    searched_to: Option<String>,
    newest: Option<String>,
    filtered: bool,
}

struct Choice {
    value: &'static str,
    label: &'static str,
    chosen: bool,
}

/// A record in a list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) tail: String,
    pub(super) badge: StatusBadge,
    pub(super) operation: Text,
    pub(super) tenant: Text,
    pub(super) key: Text,
    pub(super) attempt: u32,
    pub(super) error: Option<Text>,
    pub(super) created: TimeLabel,
}

impl Row {
    pub(super) fn new<S: FullStore, O: Store>(
        caller: &Caller,
        console: &Console<S, O>,
        found: &Summary,
        now: Timestamp,
    ) -> Self {
        let id = found.fence.id.to_string();
        Self {
            tail: tail(&id, 12).to_owned(),
            id,
            badge: StatusBadge::new(found.status, found.dead_lettered_at.is_some()),
            operation: Text::line(&console.shown_operation(found.identity.operation())),
            tenant: Text::line(found.identity.tenant()),
            key: Text::line(&caller.shown_key(found.identity.key())),
            attempt: found.fence.attempt,
            error: found
                .last_error
                .as_ref()
                .map(|code| Text::line(code.as_str())),
            created: TimeLabel::new(found.created_at, now),
        }
    }
}

/// The end of an id. Its start is a timestamp, which records created together share.
pub(super) fn tail(id: &str, length: usize) -> &str {
    id.get(id.len().saturating_sub(length)..).unwrap_or(id)
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Query(search): Query<Search>,
) -> PageResult {
    let search = search.trimmed();
    if !search.id.is_empty() {
        let id: Option<OperationId> = search.id.parse().ok();
        let found = match id {
            Some(id) => console.store.find(id).await?.map(|record| record.id),
            None => None,
        };
        return match (found, id) {
            (Some(id), _) => see_other(&format!("/operations/{id}")),
            (None, Some(_)) => Ok(error_page(
                &caller,
                search,
                StatusCode::NOT_FOUND,
                "No record has that id. It may have expired and been purged, or been evicted because \
                 the operation was not executed.",
            )),
            (None, None) => Ok(error_page(
                &caller,
                search,
                StatusCode::BAD_REQUEST,
                "Invalid record ID: IDs look like 0198a1b2-c3d4-7000-8000-00000000000a. To search for \
                 a key that a client sent, use the field Key.",
            )),
        };
    }
    let query = match search.to_query() {
        Ok(query) => query,
        Err(error) => {
            return Ok(error_page(&caller, search, StatusCode::BAD_REQUEST, &error));
        }
    };
    let (layer, hasher) = (console.layer.load(), console.key_hasher.as_ref());
    let store::Page { operations, next } = actions::search_records(&layer, hasher, query).await?;
    let now = console.now();
    let full = operations.len() >= PAGE_SIZE;
    let page = Page {
        older: next.map(|next| search.link(&next.to_string())),
        searched_to: next.filter(|_| !full).and_then(created_at),
        newest: (!search.cursor.is_empty()).then(|| search.link("")),
        rows: operations
            .iter()
            .map(|found| Row::new(&caller, &console, found, now))
            .collect(),
        ..Page::empty(&caller, search)
    };
    Ok(html(StatusCode::OK, &page))
}

fn error_page(caller: &Caller, search: Search, status: StatusCode, error: &str) -> Response {
    let page = Page {
        error: Some(Text::line(error)),
        ..Page::empty(caller, search)
    };
    html(status, &page)
}

/// The creation time that a version 7 id contains.
fn created_at(id: OperationId) -> Option<String> {
    let bytes = id.as_bytes();
    let time_ordered = bytes[6] >> 4 == 7;
    let millis = bytes[..6]
        .iter()
        .fold(0_i64, |sum, byte| sum << 8 | i64::from(*byte));
    time_ordered.then(|| format_utc(Timestamp::from_micros(millis * 1000), "%Y-%m-%d %H:%M:%S"))
}

impl Page {
    fn empty(caller: &Caller, search: Search) -> Self {
        Self {
            layout: Layout::new(caller, Section::Records),
            statuses: Status::ALL
                .map(|status| Choice {
                    value: status.as_str(),
                    label: StatusBadge::new(status, false).label,
                    chosen: status.as_str() == search.status,
                })
                .into(),
            filtered: search.is_filter(),
            search,
            error: None,
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

    fn link(&self, cursor: &str) -> String {
        link_to(
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

    fn to_query(&self) -> Result<store::Query, String> {
        let given = |text: &str| (!text.is_empty()).then(|| Box::from(text));
        Ok(store::Query {
            status: match &*self.status {
                "" => None,
                status => Some(
                    Status::from_word(status).ok_or("Unknown status. Choose one of the list.")?,
                ),
            },
            tenant: given(&self.tenant),
            operation: given(&self.operation),
            key: match &*self.key {
                "" => None,
                key => Some(Key::new(key).map_err(|error| format!("Invalid key: {error}."))?),
            },
            dead_lettered: match &*self.dead_lettered {
                "" => None,
                "true" => Some(true),
                "false" => Some(false),
                _ => return Err("Invalid dead-letter filter. Use true or false.".to_owned()),
            },
            before: match &*self.cursor {
                "" => None,
                cursor => Some(cursor.parse().map_err(|_| "Invalid page cursor.")?),
            },
            oldest_first: false,
            limit: PAGE_SIZE,
            walk: MAX_SCANNED,
        })
    }
}
