//! What operators do to operations: the one way to the store for the API and the console. Each is
//! guarded by the state machine, and told in the operation's history.

use std::collections::BTreeMap;

use semel_core::store::{self, Page, Query, Summary};
use semel_core::transition::Fenced;
use semel_core::{
    By, Code, Identity, Inspect, KeyScope, OperationId, Record, Resolution, Resolve, State, Status,
    Verdict,
};
use semel_worker::{Asked, Reconcilers};

use super::api::Whole;
use super::problem::Problem;

/// What came of asking.
pub(super) enum Learned {
    /// It had happened.
    Completed,
    /// It had not.
    Released,
    /// Nobody could say.
    StillUnknown(Code),
}

/// The operation of that id.
pub(super) async fn find<S: Inspect>(store: &S, id: &str) -> Result<Record, Problem> {
    let id: OperationId = id.parse().map_err(|_| Problem::not_found())?;
    store.find(id).await?.ok_or_else(Problem::not_found)
}

/// One page of operations, newest first. A key is looked for where its callers are known, which is
/// quick, and beside that by walking as for any other filter.
///
/// What the key's callers lead to is all on the first page, and on no other.
pub(super) async fn search<S: Whole>(store: &S, query: Query) -> store::Result<Page> {
    let mut known = BTreeMap::new();
    let first = query.before.is_none();
    if let Some(key) = &query.key {
        for found in store.find_key(key).await? {
            known.insert(found.fence.id, found);
        }
        if let (Some(tenant), Some(operation)) = (&query.tenant, &query.operation) {
            for scope in [KeyScope::Operation, KeyScope::Tenant] {
                let Ok(identity) = Identity::new(&**tenant, &**operation, key.clone()) else {
                    continue;
                };
                if let Some(found) = store.find_identity(&identity.scoped(scope)).await? {
                    known.insert(found.id, Summary::from(&found));
                }
            }
        }
        let anywhere = Query {
            before: None,
            ..query.clone()
        };
        known.retain(|_, found| anywhere.admits(found));
    }
    let mut page = store.list(query).await?;
    page.operations
        .retain(|found| !known.contains_key(&found.fence.id));
    if first {
        page.operations.extend(known.into_values());
        page.operations
            .sort_by_key(|found| std::cmp::Reverse(found.fence.id));
    }
    Ok(page)
}

/// Passes an operator's verdict. `attempt` is the one that the operator looked at, if it is said.
pub(super) async fn pass<S: Whole>(
    store: &S,
    id: &str,
    attempt: Option<u32>,
    verdict: Verdict,
    by: By,
) -> Result<(OperationId, Status), Problem> {
    let record = find(store, id).await?;
    let mut fence = record.fence();
    if let Some(attempt) = attempt {
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
    match store.resolve(resolve).await? {
        Resolution::Applied => {
            tracing::info!(id = %record.id, decided = %decided, "an operator decided");
            Ok((record.id, decided))
        }
        Resolution::Fenced(fenced) => Err(overtaken(fenced, &record)),
    }
}

/// Asks whoever knows about an unknown operation.
pub(super) async fn look<S: Whole>(
    store: &S,
    reconcilers: &Reconcilers<S>,
    id: &str,
    by: By,
) -> Result<(OperationId, Learned), Problem> {
    let record = find(store, id).await?;
    let status = record.state.status();
    if status != Status::Unknown {
        let detail =
            format!("only an operation that is unknown is looked for; this one is {status}");
        return Err(Problem::conflict(status, detail));
    }
    let learned = match reconcilers.ask(&record, by).await? {
        Asked::Completed => Learned::Completed,
        Asked::Released => Learned::Released,
        Asked::StillUnknown(code) => Learned::StillUnknown(code),
        Asked::Overtaken(fenced) => return Err(overtaken(fenced, &record)),
        Asked::NoWay => {
            let detail = "there is no [route.reconcile] for this operation, so nobody can be \
                          asked; find out elsewhere and resolve it";
            return Err(Problem::conflict(status, detail));
        }
    };
    Ok((record.id, learned))
}

/// The operation with its response, to be looked at: after the history tells so. Where it cannot
/// be told, nothing is shown.
pub(super) async fn uncover<S: Whole>(store: &S, id: &str, by: By) -> Result<Record, Problem> {
    let record = find(store, id).await?;
    if !store.revealed(record.id, by).await? {
        let status = record.state.status();
        let detail =
            format!("only a completed operation has a response to show; this one is {status}");
        return Err(Problem::conflict(status, detail));
    }
    tracing::info!(id = %record.id, "an operator was shown a response");
    // As it is after that: it may have been erased in between.
    find(store, id).await
}

/// Erases a stored response.
pub(super) async fn wipe<S: Whole>(store: &S, id: &str, by: By) -> Result<OperationId, Problem> {
    let record = find(store, id).await?;
    if store.erase(record.id, by).await? {
        tracing::info!(id = %record.id, "an operator erased a response");
        return Ok(record.id);
    }
    let status = record.state.status();
    let detail =
        format!("only a completed operation has a response to erase; this one is {status}");
    Err(Problem::conflict(status, detail))
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
        (_, State::Unknown(_)) => format!("somebody else was faster: it is {status} now"),
        (_, _) => format!("only an operation that is unknown is decided; this one is {status}"),
    };
    Problem::conflict(status, detail)
}
