//! JSON views of records and backlogs. Times are RFC 3339 in UTC.

use semel_core::history::{self, Entry};
use semel_core::store::{CountWithOldest, Page, Summary, UnfinishedCounts};
use semel_core::{Record, State, Store, Timestamp, hex};
use semel_http::{Layer, rfc3339 as time};
use serde::Serialize;
use utoipa::ToSchema;

use super::StatusView;
use crate::admin::access::Caller;

#[derive(Serialize, ToSchema)]
#[schema(as = Page)]
pub(super) struct RecordPageView {
    operations: Vec<SummaryView>,
    #[schema(format = "uuid", required = true)]
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Summary)]
struct SummaryView {
    #[schema(format = "uuid")]
    id: String,
    tenant: String,
    operation: String,
    /// As it is stored; for viewers, a short hash of it.
    key: String,
    status: StatusView,
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

pub(super) fn page<S: Store>(caller: &Caller, layer: &Layer<S>, page: &Page) -> RecordPageView {
    let operations = page.operations.iter();
    RecordPageView {
        operations: operations
            .map(|found| summary(caller, layer, found))
            .collect(),
        next: page.next.map(|next| next.to_string()),
    }
}

fn summary<S: Store>(caller: &Caller, layer: &Layer<S>, found: &Summary) -> SummaryView {
    SummaryView {
        id: found.fence.id.to_string(),
        tenant: found.identity.tenant().to_owned(),
        operation: layer.shown_operation(found.identity.operation()).to_owned(),
        key: caller.shown_key(found.identity.key()),
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
pub(super) struct RecordView {
    #[serde(flatten)]
    summary: SummaryView,
    fingerprint: String,
    #[schema(required = true)]
    resource: Option<ResourceView>,
    #[schema(required = true)]
    resolved_by: Option<String>,
    #[schema(required = true)]
    recovery_point: Option<String>,
    #[serde(flatten)]
    state: StateView,
    history: Vec<HistoryEntryView>,
    /// Whether the hash chain of the history is intact.
    history_intact: bool,
    /// What is wrong with the history, where it is not intact.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    history_problem: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Resource)]
struct ResourceView {
    r#type: String,
    id: String,
}

#[derive(Default, Serialize, ToSchema)]
#[schema(as = State)]
struct StateView {
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
    response: Option<StoredResponseView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = StoredResponse)]
struct StoredResponseView {
    status: u16,
    /// The schema version of the response; 0 if none was stated.
    schema_version: u16,
    headers: Vec<(String, String)>,
    /// `null` if no body is stored.
    #[schema(required = true)]
    body_bytes: Option<usize>,
    /// Only with `reveal`. Bytes that are not UTF-8 are replaced by U+FFFD.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = HistoryEntry)]
struct HistoryEntryView {
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
    /// The evidence was erased.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    evidence_erased: bool,
    hash: String,
}

pub(super) fn record<S: Store>(
    caller: &Caller,
    layer: &Layer<S>,
    record: &Record,
    entries: &[Entry],
    reveal: bool,
) -> RecordView {
    let verified = history::verify(record, entries);
    RecordView {
        summary: summary(caller, layer, &Summary::from(record)),
        fingerprint: record.fingerprint.to_string(),
        resource: record.resource.as_ref().map(|resource| ResourceView {
            r#type: resource.kind.to_string(),
            id: resource.id.to_string(),
        }),
        resolved_by: record.resolved_by.as_deref().map(str::to_owned),
        recovery_point: record.recovery.as_ref().map(|point| point.name.to_string()),
        state: state(record, reveal),
        history: entries
            .iter()
            .map(|entry| history_entry(layer.store(), record, entry))
            .collect(),
        history_intact: verified.is_ok(),
        history_problem: verified.err().map(|error| error.to_string()),
    }
}

fn state(record: &Record, reveal: bool) -> StateView {
    match &record.state {
        State::InProgress(lease) => StateView {
            owner: Some(record.owner.as_str().to_owned()),
            locked_until: Some(time(lease.locked_until)),
            ..StateView::default()
        },
        State::Completed(completed) => {
            let response = &completed.response;
            StateView {
                completed_at: Some(time(completed.completed_at)),
                expires_at: Some(time(completed.expires_at)),
                body_expires_at: completed.body_expires_at.map(time),
                response: Some(StoredResponseView {
                    status: response.status,
                    schema_version: response.schema_version,
                    headers: response
                        .headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), text(value)))
                        .collect(),
                    body_bytes: response.body.as_ref().map(bytes::Bytes::len),
                    body: response.body.as_deref().filter(|_| reveal).map(text),
                }),
                ..StateView::default()
            }
        }
        State::FailedRetryable { expires_at } => StateView {
            expires_at: Some(time(*expires_at)),
            ..StateView::default()
        },
        State::Unknown(unresolved) => StateView {
            reconcile_after: Some(time(unresolved.reconcile_after)),
            reconcile_attempts: Some(unresolved.reconcile_attempts),
            ..StateView::default()
        },
        State::Expired { purge_at } => StateView {
            purge_at: Some(time(*purge_at)),
            ..StateView::default()
        },
    }
}

fn history_entry<S: Store>(store: &S, record: &Record, entry: &Entry) -> HistoryEntryView {
    let note = &entry.note;
    HistoryEntryView {
        seq: entry.seq,
        at: time(note.at),
        attempt: note.attempt,
        what: note.what.as_str(),
        actor: note.actor.to_string(),
        code: note.code.as_ref().map(ToString::to_string),
        reason: note.reason.as_deref().map(str::to_owned),
        evidence: note.evidence.clone().map(|evidence| {
            match store.decrypt_evidence(record.id, evidence) {
                Ok(evidence) => text(&evidence),
                Err(error) => format!("(unreadable: {error})"),
            }
        }),
        evidence_erased: note.evidence.is_none() && entry.evidence_hash.is_some(),
        hash: hex(&entry.hash),
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Stats)]
pub(super) struct BacklogView {
    in_progress: CountView,
    unknown: CountView,
    dead_lettered: CountView,
    operations: Vec<OperationBacklogView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = UnfinishedCounts)]
