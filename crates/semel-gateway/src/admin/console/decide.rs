//! Decisions of people, by forms. They go the same way as those of the API.

use askama::Template;
use axum::Form;
use axum::extract::rejection::FormRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use semel_core::history::Entry;
use semel_core::{By, Outbox, Record, Status, Timestamp};
use serde::Deserialize;

use super::layout::{Layout, Place};
use super::operation::{Head, TYPED, broken, dead_lettered_at, downstream_key};
use super::operations::tail;
use super::text::{Text, When};
use super::timeline::evidence;
use super::{Answer, Console, Shared, html, see_other, told};
use crate::admin::access::Caller;
use crate::admin::acts::{self, Learned, find};
use crate::admin::api::Whole;
use crate::admin::api::decide::{self as api, Word, Written};
use crate::admin::api::extract::Count;
use crate::admin::problem::Problem;

/// What is typed to release an operation, besides the end of its id: whoever types it has said it.
const PHRASE: &str = "it did not happen";

/// What came of a form that did not arrive whole.
type Typed<T> = Result<Form<T>, FormRejection>;

#[derive(Clone, Default, Deserialize)]
pub(super) struct Decision {
    #[serde(default)]
    verdict: String,
    /// The attempt that the page was about: the person has looked at no other.
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
    head: Head,
    downstream_key: String,
    waits_since: Option<When>,
    unknown_since: Option<When>,
    asked: Option<Said>,
    broken: Option<Text>,
    fenced: bool,
    can_look: bool,
    completed: Typing,
    released: Typing,
    phrase: &'static str,
}

/// What was last heard.
struct Said {
    when: When,
    who: Text,
    text: Option<Text>,
}

/// One of the two forms, as it was typed.
struct Typing {
    wrong: Option<Text>,
    status: String,
    content_type: String,
    body: String,
    reason: String,
}

impl Typing {
    fn fresh() -> Self {
        Self {
            wrong: None,
            status: "200".to_owned(),
            content_type: "application/json".to_owned(),
            body: String::new(),
            reason: String::new(),
        }
    }

    fn again(decision: &Decision, wrong: &str) -> Self {
        Self {
            wrong: Some(Text::line(wrong)),
            status: decision.status.clone(),
            content_type: decision.content_type.clone(),
            body: decision.body.clone(),
            reason: decision.reason.clone(),
        }
    }
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
) -> Response {
    let answer = async {
        let record = find(&console.store, &id).await?;
        let forms = (Typing::fresh(), Typing::fresh());
        asking(&caller, &console, &record, forms, StatusCode::OK).await
    };
    told(&caller, answer.await)
}

async fn asking<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    (completed, released): (Typing, Typing),
    status: StatusCode,
) -> Answer {
    let found = record.state.status();
    if found != Status::Unknown {
        let detail = format!("only an operation that is unknown is decided; this one is {found}");
        return Err(Problem::conflict(found, detail));
    }
    let entries = console.store.history(record.id).await?;
    let now = console.now();
    let when = |what| last(&entries, what).map(|entry| When::new(entry.note.at, now));
    let page = Page {
        layout: Layout::new(caller, Place::DeadLetters),
        head: Head::new(record, now),
        downstream_key: downstream_key(record),
        waits_since: dead_lettered_at(record).map(|at| When::new(at, now)),
        unknown_since: when(semel_core::history::What::Unknown),
        asked: said(console, record, &entries, now),
        broken: broken(record, &entries),
        fenced: last(&entries, semel_core::history::What::Fenced).is_some(),
        can_look: console.reconcilers.can_look(record.identity.operation()),
        completed,
        released,
        phrase: PHRASE,
    };
    Ok(html(status, &page))
}

fn last(entries: &[Entry], what: semel_core::history::What) -> Option<&Entry> {
    entries.iter().rev().find(|entry| entry.note.what == what)
}

fn said<S: Whole, O: Outbox>(
    console: &Console<S, O>,
    record: &Record,
    entries: &[Entry],
    now: Timestamp,
) -> Option<Said> {
    let asked = last(entries, semel_core::history::What::Asked)?;
    Some(Said {
        when: When::new(asked.note.at, now),
        who: Text::line(&asked.note.actor),
        text: evidence(&console.store, record, asked),
    })
}

/// Records the outcome, or releases the operation.
pub(super) async fn decide<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    typed: Typed<Decision>,
) -> Response {
    let answer = async {
        let decision = form(typed)?;
        let record = find(&console.store, &id).await?;
        match decided(&caller, &console, &record, &decision).await {
            Err(problem) if problem.status() == StatusCode::UNPROCESSABLE_ENTITY => {
                let again = Typing::again(&decision, problem.detail());
                let forms = if decision.verdict == "not_executed" {
                    (Typing::fresh(), again)
                } else {
                    (again, Typing::fresh())
                };
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                asking(&caller, &console, &record, forms, status).await
            }
            answer => answer,
        }
    };
    told(&caller, answer.await)
}

