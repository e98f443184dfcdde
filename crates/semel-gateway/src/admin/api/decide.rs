//! Decisions: each is guarded by the state machine, and told in the operation's history.

use axum::body::Bytes;
use axum::extract::{Path, State};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::history::MAX_REASON;
use semel_core::transition::Fenced;
use semel_core::{
    By, Completion, Record, Resolution, Resolve, Response, State as Standing, Status, Verdict,
};
use semel_worker::Asked;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::problem::Problem;
use super::{Answer, Shared, Whole, find, json};

/// Longest name of an operator, in bytes.
const MAX_WHO: usize = 64;

/// What an operator found out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Decision {
    verdict: Word,
    #[serde(default)]
    response: Option<Written>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    by: Option<String>,
    /// The attempt that the operator looked at; the present one if absent.
    #[serde(default)]
    attempt: Option<u32>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Word {
    Completed,
    NotExecuted,
}

/// A response that somebody writes by hand: the body as text, or as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    json: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) by: Option<String>,
}

#[derive(Serialize)]
struct Decided {
    id: String,
    status: &'static str,
}

#[derive(Serialize)]
struct Looked {
    id: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

pub(super) async fn resolve<S: Whole>(
    State(api): Shared<S>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let decision: Decision = read(&headers, &body)?;
    let by = by(decision.by.as_deref(), &decision.reason)?;
    let verdict = verdict(decision.verdict, decision.response)?;
    let record = find(&api.store, &id).await?;
    let mut fence = record.fence();
    if let Some(attempt) = decision.attempt {
        fence.attempt = attempt;
    }
    let decided = match verdict {
        Verdict::Completed(_) => Status::Completed,
        Verdict::NotExecuted(_) => Status::FailedRetryable,
        Verdict::StillUnknown(..) => Status::Unknown,
    };
    let resolve = Resolve {
        fence,
        verdict,
        by,
        evidence: None,
    };
    match api.store.resolve(resolve).await? {
        Resolution::Applied => {
            tracing::info!(id = %record.id, decided = %decided, "an operator decided");
            Ok(json(&Decided {
                id: record.id.to_string(),
                status: decided.as_str(),
            }))
        }
        Resolution::Fenced(fenced) => Err(overtaken(fenced, &record)),
    }
}

pub(super) async fn reconcile<S: Whole>(
    State(api): Shared<S>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let asked: Reason = if body.is_empty() {
        read(&headers, b"{}")?
    } else {
        read(&headers, &body)?
    };
    let who = who(asked.by.as_deref())?;
    let by = By {
        who: who.into(),
        why: (!asked.reason.is_empty()).then(|| asked.reason.into()),
    };
    let record = find(&api.store, &id).await?;
    let status = record.state.status();
    if status != Status::Unknown {
        let detail =
            format!("only an operation that is unknown is looked for; this one is {status}");
        return Err(Problem::conflict(status, detail));
    }
    let (outcome, code) = match api.reconcilers.ask(&record, by).await? {
        Asked::Completed => ("completed", None),
        Asked::Released => ("not_executed", None),
        Asked::StillUnknown(code) => ("still_unknown", Some(code.to_string())),
        Asked::Overtaken(fenced) => return Err(overtaken(fenced, &record)),
        Asked::NoWay => {
            let detail = "there is no [route.reconcile] for this operation, so nobody can be \
                          asked; find out elsewhere and resolve it";
            return Err(Problem::conflict(status, detail));
        }
    };
    Ok(json(&Looked {
        id: record.id.to_string(),
        outcome,
        code,
    }))
}

pub(super) async fn erase<S: Whole>(
    State(api): Shared<S>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let asked: Reason = read(&headers, &body)?;
    let by = by(asked.by.as_deref(), &asked.reason)?;
    let record = find(&api.store, &id).await?;
    if api.store.erase(record.id, by).await? {
        tracing::info!(id = %record.id, "an operator erased a response");
        return Ok(json(&Decided {
            id: record.id.to_string(),
            status: Status::Completed.as_str(),
        }));
    }
    let status = record.state.status();
    let detail =
        format!("only a completed operation has a response to erase; this one is {status}");
    Err(Problem::conflict(status, detail))
}

/// A browser on another site can post a form, and not JSON.
pub(super) fn read<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Problem> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind
        .and_then(|kind| kind.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::media_type());
    }
    serde_json::from_slice(body).map_err(|error| Problem::decision(error.to_string()))
}

