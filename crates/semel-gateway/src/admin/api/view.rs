//! What operators see of records. Times are RFC 3339, in UTC.

use semel_core::history::{self, Entry};
use semel_core::store::{Page, Standing, Summary, Tally};
use semel_core::{Inspect, Record, State, Timestamp};
use semel_http::rfc3339 as time;
use serde::Serialize;
use utoipa::ToSchema;

use super::StatusWord;
use crate::admin::hex;

#[derive(Serialize, ToSchema)]
#[schema(as = Page)]
pub(super) struct ShownPage {
    operations: Vec<ShownSummary>,
    #[schema(format = "uuid", required = true)]
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Summary)]
struct ShownSummary {
    #[schema(format = "uuid")]
    id: String,
    tenant: String,
    operation: String,
    key: String,
    status: StatusWord,
    attempt: u32,
    #[schema(required = true)]
    last_error: Option<String>,
    #[schema(format = DateTime, required = true)]
    dead_lettered_at: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
}

pub(super) fn page(page: &Page) -> ShownPage {
    ShownPage {
        operations: page.operations.iter().map(summary).collect(),
        next: page.next.map(|next| next.to_string()),
    }
}

fn summary(found: &Summary) -> ShownSummary {
    ShownSummary {
        id: found.fence.id.to_string(),
        tenant: found.identity.tenant().to_owned(),
        operation: found.identity.operation().to_owned(),
        key: found.identity.key().as_str().to_owned(),
        status: found.status.into(),
        attempt: found.fence.attempt,
        last_error: found.last_error.as_ref().map(ToString::to_string),
        dead_lettered_at: found.dead_lettered_at.map(time),
        created_at: time(found.created_at),
        updated_at: time(found.updated_at),
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Operation)]
pub(super) struct ShownOperation {
    #[serde(flatten)]
    summary: ShownSummary,
    fingerprint: String,
    #[schema(required = true)]
    resource: Option<ShownResource>,
    #[schema(required = true)]
    resolved_by: Option<String>,
    #[schema(required = true)]
    recovery_point: Option<String>,
    #[serde(flatten)]
    state: ShownState,
    history: Vec<ShownEntry>,
    /// Whether the history is as it was written; else what is wrong with it.
    history_intact: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    history_problem: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Resource)]
struct ShownResource {
    r#type: String,
    id: String,
}

#[derive(Default, Serialize, ToSchema)]
#[schema(as = State)]
struct ShownState {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    locked_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    reconcile_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reconcile_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    completed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    body_expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime, nullable = false)]
    purge_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response: Option<ShownResponse>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StoredResponse)]
struct ShownResponse {
    status: u16,
    headers: Vec<(String, String)>,
    /// `null` where it is not stored.
    #[schema(required = true)]
    body_bytes: Option<usize>,
    /// Only where it was asked for; bytes that are no text are shown as such.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = HistoryEntry)]
struct ShownEntry {
    seq: u32,
    #[schema(format = DateTime)]
    at: String,
    attempt: u32,
    what: &'static str,
    actor: String,
    #[schema(required = true)]
    code: Option<String>,
    #[schema(required = true)]
    reason: Option<String>,
    #[schema(required = true)]
    evidence: Option<String>,
    /// Where there was evidence and it was erased.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    evidence_erased: bool,
    hash: String,
}

pub(super) fn operation<S: Inspect>(
    store: &S,
    record: &Record,
    entries: &[Entry],
    reveal: bool,
) -> ShownOperation {
    let verified = history::verify(record, entries);
    ShownOperation {
        summary: summary(&Summary::from(record)),
        fingerprint: record.fingerprint.to_string(),
        resource: record.resource.as_ref().map(|resource| ShownResource {
            r#type: resource.kind.to_string(),
            id: resource.id.to_string(),
        }),
        resolved_by: record.resolved_by.as_deref().map(str::to_owned),
        recovery_point: record.recovery.as_ref().map(|point| point.name.to_string()),
        state: state(&record.state, reveal),
        history: entries
            .iter()
            .map(|entry| shown_entry(store, record, entry))
            .collect(),
        history_intact: verified.is_ok(),
        history_problem: verified.err().map(|broken| broken.to_string()),
    }
}

fn state(state: &State, reveal: bool) -> ShownState {
    match state {
        State::InProgress(lease) => ShownState {
            owner: Some(lease.owner.as_str().to_owned()),
            locked_until: Some(time(lease.locked_until)),
            ..ShownState::default()
        },
        State::Completed(completed) => {
            let response = &completed.response;
            ShownState {
                completed_at: Some(time(completed.completed_at)),
                expires_at: Some(time(completed.expires_at)),
                body_expires_at: completed.body_expires_at.map(time),
                response: Some(ShownResponse {
                    status: response.status,
                    headers: response
                        .headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), text(value)))
                        .collect(),
                    body_bytes: response.body.as_ref().map(bytes::Bytes::len),
                    body: response.body.as_deref().filter(|_| reveal).map(text),
                }),
                ..ShownState::default()
            }
        }
        State::FailedRetryable { expires_at } => ShownState {
            expires_at: Some(time(*expires_at)),
            ..ShownState::default()
        },
        State::Unknown(unresolved) => ShownState {
            reconcile_after: Some(time(unresolved.reconcile_after)),
            reconcile_attempts: Some(unresolved.reconcile_attempts),
            ..ShownState::default()
        },
        State::Expired { purge_at } => ShownState {
            purge_at: Some(time(*purge_at)),
            ..ShownState::default()
        },
    }
}