async fn decided<S: Whole, O: Outbox>(
    caller: &Caller,
    console: &Console<S, O>,
    record: &Record,
    decision: &Decision,
) -> Answer {
    let id = record.id.to_string();
    let wrong = |what: &str| Problem::decision(what.to_owned());
    let attempt = decision.attempt.parse::<u32>();
    let attempt = attempt.map_err(|_| wrong("The page did not say which attempt it is about."))?;
    let (word, response, done) = match &*decision.verdict {
        "completed" => (Word::Completed, Some(decision.written()?), "completed"),
        "not_executed" => (Word::NotExecuted, None, "released"),
        _ => return Err(wrong("Choose one of the two decisions.")),
    };
    let by = by(caller, &decision.reason)?;
    confirmed(&id, &decision.confirm)?;
    if word == Word::NotExecuted && !decision.phrase.trim().eq_ignore_ascii_case(PHRASE) {
        let detail = format!("Nothing was released. Type the words “{PHRASE}” if you know that.");
        return Err(Problem::decision(detail));
    }
    let verdict = api::verdict(word, response)?;
    acts::pass(&console.store, &id, Some(attempt), verdict, by).await?;
    see_other(&format!("/operations/{id}?done={done}"))
}

impl Decision {
    fn written(&self) -> Result<Written, Problem> {
        let wrong = |what: &str| Problem::decision(what.to_owned());
        let status: Result<u16, _> = self.status.trim().parse();
        let status = status.map_err(|_| wrong("The status is a number from 200 to 599."))?;
        let kind = self.content_type.trim();
        // A browser sends the lines of a text area with its own ends.
        let body = self.body.replace("\r\n", "\n");
        let bare = kind.split(';').next().unwrap_or_default().trim();
        let json = bare.eq_ignore_ascii_case("application/json") || bare.ends_with("+json");
        if json {
            serde_json::from_str::<serde::de::IgnoredAny>(&body).map_err(|error| {
                Problem::decision(format!(
                    "The body is not JSON ({error}). Retries would be given something that \
                     they cannot read."
                ))
            })?;
        }
        Ok(Written {
            status: Count(status),
            headers: Vec::from_iter(
                (!kind.is_empty()).then(|| ("content-type".to_owned(), kind.to_owned())),
            ),
            body: Some(body),
            json: None,
        })
    }
}

/// Asks the provider now.
pub(super) async fn reconcile<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    typed: Typed<Reason>,
) -> Response {
    let answer = async {
        let asked = form(typed)?;
        let reason = api::reason(&asked.reason)?;
        let by = By {
            who: caller.actor(None)?.into(),
            why: (!reason.is_empty()).then(|| reason.into()),
        };
        let (id, looked) = acts::look(&console.store, &console.reconcilers, &id, by).await?;
        let done = match looked {
            Learned::Completed => "found",
            Learned::Released => "absent",
            Learned::StillUnknown(_) => "unclear",
        };
        see_other(&format!("/operations/{id}?done={done}"))
    };
    told(&caller, answer.await)
}

/// Erases the stored response.
pub(super) async fn erase<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
    Path(id): Path<String>,
    typed: Typed<Reason>,
) -> Response {
    let answer = async {
        let asked = form(typed)?;
        let record = find(&console.store, &id).await?;
        let by = by(&caller, &asked.reason)?;
        confirmed(&record.id.to_string(), &asked.confirm)?;
        let id = acts::wipe(&console.store, &id, by).await?;
        see_other(&format!("/operations/{id}?done=erased"))
    };
    told(&caller, answer.await)
}

fn form<T>(typed: Typed<T>) -> Result<T, Problem> {
    let Form(form) = typed.map_err(|refused| Problem::decision(refused.body_text()))?;
    Ok(form)
}

fn by(caller: &Caller, said: &str) -> Result<By, Problem> {
    let reason = api::reason(said)?;
    if reason.is_empty() {
        return Err(Problem::decision(
            "Give a reason: it is what the next person reads in the history.",
        ));
    }
    Ok(By::person(caller.actor(None)?, reason))
}

/// Whether the end of the id was typed: nobody decides about the wrong operation by a slip.
fn confirmed(id: &str, typed: &str) -> Result<(), Problem> {
    let wanted = tail(id, TYPED);
    if typed.trim().eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(Problem::decision(format!(
        "Nothing was done. To confirm, type the last {TYPED} characters of the operation's id."
    )))
}
