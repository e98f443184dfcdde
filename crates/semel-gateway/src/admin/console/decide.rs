//! Forms for the operator actions. They call the same actions as the API.

use std::collections::BTreeMap;

use askama::Template;
use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use http::StatusCode;
use semel_core::history::{Entry, EntryKind};
use semel_core::{Actor, Record, State as RecordState, Status, Store, Timestamp, store};
use serde::Deserialize;

use super::layout::{Layout, Section};
use super::operation::{
    CONFIRM_LENGTH, RecordHead, dead_lettered_at, downstream_key, history_error,
};
use super::operations::tail;
use super::text::{Text, TimeLabel};
use super::timeline::evidence;
use super::{Console, PageResult, Shared, html, see_other};
use crate::admin::access::Caller;
use crate::admin::actions::{self, ReconcileResult, find_record};
use crate::admin::api::FullStore;
use crate::admin::api::decide::{self as api, ManualResponse, VerdictKind};
use crate::admin::api::extract::JsonInteger;
use crate::admin::problem::Problem;

/// Typed to confirm a release, besides the end of the record id: a release cannot be undone.
const PHRASE: &str = "it did not happen";

/// How many completed records decide which status is usual.
const SIMILAR_RECORDS: usize = 10;

/// How many records are examined to find them.
const MAX_SCANNED: usize = 2000;

/// A submitted form, or why it could not be read.
type Submitted<T> = Result<Form<T>, FormRejection>;

#[derive(Clone, Default, Deserialize)]
pub(super) struct Decision {
    #[serde(default)]
    verdict: String,
    /// The attempt that the page showed.
    #[serde(default)]
    attempt: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    body: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    confirm: String,
    #[serde(default)]
    phrase: String,
}

#[derive(Default, Deserialize)]
pub(super) struct Reason {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    confirm: String,
}

#[derive(Template)]
#[template(path = "decide.html")]
struct Page {
    layout: Layout,
    head: RecordHead,
    downstream_key: String,
    dead_lettered_since: Option<TimeLabel>,
    unknown_since: Option<TimeLabel>,
    provider_answer: Option<ProviderAnswer>,
    history_error: Option<Text>,
    fenced: bool,
    can_reconcile: bool,
    completed: DecisionForm,
    released: DecisionForm,
    phrase: &'static str,
}

/// The provider's last answer.
struct ProviderAnswer {
    at: TimeLabel,
    actor: Text,
    text: Option<Text>,
}

/// One of the two forms, as typed.
struct DecisionForm {
    error: Option<Text>,
    status: String,
    content_type: String,
    body: String,
    reason: String,
}

impl DecisionForm {
    fn new(status: u16) -> Self {
        Self {
            error: None,
            status: status.to_string(),
            content_type: "application/json".to_owned(),
            body: String::new(),
            reason: String::new(),
        }
    }

    fn with_error(decision: &Decision, error: &str) -> Self {
        Self {
            error: Some(Text::line(error)),
            status: decision.status.clone(),
            content_type: decision.content_type.clone(),
            body: decision.body.clone(),
            reason: decision.reason.clone(),
        }
    }
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> PageResult {
    let record = find_record(&console.store, &id).await?;
    let status = usual_status(&console.store, &record).await?;
    let forms = (DecisionForm::new(status), DecisionForm::new(status));
    render_page(&caller, &console, &record, forms, StatusCode::OK).await
}

async fn render_page<S: FullStore, O: Store>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    (completed, released): (DecisionForm, DecisionForm),
    status: StatusCode,
) -> PageResult {
    let found = record.state.status();
    if found != Status::Unknown {
        let detail =
            format!("only a record with status unknown can be resolved; this one is {found}");
        return Err(Problem::conflict(found, detail));
    }
    let entries = console.store.history(record.id).await?;
    let now = console.now();
    let time_of_last = |what| last(&entries, what).map(|entry| TimeLabel::new(entry.note.at, now));
    let page = Page {
        layout: Layout::new(caller, Section::DeadLetters),
        head: RecordHead::new(caller, console, record, now),
        downstream_key: downstream_key(record),
        dead_lettered_since: dead_lettered_at(record).map(|at| TimeLabel::new(at, now)),
        unknown_since: time_of_last(EntryKind::Unknown),
        provider_answer: provider_answer(console, record, &entries, now),
        history_error: history_error(record, &entries),
        fenced: last(&entries, EntryKind::Fenced).is_some(),
        can_reconcile: console.reconcilers.can_look_up(record.identity.operation()),
        completed,
        released,
        phrase: PHRASE,
    };
    Ok(html(status, &page))
}

/// The most frequent status of the operation's latest completed records: most likely that of this
/// one, too.
async fn usual_status<S: FullStore>(store: &S, record: &Record) -> Result<u16, Problem> {
    let query = store::Query {
        status: Some(Status::Completed),
        operation: Some(record.identity.operation().into()),
        limit: SIMILAR_RECORDS,
        walk: MAX_SCANNED,
        ..store::Query::default()
    };
    let mut counts = BTreeMap::<u16, usize>::new();
    for found in store.list(query).await?.operations {
        if let Some(similar) = store.find(found.fence.id).await?
            && let RecordState::Completed(completed) = similar.state
        {
            *counts.entry(completed.response.status).or_default() += 1;
        }
    }
    let usual = counts.into_iter().max_by_key(|(_, count)| *count);
    Ok(usual.map_or(200, |(status, _)| status))
}

fn last(entries: &[Entry], what: EntryKind) -> Option<&Entry> {
    entries.iter().rev().find(|entry| entry.note.what == what)
}

