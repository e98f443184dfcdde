//! What the end of an execution means: what is written, and what is sent.

use http::{Extensions, Response};
use semel_core::{Code, Completion, OperationId, Resource};

use crate::answer::Refusal;
use crate::body::{Collected, ResponseBody, Settled};
use crate::complete::Word;
use crate::outcome::{Ending, Outcome, Words};
use crate::reason::{self, Reason};
use crate::route::Route;
use crate::rules::Rules;
use crate::service::settled;
use crate::{resource, stored};

/// How an execution ended: with a whole answer, or without.
pub(crate) type Ended<R> = Result<Response<Collected<R>>, Broken>;

/// An execution without a whole answer.
pub(crate) enum Broken {
    /// It was stopped from outside, as by the end of the process. One made of phases goes on
    /// elsewhere.
    Stopped(Code),
    /// It broke by itself, and might again.
    Unknown(Code),
}

/// What is written and what is sent.
pub(crate) struct Conclusion<R> {
    pub(crate) word: Word,
    pub(crate) answer: Response<ResponseBody<R>>,
}

/// Judges an answer by what the application said, or by its status.
pub(crate) fn conclude<R>(
    route: &Route,
    rules: &Rules,
    id: OperationId,
    mut response: Response<Collected<R>>,
) -> Conclusion<R> {
    let Outcome {
        ending,
        code,
        words,
    } = route.outcomes.judge(&mut response);
    let resource = resource::take(&mut response);
    let in_other_words = match (words, ending) {
        (Words::Unreachable, _) => Some(&reason::UPSTREAM_UNREACHABLE),
        (Words::Layer, Ending::NotExecuted | Ending::Forget) => Some(&reason::NOT_EXECUTED),
        (Words::Layer, Ending::Unknown) => Some(&reason::OUTCOME_BROKEN),
        // A success that no retry would be given is not shown to the first caller either.
        (Words::Application, Ending::Unknown) if !response.status().is_server_error() => {
            Some(&reason::OUTCOME_BROKEN)
        }
        (Words::Application | Words::Layer, _) => None,
    };
    let word = match ending {
        Ending::Completed => Word::Complete(completion(route, &response, resource)),
        Ending::NotExecuted => Word::Release(code),
        Ending::Forget => Word::Evict(code),
        Ending::Unknown => Word::MarkUnknown(code, resource),
    };
    if let Some(reason) = in_other_words {
        let answer = refuse(rules, reason, id);
        return Conclusion { word, answer };
    }
    if let Word::Complete(_) = word {
        // An application may have marks of its own; here they would claim a replay.
        response.headers_mut().remove(&rules.replayed);
    }
    let answer = response.map(|body| {
        ResponseBody::settled(match body {
            Collected::Whole(body, trailers) => Settled::whole(body, trailers),
            Collected::Over(body) => body,
        })
    });
    Conclusion { word, answer }
}

/// An execution that ended without an answer: it may have happened.
pub(crate) fn broken<R>(rules: &Rules, id: OperationId, code: Code) -> Conclusion<R> {
    Conclusion {
        word: Word::MarkUnknown(code, None),
        answer: refuse(rules, &reason::OUTCOME_BROKEN, id),
    }
}

/// An answer that a transaction found, as if the handler had returned it. `None` where it
/// cannot be a response.
pub(crate) fn found_inside<R>(
    found: semel_core::Response,
    aside: Extensions,
    max_response: usize,
) -> Option<Response<Collected<R>>> {
    let mut response = stored::head(&found)?;
    *response.extensions_mut() = aside;
    let body = found.body.unwrap_or_default();
    Some(response.map(|()| {
        if body.len() > max_response {
            Collected::Over(Settled::whole(body, None))
        } else {
            Collected::Whole(body, None)
        }
    }))
}

fn completion<R>(
    route: &Route,
    response: &Response<Collected<R>>,
    resource: Option<Resource>,
) -> Completion {
    Completion {
        resource,
        response: semel_core::Response {
            status: response.status().as_u16(),
            headers: route.stored.take(response.headers()),
            body: match response.body() {
                Collected::Whole(body, _) => Some(body.clone()),
                Collected::Over(_) => None,
            },
            schema_version: 0,
        },
    }
}

/// A refusal about an operation, and where to ask how it goes.
pub(crate) fn refuse<R>(
    rules: &Rules,
    reason: &'static Reason,
    id: OperationId,
) -> Response<ResponseBody<R>> {
    let location = reason.status_link.then(|| rules.status_of(id)).flatten();
    let refusal = Refusal {
        location,
        ..Refusal::new(reason).operation(id)
    };
    settled(refusal.render(rules.dialect))
}
