//! The page of one record.

use askama::Template;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use semel_core::history::{self, Entry};
use semel_core::{Actor, Record, State as RecordState, Status, Store, Timestamp, Windows};
use semel_worker::unreconciled;
use serde::Deserialize;

use super::layout::{Layout, Section};
use super::operations::tail;
use super::text::{StatusBadge, Text, TimeLabel, age, link_to, meaning, number, span};
use super::timeline::{TimelineEntry, timeline};
use super::{Console, PageResult, Shared, html};
use crate::admin::access::Caller;
use crate::admin::actions::{find_record, reveal_response};
use crate::admin::api::FullStore;

/// How many bytes of a stored body are shown.
const MAX_BODY_SHOWN: usize = 64 << 10;

/// How many characters of the id an operator types to confirm a decision.
pub(super) const CONFIRM_LENGTH: usize = 6;

/// Names the action that led to this page.
#[derive(Default, Deserialize)]
pub(super) struct DoneQuery {
    #[serde(default)]
    done: String,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct Page {
    layout: Layout,
    head: RecordHead,
    done: Option<&'static str>,
    facts: Vec<Fact>,
    timeline: Vec<TimelineEntry>,
    history_length: usize,
    history_error: Option<Text>,
    response: Option<ResponseView>,
    /// How long the record has been due without a process that looks it up.
    unreconciled: Option<String>,
    can_reconcile: bool,
    can_erase: bool,
    unknown: bool,
}

/// The header of every page about a record.
pub(super) struct RecordHead {
    pub(super) id: String,
    /// The end of the id, typed to confirm.
    pub(super) id_tail: String,
    pub(super) badge: StatusBadge,
    pub(super) operation: Text,
    pub(super) tenant: Text,
    pub(super) key: Text,
    pub(super) attempt: u32,
    pub(super) created: TimeLabel,
    pub(super) last_error: Option<LastError>,
}

/// The record's last error code.
pub(super) struct LastError {
    pub(super) code: Text,
    pub(super) meaning: Option<&'static str>,
}

struct Fact {
    name: &'static str,
    value: Value,
}

enum Value {
    Plain(Text),
    /// Shown in monospace with a copy button.
    Exact(Text),
    Time(TimeLabel),
    Link(Text, String),
}

struct ResponseView {
    status: u16,
    headers: Vec<(Text, Text)>,
    bytes: Option<String>,
    body: Option<BodyView>,
}

/// A revealed body.
struct BodyView {
    text: Text,
    truncated: bool,
    /// Whether it contains bytes that are not UTF-8.
    lossy: bool,
}

impl RecordHead {
    pub(super) fn new<S: FullStore, O: Store>(
        caller: &Caller,
        console: &Console<S, O>,
        record: &Record,
        now: Timestamp,
    ) -> Self {
        let id = record.id.to_string();
        let identity = &record.identity;
        Self {
            id_tail: tail(&id, CONFIRM_LENGTH).to_owned(),
            id,
            badge: StatusBadge::new(record.state.status(), dead_lettered_at(record).is_some()),
            operation: Text::line(&console.shown_operation(identity.operation())),
            tenant: Text::line(identity.tenant()),
            key: Text::line(&caller.shown_key(identity.key())),
            attempt: record.attempt,
            created: TimeLabel::new(record.created_at, now),
            last_error: record.last_error.as_ref().map(|code| LastError {
                code: Text::line(code.as_str()),
                meaning: meaning(code),
            }),
        }
    }
}

/// When the record was dead-lettered.
pub(super) fn dead_lettered_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        RecordState::Unknown(unresolved) => unresolved.dead_lettered_at,
        RecordState::InProgress(_)
        | RecordState::Completed(_)
        | RecordState::FailedRetryable { .. }
        | RecordState::Expired { .. } => None,
    }
}

/// Since when the record has been due, where no process reconciles it.
fn due_since(record: &Record, now: Timestamp) -> Option<Timestamp> {
    unreconciled::due_at(record).filter(|at| at.saturating_add(unreconciled::OVERDUE) <= now)
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    Query(query): Query<DoneQuery>,
) -> PageResult {
    let record = find_record(&console.store, &id).await?;
    render_page(&caller, &console, &record, false, &query.done).await
}

/// Shows the stored body after adding the reveal to the history. If the history cannot be written,
/// nothing is shown.
pub(super) async fn reveal<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> PageResult {
    let actor = caller.actor(None)?;
    let record = reveal_response(&console.store, &id, Actor::from(&*actor)).await?;
    render_page(&caller, &console, &record, true, "").await
}

async fn render_page<S: FullStore, O: Store>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    reveal: bool,
    done: &str,
) -> PageResult {
    let entries = console.store.history(record.id).await?;
    let now = console.now();
    let status = record.state.status();
    let page = Page {
        layout: Layout::new(caller, Section::Records),
        head: RecordHead::new(caller, console, record, now),
        done: done_message(done),
        facts: facts(caller, console, record, now),
        timeline: timeline(&console.store, record, &entries, now),
        history_length: entries.len(),
        history_error: history_error(record, &entries),
        response: response(record, reveal),
        unreconciled: due_since(record, now).map(|at| age(at, now)),
        can_reconcile: console.reconcilers.can_look_up(record.identity.operation()),
        can_erase: status == Status::Completed,
        unknown: status == Status::Unknown,
    };
    Ok(html(StatusCode::OK, &page))
}