struct OperationBacklogView {
    operation: String,
    in_progress: CountView,
    unknown: CountView,
    dead_lettered: CountView,
}

#[derive(Serialize, ToSchema)]
#[schema(as = CountWithOldest)]
struct CountView {
    count: u64,
    #[schema(required = true)]
    oldest_age_seconds: Option<f64>,
}

pub(super) fn backlog<S: Store>(
    layer: &Layer<S>,
    unfinished: &[UnfinishedCounts],
    now: Timestamp,
) -> BacklogView {
    let total = |of: fn(&UnfinishedCounts) -> &CountWithOldest| {
        let counts = unfinished.iter().map(of);
        let total = CountWithOldest {
            count: counts.clone().map(|count| count.count).sum(),
            oldest: counts.filter_map(|count| count.oldest).min(),
        };
        count_view(&total, now)
    };
    BacklogView {
        in_progress: total(|unfinished| &unfinished.in_progress),
        unknown: total(|unfinished| &unfinished.unknown),
        dead_lettered: total(|unfinished| &unfinished.dead_lettered),
        operations: unfinished
            .iter()
            .map(|unfinished| OperationBacklogView {
                operation: layer.shown_operation(&unfinished.operation).to_owned(),
                in_progress: count_view(&unfinished.in_progress, now),
                unknown: count_view(&unfinished.unknown, now),
                dead_lettered: count_view(&unfinished.dead_lettered, now),
            })
            .collect(),
    }
}

fn count_view(count: &CountWithOldest, now: Timestamp) -> CountView {
    CountView {
        count: count.count,
        oldest_age_seconds: count.oldest.map(|oldest| age_seconds(oldest, now)),
    }
}

#[allow(clippy::cast_precision_loss, reason = "an age in seconds, for people")]
pub(super) fn age_seconds(since: Timestamp, now: Timestamp) -> f64 {
    (now.as_micros() - since.as_micros()).max(0) as f64 / 1e6
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