fn shown_entry<S: Inspect>(store: &S, record: &Record, entry: &Entry) -> ShownEntry {
    let note = &entry.note;
    ShownEntry {
        seq: entry.seq,
        at: time(note.at),
        attempt: note.attempt,
        what: note.what.as_str(),
        actor: note.actor.to_string(),
        code: note.code.as_ref().map(ToString::to_string),
        reason: note.reason.as_deref().map(str::to_owned),
        evidence: note
            .evidence
            .clone()
            .map(|evidence| match store.reveal(record.id, evidence) {
                Ok(evidence) => text(&evidence),
                Err(error) => format!("(cannot be read: {error})"),
            }),
        evidence_erased: note.evidence.is_none() && entry.evidence_hash.is_some(),
        hash: hex(&entry.hash),
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Stats)]
pub(super) struct ShownStats {
    in_progress: ShownTally,
    unknown: ShownTally,
    dead_lettered: ShownTally,
    operations: Vec<ShownStanding>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Standing)]
struct ShownStanding {
    operation: String,
    in_progress: ShownTally,
    unknown: ShownTally,
    dead_lettered: ShownTally,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Tally)]
struct ShownTally {
    count: u64,
    #[schema(required = true)]
    oldest_age_seconds: Option<f64>,
}

pub(super) fn stats(standing: &[Standing], now: Timestamp) -> ShownStats {
    let total = |of: fn(&Standing) -> &Tally| {
        let tallies = standing.iter().map(of);
        let total = Tally {
            count: tallies.clone().map(|tally| tally.count).sum(),
            oldest: tallies.filter_map(|tally| tally.oldest).min(),
        };
        tally(&total, now)
    };
    ShownStats {
        in_progress: total(|standing| &standing.in_progress),
        unknown: total(|standing| &standing.unknown),
        dead_lettered: total(|standing| &standing.dead_lettered),
        operations: standing
            .iter()
            .map(|standing| ShownStanding {
                operation: standing.operation.to_string(),
                in_progress: tally(&standing.in_progress, now),
                unknown: tally(&standing.unknown, now),
                dead_lettered: tally(&standing.dead_lettered, now),
            })
            .collect(),
    }
}

fn tally(tally: &Tally, now: Timestamp) -> ShownTally {
    ShownTally {
        count: tally.count,
        oldest_age_seconds: tally.oldest.map(|oldest| age_seconds(oldest, now)),
    }
}

#[allow(clippy::cast_precision_loss, reason = "an age in seconds, for people")]
pub(super) fn age_seconds(since: Timestamp, now: Timestamp) -> f64 {
    (now.as_micros() - since.as_micros()).max(0) as f64 / 1e6
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
