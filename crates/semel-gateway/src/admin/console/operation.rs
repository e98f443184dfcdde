//! One operation: all that is known about it.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::history::{self, Entry};
use semel_core::{By, Outbox, Record, State as Standing, Status, Timestamp, Windows};
use serde::Deserialize;

use super::layout::{Layout, Place};
use super::operations::tail;
use super::text::{Mark, Text, When, address, meaning, number, span};
use super::timeline::{Moment, timeline};
use super::{Answer, Console, Shared, html, told};
use crate::admin::access::Caller;
use crate::admin::acts::{find, uncover};
use crate::admin::api::Whole;

/// The most of a stored body that is shown.
const MAX_SHOWN: usize = 64 << 10;

/// How many characters of the id are typed to confirm a decision.
pub(super) const TYPED: usize = 6;

/// What was just done, by its name: the page has the words.
#[derive(Default, Deserialize)]
pub(super) struct After {
    #[serde(default)]
    done: String,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct Page {
    layout: Layout,
    head: Head,
    done: Option<&'static str>,
    facts: Vec<Fact>,
    moments: Vec<Moment>,
    entries: usize,
    broken: Option<Text>,
    response: Option<Kept>,
    can_look: bool,
    can_erase: bool,
    unknown: bool,
}

/// What heads every page about an operation.
pub(super) struct Head {
    pub(super) id: String,
    /// What is typed to confirm.
    pub(super) typed: String,
    pub(super) mark: Mark,
    pub(super) command: Text,
    pub(super) tenant: Text,
    pub(super) key: Text,
    pub(super) attempt: u32,
    pub(super) created: When,
    pub(super) because: Option<Because>,
}

/// Why it is where it is.
pub(super) struct Because {
    pub(super) code: Text,
    pub(super) meaning: Option<&'static str>,
}

struct Fact {
    name: &'static str,
    value: Value,
}

enum Value {
    Plain(Text),
    /// Something to copy, in a fixed pitch.
    Exact(Text),
    Time(When),
    Link(Text, String),
}

struct Kept {
    status: u16,
    headers: Vec<(Text, Text)>,
    bytes: Option<String>,
    shown: Option<Shown>,
}

/// A body that somebody asked to see.
struct Shown {
    text: Text,
    cut: bool,
    /// Whether it is text at all.
    lossy: bool,
}

impl Head {
    pub(super) fn new(record: &Record, now: Timestamp) -> Self {
        let id = record.id.to_string();
        let identity = &record.identity;
        Self {
            typed: tail(&id, TYPED).to_owned(),
            id,
            mark: Mark::new(record.state.status(), dead_lettered_at(record).is_some()),
            command: Text::line(identity.operation()),
            tenant: Text::line(identity.tenant()),
            key: Text::line(identity.key().as_str()),
            attempt: record.attempt,
            created: When::new(record.created_at, now),
            because: record.last_error.as_ref().map(|code| Because {
                code: Text::line(code.as_str()),
                meaning: meaning(code),
            }),
        }
    }
}

/// Since when it waits for a person.
pub(super) fn dead_lettered_at(record: &Record) -> Option<Timestamp> {
    match &record.state {
        Standing::Unknown(unresolved) => unresolved.dead_lettered_at,
        Standing::InProgress(_)
        | Standing::Completed(_)
        | Standing::FailedRetryable { .. }
        | Standing::Expired { .. } => None,
    }
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    Query(after): Query<After>,
) -> Response {
    let answer = async {
        let record = find(&console.store, &id).await?;
        whole(&caller, &console, &record, false, &after.done).await
    };
    told(&caller, answer.await)
}

/// Shows the stored body, after the history tells that it is shown; where it cannot be told,
/// nothing is shown.
pub(super) async fn reveal<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> Response {
    told(&caller, uncovered(&caller, &console, &id).await)
}

async fn uncovered<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    id: &str,
) -> Answer {
    let who = caller.actor(None)?;
    let record = uncover(&console.store, id, By::from(&*who)).await?;
    whole(caller, console, &record, true, "").await
}

async fn whole<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    reveal: bool,
    done: &str,
) -> Answer {
    let entries = console.store.history(record.id).await?;
    let now = console.now();
    let status = record.state.status();
    let page = Page {
        layout: Layout::new(caller, Place::Operations),
        head: Head::new(record, now),
        done: words(done),
        facts: facts(record, now),
        moments: timeline(&console.store, record, &entries, now),
        entries: entries.len(),
        broken: broken(record, &entries),
        response: response(record, reveal),
        can_look: console.reconcilers.can_look(record.identity.operation()),
        can_erase: status == Status::Completed,
        unknown: status == Status::Unknown,
    };
    Ok(html(StatusCode::OK, &page))
}