fn by(who_said: Option<&str>, said: &str) -> Result<By, Problem> {
    let reason = reason(said)?;
    if reason.is_empty() {
        return Err(Problem::decision(
            "`reason` is required: it is what the next person reads in the history",
        ));
    }
    Ok(By::person(who(who_said)?, reason))
}

/// A reason that can be kept, or none.
pub(super) fn reason(said: &str) -> Result<&str, Problem> {
    let reason = said.trim();
    if reason.contains('\0') {
        return Err(Problem::decision("`reason` cannot hold a NUL character"));
    }
    if reason.len() > MAX_REASON {
        let detail = format!("`reason` has at most {MAX_REASON} bytes");
        return Err(Problem::decision(detail));
    }
    Ok(reason)
}

pub(super) fn who(said: Option<&str>) -> Result<String, Problem> {
    match said.map(str::trim) {
        None | Some("") => Ok("operator".to_owned()),
        Some(name) if name.len() <= MAX_WHO && !name.chars().any(char::is_control) => {
            Ok(format!("operator:{name}"))
        }
        Some(_) => Err(Problem::decision(format!(
            "`by` is a name of at most {MAX_WHO} bytes without control characters"
        ))),
    }
}

fn verdict(word: Word, response: Option<Written>) -> Result<Verdict, Problem> {
    match (word, response) {
        (Word::Completed, Some(written)) => Ok(Verdict::Completed(Completion {
            response: written.response()?,
            resource: None,
        })),
        (Word::Completed, None) => Err(Problem::decision(
            "`response` is required: it is what every retry will be given, such as \
             {\"status\": 201, \"json\": {}}",
        )),
        (Word::NotExecuted, None) => Ok(Verdict::NotExecuted("operator_decided".into())),
        (Word::NotExecuted, Some(_)) => Err(Problem::decision(
            "what was not executed has no `response`: the next request executes and is given its own",
        )),
    }
}

impl Written {
    fn response(self) -> Result<Response, Problem> {
        if !(200..600).contains(&self.status) {
            return Err(Problem::decision("`status` is from 200 to 599"));
        }
        let mut lines: Vec<(Box<str>, Bytes)> = Vec::new();
        for (name, value) in self.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Problem::decision(format!("{name:?} is no header name")))?;
            let value = HeaderValue::from_str(&value).map_err(|_| {
                Problem::decision(format!("{name} has a value that cannot be sent"))
            })?;
            semel_http::Route::default()
                .store_header(name.as_str())
                .map_err(|error| Problem::decision(error.to_string()))?;
            lines.push((
                name.as_str().into(),
                Bytes::copy_from_slice(value.as_bytes()),
            ));
        }
        let body = match (self.body, self.json) {
            (Some(_), Some(_)) => {
                return Err(Problem::decision(
                    "write `body` as text or `json`, not both",
                ));
            }
            (Some(body), None) => Bytes::from(body),
            (None, Some(json)) => {
                if !lines.iter().any(|(name, _)| **name == *"content-type") {
                    let kind = Bytes::from_static(b"application/json");
                    lines.push(("content-type".into(), kind));
                }
                // As it was written: numbers and the order of members are the operator's.
                Bytes::copy_from_slice(json.get().as_bytes())
            }
            (None, None) => Bytes::new(),
        };
        Ok(Response {
            status: self.status,
            headers: lines,
            body: Some(body),
            schema_version: 0,
        })
    }
}

/// Somebody else was faster, or it was never unknown.
fn overtaken(fenced: Fenced, record: &Record) -> Problem {
    let Some((status, attempt)) = fenced.found else {
        return Problem::not_found();
    };
    let detail = match (status, &record.state) {
        (Status::Unknown, _) => format!(
            "the decision is about another attempt than the present one ({attempt}); look again"
        ),
        (_, Standing::Unknown(_)) => format!("somebody else was faster: it is {status} now"),
        (_, _) => format!("only an operation that is unknown is decided; this one is {status}"),
    };
    Problem::conflict(status, detail)
}