pub(super) fn history_error(record: &Record, entries: &[Entry]) -> Option<Text> {
    let verified = history::verify(record, entries);
    verified.err().map(|error| Text::line(&error.to_string()))
}

fn done_message(done: &str) -> Option<&'static str> {
    Some(match done {
        "completed" => "Recorded. Every retry now receives this response.",
        "released" => "Released. The next request with this key executes.",
        "found" => "Provider: executed. Every retry now receives its response.",
        "absent" => "Provider: not executed. The next request executes.",
        "unclear" => {
            "Still unknown: the provider's answer does not settle the outcome. See the timeline."
        }
        "erased" => "Erased. The record and its history stay, and the key stays used.",
        _ => return None,
    })
}

fn facts<S: FullStore, O: Store>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    now: Timestamp,
) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |name, value| facts.push(Fact { name, value });
    let time = |at: Timestamp| Value::Time(TimeLabel::new(at, now));
    let identity = &record.identity;
    let link =
        |name, value| Value::Link(Text::line(value), link_to("/operations", &[(name, value)]));
    let operation = console.shown_operation(identity.operation());
    fact("Operation", link("operation", &operation));
    fact("Tenant", link("tenant", identity.tenant()));
    let key = caller.shown_key(identity.key());
    fact("Key", Value::Exact(Text::line(&key)));
    let plain = |text: &str| Value::Plain(Text::line(text));
    fact("Attempts", plain(&record.attempt.to_string()));
    fact("Created", time(record.created_at));
    fact("Updated", time(record.updated_at));
    match &record.state {
        RecordState::InProgress(lease) => {
            fact("Owner", plain(record.owner.as_str()));
            fact("Lease until", time(lease.locked_until));
            if let Some(within) = lease.resume_within {
                let within = span(semel_core::time::micros(within));
                fact(
                    "Resumable",
                    plain(&format!("until {within} after the lease")),
                );
            }
        }
        RecordState::Completed(completed) => {
            fact("Completed", time(completed.completed_at));
            fact("Replays until", time(completed.expires_at));
            if let Some(at) = completed.body_expires_at {
                fact("Body kept until", time(at));
            }
            if completed.response.schema_version > 0 {
                let version = completed.response.schema_version.to_string();
                fact("Schema version", plain(&version));
            }
        }
        RecordState::FailedRetryable { expires_at } => {
            fact("Expires", time(*expires_at));
        }
        RecordState::Unknown(unresolved) => {
            if let Some(at) = unresolved.dead_lettered_at {
                fact("Dead-lettered", time(at));
            } else {
                fact("Next reconcile", time(unresolved.reconcile_after));
            }
            fact(
                "Reconcile attempts",
                plain(&unresolved.reconcile_attempts.to_string()),
            );
        }
        RecordState::Expired { purge_at } => fact("Tombstone until", time(*purge_at)),
    }
    fact("Retention", plain(&retention(record.windows)));
    if let Some(resource) = &record.resource {
        let named = format!("{} {}", resource.kind, resource.id);
        fact("Resource", Value::Exact(Text::line(&named)));
    }
    if let Some(point) = &record.recovery {
        fact("Recovery point", plain(&point.name));
    }
    if let Some(who) = &record.resolved_by {
        fact("Resolved by", plain(who));
    }
    fact(
        "Downstream key",
        Value::Exact(Text::line(&downstream_key(record))),
    );
    fact(
        "Fingerprint",
        Value::Exact(Text::line(&record.fingerprint.to_string())),
    );
    facts
}

/// The retention windows, which start at completion.
fn retention(windows: Windows) -> String {
    let span = |window| span(semel_core::time::micros(window));
    let tombstone = match windows.tombstone {
        Some(tombstone) => format!("{} tombstone", span(tombstone)),
        None => "no tombstone".to_owned(),
    };
    format!(
        "{} replay, {} body, {tombstone}",
        span(windows.replay),
        span(windows.body)
    )
}

/// The key the application sends to the provider, if it forwards the one it receives.
pub(super) fn downstream_key(record: &Record) -> String {
    record.id.downstream_key("")
}

fn response(record: &Record, reveal: bool) -> Option<ResponseView> {
    let response = match &record.state {
        RecordState::Completed(completed) => &completed.response,
        RecordState::InProgress(_)
        | RecordState::FailedRetryable { .. }
        | RecordState::Unknown(_)
        | RecordState::Expired { .. } => return None,
    };
    let line = |value: &[u8]| Text::line(&String::from_utf8_lossy(value));
    let headers = response.headers.iter();
    let body = response.body.as_deref();
    Some(ResponseView {
        status: response.status,
        headers: headers
            .map(|(name, value)| (Text::line(name), line(value)))
            .collect(),
        bytes: body.map(|body| number(body.len() as u64)),
        body: body.filter(|_| reveal).map(body_view),
    })
}

fn body_view(body: &[u8]) -> BodyView {
    let start = &body[..body.len().min(MAX_BODY_SHOWN)];
    let text = String::from_utf8_lossy(start);
    BodyView {
        lossy: std::str::from_utf8(body).is_err(),
        text: Text::block(&text),
        truncated: body.len() > MAX_BODY_SHOWN,
    }
}
