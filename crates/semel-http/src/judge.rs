//! What the end of an execution means: what is written to the record, and what is sent.

use http::{Extensions, Response};
use semel_core::{Code, Completion, OperationId, Resource, Store};

use crate::body::{Collected, FinalBody, ResponseBody};
use crate::commit_with::{self, PendingCommit};
use crate::context::{AttemptContext, AttemptGrant};
use crate::outcome::{Outcome, OutcomeKind, ResponseSource};
use crate::phases::Suspended;
use crate::reason;
use crate::refusal::refuse;
use crate::route::Route;
use crate::rules::Rules;
use crate::{resource, schema, stored};

/// After so many attempts an operation is not resumed any more but unknown, so that an operator
/// looks at it.
const MAX_ATTEMPTS: u32 = 20;

/// An execution without a complete response.
pub(crate) enum Interruption {
    /// It was stopped from outside, as by the end of the process. An operation made of phases is
    /// resumed.
    Stopped(Code),
    /// It failed by itself, and might again.
    Failed(Code),
}

/// How an attempt ended.
pub(crate) enum AttemptOutcome<R> {
    /// The record is written, and then the response is sent.
    Write(JudgedResponse<R>),
    /// The handler left a transaction open, which is committed with the completion.
    Commit(PendingCommit, Response<Collected<R>>),
    /// The attempt stopped halfway. The record stays in progress until its lease runs out, and
    /// the next attempt resumes.
    Suspend(Code),
}

/// The final write of an attempt, and the response that belongs to it.
pub(crate) struct JudgedResponse<R> {
    pub(crate) write: FinalWrite,
    pub(crate) response: Response<ResponseBody<R>>,
    /// Whether the response is still right where the attempt no longer owns its record.
    pub(crate) right_if_fenced: bool,
}

/// The last write of an attempt to its record.
#[derive(Clone, Debug)]
pub(crate) enum FinalWrite {
    Complete(Completion),
    Release(Code),
    Evict(Code),
    MarkUnknown(Code, Option<Resource>),
}

impl FinalWrite {
    pub(crate) fn kind(&self) -> OutcomeKind {
        match self {
            Self::Complete(_) => OutcomeKind::Completed,
            Self::Release(_) => OutcomeKind::NotExecuted,
            Self::Evict(_) => OutcomeKind::Forget,
            Self::MarkUnknown(..) => OutcomeKind::Unknown,
        }
    }

    /// What it completes the record with, if it does.
    pub(crate) fn completion(&self) -> Option<&Completion> {
        match self {
            Self::Complete(completion) => Some(completion),
            Self::Release(_) | Self::Evict(_) | Self::MarkUnknown(..) => None,
        }
    }
}

/// Judges how an attempt ended.
pub(crate) fn judge_attempt<S: Store, R>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    ended: Result<Response<Collected<R>>, Interruption>,
) -> AttemptOutcome<R> {
    let (rules, route) = (&context.rules, &context.guard.route);
    let mut response = match ended {
        Ok(response) => response,
        Err(Interruption::Stopped(code)) if is_resumable(route, grant) => {
            return AttemptOutcome::Suspend(code);
        }
        Err(Interruption::Stopped(code) | Interruption::Failed(code)) => {
            return AttemptOutcome::Write(interrupted(rules, grant.id(), code));
        }
    };
    if let Some(Suspended(code)) = response.extensions_mut().remove()
        && is_resumable(route, grant)
    {
        return AttemptOutcome::Suspend(code);
    }
    match commit_with::take_pending(&mut response) {
        Some(pending) => AttemptOutcome::Commit(pending, response),
        None => AttemptOutcome::Write(judge(route, rules, grant.id(), response)),
    }
}

/// Whether a later attempt resumes what this one leaves in progress.
pub(crate) fn is_resumable(route: &Route, grant: &AttemptGrant) -> bool {
    route.policy.resumes_within().is_some() && grant.fence().attempt < MAX_ATTEMPTS
}

/// Judges a response by the application's [`Outcome`], or else by its status.
pub(crate) fn judge<R>(
    route: &Route,
    rules: &Rules,
    id: OperationId,
    mut response: Response<Collected<R>>,
) -> JudgedResponse<R> {
    let Outcome { kind, code, source } = route.outcomes.judge(&mut response, rules.dialect);
    let resource = resource::take(&mut response);
    let schema = schema::take(&mut response).unwrap_or(route.replay.schema);
    let replaced_by = match (source, kind) {
        (ResponseSource::Unreachable, _) => Some(&reason::UPSTREAM_UNREACHABLE),
        (ResponseSource::Layer, OutcomeKind::NotExecuted | OutcomeKind::Forget) => {
            Some(&reason::NOT_EXECUTED)
        }
        (ResponseSource::Layer, OutcomeKind::Unknown) => Some(&reason::OUTCOME_BROKEN),
        // The first caller is not shown a success that no retry would get.
        (ResponseSource::Application, OutcomeKind::Unknown)
            if !response.status().is_server_error() =>
        {
            Some(&reason::OUTCOME_BROKEN)
        }
        (ResponseSource::Application | ResponseSource::Layer, _) => None,
    };
    let write = match kind {
        OutcomeKind::Completed => {
            FinalWrite::Complete(completion(route, &response, resource, schema))
        }
        OutcomeKind::NotExecuted => FinalWrite::Release(code),
        OutcomeKind::Forget => FinalWrite::Evict(code),
        OutcomeKind::Unknown => FinalWrite::MarkUnknown(code, resource),
    };
    let right_if_fenced = write.completion().is_none();
    if let Some(reason) = replaced_by {
        return JudgedResponse {
            write,
            response: refuse(rules, reason, id),
            right_if_fenced,
        };
    }
    if write.completion().is_some() {
        // The application's own header of this name would claim a replay.
        response.headers_mut().remove(&rules.replayed);
    }
    let response = response.map(|body| {
        ResponseBody::recorded(match body {
            Collected::Whole(body, trailers, held) => {
                FinalBody::whole(body, trailers).counted(held)
            }
            Collected::Over(body) => body,
        })
    });
    JudgedResponse {
        write,
        response,
        right_if_fenced,
    }
}

/// An execution that ended without a response: it may have happened.
fn interrupted<R>(rules: &Rules, id: OperationId, code: Code) -> JudgedResponse<R> {
    JudgedResponse {
        write: FinalWrite::MarkUnknown(code, None),
        response: refuse(rules, &reason::OUTCOME_BROKEN, id),
        right_if_fenced: true,
    }
}

/// The response that a transaction produced, as if the handler had returned it. `None` where it is
/// not a valid response.
pub(crate) fn response_from_transaction<R>(
    found: semel_core::Response,
    extensions: Extensions,
    max_response: usize,
) -> Option<Response<Collected<R>>> {
    let mut response = stored::head(&found)?;
    *response.extensions_mut() = extensions;
    let body = found.body.unwrap_or_default();
    Some(response.map(|()| {
        if body.len() > max_response {
            Collected::Over(FinalBody::whole(body, None))
        } else {
            Collected::Whole(body, None, None)
        }
    }))
}

fn completion<R>(
    route: &Route,
    response: &Response<Collected<R>>,
    resource: Option<Resource>,
    schema_version: u16,
) -> Completion {
    Completion {
        resource,
        response: semel_core::Response {
            status: response.status().as_u16(),
            headers: route.stored.take(response.headers()),
            body: match response.body() {
                Collected::Whole(body, ..) if route.replay.stores_body(response.status()) => {
                    Some(body.clone())
                }
                Collected::Whole(..) | Collected::Over(_) => None,
            },
            schema_version,
        },
    }
}