fn provider_answer<S: FullStore, O: Store>(
    console: &Console<S, O>,
    record: &Record,
    entries: &[Entry],
    now: Timestamp,
) -> Option<ProviderAnswer> {
    let asked = last(entries, EntryKind::Asked)?;
    Some(ProviderAnswer {
        at: TimeLabel::new(asked.note.at, now),
        actor: Text::line(&asked.note.actor),
        text: evidence(&console.store, record, asked),
    })
}

/// Records the outcome, or releases the record.
pub(super) async fn decide<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    submitted: Submitted<Decision>,
) -> PageResult {
    let decision = read_form(submitted)?;
    let record = find_record(&console.store, &id).await?;
    match apply(&caller, &console, &record, &decision).await {
        Err(problem) if problem.status() == StatusCode::UNPROCESSABLE_ENTITY => {
            let form = DecisionForm::with_error(&decision, problem.detail());
            let status = usual_status(&console.store, &record).await?;
            let forms = if decision.verdict == "not_executed" {
                (DecisionForm::new(status), form)
            } else {
                (form, DecisionForm::new(status))
            };
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            render_page(&caller, &console, &record, forms, status).await
        }
        result => result,
    }
}

async fn apply<S: FullStore, O: Store>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    decision: &Decision,
) -> PageResult {
    let id = record.id.to_string();
    let invalid = |detail: &str| Problem::invalid_decision(detail.to_owned());
    let attempt = decision.attempt.parse::<u32>();
    let attempt =
        attempt.map_err(|_| invalid("The form does not name an attempt. Reload the page."))?;
    let (kind, response, done) = match &*decision.verdict {
        "completed" => (
            VerdictKind::Completed,
            Some(decision.response()?),
            "completed",
        ),
        "not_executed" => (VerdictKind::NotExecuted, None, "released"),
        _ => return Err(invalid("Choose one of the two decisions.")),
    };
    let by = by(caller, &decision.reason)?;
    check_confirmation(&id, &decision.confirm)?;
    if kind == VerdictKind::NotExecuted && !decision.phrase.trim().eq_ignore_ascii_case(PHRASE) {
        let detail = format!("Nothing was released. To confirm, type “{PHRASE}”.");
        return Err(Problem::invalid_decision(detail));
    }
    let verdict = api::verdict(kind, response)?;
    let layer = console.layer.load_full();
    actions::resolve_record(&layer, &id, Some(attempt), verdict, by).await?;
    see_other(&format!("/operations/{id}?done={done}"))
}

impl Decision {
    fn response(&self) -> Result<ManualResponse, Problem> {
        let invalid = |detail: &str| Problem::invalid_decision(detail.to_owned());
        let status: Result<u16, _> = self.status.trim().parse();
        let status =
            status.map_err(|_| invalid("Invalid status. Use a number from 200 to 599."))?;
        let kind = self.content_type.trim();
        // Browsers send the lines of a text area with CRLF.
        let body = self.body.replace("\r\n", "\n");
        let bare = kind.split(';').next().unwrap_or_default().trim();
        let json = bare.eq_ignore_ascii_case("application/json") || bare.ends_with("+json");
        if json {
            serde_json::from_str::<serde::de::IgnoredAny>(&body).map_err(|error| {
                Problem::invalid_decision(format!(
                    "The body is not valid JSON ({error}). Clients could not parse the response.",
                ))
            })?;
        }
        Ok(ManualResponse {
            status: JsonInteger(status),
            headers: Vec::from_iter(
                (!kind.is_empty()).then(|| ("content-type".to_owned(), kind.to_owned())),
            ),
            body: Some(body),
            json: None,
        })
    }
}

/// Asks the provider about the record now.
pub(super) async fn reconcile<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    submitted: Submitted<Reason>,
) -> PageResult {
    let form = read_form(submitted)?;
    let reason = api::reason(&form.reason)?;
    let by = Actor {
        who: caller.actor(None)?.into(),
        why: (!reason.is_empty()).then(|| reason.into()),
    };
    let (id, result) =
        actions::reconcile_record(&console.store, &console.reconcilers, &id, by).await?;
    let done = match result {
        ReconcileResult::Completed => "found",
        ReconcileResult::Released => "absent",
        ReconcileResult::StillUnknown(_) => "unclear",
    };
    see_other(&format!("/operations/{id}?done={done}"))
}

/// Erases the stored response.
pub(super) async fn erase<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    submitted: Submitted<Reason>,
) -> PageResult {
    let form = read_form(submitted)?;
    let record = find_record(&console.store, &id).await?;
    let by = by(&caller, &form.reason)?;
    check_confirmation(&record.id.to_string(), &form.confirm)?;
    let id = actions::erase_response(&console.store, &id, by).await?;
    see_other(&format!("/operations/{id}?done=erased"))
}

fn read_form<T>(submitted: Submitted<T>) -> Result<T, Problem> {
    let Form(form) =
        submitted.map_err(|rejection| Problem::invalid_decision(rejection.body_text()))?;
    Ok(form)
}

fn by(caller: &Caller, text: &str) -> Result<Actor, Problem> {
    let reason = api::reason(text)?;
    if reason.is_empty() {
        return Err(Problem::invalid_decision(
            "Enter a reason: say what you saw and where. The history shows it.",
        ));
    }
    Ok(Actor::person(caller.actor(None)?, reason))
}

/// Checks the typed end of the id, against decisions on the wrong record.
fn check_confirmation(id: &str, typed: &str) -> Result<(), Problem> {
    let wanted = tail(id, CONFIRM_LENGTH);
    if typed.trim().eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(Problem::invalid_decision(format!(
        "Nothing was changed. To confirm, type the last {CONFIRM_LENGTH} characters of the record ID."
    )))
}