pub(super) fn broken(record: &Record, entries: &[Entry]) -> Option<Text> {
    let verified = history::verify(record, entries);
    verified.err().map(|broken| Text::line(&broken.to_string()))
}

fn words(done: &str) -> Option<&'static str> {
    Some(match done {
        "completed" => "Recorded. Every retry is given this outcome from now on.",
        "released" => "Released. The next request with this key executes.",
        "found" => "The provider was asked: it had happened. Every retry is given how it ended.",
        "absent" => "The provider was asked: nothing had happened. The next request executes.",
        "unclear" => {
            "The provider was asked, and could not settle it. What it said is in the timeline."
        }
        "erased" => "Erased. That it happened is still remembered, and the key stays used.",
        _ => return None,
    })
}

fn facts(record: &Record, now: Timestamp) -> Vec<Fact> {
    let mut facts = Vec::new();
    let mut fact = |name, value| facts.push(Fact { name, value });
    let time = |at: Timestamp| Value::Time(When::new(at, now));
    let identity = &record.identity;
    let (operation, tenant) = (identity.operation(), identity.tenant());
    let link =
        |name, value| Value::Link(Text::line(value), address("/operations", &[(name, value)]));
    fact("Command", link("operation", operation));
    fact("Tenant", link("tenant", tenant));
    fact("Key", Value::Exact(Text::line(identity.key().as_str())));
    let plain = |text: &str| Value::Plain(Text::line(text));
    fact("Attempts", plain(&record.attempt.to_string()));
    fact("First used", time(record.created_at));
    fact("Last change", time(record.updated_at));
    match &record.state {
        Standing::InProgress(lease) => {
            fact("Executed by", plain(lease.owner.as_str()));
            fact("Lease until", time(lease.locked_until));
            if let Some(within) = lease.resume_within {
                let within = span(semel_core::time::micros(within));
                fact(
                    "May be resumed",
                    plain(&format!("for {within} after the lease")),
                );
            }
        }
        Standing::Completed(completed) => {
            fact("Completed", time(completed.completed_at));
            fact("Replayed until", time(completed.expires_at));
            if let Some(at) = completed.body_expires_at {
                fact("Body kept until", time(at));
            }
        }
        Standing::FailedRetryable { expires_at } => {
            fact("Remembered until", time(*expires_at));
        }
        Standing::Unknown(unresolved) => {
            if let Some(at) = unresolved.dead_lettered_at {
                fact("Waits for a person since", time(at));
            } else {
                fact("Next look", time(unresolved.reconcile_after));
            }
            fact(
                "Looks so far",
                plain(&unresolved.reconcile_attempts.to_string()),
            );
        }
        Standing::Expired { purge_at } => fact("Tombstone until", time(*purge_at)),
    }
    fact("Windows", plain(&windows(record.windows)));
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

/// How long it will be remembered, from when it is completed.
fn windows(windows: Windows) -> String {
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

/// The key under which the application calls the provider, if it passes on what it is given.
pub(super) fn downstream_key(record: &Record) -> String {
    record.id.downstream_key("")
}

fn response(record: &Record, reveal: bool) -> Option<Kept> {
    let response = match &record.state {
        Standing::Completed(completed) => &completed.response,
        Standing::InProgress(_)
        | Standing::FailedRetryable { .. }
        | Standing::Unknown(_)
        | Standing::Expired { .. } => return None,
    };
    let line = |value: &[u8]| Text::line(&String::from_utf8_lossy(value));
    let headers = response.headers.iter();
    let body = response.body.as_deref();
    Some(Kept {
        status: response.status,
        headers: headers
            .map(|(name, value)| (Text::line(name), line(value)))
            .collect(),
        bytes: body.map(|body| number(body.len() as u64)),
        shown: body.filter(|_| reveal).map(shown),
    })
}

fn shown(body: &[u8]) -> Shown {
    let start = &body[..body.len().min(MAX_SHOWN)];
    let text = String::from_utf8_lossy(start);
    Shown {
        lossy: std::str::from_utf8(body).is_err(),
        text: Text::block(&text),
        cut: body.len() > MAX_SHOWN,
    }
}
