//! Operator actions on records: resolve, reconcile, erase.

use axum::extract::State;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use semel_core::history::MAX_REASON;
use semel_core::{Actor, Completion, Response, Status, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::extract::{JsonBody, JsonInteger, PathId};
use super::{ApiResult, FullStore, Shared, StatusView, json, schema};
use crate::admin::access::Caller;
use crate::admin::actions::{self, ReconcileResult};
use crate::admin::openapi::{AuthProblems, DecisionProblems, NotFoundProblem, StoreProblems};
use crate::admin::problem::Problem;

/// The outcome that an operator found.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    verdict: VerdictKind,
    /// The response that every retry receives. Required with `completed`, not allowed otherwise.
    #[serde(default)]
    response: Option<ManualResponse>,
    #[serde(default)]
    #[schema(required = true, schema_with = schema::reason)]
    reason: String,
    #[serde(default)]
    #[schema(schema_with = schema::by)]
    by: Option<String>,
    /// The attempt that the operator looked at; default: the current one.
    #[serde(default)]
    #[schema(value_type = Option<u32>, maximum = 4_294_967_295_u32)]
    attempt: Option<JsonInteger<u32>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Verdict)]
pub(in crate::admin) enum VerdictKind {
    Completed,
    NotExecuted,
}

/// A response written by hand, with the body as text or as JSON.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WrittenResponse)]
pub(in crate::admin) struct ManualResponse {
    #[schema(value_type = u16, minimum = 200, maximum = 599)]
    pub(in crate::admin) status: JsonInteger<u16>,
    /// Header names and values.
    #[serde(default)]
    #[schema(schema_with = schema::headers)]
    pub(in crate::admin) headers: Vec<(String, String)>,
    /// The body as text.
    #[serde(default)]
    pub(in crate::admin) body: Option<String>,
    /// The body as JSON.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(in crate::admin) json: Option<Box<RawValue>>,
}

/// An action with an optional reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    #[serde(default)]
    #[schema(schema_with = schema::reason_or_none)]
    pub(super) reason: String,
    #[serde(default)]
    #[schema(schema_with = schema::by)]
    pub(super) by: Option<String>,
}

/// An erasure; the reason is required.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Erasure {
    #[serde(default)]
    #[schema(required = true, schema_with = schema::reason)]
    reason: String,
    #[serde(default)]
    #[schema(schema_with = schema::by)]
    by: Option<String>,
}

/// The record's status after the action.
#[derive(Serialize, ToSchema)]
#[schema(as = DecisionResult)]
struct DecisionResult {
    #[schema(format = "uuid")]
    id: String,
    status: StatusView,
}

/// The result of a reconcile request.
#[derive(Serialize, ToSchema)]
#[schema(as = ReconcileResult)]
struct ReconcileView {
    #[schema(format = "uuid")]
    id: String,
    outcome: Outcome,
    /// Why the record is still unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    code: Option<String>,
}

/// The outcome according to the provider.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Completed,
    NotExecuted,
    StillUnknown,
}

/// Resolve an unknown record with the outcome you found.
#[utoipa::path(
    post,
    path = "/operations/{id}/resolve",
    operation_id = "resolve_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The record id.", format = "uuid")),
    request_body = Decision,
    responses(
        (status = 200, description = "The record is resolved.", body = DecisionResult),
        DecisionProblems,
        NotFoundProblem,
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn resolve<S: FullStore>(
    caller: Caller,
    State(api): Shared<S>,
    PathId(id): PathId,
    JsonBody(decision): JsonBody<Decision>,
) -> ApiResult {
    let by = by(&caller, decision.by.as_deref(), &decision.reason)?;
    let verdict = verdict(decision.verdict, decision.response)?;
    let attempt = decision.attempt.map(|JsonInteger(attempt)| attempt);
    let layer = api.layer.load_full();
    let (id, status) = actions::resolve_record(&layer, &id, attempt, verdict, by).await?;
    Ok(json(&DecisionResult {
        id: id.to_string(),
        status: status.into(),
    }))
}

/// Ask the provider about an unknown record now.
#[utoipa::path(
    post,
    path = "/operations/{id}/reconcile",
    operation_id = "reconcile_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The record id.", format = "uuid")),
    request_body = Reason,
    responses(
        (status = 200, description = "The provider's answer.", body = ReconcileView),
        DecisionProblems,
        NotFoundProblem,
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn reconcile<S: FullStore>(
    caller: Caller,
    State(api): Shared<S>,
    PathId(id): PathId,
    JsonBody(body): JsonBody<Reason>,
) -> ApiResult {
    let who = caller.actor(body.by.as_deref())?;
    let reason = reason(&body.reason)?;
    let by = Actor {
        who: who.into(),
        why: (!reason.is_empty()).then(|| reason.into()),
    };
    let (id, result) = actions::reconcile_record(&api.store, &api.reconcilers, &id, by).await?;
    let (outcome, code) = match result {
        ReconcileResult::Completed => (Outcome::Completed, None),
        ReconcileResult::Released => (Outcome::NotExecuted, None),
        ReconcileResult::StillUnknown(code) => (Outcome::StillUnknown, Some(code.to_string())),
    };
    Ok(json(&ReconcileView {
        id: id.to_string(),
        outcome,
        code,
    }))
}

/// Erase the stored response and evidence; the record and its history stay.
#[utoipa::path(
    post,
    path = "/operations/{id}/erase",
    operation_id = "erase_operation",
    tag = "decisions",
    security(("token" = []), ("session" = [], "csrf" = [])),
    params(("id" = String, Path, description = "The record id.", format = "uuid")),
    request_body = Erasure,
    responses(
        (status = 200, description = "The response is erased.", body = DecisionResult),
        DecisionProblems,
        NotFoundProblem,
        AuthProblems,
        StoreProblems,
    ),
)]
pub(super) async fn erase<S: FullStore>(
    caller: Caller,
    State(api): Shared<S>,
    PathId(id): PathId,
    JsonBody(body): JsonBody<Erasure>,
) -> ApiResult {
    let by = by(&caller, body.by.as_deref(), &body.reason)?;
    let id = actions::erase_response(&api.store, &id, by).await?;
    Ok(json(&DecisionResult {
        id: id.to_string(),
        status: Status::Completed.into(),
    }))
}

