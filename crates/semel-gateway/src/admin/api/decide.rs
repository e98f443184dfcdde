//! Decisions: each is guarded by the state machine, and told in the operation's history.

use axum::extract::State;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use semel_core::history::MAX_REASON;
use semel_core::{By, Completion, Response, Status, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::extract::{Count, Id, Sent};
use super::{Answer, Shared, StatusWord, Whole, json, words};
use crate::admin::access::Caller;
use crate::admin::acts::{self, Learned};
use crate::admin::document::{NotDecided, NotThere, Refused, Unanswered};
use crate::admin::problem::Problem;

/// What an operator found out.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    verdict: Word,
    /// What every retry will be given; with `completed`, and only then.
    #[serde(default)]
    response: Option<Written>,
    #[serde(default)]
    #[schema(required = true, schema_with = words::reason)]
    reason: String,
    #[serde(default)]
    #[schema(schema_with = words::by)]
    by: Option<String>,
    /// The attempt that the operator looked at; the present one if absent.
    #[serde(default)]
    #[schema(value_type = Option<u32>, maximum = 4_294_967_295_u32)]
    attempt: Option<Count<u32>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Verdict)]
pub(in crate::admin) enum Word {
    Completed,
    NotExecuted,
}

/// A response that somebody writes by hand: the body as text, or as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WrittenResponse)]
pub(in crate::admin) struct Written {
    #[schema(value_type = u16, minimum = 200, maximum = 599)]
    pub(in crate::admin) status: Count<u16>,
    /// Names and values.
    #[serde(default)]
    #[schema(schema_with = words::headers)]
    pub(in crate::admin) headers: Vec<(String, String)>,
    /// As text.
    #[serde(default)]
    pub(in crate::admin) body: Option<String>,
    /// As JSON.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(in crate::admin) json: Option<Box<RawValue>>,
}

/// Why, where that is optional.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    #[serde(default)]
    #[schema(schema_with = words::reason_or_none)]
    pub(super) reason: String,
    #[serde(default)]
    #[schema(schema_with = words::by)]
    pub(super) by: Option<String>,
}

/// Why, where that is required.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Erasure {
    #[serde(default)]
    #[schema(required = true, schema_with = words::reason)]
    reason: String,
    #[serde(default)]
    #[schema(schema_with = words::by)]
    by: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct Decided {
    #[schema(format = "uuid")]
    id: String,
    status: StatusWord,
}

#[derive(Serialize, ToSchema)]
struct Looked {
    #[schema(format = "uuid")]
    id: String,
    outcome: Outcome,
    /// Why it is still unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    code: Option<String>,
}

/// What came of a look.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Completed,
    NotExecuted,
    StillUnknown,
}

/// Decides what became of an operation that is unknown.
#[utoipa::path(
    post,
    path = "/operations/{id}/resolve",
    operation_id = "resolve_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The operation's.", format = "uuid")),
    request_body = Decision,
    responses(
        (status = 200, description = "It is decided.", body = Decided),
        NotDecided,
        NotThere,
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn resolve<S: Whole>(
    caller: Caller,
    State(api): Shared<S>,
    Id(id): Id,
    Sent(decision): Sent<Decision>,
) -> Answer {
    let by = by(&caller, decision.by.as_deref(), &decision.reason)?;
    let verdict = verdict(decision.verdict, decision.response)?;
    let attempt = decision.attempt.map(|Count(attempt)| attempt);
    let (id, decided) = acts::pass(&api.store, &id, attempt, verdict, by).await?;
    Ok(json(&Decided {
        id: id.to_string(),
        status: decided.into(),
    }))
}

/// Asks the provider now.
#[utoipa::path(
    post,
    path = "/operations/{id}/reconcile",
    operation_id = "reconcile_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The operation's.", format = "uuid")),
    request_body = Reason,
    responses(
        (status = 200, description = "What came of it.", body = Looked),
        NotDecided,
        NotThere,
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn reconcile<S: Whole>(
    caller: Caller,
    State(api): Shared<S>,
    Id(id): Id,
    Sent(asked): Sent<Reason>,
) -> Answer {
    let who = caller.actor(asked.by.as_deref())?;
    let reason = reason(&asked.reason)?;
    let by = By {
        who: who.into(),
        why: (!reason.is_empty()).then(|| reason.into()),
    };
    let (id, learned) = acts::look(&api.store, &api.reconcilers, &id, by).await?;
    let (outcome, code) = match learned {
        Learned::Completed => (Outcome::Completed, None),
        Learned::Released => (Outcome::NotExecuted, None),
        Learned::StillUnknown(code) => (Outcome::StillUnknown, Some(code.to_string())),
    };
    Ok(json(&Looked {
        id: id.to_string(),
        outcome,
        code,
    }))
}

/// Removes the stored response, for privacy, and keeps that there was one.
#[utoipa::path(
    post,
    path = "/operations/{id}/erase",
    operation_id = "erase_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The operation's.", format = "uuid")),
    request_body = Erasure,
    responses(
        (status = 200, description = "It is erased.", body = Decided),
        NotDecided,
        NotThere,
        Refused,
        Unanswered,
    ),
)]
pub(super) async fn erase<S: Whole>(
    caller: Caller,
    State(api): Shared<S>,
    Id(id): Id,
    Sent(asked): Sent<Erasure>,
) -> Answer {
    let by = by(&caller, asked.by.as_deref(), &asked.reason)?;
    let id = acts::wipe(&api.store, &id, by).await?;
    Ok(json(&Decided {
        id: id.to_string(),
        status: Status::Completed.into(),
    }))
}

fn by(caller: &Caller, who_said: Option<&str>, said: &str) -> Result<By, Problem> {
    let reason = reason(said)?;
    if reason.is_empty() {
        return Err(Problem::decision(
            "`reason` is required: it is what the next person reads in the history",
        ));
    }
    Ok(By::person(caller.actor(who_said)?, reason))
}

/// A reason that can be kept, or none.
pub(in crate::admin) fn reason(said: &str) -> Result<&str, Problem> {
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

pub(in crate::admin) fn verdict(word: Word, response: Option<Written>) -> Result<Verdict, Problem> {
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
        let Count(status) = self.status;
        if !(200..600).contains(&status) {
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
            status,
            headers: lines,
            body: Some(body),
            schema_version: 0,
        })
    }
}