fn by(caller: &Caller, name: Option<&str>, text: &str) -> Result<Actor, Problem> {
    let reason = reason(text)?;
    if reason.is_empty() {
        return Err(Problem::invalid_decision(
            "`reason` is required: say what you saw and where; the history shows it",
        ));
    }
    Ok(Actor::person(caller.actor(name)?, reason))
}

/// The trimmed reason, which may be empty.
pub(in crate::admin) fn reason(text: &str) -> Result<&str, Problem> {
    let reason = text.trim();
    if reason.contains('\0') {
        return Err(Problem::invalid_decision(
            "`reason` must not contain a NUL character",
        ));
    }
    if reason.len() > MAX_REASON {
        let detail = format!("`reason` is too long: at most {MAX_REASON} bytes");
        return Err(Problem::invalid_decision(detail));
    }
    Ok(reason)
}

pub(in crate::admin) fn verdict(
    kind: VerdictKind,
    response: Option<ManualResponse>,
) -> Result<Verdict, Problem> {
    match (kind, response) {
        (VerdictKind::Completed, Some(manual)) => Ok(Verdict::Completed(Completion {
            response: manual.into_response()?,
            resource: None,
        })),
        (VerdictKind::Completed, None) => Err(Problem::invalid_decision(
            "`response` is required: every retry receives it; for example \
             {\"status\": 201, \"json\": {}}",
        )),
        (VerdictKind::NotExecuted, None) => Ok(Verdict::NotExecuted("operator_decided".into())),
        (VerdictKind::NotExecuted, Some(_)) => Err(Problem::invalid_decision(
            "`response` is not allowed with `not_executed`: the next request executes",
        )),
    }
}

impl ManualResponse {
    fn into_response(self) -> Result<Response, Problem> {
        let JsonInteger(status) = self.status;
        if !(200..600).contains(&status) {
            return Err(Problem::invalid_decision(
                "invalid `status`: use 200 to 599",
            ));
        }
        let mut lines: Vec<(Box<str>, Bytes)> = Vec::new();
        for (name, value) in self.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| Problem::invalid_decision(format!("invalid header name {name:?}")))?;
            let value = HeaderValue::from_str(&value).map_err(|_| {
                Problem::invalid_decision(format!("invalid value of header {name}"))
            })?;
            semel_http::Route::default()
                .store_header(name.as_str())
                .map_err(|error| Problem::invalid_decision(error.to_string()))?;
            lines.push((
                name.as_str().into(),
                Bytes::copy_from_slice(value.as_bytes()),
            ));
        }
        let body = match (self.body, self.json) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid_decision(
                    "send either `body` or `json`, not both",
                ));
            }
            (Some(body), None) => Bytes::from(body),
            (None, Some(json)) => {
                if !lines.iter().any(|(name, _)| **name == *"content-type") {
                    let kind = Bytes::from_static(b"application/json");
                    lines.push(("content-type".into(), kind));
                }
                // Unparsed, so that numbers and the order of members stay as written.
                Bytes::copy_from_slice(json.get().as_bytes())
            }
            (None, None) => Bytes::new(),
        };
        Ok(Response {
            status,
            headers: lines,
            body: Some(body),
            // The record's route decides.
            schema_version: 0,
        })
    }
}
